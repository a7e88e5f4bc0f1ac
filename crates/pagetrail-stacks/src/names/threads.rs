//! Stacks by thread. glibc puts the descriptor of a thread at the upper end of the stack that it
//! mapped for it, and tells the kernel where in it the thread's list of robust mutexes begins.

use std::fs;

use pagetrail::Region;

use crate::sys::robust_list;

/// A thread's descriptor and its thread-local variables lie within so many bytes of the end.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;
const NAME_CHARS_MAX: usize = 32;

/// The threads of a process, other than its first, whose stack the kernel names.
#[derive(Debug, Default)]
pub(super) struct Threads {
    pid: u32,
    /// Addresses in descriptors, ascending, and the threads' IDs.
    descriptors: Vec<(u64, u32)>,
}

/// Whose stack a mapping is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// No thread's.
    None,
    /// That of a thread which has only the process's name so far.
    Unnamed,
    /// The name of the mapping.
    Of(String),
}

impl Threads {
    /// Looks for the threads of a process.
    pub(super) fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let ids = tasks.into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let others = ids.filter(|id| *id != pid);
        let descriptors = others.filter_map(|id| Some((robust_list::head(id)?, id)));
        let mut descriptors: Vec<_> = descriptors.collect();
        descriptors.sort_unstable();
        Self { pid, descriptors }
    }

    /// Whose stack a mapping is. A name that equals the process's counts if `is_settled`.
    pub(super) fn stack_in(&self, region: &Region, is_settled: bool) -> Stack {
        // Only threads of mappings that are examined are asked for their names: there may be
        // thousands of others.
        self.stack_named(region, is_settled, |id| name(self.pid, id))
    }

    fn stack_named(
        &self,
        region: &Region,
        is_settled: bool,
        name: impl Fn(u32) -> String,
    ) -> Stack {
        let (start, end) = (region.range.start(), region.range.end());
        let first = self.descriptors.partition_point(|(at, _)| *at < start);
        let inside = &self.descriptors[first..];
        let inside = &inside[..inside.partition_point(|(at, _)| *at < end)];
        match inside {
            [] => Stack::None,
            [(at, _)] if end - at > DESCRIPTOR_BYTES_MAX => Stack::None,
            [(_, id)] => match name(*id) {
                // The name that a thread has until it gets another.
                own if !is_settled && own == name(self.pid) => Stack::Unnamed,
                own => Stack::Of(format!("[stack: {own}]")),
            },
            // Without guard pages between them, the kernel merges stacks that are neighbours.
            _ => Stack::Of("[stacks of threads]".into()),
        }
    }
}

fn name(pid: u32, id: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{id}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim_end().chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use pagetrail::{PageRange, Permissions};

    use super::*;

    #[test]
    fn a_stack_has_its_descriptor_near_its_end() {
        let permissions = Permissions {
            read: true,
            write: true,
            execute: false,
            shared: false,
        };
        let range = PageRange::new(0x1000_0000, 0x1080_0000).expect("not empty");
        let region = Region::new(range, permissions);
        let name = |id: u32| ["prog", "worker", "other"][id as usize].to_owned();
        let stack = |descriptors: &[(u64, u32)], is_settled| {
            let threads = Threads {
                pid: 0,
                descriptors: descriptors.to_vec(),
            };
            threads.stack_named(&region, is_settled, name)
        };
        let near = range.end() - 0x900;
        let low = range.start() + 0x900;
        let of = |name: &str| Stack::Of(name.into());
        let one = [(0x1000, 2), (near, 1), (range.end(), 2)];
        assert_eq!(stack(&one, false), of("[stack: worker]"));
        assert_eq!(stack(&[(near, 0)], false), Stack::Unnamed);
        assert_eq!(stack(&[(near, 0)], true), of("[stack: prog]"));
        assert_eq!(stack(&[(low, 1)], true), Stack::None);
        let two = [(low, 1), (near, 2)];
        assert_eq!(stack(&two, true), of("[stacks of threads]"));
        assert_eq!(stack(&[], true), Stack::None);
    }
}
