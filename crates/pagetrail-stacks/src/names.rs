//! [`MemoryNames`]: what anonymous memory of a process is for, where it shows that.
//!
//! The kernel names files and a few mappings; allocators, runtimes and threads map memory without a
//! name. Most of them leave a structure in it that nothing else has, and which is looked for here.
//! Each name rests on such evidence, never on a size; on a place only where a runtime documents
//! it. What shows none stays unnamed. Names are the same from run to run: they hold no address and
//! no thread ID.
//!
//! The process runs on meanwhile, its memory may hold anything, and it is only read.

mod allocators;
mod files;
mod java;
mod memory;
mod python;
mod threads;
mod v8;

use std::collections::BTreeMap;

use pagetrail::Region;

use self::files::Files;
use self::java::Java;
use self::memory::{Memory, ProcessMemory};
use self::threads::Threads;

/// Rounds after which a mapping is no longer examined: 0, 1, 3, 7, .. after it appeared.
const LOOKS_MAX: u32 = 12;
/// Looks at a thread's stack after which the name that it still has counts as its own.
const LOOKS_FOR_THREAD_NAME: u32 = 4;

/// Names for the anonymous memory of one process, from round to round.
///
/// A new mapping is examined in the round in which it appears, and again after 1, 3, 7, .. rounds
/// until it has a name: memory is mapped before it is put to use. A name stays as long as the
/// mapping has its addresses.
#[derive(Debug)]
pub struct MemoryNames {
    pid: u32,
    known: BTreeMap<u64, Known>,
    files: Files,
    java: Option<Java>,
    /// How often the Java machine was looked for, or could have been.
    java_looks: u32,
}

/// A mapping without a name of the kernel's.
#[derive(Clone, Debug)]
struct Known {
    end: u64,
    executable: bool,
    name: Option<String>,
    looks: u32,
    /// Rounds until names are looked for again.
    wait: u32,
    is_present: bool,
}

impl MemoryNames {
    /// Begins to name the memory of a process.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            known: BTreeMap::new(),
            files: Files::default(),
            java: None,
            java_looks: 0,
        }
    }

    /// Examines the mappings of a round that are new, or were not recognized so far. `regions` are
    /// all mappings of the process, ascending.
    pub fn examine(&mut self, regions: &[Region]) {
        if !self.update(regions) {
            return;
        }
        let Some(memory) = ProcessMemory::open(self.pid) else {
            return;
        };
        let programs = Programs::of(self.pid, regions);
        if !programs.java {
            (self.java, self.java_looks) = (None, 0);
        } else if self.java.is_none() {
            // Its heap comes a while after it, or never in a form that the table has.
            self.java_looks = self.java_looks.saturating_add(1);
            if self.java_looks.is_power_of_two() {
                self.java = Java::find(self.pid, regions, &memory);
            }
        }
        let threads = Threads::of(self.pid);
        for (index, region) in regions.iter().enumerate().filter(|(_, r)| is_unnamed(r)) {
            let Some(known) = self.known.get_mut(&region.range.start()) else {
                continue;
            };
            if known.wait > 0 || known.name.is_some() || known.looks >= LOOKS_MAX {
                continue;
            }
            known.looks += 1;
            known.wait = 1 << (known.looks - 1);
            let is_settled = known.looks >= LOOKS_FOR_THREAD_NAME;
            known.name = match threads.stack_in(region, is_settled) {
                threads::Stack::None => self
                    .files
                    .zeroed_data(self.pid, &regions[..index], region)
                    .or_else(|| contents(region, &memory, &programs, self.java.as_ref())),
                // The thread may give itself a name yet.
                threads::Stack::Unnamed => None,
                threads::Stack::Of(name) => Some(name),
            };
        }
    }

    /// The name of a mapping that was examined; the kernel's if it has one, empty if there is none.
    pub fn name<'a>(&'a self, region: &'a Region) -> &'a str {
        if !is_unnamed(region) {
            return &region.name;
        }
        let known = self.known.get(&region.range.start());
        let known = known.filter(|known| known.end == region.range.end());
        known
            .and_then(|known| known.name.as_deref())
            .unwrap_or_default()
    }

    /// Follows the mappings of a round; returns whether one is to be examined.
    fn update(&mut self, regions: &[Region]) -> bool {
        for known in self.known.values_mut() {
            known.is_present = false;
        }
        let mut is_any_due = false;
        for region in regions.iter().filter(|region| is_unnamed(region)) {
            let new = || Known {
                end: region.range.end(),
                executable: region.permissions.execute,
                name: None,
                looks: 0,
                wait: 0,
                is_present: true,
            };
            let known = self.known.entry(region.range.start()).or_insert_with(new);
            if known.end != region.range.end() || known.executable != region.permissions.execute {
                *known = new();
            }
            known.is_present = true;
            known.wait = known.wait.saturating_sub(1);
            is_any_due |= known.wait == 0 && known.name.is_none() && known.looks < LOOKS_MAX;
        }
        self.known.retain(|_, known| known.is_present);
        is_any_due
    }
}

/// Runtimes that a process has, by the names of its files. They say where to look; what is found
/// there decides.
#[derive(Clone, Copy, Debug, Default)]
struct Programs {
    java: bool,
    python: bool,
    go: bool,
}

impl Programs {
    fn of(pid: u32, regions: &[Region]) -> Self {
        let mut programs = Self::default();
        let mut has_go_arena = false;
        let mut last = "";
        for region in regions {
            if region.name == last {
                continue;
            }
            last = &region.name;
            let file = last.rsplit('/').next().unwrap_or_default();
            programs.java |= file == "libjvm.so";
            programs.python |= file.starts_with("python") || file.starts_with("libpython");
            has_go_arena |= region.range.start() == allocators::GO_ARENAS;
        }
        programs.go = has_go_arena && files::is_go(pid);
        programs
    }
}

/// What a mapping's contents show it to be.
fn contents(
    region: &Region,
    memory: &impl Memory,
    programs: &Programs,
    java: Option<&Java>,
) -> Option<String> {
    let range = region.range;
    if let Some(name) = java.and_then(|java| java.name(range)) {
        return Some(name.into());
    }
    if region.permissions.execute {
        // Code in no file was made while the program ran.
        return Some("[jit code]".into());
    }
    let name = if allocators::is_arena(range, memory) {
        "[malloc arena]"
    } else if allocators::is_mapped_blocks(range, memory) {
        "[malloc large blocks]"
    } else if allocators::is_jemalloc(range, memory) {
        "[jemalloc]"
    } else if programs.python && python::is_arena(range, memory) {
        "[python objects]"
    } else if v8::is_heap(range, memory) {
        "[v8 heap]"
    } else if programs.go && allocators::is_go(range) {
        "[go heap]"
    } else {
        return None;
    };
    Some(name.into())
}

/// Whether the kernel has no name for a mapping that is a process's own.
fn is_unnamed(region: &Region) -> bool {
    region.name.is_empty() && region.inode == 0 && !region.permissions.shared
}

#[cfg(test)]
mod tests;
