//! [`Spaces`]: which of many processes share an address space.
//!
//! `kcmp(2)` orders address spaces, so that many processes are sorted by them instead of each being
//! compared with each. What does not share one when it is listed never will: a process comes to
//! share memory by being started so (`CLONE_VM`), and stops by `execve(2)`. So processes are listed
//! once, and those that shared memory then are looked at again when it matters.

use crate::proc::status::memory_id;
use crate::sys::same_memory::{compare_memory, share_memory};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// How often processes are sorted again if they execute programs, or end, meanwhile.
const TRIES: u32 = 3;

/// Which of the listed processes shared an address space when they were listed.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    /// The processes that shared memory with another one, each with all of that memory; `None`
    /// where it is not known, so that any two may.
    shared: Option<BTreeMap<u32, Vec<u32>>>,
}

impl Spaces {
    /// Looks at running processes.
    pub(super) fn among(pids: impl IntoIterator<Item = u32>) -> Self {
        let mut pids: Vec<u32> = pids.into_iter().collect();
        pids.sort_unstable();
        pids.dedup();
        Self {
            shared: (0..TRIES).find_map(|_| {
                let known = pids.iter().map(|pid| (*pid, memory_id(*pid)));
                // One that has ended can be compared with nothing.
                let known = known.filter(|(_, memory)| share_memory(*memory, *memory).is_ok());
                grouped(known, compare_memory)
            }),
        }
    }

    /// The processes among `others` that may share the address space of a process; all were
    /// listed.
    pub(super) fn suspects(&self, pid: u32, others: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let others = others.into_iter();
        match &self.shared {
            None => others.collect(),
            Some(shared) => match shared.get(&pid) {
                None => Vec::new(),
                Some(group) => others.filter(|other| group.contains(other)).collect(),
            },
        }
    }
}

/// The processes whose memory compares as equal, each with all of these; `None` if the order
/// contradicts itself, or is not known. `known`: processes, each with what is compared of it.
fn grouped<E>(
    known: impl IntoIterator<Item = (u32, u32)>,
    compare: impl Fn(u32, u32) -> Result<Ordering, E>,
) -> Option<BTreeMap<u32, Vec<u32>>> {
    let mut sorted: Vec<(u32, u32)> = Vec::new();
    for (pid, memory) in known {
        let (mut from, mut to) = (0, sorted.len());
        while from < to {
            let middle = from.midpoint(to);
            match compare(sorted[middle].1, memory).ok()? {
                Ordering::Less => from = middle + 1,
                Ordering::Equal | Ordering::Greater => to = middle,
            }
        }
        sorted.insert(from, (pid, memory));
    }
    // A program that was executed meanwhile has other memory, by which others were searched for.
    let mut orders = Vec::with_capacity(sorted.len());
    for pair in sorted.windows(2) {
        let order = compare(pair[0].1, pair[1].1).ok()?;
        orders.push((order != Ordering::Greater).then_some(order)?);
    }
    let mut groups = BTreeMap::new();
    let mut first = 0;
    for end in 1..=sorted.len() {
        if orders.get(end - 1) == Some(&Ordering::Equal) {
            continue;
        }
        let group: Vec<u32> = sorted[first..end].iter().map(|(pid, _)| *pid).collect();
        if group.len() > 1 {
            groups.extend(group.iter().map(|pid| (*pid, group.clone())));
        }
        first = end;
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::process::{Child, Command};
    use std::sync::mpsc;

    /// Compares memory by its last digit.
    fn by_digit(one: u32, other: u32) -> Result<Ordering, ()> {
        Ok((one % 10).cmp(&(other % 10)))
    }

    #[test]
    fn processes_are_grouped_by_their_memory() {
        let known = [15, 3, 25, 7, 13, 99, 35, 8].map(|id| (id, id));
        let groups = grouped(known, by_digit).unwrap();
        let expected: BTreeMap<u32, Vec<u32>> = [
            (15, vec![15, 25, 35]),
            (25, vec![15, 25, 35]),
            (35, vec![15, 25, 35]),
            (3, vec![3, 13]),
            (13, vec![3, 13]),
        ]
        .into();
        let sorted = |groups: BTreeMap<u32, Vec<u32>>| {
            let mut groups = groups;
            groups.values_mut().for_each(|group| group.sort_unstable());
            groups
        };
        assert_eq!(sorted(groups), expected);
        assert_eq!(grouped([], by_digit), Some(BTreeMap::new()));
        assert_eq!(grouped([(1, 1)], by_digit), Some(BTreeMap::new()));
    }

    #[test]
    fn an_order_that_changes_is_no_order() {
        // 5 becomes the least of all when half of them are sorted.
        let calls = Cell::new(0);
        let compare = |one: u32, other: u32| {
            calls.set(calls.get() + 1);
            let now = |memory| match memory {
                5 if calls.get() > 8 => 0,
                _ => memory,
            };
            Ok::<_, ()>(now(one).cmp(&now(other)))
        };
        let known = [9, 2, 5, 3, 7, 6, 8, 1].map(|id| (id, id));
        assert_eq!(grouped(known, compare), None);
        assert_eq!(grouped(known, |_, _| Err(())), None);
    }

    /// A thread is to `kcmp(2)` what a process is that shares memory.
    #[test]
    fn threads_share_memory_and_programs_that_were_started_do_not() {
        let own = std::process::id();
        let start = || Command::new("sleep").arg("600").spawn().unwrap();
        let mut started: Vec<Child> = (0..6).map(|_| start()).collect();
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_pid() as u32)
                .unwrap();
            let _ = ended.recv();
        });
        let thread_id = said.recv().unwrap();
        let others = started.iter().map(Child::id);
        let all: Vec<u32> = others.chain([own, thread_id]).collect();
        let spaces = Spaces::among(all.iter().copied());
        let suspects = |pid| spaces.suspects(pid, all.iter().copied());
        let known = share_memory(own, started[0].id()).is_ok();
        let found: Vec<Vec<u32>> = all.iter().map(|pid| suspects(*pid)).collect();
        drop(end);
        thread.join().unwrap();
        for child in &mut started {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if !known {
            pagetrail_skips::not_here("kcmp(2) compares no processes");
            return;
        }
        let expected = all.iter().map(|pid| match pid {
            pid if *pid == own || *pid == thread_id => vec![own, thread_id],
            _ => Vec::new(),
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_could_not_be_found_out_is_suspected() {
        let unknown = Spaces { shared: None };
        assert_eq!(unknown.suspects(1, [2, 3]), [2, 3]);
        let shared = BTreeMap::from([(1, vec![1, 3]), (3, vec![1, 3])]);
        let known = Spaces {
            shared: Some(shared),
        };
        assert_eq!(known.suspects(1, [2, 3]), [3]);
        assert_eq!(known.suspects(2, [1, 3]), []);
    }
}
