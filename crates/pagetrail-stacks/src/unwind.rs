//! [`Unwinder`]: finds callers from registers and a copy of the stack, by the unwind tables of the
//! program's files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
use pagetrail::PageRange;

use crate::elf::UnwindSections;
use crate::record::Registers;

/// The longest chain, as the kernel's own (`kernel.perf_event_max_stack`).
const FRAMES_MAX: usize = 127;

/// How far the copy of a stack was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Bytes up to the end of the farthest word.
    pub(crate) bytes: usize,
    /// Bytes that the copy needs for the word at which unwinding ended because it has it not.
    pub(crate) missing: Option<usize>,
}

/// Unwind tables of the files that a process executes.
pub(crate) struct Unwinder {
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    cache: CacheX86_64,
    /// Tables by path and inode, read once.
    sections: HashMap<(PathBuf, u64), Option<UnwindSections>>,
    mapped: Vec<u64>,
}

impl Unwinder {
    pub(crate) fn new() -> Self {
        Self {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            sections: HashMap::new(),
            mapped: Vec::new(),
        }
    }

    /// Forgets where files are mapped.
    pub(crate) fn clear(&mut self) {
        for start in self.mapped.drain(..) {
            self.unwinder.remove_module(start);
        }
    }

    /// Says that a file, named by path and inode, is mapped at `range`; `bias` is the difference
    /// between an address in the process and in the file.
    pub(crate) fn add(&mut self, file: (PathBuf, u64), range: PageRange, bias: u64) {
        let read = |file: &(PathBuf, u64)| UnwindSections::read(&file.0);
        let sections = self
            .sections
            .entry(file)
            .or_insert_with_key(read)
            .as_ref()
            .cloned();
        let Some(sections) = sections else { return };
        let (eh_frame_svma, eh_frame) = sections.eh_frame;
        let (header_svma, header) = sections.eh_frame_header.unzip();
        let module = Module::new(
            String::new(),
            range.start()..range.end(),
            bias,
            ExplicitModuleSectionInfo {
                eh_frame_svma: Some(eh_frame_svma),
                eh_frame: Some(eh_frame),
                eh_frame_hdr_svma: header_svma,
                eh_frame_hdr: header,
                ..ExplicitModuleSectionInfo::default()
            },
        );
        self.unwinder.add_module(module);
        self.mapped.push(range.start());
    }

    /// Appends the instruction pointer and the return addresses to `chain`, as far as the copy of
    /// the stack reaches; says how far it was read.
    pub(crate) fn unwind(
        &mut self,
        registers: Registers,
        stack: &[u8],
        chain: &mut Vec<u64>,
    ) -> Reach {
        let (mut bytes, mut missing) = (0, None);
        let mut read_stack = |address: u64| {
            let offset = address.checked_sub(registers.sp).ok_or(())?;
            let offset = usize::try_from(offset).map_err(drop)?;
            let word = stack.get(offset..).and_then(|rest| rest.first_chunk());
            let Some(word) = word else {
                missing = offset.checked_add(size_of::<u64>());
                return Err(());
            };
            bytes = bytes.max(offset + size_of::<u64>());
            Ok(u64::from_ne_bytes(*word))
        };
        let start = UnwindRegsX86_64::new(registers.ip, registers.sp, registers.bp);
        let mut frames =
            self.unwinder
                .iter_frames(registers.ip, start, &mut self.cache, &mut read_stack);
        while chain.len() < FRAMES_MAX
            && let Ok(Some(frame)) = frames.next()
        {
            chain.push(frame.address());
        }
        Reach { bytes, missing }
    }
}
