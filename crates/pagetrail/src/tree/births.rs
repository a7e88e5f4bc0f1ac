//! [`Births`]: which processes came to be in a tree, by the kernel's notices, where it gives them.
//!
//! `/proc` lists the children of the living. Notices also tell of processes whose parent has ended
//! since, and of those that have ended themselves.

use super::find::Found;
use crate::proc::connector::{Connector, Notice};
use crate::proc::{pidfd, status};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};

/// How far the start of a process in `/proc/PID/stat`, which is given in ticks of 10 ms, may be
/// from the notice of its birth.
const START_NS: u64 = 30_000_000;
const TICK_NS: u64 = 10_000_000;

/// Processes of a tree that are no members.
#[derive(Debug)]
pub(super) struct Births {
    connector: Connector,
    born: BTreeMap<u32, Born>,
    /// How many were ever born.
    count: u64,
    /// How many have ended before they could become members, since that was last asked.
    short_lives: u64,
    /// When the members that are said to live were known to, in ns (`CLOCK_MONOTONIC`).
    members_seen: u64,
}

#[derive(Debug)]
struct Born {
    parent: u32,
    order: u64,
    /// When its birth was noticed, in ns (`CLOCK_MONOTONIC`).
    when: u64,
    /// Its process, since its first main thread has ended: there may be no notice of its end.
    without_main: Option<OwnedFd>,
}

impl Born {
    /// Whether the process lives on although its main thread has ended.
    fn outlives_its_main_thread(&mut self, pid: u32) -> bool {
        if self.without_main.is_none() {
            let pidfd = pidfd::open(pid);
            // Asked after the pidfd was opened: the PID may have been another process's by then.
            self.without_main = pidfd.filter(|_| began_about(pid, self.when));
        }
        let process = self.without_main.as_ref();
        process.is_some_and(|process| !pidfd::has_ended(process))
    }
}

/// Whether the process that has a PID now began at about a time (`CLOCK_MONOTONIC`).
///
/// A PID comes again after all others, never within the ticks by which this may err.
fn began_about(pid: u32, when: u64) -> bool {
    // `starttime` counts from boot, sleep included.
    let slept = now(ClockId::Boottime).saturating_sub(now(ClockId::Monotonic));
    let ticks = status::stat_fields(pid)
        .get(19)
        .and_then(|ticks| ticks.parse().ok());
    let began = ticks.map(|ticks: u64| ticks.saturating_mul(TICK_NS));
    began.is_some_and(|began| began.abs_diff(when.saturating_add(slept)) <= START_NS)
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Births {
    /// Asks the kernel for notices; `None` where it gives none.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            connector: Connector::open()?,
            born: BTreeMap::new(),
            count: 0,
            short_lives: 0,
            members_seen: 0,
        })
    }

    /// Notes that it is found out from now on which members live.
    pub(super) fn look_at_members(&mut self) {
        self.members_seen = now(ClockId::Monotonic);
    }

    /// Takes in what has happened. `living` are the members that were seen alive after
    /// [`Self::look_at_members`], `ended` those that ended since the last call.
    pub(super) fn update(
        &mut self,
        living: impl IntoIterator<Item = u32>,
        ended: impl IntoIterator<Item = u32>,
    ) {
        let living: BTreeSet<u32> = living.into_iter().collect();
        let mut family = living.clone();
        family.extend(ended);
        // This process belongs to no tree, even if it was started by one.
        let own = std::process::id();
        family.remove(&own);
        let Self {
            connector,
            born,
            count,
            short_lives,
            members_seen,
        } = self;
        let is_whole = connector.read(|notice, when| match notice {
            Notice::Born { pid, parent } => {
                if pid != own && (family.contains(&parent) || born.contains_key(&parent)) {
                    let order = *count;
                    *count += 1;
                    let former = born.insert(
                        pid,
                        Born {
                            parent,
                            order,
                            when,
                            without_main: None,
                        },
                    );
                    // Its end was not noticed, since it had no main thread.
                    *short_lives += u64::from(former.is_some());
                }
            }
            Notice::Ended { pid } => {
                // From here on it may be another's PID, unless other threads live on.
                if !(living.contains(&pid) && when < *members_seen) {
                    family.remove(&pid);
                }
                if let Some(process) = born.get_mut(&pid)
                    && !process.outlives_its_main_thread(pid)
                {
                    born.remove(&pid);
                    *short_lives += 1;
                }
            }
        });
        if !is_whole {
            tracing::warn!(
                "processes come faster than they can be counted: some that ended at once are not"
            );
            // Any of them may have ended, and its PID be another's.
            born.clear();
        }
        born.retain(|_, process| {
            let process = process.without_main.as_ref();
            let has_ended = process.is_some_and(pidfd::has_ended);
            *short_lives += u64::from(has_ended);
            !has_ended
        });
    }

    /// The processes that live, parents before children.
    pub(super) fn living(&self) -> Vec<Found> {
        let mut living: Vec<_> = self.born.iter().collect();
        living.sort_unstable_by_key(|(_, born)| born.order);
        let living = living.into_iter();
        living
            .map(|(pid, born)| Found {
                pid: *pid,
                parent: Some(born.parent),
                is_noticed: true,
            })
            .collect()
    }

    /// Whether a process lives that was found by a notice.
    pub(super) fn lives(&self, pid: u32) -> bool {
        self.born.contains_key(&pid)
    }

    /// Forgets a process that is a member now, or is known not to become one.
    pub(super) fn forget(&mut self, pid: u32) {
        self.born.remove(&pid);
    }

    /// How many processes have ended unseen since the last call.
    pub(super) fn take_short_lives(&mut self) -> u64 {
        std::mem::take(&mut self.short_lives)
    }
}
