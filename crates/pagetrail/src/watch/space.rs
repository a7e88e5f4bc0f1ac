//! [`Space`]: one tracked address space: its mappings as they appear and disappear, and which
//! tracker has which.
//!
//! Everything is arithmetic on sets of addresses: a mapping is new if it is writable and no tracker
//! has it; it is gone if a tracker has it and its addresses are unmapped, or mapped to something
//! else. The tracker itself finds mappings that were replaced by ones that look the same.

mod care;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
mod frozen;
mod others;
mod passed_on;
mod runs;

use super::backing::{changed, others};
use super::config::Config;
use super::deleted::Deleted;
use super::discards::Discards;
use super::latent::{Latent, Unwritable};
use super::untracked;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::{self, Maps};
use crate::region::Region;
use crate::round::Pending;
use crate::technique::{ArmError, Armed, Tracker, compare::Compare};
use crate::types::{
    Event, PredictionStats, ReportPages, TrackMode, UntrackedPolicy, UntrackedRegion,
};
use care::Care;
use others::Questions;
use rustix::io::Errno;
use std::time::Duration;

/// How often the mappings are read again until arming them has left them unchanged.
const REFRESH_TRIES: u32 = 4;

/// What a collect returns besides the pages.
#[derive(Debug, Default)]
pub(crate) struct CollectStats {
    pub(crate) blind: Duration,
    pub(crate) faults: Option<u64>,
    pub(crate) stopped: Duration,
    pub(crate) prediction: Option<PredictionStats>,
    /// Pages that the technique itself reported, where that is counted.
    pub(crate) reported: u64,
}

/// One tracked address space.
pub(crate) struct Space {
    /// `None` for the own address space.
    pid: Option<u32>,
    /// The only addresses that are tracked; `None` tracks all writable ones.
    within: Option<PageSet>,
    maps: Maps,
    regions: Vec<Region>,
    /// Whether all of `regions` that should be tracked is armed or known to be untrackable.
    settled: bool,
    tracker: Box<dyn Tracker>,
    armed: PageSet,
    /// What the tracker found in this collect, while an older round waits for its commit.
    collected: PageSet,
    /// Tracks the regions that the technique cannot.
    comparer: Option<Compare>,
    compared: PageSet,
    untracked: Vec<UntrackedRegion>,
    policy: UntrackedPolicy,
    /// Whether reads are tracked, too.
    accesses: bool,
    unwritable: Unwritable,
    /// Mappings that each round checks, and that are armed once the process owns a page there.
    latent: Latent,
    deleted: Deleted,
    /// Shared mappings that can never be made writable: nothing can be written through them.
    read_only: PageSet,
    /// All such mappings among `regions`, once something had to know.
    read_only_now: Option<PageSet>,
    discards: Discards,
    /// Mappings that have changed since it was last checked whose they are.
    changed: PageSet,
    /// How it is asked whether another tracker, one of the target's own, say, has armed memory by
    /// now; until the mappings change.
    questions: Option<Questions>,
    /// Whether the armed memory has changed since `discards` last followed it.
    rearranged: bool,
    /// With this many mappings, no new mapping is armed that could have merged with another.
    crowd: usize,
    has_been_crowded: bool,
    /// What the last collect found, if everything is reported once more.
    again: Option<PageSet>,
    /// Whether the pages that the technique reports are counted.
    counts_reported: bool,
    /// What keeps pages while the target writes to them, once it was prepared.
    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    freezer: Option<crate::freeze::Freezer>,
}

impl Space {
    pub(crate) fn open(
        pid: Option<u32>,
        within: Option<PageSet>,
        tracker: Box<dyn Tracker>,
        config: &Config,
    ) -> Result<Self> {
        let discards = Discards::new(pid, tracker.misses());
        Ok(Self {
            pid,
            within,
            maps: Maps::open(pid).map_err(Error::io("opening maps"))?,
            regions: Vec::new(),
            settled: false,
            tracker,
            armed: PageSet::new(),
            collected: PageSet::new(),
            comparer: None,
            compared: PageSet::new(),
            untracked: Vec::new(),
            policy: config.untracked,
            accesses: config.track != TrackMode::Writes,
            unwritable: config.unwritable,
            latent: Latent::new(pid),
            deleted: Deleted::new(pid),
            read_only: PageSet::new(),
            read_only_now: None,
            discards,
            changed: PageSet::new(),
            questions: None,
            rearranged: true,
            crowd: maps::crowd(),
            has_been_crowded: false,
            again: (config.report_pages == ReportPages::Twice).then(PageSet::new),
            counts_reported: config.max_overhead.is_some(),
            #[cfg(all(feature = "attach", target_arch = "x86_64"))]
            freezer: None,
        })
    }

    /// Arms everything that exists; writes before it returns may be missed.
    pub(crate) fn arm(&mut self) -> Result<Duration> {
        self.refresh(None)?;
        let stopped = self.tracker.begin()?;
        self.follow_discards()?;
        Ok(stopped)
    }

    /// Arms everything that exists as new: it may have been written already.
    pub(crate) fn arm_as_fresh(&mut self, pending: &mut Pending) -> Result<()> {
        // Without `begin`, because what was detected before it returns counts.
        self.refresh(Some(pending))
    }

    /// Arms new mappings and forgets those that are gone.
    pub(crate) fn follow(&mut self, pending: &mut Pending) -> Result<()> {
        self.refresh(Some(pending))
    }

    /// The armed memory.
    pub(crate) fn armed(&self) -> &PageSet {
        &self.armed
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The only addresses that are tracked; `None` if all writable ones are.
    pub(crate) fn within(&self) -> Option<&PageSet> {
        self.within.as_ref()
    }

    pub(crate) fn untracked(&self) -> &[UntrackedRegion] {
        &self.untracked
    }

    /// Reserves memory for a collect of this many ranges.
    pub(crate) fn reserve(&mut self, ranges: usize) {
        self.collected.reserve(ranges);
    }

    /// Adds to `pending` what was written and what is new.
    fn collect_once(&mut self, pending: &mut Pending) -> Result<CollectStats> {
        // Fixed ranges need no look at the mappings when all of them are armed and the tracker
        // itself detects replaced ones.
        let needs_layout = self.tracker.needs_layout();
        if needs_layout || !self.settled || !self.has_all() {
            self.refresh(Some(pending))?;
        }
        self.leave_others(pending)?;
        pending.remapped.union_with(&self.deleted.replaced());
        self.arm_owned(&mut Some(&mut *pending))?;
        self.arm_writable(&mut Some(&mut *pending))?;
        let layout = if needs_layout {
            self.armed_mappings()
        } else {
            Vec::new()
        };
        // If no older round waits, the tracker writes straight into the pending round, which reuses
        // the memory of the last one: to grow it anew would cost as much as to fill it.
        let alone = pending.written.is_empty();
        let outcome = if alone {
            pending.predicted.clear();
            let mut outcome = self.tracker.collect(&layout, &mut pending.written);
            if let Ok(collected) = &mut outcome {
                std::mem::swap(&mut pending.predicted, &mut collected.predicted);
            }
            outcome
        } else {
            self.collected.clear();
            let outcome = self.tracker.collect(&layout, &mut self.collected);
            let predicted = outcome.as_ref().map(|collected| &collected.predicted);
            pending.add(&self.collected, predicted.unwrap_or(&PageSet::new()));
            outcome
        };
        let collected = outcome?;
        pending
            .events
            .extend(collected.notes.into_iter().map(Event::Note));
        let written = if alone {
            &pending.written
        } else {
            &self.collected
        };
        let reported = match self.counts_reported {
            true => written.page_count(),
            false => 0,
        };
        let mut discarded = PageSet::new();
        let checked = self.discards.check(written, &mut discarded)?;
        self.add_discarded(&discarded, checked, pending);
        self.rearm_replaced(&collected.replaced, pending)?;
        if let Some(comparer) = &mut self.comparer {
            let mut changed = PageSet::new();
            let outcome = comparer.collect(&[], &mut changed);
            pending.written.union_with(&changed);
            outcome?;
        }
        self.follow_discards()?;
        Ok(CollectStats {
            faults: collected.faults,
            stopped: collected.stopped,
            blind: collected.blind,
            prediction: collected.prediction,
            reported,
        })
    }

    /// Whether all memory that is to be tracked is: a mapping that replaces another one is found
    /// without a look at the mappings. What cannot be tracked shows nothing of what replaces it.
    fn has_all(&self) -> bool {
        self.within.as_ref().is_some_and(|within| {
            let unarmed = within.difference(&self.armed);
            unarmed.difference(&self.compared).is_empty()
        })
    }

    /// All memory that is armed, compared, or known to be untrackable.
    fn known(&self) -> PageSet {
        let untracked: PageSet = self
            .untracked
            .iter()
            .map(|untracked| untracked.region.range)
            .collect();
        self.armed
            .union(&self.compared)
            .union(&untracked)
            .union(&self.read_only)
    }

    fn armed_mappings(&self) -> Vec<Armed> {
        let armed = self.armed.ranges();
        let mut parts = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            let first = armed.partition_point(|range| range.end() <= region.range.start());
            parts.extend(
                armed[first..]
                    .iter()
                    .map_while(|range| range.intersection(&region.range))
                    .map(|range| Armed {
                        range,
                        permissions: region.permissions,
                    }),
            );
        }
        parts
    }

    /// Reads the mappings and, if they have changed, forgets what is gone and arms what is new.
    ///
    /// Between the reading of the mappings and the arming, a mapping may be replaced by one that
    /// must be tracked in another way; the new one is then armed as if it were the old one. So, for
    /// trackers that distinguish shared memory, the mappings are read again after arming until they
    /// are unchanged. (The other trackers do not need that, and with `mprotect` the read could
    /// fail: the kernel does not write to armed memory of this process.)
    fn refresh(&mut self, mut pending: Option<&mut Pending>) -> Result<()> {
        for _ in 0..REFRESH_TRIES {
            let mut replaced = PageSet::new();
            if let Some(regions) = self.read_maps()? {
                replaced = others(&self.regions, &regions);
                let changed = changed(&self.regions, &regions);
                self.try_again(&changed);
                self.changed.union_with(&changed);
                if let Some(pending) = &mut pending {
                    self.add_remapped(&regions, &replaced, pending);
                }
                self.regions = regions;
                (self.read_only_now, self.settled) = (None, false);
                self.rearrange();
            }
            if !self.settled {
                let arms = self.update(&replaced, &mut pending)?;
                self.settled = !(arms && self.tracker.distinguishes_shared());
            }
            if self.settled {
                return Ok(());
            }
        }
        // The mappings keep changing; the next collect continues.
        Ok(())
    }

    /// Forgets memory that is gone or `replaced` by another mapping, arms new memory, and returns
    /// whether there was any.
    fn update(&mut self, replaced: &PageSet, pending: &mut Option<&mut Pending>) -> Result<bool> {
        let mapped: PageSet = self.regions.iter().map(|region| region.range).collect();
        let kept = mapped.difference(replaced);
        let mut gone = self.armed.union(&self.compared).difference(&kept);
        let changed = untracked::follow(&mut self.untracked, &self.regions, &kept);
        gone.union_with(&changed.intersection(&self.compared));
        self.forget(&gone);
        self.read_only = self.read_only.intersection(&kept);
        let mut new = PageSet::new();
        for region in self.regions.iter().filter(|region| self.wants(region)) {
            new.insert(region.range);
        }
        new = new.difference(&self.known());
        if let Some(within) = &self.within {
            new = new.intersection(within);
        }
        self.arm_parts(&new, pending)?;
        let mut deleted = std::mem::take(&mut self.deleted);
        let latent = self
            .regions
            .iter()
            .filter(|region| self.care(region) == Care::WhenOwned);
        let other_files = deleted.follow(latent.clone());
        let mut latent: PageSet = latent.map(|region| region.range).collect();
        self.deleted = deleted;
        if let Some(pending) = pending {
            pending.remapped.union_with(&other_files);
        }
        if let Some(within) = &self.within {
            latent = latent.intersection(within);
        }
        self.latent.watch(latent.difference(&self.known()));
        self.arm_owned(pending)?;
        Ok(!new.is_empty())
    }

    /// Arms mappings that replaced armed ones.
    fn rearm_replaced(&mut self, replaced: &[PageRange], pending: &mut Pending) -> Result<()> {
        if replaced.is_empty() {
            return Ok(());
        }
        let replaced: PageSet = replaced.iter().copied().collect();
        self.armed = self.armed.difference(&replaced);
        self.discards.forget(&replaced);
        pending.remapped.union_with(&replaced);
        self.rearrange();
        // All mappings are read again: others may have appeared since they were last read.
        self.settled = false;
        self.refresh(Some(pending))
    }

    fn arm_one(&mut self, region: Region, pending: &mut Option<&mut Pending>) -> Result<()> {
        if !region.is_trackable() {
            let reason = "a device or the kernel writes to it without the page tables".into();
            self.untracked.push(UntrackedRegion {
                region,
                reason,
                compared: false,
            });
            return Ok(());
        }
        let mut fresh = PageSet::new();
        let range = region.range;
        let armed = match self.crowded(&region, pending) {
            Some(reason) => Err(ArmError::Untrackable(reason)),
            None if !self.tracker.refuses_read_only() && self.is_read_only(&region) => {
                Err(ArmError::ReadOnly)
            }
            None => self.tracker.arm(&region),
        };
        match armed {
            Ok(()) => {
                if pending.is_some() {
                    self.tracker.add_populated(&region, &mut fresh)?;
                }
                // In this order: if `add_populated` fails, the region is still new at the next
                // collect.
                self.armed.insert(region.range);
                self.rearrange();
            }
            Err(ArmError::Untrackable(reason)) => {
                self.questions = None;
                // To track memory that is only read costs nothing by protection, but `compare`
                // would copy it.
                let may_be_written =
                    region.permissions.write || self.unwritable != Unwritable::LeaveOut;
                let compared = self.policy == UntrackedPolicy::Compare
                    && may_be_written
                    && self.compare(&region)?;
                if compared && let (Some(comparer), true) = (&mut self.comparer, pending.is_some())
                {
                    comparer.add_populated(&region, &mut fresh)?;
                }
                self.untracked.push(UntrackedRegion {
                    region,
                    reason,
                    compared,
                });
            }
            Err(ArmError::ReadOnly) => {
                self.read_only.insert(region.range);
                return Ok(());
            }
            Err(ArmError::Gone) => return Err(self.gone()),
            Err(ArmError::Failed(error)) => return Err(error),
        }
        if let Some(pending) = pending {
            pending.written.union_with(&fresh);
            pending.fresh.union_with(&fresh);
            pending.remapped.insert(range);
        }
        Ok(())
    }

    /// Lets `compare` track a region.
    fn compare(&mut self, region: &Region) -> Result<bool> {
        if self.is_read_only(region) {
            return Ok(false);
        }
        let comparer = match &mut self.comparer {
            Some(comparer) => comparer,
            none => none.insert(Compare::new(self.pid)?),
        };
        let armed = comparer.arm(region).is_ok();
        if armed {
            self.compared.insert(region.range);
        }
        Ok(armed)
    }

    fn forget(&mut self, gone: &PageSet) {
        if !gone.is_empty() {
            self.rearrange();
        }
        self.discards.forget(gone);
        for range in gone.ranges() {
            self.tracker.forget(*range);
            self.armed.remove(*range);
            if let Some(comparer) = &mut self.comparer {
                comparer.forget(*range);
            }
            self.compared.remove(*range);
        }
    }

    /// Notes that the armed memory has changed.
    fn rearrange(&mut self) {
        self.rearranged = true;
        self.questions = None;
    }

    /// The mappings, if they have changed since they were last read.
    fn read_maps(&mut self) -> Result<Option<Vec<Region>>> {
        match self.maps.changed() {
            // The file belongs to the address space for which it was opened: it is empty after
            // `execve`, too.
            Ok(Some(regions)) if regions.is_empty() => Err(self.gone()),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                Err(self.gone())
            }
            outcome => outcome.map_err(Error::io("reading maps")),
        }
    }

    fn gone(&self) -> Error {
        Error::Gone {
            pid: self.pid.unwrap_or_else(std::process::id),
        }
    }
}

#[cfg(test)]
mod tests;
