//! [`Scope`]: which processes belong to a tree, by what `/proc` or a control group lists now.

use crate::proc::status::memory_id;
use crate::proc::{cgroup, status};
use crate::sys::same_memory::share_memory;
use crate::watch::has_memory;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Which processes belong to a tree.
#[derive(Debug)]
pub(super) enum Scope {
    /// Only the processes with which it began.
    Roots,
    /// The processes with which it began, and their descendants.
    Descendants,
    /// The processes of a control group.
    Cgroup(PathBuf),
}

impl Scope {
    /// The processes that belong to the tree now, parents before children, each
    /// with its parent. `known` are the processes that belong to it in any case, which are not
    /// listed again.
    ///
    /// A process of which all ancestors up to a known one have ended is not found, unless by a
    /// control group.
    pub(super) fn others(&self, known: impl IntoIterator<Item = u32>) -> Vec<Found> {
        let mut parents: BTreeMap<u32, Option<u32>> =
            known.into_iter().map(|pid| (pid, None)).collect();
        // This process belongs to no tree, even if it was started by one.
        parents.insert(std::process::id(), None);
        match self {
            Self::Roots => Vec::new(),
            Self::Descendants => descendants(parents),
            Self::Cgroup(path) => {
                let mut pids = cgroup::processes(path);
                pids.retain(|pid| !parents.contains_key(pid));
                // Parents come first, mostly: their PIDs are lower.
                pids.sort_unstable();
                pids.dedup();
                pids.into_iter().map(Found::now).collect()
            }
        }
    }
}

/// A process that belongs to a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) pid: u32,
    /// Its parent, if it has one in this PID namespace.
    pub(super) parent: Option<u32>,
    /// Whether it is known from the kernel's notice of its birth, and from no list.
    pub(super) is_noticed: bool,
}

impl Found {
    /// A process with its present parent.
    fn now(pid: u32) -> Self {
        Self {
            pid,
            parent: parent(pid),
            is_noticed: false,
        }
    }

    /// Whether it is still the process that was found, as far as its parent shows: that is another
    /// one only if the first has ended. `lives` says whether it is still the process that the
    /// notice was about; it is not asked where the parent has not changed.
    pub(super) fn is_still_there(&self, lives: impl FnOnce() -> bool) -> bool {
        match parent(self.pid) {
            None => self.parent.is_none(),
            parent if parent == self.parent => true,
            Some(_) => self.parent.is_some_and(|former| !has_memory(former)) && lives(),
        }
    }

    /// Whether it is in an uninterruptible wait, as the parent of a `vfork(2)` is: it would not
    /// stop for the tracker, which would wait for it.
    pub(super) fn cannot_stop(&self) -> bool {
        status::Status::of(self.pid).is_ok_and(|status| status.state == 'D')
    }

    /// Whether it shares the address space of its parent, as the child of a `vfork(2)` or of
    /// `posix_spawn(3)` does before its `execve(2)`, or that of one of `members`, as any process
    /// may (`CLONE_VM`). What it writes is their memory.
    pub(super) fn shares_memory(&self, members: impl IntoIterator<Item = u32>) -> bool {
        self.parent
            .is_some_and(|parent| shares_with_parent(self.pid, parent))
            || sharer(self.pid, members).is_some()
    }
}

/// The first of `members` that shares the address space of a process.
///
/// Where `kcmp(2)` is missing or not allowed there is none. No technique then loses a write: the
/// memory has one userfaultfd, and soft-dirty bits need a kernel with `kcmp(2)`
/// (`CONFIG_CHECKPOINT_RESTORE`).
pub(super) fn sharer(pid: u32, members: impl IntoIterator<Item = u32>) -> Option<u32> {
    // A main thread that has ended before others has no memory.
    let memory = memory_id(pid);
    members
        .into_iter()
        .filter(|member| *member != pid)
        .find(|member| share_memory(memory, memory_id(*member)).unwrap_or(false))
}

fn shares_with_parent(pid: u32, parent: u32) -> bool {
    match share_memory(pid, parent) {
        Ok(shared) => shared,
        // Built without kcmp(2), or a filter forbids it: a parent that waits in vfork(2) does so
        // for its last child.
        Err(Errno::NOSYS | Errno::PERM) => is_in_vfork(parent),
        Err(_) => false,
    }
}

/// The descendants of processes, breadth first.
fn descendants(mut parents: BTreeMap<u32, Option<u32>>) -> Vec<Found> {
    let own = std::process::id();
    let mut queue: Vec<u32> = parents.keys().copied().filter(|pid| *pid != own).collect();
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(&pid) = queue.get(next) {
        next += 1;
        for child in status::children(pid) {
            if let std::collections::btree_map::Entry::Vacant(entry) = parents.entry(child) {
                entry.insert(Some(pid));
                queue.push(child);
                found.push(Found {
                    pid: child,
                    parent: Some(pid),
                    is_noticed: false,
                });
            }
        }
    }
    found
}

/// The present parent of a process.
fn parent(pid: u32) -> Option<u32> {
    let fields = status::stat_fields(pid);
    let parent = fields.get(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// Whether a thread of a process waits for the child of its `vfork(2)`.
fn is_in_vfork(pid: u32) -> bool {
    let threads = status::threads(pid).unwrap_or_default();
    threads.iter().any(|tid| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan"))
            .is_ok_and(|place| place.contains("vfork"))
    })
}
