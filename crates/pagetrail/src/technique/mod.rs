//! [`Technique`]: the ways to notice writes; one file each, all behind the private trait [`Tracker`].
//!
//! A technique knows how to arm a range, to harvest what was written, and what its kernel interface
//! gets wrong. It does not know how its target's mappings come and go (that is [`crate::watch`]) nor what
//! becomes of a round.

pub(crate) mod access_scan;
pub(crate) mod adaptive;
pub(crate) mod alternate;
pub(crate) mod compare;
pub(crate) mod mprotect;
pub(crate) mod none;
pub(crate) mod pagemap_scan;
pub(crate) mod soft_dirty;
pub(crate) mod userfaultfd;

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::{Permissions, Region};
use crate::round::{AccessKind, PredictionStats};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A way to notice writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Technique {
    /// Asynchronous write-protection by `userfaultfd(2)`, harvested by `PAGEMAP_SCAN(2const)`: the kernel
    /// resolves each first write itself. Linux 6.7. The cheapest for almost every use.
    ///
    /// As with every technique by `userfaultfd(2)`, one call that Linux 6.17 introduced fails with `EFAULT` in a target:
    /// `mremap(2)` with `MREMAP_FIXED` of several mappings at once (`vma_multi_allowed` in mm/mremap.c). Where the first of them
    /// came since the last round, it has been moved by then. `Compare` and `SoftDirty` leave it be.
    PagemapScan,
    /// The same, but pages that keep being written are left unprotected and predicted dirty: fewer faults for a few pages
    /// more than were written ([`FalsePositiveCost`](crate::FalsePositiveCost)). Linux 6.7.
    Adaptive,
    /// Synchronous write-protection by `userfaultfd(2)`: a thread of the tracker resolves each fault and
    /// may release a whole block at once. Linux 5.7.
    ///
    /// The target waits for that thread, and stands still while the tracker is stopped. What the kernel writes for a thread that
    /// exits (the owner of its robust mutexes, the word of `CLONE_CHILD_CLEARTID`) is lost where the page is protected, and who
    /// waits for it waits on: never chosen for other processes unless it is asked for.
    Userfaultfd,
    /// The kernel's soft-dirty bits, cleared by `proc_pid_clear_refs(5)`, read from `proc_pid_pagemap(5)`.
    SoftDirty,
    /// `mprotect(2)` and a `SIGSEGV` handler, own process only.
    Mprotect,
    /// A copy of the memory, compared with it: no cost for the tracked program between rounds, exact to
    /// the byte, and blind to writes that do not change anything.
    Compare,
    /// Protection from reads as well as writes by `userfaultfd(2)`, resolved by the kernel itself: reports pages that
    /// were *touched*, read or written ([`AccessKind::Accesses`](crate::AccessKind)). Linux 7.3.
    AccessScan,
    /// Notices nothing and reports all populated pages in every round: the baseline, and still a superset.
    None,
}

impl Technique {
    /// All techniques, the preferred first.
    pub const ALL: [Self; 8] = [
        Self::PagemapScan,
        Self::Adaptive,
        Self::Userfaultfd,
        Self::SoftDirty,
        Self::Mprotect,
        Self::Compare,
        Self::AccessScan,
        Self::None,
    ];

    /// The name used in commands, files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PagemapScan => "pagemap-scan",
            Self::Adaptive => "adaptive",
            Self::Userfaultfd => "userfaultfd",
            Self::SoftDirty => "soft-dirty",
            Self::Mprotect => "mprotect",
            Self::Compare => "compare",
            Self::AccessScan => "access-scan",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no technique's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown technique '{0}'; known are: pagemap-scan, adaptive, userfaultfd, soft-dirty, mprotect, compare, access-scan, none"
)]
pub struct UnknownTechnique(String);

impl FromStr for Technique {
    type Err = UnknownTechnique;

    fn from_str(name: &str) -> Result<Self, UnknownTechnique> {
        Self::ALL
            .into_iter()
            .find(|t| t.name() == name)
            .ok_or_else(|| UnknownTechnique(name.into()))
    }
}

/// A mapping, or a part of one, that is armed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed {
    pub(crate) range: PageRange,
    pub(crate) permissions: Permissions,
}

/// What a harvest tells besides the write set.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    /// Armed ranges whose mapping was replaced by another one since the last harvest: no longer armed.
    pub(crate) replaced: Vec<PageRange>,
    /// Faults since the last harvest, where the technique can count them.
    pub(crate) faults: Option<u64>,
    /// How long the target was stopped.
    pub(crate) stopped: Duration,
    /// For how long nothing was noticed.
    pub(crate) blind: Duration,
    /// The part of the write set that is predicted dirty, where the technique predicts.
    pub(crate) predicted: PageSet,
    /// What predicting did.
    pub(crate) prediction: Option<PredictionStats>,
    /// Something worth telling the user, once.
    pub(crate) notes: Vec<String>,
}

/// Which pages a technique does not notice that hold something else because they were discarded: by `madvise(2)`, or from their file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    Nothing,
    /// Those of files, mapped privately or shared, and of other shared memory.
    OfFiles,
    All,
}

/// Why a region cannot be tracked by a technique that works for others.
#[derive(Debug)]
pub(crate) enum ArmError {
    /// This region only; the watch goes on without it and says so.
    UntrackedRegion(String),
    /// This region, which is mapped shared, can never be made writable (`VM_MAYWRITE` is not set): there is nothing to notice.
    ReadOnly,
    /// The whole address space is gone (exit, exec).
    Gone,
    /// Anything else ends the watch.
    Failed(Error),
}

impl From<Error> for ArmError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What every technique does, for one watch on one address space.
pub(crate) trait Tracker: Send {
    /// What the next harvest reports.
    fn noticing(&self) -> AccessKind {
        AccessKind::Writes
    }

    /// Starts noticing writes (or accesses) to `region`; those before the return may be missed.
    fn arm(&mut self, region: &Region) -> Result<(), ArmError>;

    /// Called once, after the regions that exist at the start are armed: the first round begins when it returns.
    ///
    /// Returns how long the target was stopped.
    fn begin(&mut self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// Adds to `out` what an armed region may have been written before it was armed.
    ///
    /// Called for a mapping that is new since the last round, after [`Self::arm`].
    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()>;

    /// The range is mapped no longer; it must not be harvested any more.
    fn forget(&mut self, range: PageRange);

    /// Whether the caller holds the target still until it says otherwise.
    fn set_held(&mut self, _: bool) {}

    /// Whether harvests arm what they report, as they do unless told otherwise, or leave it to [`Self::rearm`]; false where
    /// the technique can do no other.
    fn set_rearming(&mut self, rearming: bool) -> bool {
        rearming
    }

    /// Arms what a harvest has left unarmed. What is armed no longer, or not at all, is reported by the next harvest.
    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    /// Leaves everything unarmed, as far as it can: the target takes no fault until the next harvest, which reports all of it.
    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes sure that the kernel itself can write to `range` until the next harvest.
    fn prepare_for_kernel_write(&mut self, _: PageRange) {}

    /// Whether memory that it has armed no longer merges with memory that comes next to it.
    fn splits_mappings(&self) -> bool {
        true
    }

    /// Which discarded pages it does not notice.
    fn misses(&self) -> Missed {
        Missed::Nothing
    }

    /// Whether it treats shared memory in another way than private memory, so that what it arms must be what it was told.
    fn tells_shared_apart(&self) -> bool {
        false
    }

    /// Whether [`Self::harvest`] must know the present mappings to notice one that was replaced.
    fn needs_layout(&self) -> bool {
        false
    }

    /// Puts the write set of all armed ranges into `out`, which is empty, and re-arms it.
    ///
    /// `layout`: the armed ranges mapping by mapping, as just read, where [`Self::needs_layout`].
    ///
    /// Superset: each write that completed before this returns is in `out` now or at the next harvest.
    /// On an error what was harvested so far is in `out` all the same.
    fn harvest(&mut self, layout: &[Armed], out: &mut PageSet) -> Result<Harvest>;
}
