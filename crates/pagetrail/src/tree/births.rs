//! [`Births`]: which processes came to be in a tree, by the kernel's notices, where it gives them.
//!
//! `/proc` lists the children of the living. Notices also tell of processes whose parent has ended
//! since, and of those that have ended themselves.

use super::find::Found;
use crate::proc::connector::{Connector, Notice};
use std::collections::{BTreeMap, BTreeSet};

/// Processes of a tree that are no members.
#[derive(Debug)]
pub(super) struct Births {
    connector: Connector,
    born: BTreeMap<u32, Born>,
    /// How many were ever born.
    count: u64,
    /// How many have ended before they could become members, since that was last asked.
    short_lives: u64,
}

#[derive(Debug)]
struct Born {
    parent: u32,
    order: u64,
}

impl Births {
    /// Asks the kernel for notices; `None` where it gives none.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            connector: Connector::open()?,
            born: BTreeMap::new(),
            count: 0,
            short_lives: 0,
        })
    }

    /// Takes in what has happened. `family` are the members, those included that ended since the
    /// last call.
    pub(super) fn update(&mut self, family: impl IntoIterator<Item = u32>) {
        let mut family: BTreeSet<u32> = family.into_iter().collect();
        // This process belongs to no tree, even if it was started by one.
        let own = std::process::id();
        family.remove(&own);
        let Self {
            connector,
            born,
            count,
            short_lives,
        } = self;
        let is_whole = connector.read(|notice| match notice {
            Notice::Born { pid, parent } => {
                if pid != own && (family.contains(&parent) || born.contains_key(&parent)) {
                    let order = *count;
                    *count += 1;
                    born.insert(pid, Born { parent, order });
                }
            }
            Notice::Ended { pid } => {
                // From here on it may be another's PID.
                family.remove(&pid);
                *short_lives += u64::from(born.remove(&pid).is_some());
            }
        });
        if !is_whole {
            tracing::warn!(
                "processes come faster than they can be counted: some that ended at once are not"
            );
            // Any of them may have ended, and its PID be another's.
            born.clear();
        }
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
