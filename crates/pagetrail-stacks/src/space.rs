//! [`Space`]: the code of a process, and the table of stacks, which grows with each new chain of
//! addresses.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagetrail::Region;
use pagetrail_trail::{Frame, Module, Stack, StackTable, Thread};

use crate::elf::Elf;
use crate::perf_map::{self, PerfMap};
use crate::timeout::{TIMEOUT, within};
use crate::unwind::Unwinder;

/// Most stacks that are distinguished; of further ones only the innermost frame is kept.
const STACKS_MAX: usize = 1 << 18;
/// How long a map of functions may take, which may have millions of lines.
const TIMEOUT_OF_MAP: Duration = Duration::from_secs(10);
/// Chains of addresses whose stack is remembered.
const CHAINS_MAX: usize = 1 << 16;

/// An executable mapping.
struct Code {
    region: Region,
    /// The number of its module.
    module: u32,
    /// Whether a JIT compiler may have made the code.
    is_made: bool,
}

/// The code of a process.
pub(crate) struct Space {
    pid: u32,
    code: Vec<Code>,
    /// `None` once the file did not answer.
    perf_map: Option<PerfMap>,
    /// Whether mappings and the map of functions were read since the last call of
    /// [`Self::look_again`].
    is_fresh: bool,
    is_map_fresh: bool,
    /// Tables for unwinding; `None` with frame pointers.
    pub(crate) unwinder: Option<Unwinder>,
    /// Files by path and inode: one that was rebuilt has another.
    elves: HashMap<(PathBuf, u64), Elf>,
    modules: HashMap<(String, Vec<u8>, u64), u32>,
    frames: HashMap<(Option<u32>, u64, String), u32>,
    stacks: HashMap<(bool, Vec<u32>), u32>,
    /// Stacks by their addresses, while no mapping changes: of the program's own writes, and of the
    /// kernel's.
    chains: [HashMap<Box<[u64]>, u32>; 2],
    threads: HashSet<u32>,
    /// Entries that no trail has yet.
    new: StackTable,
}

impl Space {
    /// Reads the mappings of a process.
    pub(crate) fn new(pid: u32, unwinder: Option<Unwinder>) -> Self {
        let mut space = Self {
            pid,
            code: Vec::new(),
            perf_map: Some(PerfMap::default()),
            is_fresh: false,
            is_map_fresh: false,
            unwinder,
            elves: HashMap::new(),
            modules: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            chains: Default::default(),
            threads: HashSet::new(),
            new: StackTable::default(),
        };
        space.remap();
        space
    }

    /// Allows one more look at the mappings for addresses that are in none.
    pub(crate) fn look_again(&mut self) {
        self.is_fresh = false;
        self.is_map_fresh = false;
    }

    /// Reads the mappings again. A process that has ended keeps its last ones.
    pub(crate) fn remap(&mut self) {
        self.is_fresh = true;
        let Ok(mut regions) = Region::of_process(self.pid) else {
            return;
        };
        regions.retain(|region| region.permissions.execute);
        let known = self.code.iter().map(|code| &code.region);
        // What looks like a caller where there are no frame pointers often lies in no mapping.
        if regions.is_empty() || known.eq(&regions) {
            return;
        }
        self.chains = Default::default();
        self.code.clear();
        if let Some(unwinder) = &mut self.unwinder {
            unwinder.clear();
        }
        for region in regions {
            let code = self.code_of(region);
            self.code.push(code);
        }
    }

    /// The number of the stack with these addresses: the instruction pointer and return addresses,
    /// innermost first.
    pub(crate) fn stack(&mut self, in_kernel: bool, chain: &[u64]) -> u32 {
        if let Some(stack) = self.chains[usize::from(in_kernel)].get(chain) {
            return *stack;
        }
        let mut frames = Vec::with_capacity(chain.len());
        for (depth, address) in chain.iter().enumerate() {
            // A return address may already belong to the next function.
            let frame = self.frame(address.saturating_sub(u64::from(depth > 0)));
            // What a frame pointer leads to in a program that has none is not a caller.
            if frame.module.is_none() && depth > 0 {
                break;
            }
            frames.push(self.number_of_frame(frame));
            if self.stacks.len() >= STACKS_MAX {
                break;
            }
        }
        let stack = self.number_of_stack(in_kernel, frames);
        let chains = &mut self.chains[usize::from(in_kernel)];
        if chains.len() >= CHAINS_MAX {
            chains.clear();
        }
        chains.insert(chain.into(), stack);
        stack
    }

    /// Notes the name of a thread that has dirtied pages.
    pub(crate) fn thread(&mut self, id: u32) {
        if self.threads.insert(id) {
            let comm = fs::read(format!("/proc/{}/task/{id}/comm", self.pid));
            let name = String::from_utf8_lossy(&comm.unwrap_or_default())
                .trim_end()
                .to_owned();
            self.new.threads.push(Thread { id, name });
        }
    }

    /// Says that threads may have other names by now.
    pub(crate) fn rename_threads(&mut self) {
        self.threads.clear();
    }

    /// Entries since the last call.
    pub(crate) fn take_new(&mut self) -> StackTable {
        std::mem::take(&mut self.new)
    }

    fn code_of(&mut self, region: Region) -> Code {
        let name = &region.name;
        let is_kernels = name.starts_with("[vdso") || name.starts_with("[vsyscall");
        let is_made = !is_kernels
            && (!name.starts_with('/')
                || ["/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"]
                    .iter()
                    .any(|made| name.starts_with(made)));
        let mut module = (name.clone(), Vec::new(), 0);
        if is_made {
            // Names of anonymous memory say nothing about its code.
            if !name.starts_with('/') {
                module.0.clear();
            }
        } else if !is_kernels {
            let path = self.path(name);
            let elf = self.elf(&path, region.inode);
            module.1.clone_from(&elf.build_id);
            module.2 = elf.file_bytes;
            let bias = elf
                .address(region.offset)
                .map(|address| region.range.start().wrapping_sub(address));
            if let (Some(unwinder), Some(bias)) = (&mut self.unwinder, bias) {
                unwinder.add((path, region.inode), region.range, bias);
            }
        }
        Code {
            module: self.number_of_module(module),
            region,
            is_made,
        }
    }

    /// Where a file of the process can be opened: also in its own root directory.
    fn path(&self, name: &str) -> PathBuf {
        let inside = PathBuf::from(format!("/proc/{}/root{name}", self.pid));
        let own = inside.clone();
        let found = within(&inside, TIMEOUT, move || own.exists().then_some(own));
        found.unwrap_or_else(|| Path::new(name).into())
    }

    fn elf(&mut self, path: &Path, inode: u64) -> Elf {
        let read = |key: &(PathBuf, u64)| Elf::read(&key.0).unwrap_or_default();
        let elf = self.elves.entry((path.into(), inode));
        elf.or_insert_with_key(read).clone()
    }

    fn jit_name(&self, address: u64) -> Option<&str> {
        self.perf_map.as_ref()?.name(address)
    }

    /// Reads the map of functions. If its file does not answer, code of JIT compilers has no names
    /// from then on.
    fn update_perf_map(&mut self) {
        let (pid, map) = (self.pid, self.perf_map.take());
        self.perf_map = map.and_then(|mut map| {
            within(&perf_map::path(pid, pid), TIMEOUT_OF_MAP, move || {
                map.update(pid);
                Some(map)
            })
        });
    }

    fn frame(&mut self, address: u64) -> Frame {
        let mut found = self.find(address);
        if found.is_none() && !self.is_fresh {
            self.remap();
            found = self.find(address);
        }
        let Some(code) = found.and_then(|index| self.code.get(index)) else {
            return Frame {
                module: None,
                address,
                function: String::new(),
            };
        };
        let module = Some(code.module);
        if code.is_made {
            if self.jit_name(address).is_none() && !self.is_map_fresh {
                self.is_map_fresh = true;
                self.update_perf_map();
            }
            return Frame {
                module,
                address,
                function: self.jit_name(address).unwrap_or_default().into(),
            };
        }
        let start = code.region.range.start();
        Frame {
            module,
            address: (address - start).saturating_add(code.region.offset),
            function: String::new(),
        }
    }

    /// The index of the mapping that holds an address.
    fn find(&self, address: u64) -> Option<usize> {
        let after = self
            .code
            .partition_point(|code| code.region.range.start() <= address);
        let index = after.checked_sub(1)?;
        (address < self.code[index].region.range.end()).then_some(index)
    }

    fn number_of_module(&mut self, key: (String, Vec<u8>, u64)) -> u32 {
        let next = self.modules.len() as u32;
        *self.modules.entry(key).or_insert_with_key(|key| {
            self.new.modules.push(Module {
                name: key.0.clone(),
                build_id: key.1.clone(),
                file_bytes: key.2,
            });
            next
        })
    }

    fn number_of_frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        let key = (frame.module, frame.address, frame.function.clone());
        *self.frames.entry(key).or_insert_with(|| {
            self.new.frames.push(frame);
            next
        })
    }

    fn number_of_stack(&mut self, in_kernel: bool, frames: Vec<u32>) -> u32 {
        let next = self.stacks.len() as u32;
        *self
            .stacks
            .entry((in_kernel, frames))
            .or_insert_with_key(|(in_kernel, frames)| {
                self.new.stacks.push(Stack {
                    in_kernel: *in_kernel,
                    frames: frames.clone(),
                });
                next
            })
    }
}
