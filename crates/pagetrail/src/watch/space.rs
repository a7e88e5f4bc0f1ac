//! [`Space`]: one address space under watch: its mappings as they come and go, and which tracker has which.
//!
//! Everything is arithmetic on sets of addresses: a mapping is new where it is writable and nobody has it; it is gone
//! where somebody has it and nothing is mapped, or something else than before. Mappings that look the same and were replaced in
//! between are found by the tracker.

mod care;

use super::backing::others;
use super::choice::TrackMode;
use super::config::Config;
use super::discards::Discards;
use super::latent::{Latent, Unwritable};
use super::untracked::{UntrackedRegion, still_there};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::{self, Maps};
use crate::region::Region;
use crate::round::{AccessKind, Event, Pending, PredictionStats};
use crate::technique::{ArmError, Armed, Tracker, compare::Compare};
use care::Care;
use rustix::io::Errno;
use std::time::Duration;

/// How often the mappings are read until they are the same before and behind arming them.
const REFRESH_TRIES: u32 = 4;

/// What is done about regions that the technique refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Compare,
    Report,
}

/// What a collect tells besides the pages.
#[derive(Debug, Default)]
pub(crate) struct Harvested {
    pub(crate) blind: Duration,
    pub(crate) faults: Option<u64>,
    pub(crate) stopped: Duration,
    pub(crate) prediction: Option<PredictionStats>,
}

pub(crate) struct Space {
    /// `None` for the own address space.
    pid: Option<u32>,
    /// The only addresses to watch, unless all writable ones.
    within: Option<PageSet>,
    maps: Maps,
    regions: Vec<Region>,
    /// Whether all of `regions` that is to be watched is armed, or given up.
    settled: bool,
    tracker: Box<dyn Tracker>,
    armed: PageSet,
    /// What the tracker found last, while an older round waits for its commit.
    harvested: PageSet,
    /// Watches what the technique has given up.
    comparer: Option<Compare>,
    compared: PageSet,
    untracked: Vec<UntrackedRegion>,
    policy: Policy,
    /// Whether reads matter, too.
    accesses: bool,
    unwritable: Unwritable,
    /// Looked at in each round, and armed when the process owns a page there.
    latent: Latent,
    /// Shared mappings that can never be made writable: nothing can be written through them.
    read_only: PageSet,
    discards: Discards,
    /// Whether what is armed has changed since discarded pages were looked for.
    rearranged: bool,
    /// Crowded: with as many mappings nothing is armed that could have merged with another.
    crowd: usize,
    has_been_crowded: bool,
    /// What the last collect found, where all is to be reported once more.
    again: Option<PageSet>,
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
            harvested: PageSet::new(),
            comparer: None,
            compared: PageSet::new(),
            untracked: Vec::new(),
            policy: config.policy,
            accesses: config.track != TrackMode::Writes,
            unwritable: config.unwritable,
            latent: Latent::new(pid),
            read_only: PageSet::new(),
            discards,
            rearranged: true,
            crowd: maps::crowd(),
            has_been_crowded: false,
            again: config.report_again.then(PageSet::new),
        })
    }

    /// Arms everything that exists; writes before the return may be missed.
    pub(crate) fn arm(&mut self) -> Result<Duration> {
        self.refresh(None)?;
        let stopped = self.tracker.begin()?;
        self.follow_discards()?;
        Ok(stopped)
    }

    /// Arms everything that exists as something new, which may have been written already.
    pub(crate) fn arm_as_fresh(&mut self, pending: &mut Pending) -> Result<()> {
        // No `begin`: what was noticed before counts.
        self.refresh(Some(pending))
    }

    /// Arms what is new, and forgets what is gone.
    pub(crate) fn follow(&mut self, pending: &mut Pending) -> Result<()> {
        self.refresh(Some(pending))
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The only addresses that are watched, unless all writable ones are.
    pub(crate) fn within(&self) -> Option<&PageSet> {
        self.within.as_ref()
    }

    pub(crate) fn untracked(&self) -> &[UntrackedRegion] {
        &self.untracked
    }

    /// Makes room for a harvest of this many ranges.
    pub(crate) fn reserve(&mut self, ranges: usize) {
        self.harvested.reserve(ranges);
    }

    /// Whether nobody runs in the address space during the collects to come, and the tracker need not see to that.
    pub(crate) fn set_held(&mut self, held: bool) {
        self.tracker.set_held(held);
    }

    /// Whether collects arm what they report; false where that cannot be had.
    pub(crate) fn set_rearming(&mut self, rearming: bool) -> bool {
        self.tracker.set_rearming(rearming)
    }

    /// Arms what a collect has left unarmed.
    pub(crate) fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        self.tracker.rearm(pages)
    }

    /// Leaves everything unarmed until the next collect.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        self.tracker.suspend()
    }

    pub(crate) fn prepare_for_kernel_write(&mut self, range: PageRange) {
        self.tracker.prepare_for_kernel_write(range);
    }

    /// What the next collect adds.
    pub(crate) fn noticing(&self) -> AccessKind {
        self.tracker.noticing()
    }

    /// Adds to `pending` what was written, and what is new.
    fn collect_once(&mut self, pending: &mut Pending) -> Result<Harvested> {
        // Fixed ranges need no look at the mappings when all of them are armed, and the tracker notices replaced
        // ones by itself.
        let needs_layout = self.tracker.needs_layout();
        if needs_layout || !self.settled || !self.has_all() {
            self.refresh(Some(pending))?;
        }
        self.arm_owned(&mut Some(&mut *pending))?;
        let layout = if needs_layout {
            self.armed_mappings()
        } else {
            Vec::new()
        };
        // Straight into the round where nothing waits there: the memory of the last round is used again, and growing
        // it anew would cost as much as filling it.
        let alone = pending.written.is_empty();
        let outcome = if alone {
            pending.predicted.clear();
            let mut outcome = self.tracker.harvest(&layout, &mut pending.written);
            if let Ok(harvest) = &mut outcome {
                std::mem::swap(&mut pending.predicted, &mut harvest.predicted);
            }
            outcome
        } else {
            self.harvested.clear();
            let outcome = self.tracker.harvest(&layout, &mut self.harvested);
            let predicted = outcome.as_ref().map(|harvest| &harvest.predicted);
            pending.add(&self.harvested, predicted.unwrap_or(&PageSet::new()));
            outcome
        };
        let harvest = outcome?;
        pending
            .events
            .extend(harvest.notes.into_iter().map(Event::Note));
        let written = if alone {
            &pending.written
        } else {
            &self.harvested
        };
        let mut discarded = PageSet::new();
        let looked = self.discards.look(written, &mut discarded)?;
        self.add_discarded(&discarded, looked, pending);
        self.rearm_replaced(&harvest.replaced, pending)?;
        if let Some(comparer) = &mut self.comparer {
            let mut changed = PageSet::new();
            let outcome = comparer.harvest(&[], &mut changed);
            pending.written.union_with(&changed);
            outcome?;
        }
        self.follow_discards()?;
        Ok(Harvested {
            faults: harvest.faults,
            stopped: harvest.stopped,
            blind: harvest.blind,
            prediction: harvest.prediction,
        })
    }

    /// Whether nothing is left that may become one to watch.
    fn has_all(&self) -> bool {
        self.within.as_ref().is_some_and(|within| {
            within.difference(&self.armed).is_empty() || within.difference(&self.known()).is_empty()
        })
    }

    /// All that is armed or given up.
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

    /// Reads the mappings; unless all is settled, forgets what is gone and arms what is new.
    ///
    /// What is armed may have been replaced since the mappings were read, by something that is to be tracked in another way, and has
    /// been armed in the place of what was there. So, where it matters, it is settled only when the mappings are still the same behind
    /// that. (Where it does not, the kernel could not even write them to memory of ours that is armed.)
    fn refresh(&mut self, mut pending: Option<&mut Pending>) -> Result<()> {
        for _ in 0..REFRESH_TRIES {
            let mut replaced = PageSet::new();
            if let Some(regions) = self.read_maps()? {
                replaced = others(&self.regions, &regions);
                self.regions = regions;
                (self.settled, self.rearranged) = (false, true);
            }
            if !self.settled {
                let arms = self.take_over(&replaced, &mut pending)?;
                self.settled = !(arms && self.tracker.tells_shared_apart());
            }
            if self.settled {
                return Ok(());
            }
        }
        // The next collect goes on with it.
        Ok(())
    }

    /// Forgets what is gone, or `replaced` by another mapping, and arms what is new; says whether anything is.
    fn take_over(
        &mut self,
        replaced: &PageSet,
        pending: &mut Option<&mut Pending>,
    ) -> Result<bool> {
        if let Some(pending) = pending {
            pending.remapped.union_with(replaced);
        }
        let mapped: PageSet = self.regions.iter().map(|region| region.range).collect();
        let kept = mapped.difference(replaced);
        let mut gone = self.armed.union(&self.compared).difference(&kept);
        let (regions, comparing) = (&self.regions, &self.compared);
        self.untracked.retain(|untracked| {
            let kept = still_there(untracked, regions, &mapped);
            if !kept && untracked.compared {
                let range = PageSet::from_iter([untracked.region.range]);
                gone.union_with(&range.intersection(comparing));
            }
            kept
        });
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
        let latent = self
            .regions
            .iter()
            .filter(|region| self.care(region) == Care::WhenOwned);
        let mut latent: PageSet = latent.map(|region| region.range).collect();
        if let Some(within) = &self.within {
            latent = latent.intersection(within);
        }
        self.latent.watch(latent.difference(&self.known()));
        self.arm_owned(pending)?;
        Ok(!new.is_empty())
    }

    /// Arms mappings that took the place of watched ones.
    fn rearm_replaced(&mut self, replaced: &[PageRange], pending: &mut Pending) -> Result<()> {
        if replaced.is_empty() {
            return Ok(());
        }
        let replaced: PageSet = replaced.iter().copied().collect();
        self.armed = self.armed.difference(&replaced);
        self.rearranged = true;
        // Not them alone: others may have come since the mappings were read.
        self.settled = false;
        self.refresh(Some(pending))
    }

    /// Arms the writable mappings of a set of addresses.
    fn arm_parts(&mut self, addresses: &PageSet, pending: &mut Option<&mut Pending>) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let mut regions = Vec::new();
        for region in self.regions.iter().filter(|region| self.wants(region)) {
            let part = PageSet::from_iter([region.range]).intersection(addresses);
            regions.extend(part.ranges().iter().filter_map(|range| region.cut(*range)));
        }
        for region in regions {
            self.arm_one(region, pending)?;
        }
        Ok(())
    }

    fn arm_one(&mut self, region: Region, pending: &mut Option<&mut Pending>) -> Result<()> {
        if !region.is_trackable() {
            let reason = "written by a device or the kernel, behind the page tables".into();
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
            Some(reason) => Err(ArmError::UntrackedRegion(reason)),
            None => self.tracker.arm(&region),
        };
        match armed {
            Ok(()) => {
                if pending.is_some() {
                    self.tracker.add_populated(&region, &mut fresh)?;
                }
                // In this order: when that fails the region is still new at the next collect.
                self.armed.insert(region.range);
                self.rearranged = true;
            }
            Err(ArmError::UntrackedRegion(reason)) => {
                // What is only read is watched where that is free; a copy of it is not.
                let may_be_written =
                    region.permissions.write || self.unwritable != Unwritable::LeaveOut;
                let compared =
                    self.policy == Policy::Compare && may_be_written && self.compare(&region)?;
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

    /// Hands a region to `compare`.
    fn compare(&mut self, region: &Region) -> Result<bool> {
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
        self.rearranged |= !gone.is_empty();
        for range in gone.ranges() {
            self.tracker.forget(*range);
            self.armed.remove(*range);
            if let Some(comparer) = &mut self.comparer {
                comparer.forget(*range);
            }
            self.compared.remove(*range);
        }
    }

    /// The mappings, if they changed.
    fn read_maps(&mut self) -> Result<Option<Vec<Region>>> {
        match self.maps.changed() {
            // The file belongs to the address space it was opened on: after `execve` it is empty, too.
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
