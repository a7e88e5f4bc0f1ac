//! The call stacks of a recording, and the pages that each of them dirtied in a round.
//!
//! Frames are stored as places in files, with the build IDs of the files, so that names can be
//! found later and on another machine. Only code that is in no file, as that of a JIT compiler, is
//! stored by name. Finding names is left to the consumer.

use pagetrail::PageSet;

/// The largest number of frames in a stack.
pub const STACK_FRAMES_MAX: usize = 1024;

/// The longest build ID, in bytes.
pub const BUILD_ID_BYTES_MAX: usize = 64;

/// Everything that stacks consist of. Entries refer to each other by number, counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackTable {
    /// Files and other origins of code.
    pub modules: Vec<Module>,
    /// Places in code.
    pub frames: Vec<Frame>,
    /// Call stacks.
    pub stacks: Vec<Stack>,
    /// Threads that dirtied pages, in order of appearance; the last entry of a thread has its name.
    pub threads: Vec<Thread>,
}

impl StackTable {
    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
            && self.frames.is_empty()
            && self.stacks.is_empty()
            && self.threads.is_empty()
    }

    /// Appends entries, which refer to entries of the whole table.
    pub fn append(&mut self, mut more: Self) {
        self.modules.append(&mut more.modules);
        self.frames.append(&mut more.frames);
        self.stacks.append(&mut more.stacks);
        self.threads.append(&mut more.threads);
    }

    /// The frames of a stack, innermost first; none for a number that the table does not have.
    pub fn frames_of(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        let stack = self.stacks.get(stack as usize);
        let frames = stack.map_or(&[][..], |stack| &stack.frames);
        frames
            .iter()
            .filter_map(|frame| self.frames.get(*frame as usize))
    }
}

/// A file or another origin of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// The file's path as the process saw it, or the kernel's name in brackets, or empty for code
    /// in anonymous memory.
    pub name: String,
    /// The build ID that the linker put into the file; empty if there is none.
    pub build_id: Vec<u8>,
    /// Length of the file, by which another file is recognised where there is no build ID; 0 for
    /// code that is in no file.
    pub file_bytes: u64,
}

/// A place in code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The number of the module; `None` for an address in no mapping that was executable.
    pub module: Option<u32>,
    /// Where an instruction lies: its offset in the module's file, or its address in the process
    /// if there is no file. For a caller it lies within the call: the return address less one.
    pub address: u64,
    /// The function's name if the recorder knows it, as for code of a JIT compiler; else empty.
    pub function: String,
}

/// A call stack at a first write to a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Whether the kernel wrote, for a system call or a signal; then the first frame entered it.
    pub in_kernel: bool,
    /// Numbers of frames, innermost first.
    pub frames: Vec<u32>,
}

/// A thread of the tracked process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// The thread's ID.
    pub id: u32,
    /// The thread's name, as in `/proc/PID/task/TID/comm`.
    pub name: String,
}

/// Which code dirtied pages of a round. A page of the write set that is in none of the sets is
/// unattributed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// One of so many page faults was sampled, at least 1; the largest if it changed. At 1 every
    /// fault was.
    pub period: u32,
    /// Samples that were lost because the recorder could not keep up.
    pub lost: u64,
    /// The pages by stack and thread; no page is in two sets.
    pub writers: Vec<StackWrites>,
}

impl Attribution {
    /// Number of pages that are attributed.
    pub fn page_count(&self) -> u64 {
        let pages = self.writers.iter().map(|writer| writer.pages.page_count());
        pages.fold(0, u64::saturating_add)
    }

    /// How many page writes a sampled page stands for, in a round of `page_writes`: as many as the
    /// period says, but all together no more than there were. The period is the longest in the
    /// round, so that it can say too much.
    pub fn weight(&self, page_writes: u64) -> Weight {
        let attributed = self.page_count();
        let by_period = u128::from(attributed) * u128::from(self.period);
        match by_period <= u128::from(page_writes) {
            true => Weight {
                page_writes: self.period.into(),
                pages: 1,
            },
            false => Weight {
                page_writes,
                pages: attributed.max(1),
            },
        }
    }
}

/// How many page writes sampled pages stand for: [`Attribution::weight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    page_writes: u64,
    pages: u64,
}

impl Weight {
    /// The page writes that so many sampled pages stand for.
    pub fn of(self, pages: u64) -> u64 {
        let all = u128::from(pages) * u128::from(self.page_writes) / u128::from(self.pages);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The page writes that one sampled page stands for, on average.
    pub fn mean(self) -> f64 {
        self.page_writes as f64 / self.pages as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::PageRange;

    #[test]
    fn samples_stand_for_no_more_pages_than_were_written() {
        let writes = |pages: u64| StackWrites {
            pages: PageRange::new(0, pages * pagetrail::page_size())
                .into_iter()
                .collect(),
            ..StackWrites::default()
        };
        let attribution = Attribution {
            period: 10,
            lost: 0,
            writers: vec![writes(6), writes(3)],
        };
        assert_eq!(attribution.weight(1000).of(6), 60);
        assert_eq!(attribution.weight(90).of(6), 60);
        // Short periods in the same round have sampled more of them.
        let of_45 = [6, 3].map(|pages| attribution.weight(45).of(pages));
        assert_eq!(of_45, [30, 15]);
        let of_10: u64 = [6, 3]
            .map(|pages| attribution.weight(10).of(pages))
            .iter()
            .sum();
        assert!((9..=10).contains(&of_10));
        let most = Attribution {
            period: u32::MAX,
            ..attribution
        };
        assert_eq!(most.weight(u64::MAX).of(u64::MAX), u64::MAX);
        assert_eq!(Attribution::default().weight(5).of(5), 0);
    }
}

/// Pages that one thread dirtied from one call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackWrites {
    /// The number of the stack.
    pub stack: u32,
    /// The thread's ID.
    pub thread: u32,
    /// The pages.
    pub pages: PageSet,
}
