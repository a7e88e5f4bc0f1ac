//! [`Attached`]: a target between the attach and the first tracked write.

use super::Watch;
use super::birth;
use super::builder::{Membership, permission_or};
use super::choice;
use super::config::Config;
use super::space::Space;
use crate::PageSet;
use crate::attach::launch::{Image, Launched};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::heap::heaps::Heaps;
use crate::proc::maps::Maps;
use crate::proc::pidfd;
use crate::round::RoundBuffer;
use crate::technique::price;
use crate::types::{AccessKind, Inherited};
#[cfg(doc)]
use crate::watch::builder::WatchBuilder;
use rustix::fd::OwnedFd;
use std::collections::BTreeSet;
use std::time::Duration;

/// A target that is attached to and not tracked yet; made by [`WatchBuilder::attach`].
#[must_use]
pub struct Attached {
    pub(super) picked: choice::Picked,
    pub(super) config: Config,
    pub(super) own: bool,
    pub(super) pid: Option<u32>,
    pub(super) within: Option<PageSet>,
    pub(super) image: Image,
    pub(super) launched: Option<Launched>,
    /// Of a process that was running already.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) membership: Membership,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("pid", &self.pid)
            .field("technique", &self.picked.technique)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// The PID of the target; `None` for the own process.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Starts tracking; later writes are detected.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended, or its memory has been replaced by `execve(2)`.
    pub fn start(self) -> Result<Watch> {
        let Self {
            picked,
            config,
            own,
            pid,
            within,
            image,
            mut launched,
            pidfd,
            membership,
        } = self;
        let technique = picked.technique;
        let begin_budget = match within {
            Some(_) => Budget::of_ranges,
            None => Budget::new,
        };
        let space = config
            .tracker(technique, image.fd, pid)
            .and_then(|tracker| Space::open(pid, within, tracker, &config));
        let mut space = space.map_err(|error| permission_or(error, pid))?;
        let mut heaps = Heaps::new(pid.unwrap_or_else(std::process::id));
        if config.merge_subpages {
            heaps.merge();
        }
        // This must happen before the first write is detected.
        if let Ok(Some(regions)) = Maps::open(pid).and_then(|mut maps| maps.changed()) {
            heaps.begin(&regions);
        }
        let mut rounds = RoundBuffer::new();
        let armed = match membership.is_new {
            true => {
                let pending = rounds.of(space.access_kind());
                space.arm_as_fresh(pending).map(|()| Duration::ZERO)
            }
            false => space.arm(),
        };
        let stopped = armed.map_err(|error| permission_or(error, pid))?;
        // After arming: what is written from now on is detected.
        let inherited = match pid.zip(membership.parent) {
            Some((pid, parent)) => birth::inherited(pid, parent, space.armed()),
            None => Inherited::default(),
        };
        // To share a page says that it was not written, and nothing about reads.
        if membership.is_new && space.access_kind() == AccessKind::Writes {
            rounds.of(space.access_kind()).remove(&inherited.shared);
        }
        if let Some(launched) = &mut launched {
            launched.go();
        }
        if let (Some(pid), Some(true)) = (pid, pidfd.as_ref().map(pidfd::has_ended)) {
            // Its PID may have been reused at any step, and what is armed may be another process's.
            return Err(Error::Gone { pid });
        }
        let watched = pid.unwrap_or_else(std::process::id);
        let budget = config.allowance().map(|allowance| {
            let has_cost = config.false_positive_cost.is_some();
            begin_budget(allowance, watched, price::at_work(technique), has_cost)
        });
        Ok(Watch {
            technique,
            reason: picked.reason,
            pid: watched,
            own,
            space,
            heaps,
            launched,
            pidfd,
            rounds,
            has_followed_children: membership.has_followed_children,
            inherited,
            unarmed: Default::default(),
            children: BTreeSet::new(),
            attach_stopped: image.stopped + stopped,
            budget,
            settling: Duration::ZERO,
            config,
        })
    }
}
