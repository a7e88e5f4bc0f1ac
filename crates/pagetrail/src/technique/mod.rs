//! The techniques, one file each, all implementing the private trait [`Tracker`].
//!
//! A technique knows how to arm a range, how to collect what was written, and in which cases its
//! kernel interface is wrong. It does not follow its target's mappings (that is [`crate::watch`])
//! and does not know who uses a round.

pub(crate) mod access_scan;
pub(crate) mod adaptive;
pub(crate) mod alternate;
pub(crate) mod compare;
pub(crate) mod mprotect;
pub(crate) mod none;
pub(crate) mod ooh;
pub(crate) mod pagemap_scan;
pub(crate) mod price;
pub(crate) mod soft_dirty;
pub(crate) mod userfaultfd;

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::{Permissions, Region};
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
use crate::sys::uffd::Uffd;
use crate::types::{AccessKind, PredictionStats};
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
use std::sync::Arc;
use std::time::Duration;

/// A mapping, or a part of one, that is armed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed {
    pub(crate) range: PageRange,
    pub(crate) permissions: Permissions,
}

/// What a tracker returns from a collect, besides the dirty pages.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// Armed ranges whose mapping was replaced since the last collect: they are no longer armed.
    pub(crate) replaced: Vec<PageRange>,
    /// Faults since the last collect, where the technique can count them.
    pub(crate) faults: Option<u64>,
    /// How long the target was stopped.
    pub(crate) stopped: Duration,
    /// How long accesses could not be detected.
    pub(crate) blind: Duration,
    /// The dirty pages that are only predicted, where the technique predicts.
    pub(crate) predicted: PageSet,
    /// Statistics of the prediction.
    pub(crate) prediction: Option<PredictionStats>,
    /// Notes for the user, each given once.
    pub(crate) notes: Vec<String>,
}

/// Which pages that were discarded, by `madvise(2)` or from their file, a technique does not
/// detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    Nothing,
    /// Pages of files, mapped privately or shared, and of other shared memory.
    OfFiles,
    All,
}

/// Why memory cannot be armed that another userfaultfd has.
pub(crate) const OTHERS: &str = "the program tracks it with its own userfaultfd";

/// Why a region could not be armed.
#[derive(Debug)]
pub(crate) enum ArmError {
    /// The technique cannot track this region; the watch continues without it and reports it.
    Untrackable(String),
    /// This shared mapping can never be made writable (`VM_MAYWRITE` is not set): there is nothing
    /// to detect.
    ReadOnly,
    /// The whole address space is gone (exit or exec).
    Gone,
    /// Any other error; it ends the collect.
    Failed(Error),
}

impl From<Error> for ArmError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A technique at work for one watch on one address space.
pub(crate) trait Tracker: Send {
    /// What the next collect reports.
    fn access_kind(&self) -> AccessKind {
        AccessKind::Writes
    }

    /// Starts detecting writes (or accesses) to `region`; those before it returns may be missed.
    fn arm(&mut self, region: &Region) -> Result<(), ArmError>;

    /// Arms the private `mappings` that make up a range, like [`Self::arm`] each, by calls for all
    /// of them. Returns false where that is not possible: each is to be armed by itself then.
    fn arm_run(&mut self, _: PageRange, _: &[Region]) -> bool {
        false
    }

    /// Begins the first round; called once, after the regions that exist at the start are armed.
    ///
    /// Returns how long the target was stopped.
    fn begin(&mut self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// Adds to `out` the pages that may have been written before the region was armed.
    ///
    /// Called after [`Self::arm`] for a mapping that is new since the last round, and after
    /// [`Self::arm_run`] for all of them as one.
    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()>;

    /// Drops a range that is no longer mapped; later collects must not report it.
    fn forget(&mut self, range: PageRange);

    /// Whether armed memory now belongs to somebody else's tracker, which may look to the technique
    /// as if it still were its own. Changes nothing there.
    fn is_others(&mut self, _: PageRange) -> bool {
        false
    }

    /// Whether somebody else's tracker has memory in `span`, so that each mapping is to be checked
    /// by [`Self::is_others`]. The last page of the span must be one that cannot be armed; then
    /// nothing is changed.
    fn may_be_others(&mut self, _: PageRange) -> bool {
        false
    }

    /// Sets what a fault counts against a false positive, as a multiple of its price, for a
    /// technique that predicts.
    fn weigh_faults(&mut self, _: f64) {}

    /// Declares whether the caller keeps the target stopped, until the next call of this.
    fn set_held(&mut self, _: bool) {}

    /// Sets whether a collect arms what it reports, which is the default, or leaves that to
    /// [`Self::rearm`]; returns false if the technique always arms.
    fn set_rearming(&mut self, rearming: bool) -> bool {
        rearming
    }

    /// Arms pages that a collect has left unarmed. Pages that are no longer mapped, or were never
    /// armed, are reported by the next collect.
    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    /// Disarms everything, as far as the technique can: the target takes no fault until the next
    /// collect, which reports all of it.
    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    /// The userfaultfd by which private memory is write-protected, where the technique has one that
    /// may [hand it over](Uffd::hand_over) for a while.
    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn lender(&self) -> Option<Arc<Uffd>> {
        None
    }

    /// Whether a collect leaves all private memory that is armed write-protected; for a technique
    /// that has a [lender](Self::lender).
    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn protects_all(&self) -> bool {
        false
    }

    /// Adds the pages of `range` that are not write-protected, without re-arming them; for a
    /// technique that has a [lender](Self::lender).
    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn add_unprotected(&mut self, _: PageRange, _: &mut PageSet) -> Result<()> {
        Ok(())
    }

    /// Makes sure that the kernel itself can write to `range` until the next collect.
    fn prepare_for_kernel_write(&mut self, _: PageRange) {}

    /// Whether armed memory no longer merges with adjacent mappings.
    fn splits_mappings(&self) -> bool {
        true
    }

    /// Whether arming fails with [`ArmError::ReadOnly`] for such mappings; otherwise the caller
    /// does not arm them.
    fn refuses_read_only(&self) -> bool {
        true
    }

    /// Which discarded pages the technique does not detect.
    fn misses(&self) -> Missed {
        Missed::Nothing
    }

    /// Private memory in which the next collect reports a page that the target owns at present and
    /// discards meanwhile, as far as that is known.
    fn reports_discards_in(&self) -> Option<&PageSet> {
        None
    }

    /// Whether the technique treats shared memory differently from private memory, so that a region
    /// must still be what it was when it is armed.
    fn distinguishes_shared(&self) -> bool {
        false
    }

    /// Whether [`Self::collect`] needs the current mappings to detect a replaced one.
    fn needs_layout(&self) -> bool {
        false
    }

    /// Puts the dirty pages of all armed ranges into `out`, which is empty, and re-arms them.
    ///
    /// `layout`: the armed ranges, mapping by mapping, as just read, if [`Self::needs_layout`].
    ///
    /// Superset: each write that completed before this returns is in `out` now or at the next
    /// collect. On an error, `out` still has what was collected before it.
    fn collect(&mut self, layout: &[Armed], out: &mut PageSet) -> Result<Collected>;
}
