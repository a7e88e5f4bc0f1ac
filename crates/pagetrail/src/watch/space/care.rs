//! How each region is watched, and what no technique notices by itself: writes to memory that is not armed yet, and discarded pages.

use super::{Harvested, Space};
use crate::error::Result;
use crate::page_set::PageSet;
use crate::region::Region;
use crate::round::{Event, Pending};
use crate::watch::discards::Looked;
use crate::watch::latent::Unwritable;

/// How a region is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    Arm,
    /// Once the process owns a page there.
    WhenOwned,
    LeaveOut,
}

impl Space {
    /// How a region is to be watched.
    pub(super) fn care(&self, region: &Region) -> Care {
        if region.permissions.write {
            return Care::Arm;
        }
        if !region.is_trackable() {
            return Care::LeaveOut;
        }
        // Of memory that is only read, what backs no file: files' pages the kernel does not report.
        if self.accesses && region.permissions.read && region.inode == 0 {
            return Care::Arm;
        }
        let of_file = !region.permissions.shared && region.inode != 0;
        match self.unwritable {
            Unwritable::LeaveOut => Care::LeaveOut,
            Unwritable::WhenOwned if of_file => Care::WhenOwned,
            Unwritable::WhenOwned | Unwritable::Always => Care::Arm,
        }
    }

    pub(super) fn wants(&self, region: &Region) -> bool {
        self.care(region) == Care::Arm
    }

    /// Why a region that has come while the target was tracked had better not be armed: memory that is armed after it was touched
    /// stays a mapping of its own, and the kernel allows a process so many (`vm.max_map_count`).
    pub(super) fn crowded(
        &mut self,
        region: &Region,
        pending: &mut Option<&mut Pending>,
    ) -> Option<String> {
        let pending = pending.as_mut()?;
        let is_crowded = self.regions.len() >= self.crowd && self.tracker.splits_mappings();
        if !is_crowded || region.permissions.shared {
            return None;
        }
        let reason = format!(
            "the target has {} mappings, close to the most that it may have (vm.max_map_count)",
            self.regions.len()
        );
        if !std::mem::replace(&mut self.has_been_crowded, true) {
            let note = format!("{reason}: what comes from here on is watched by compare");
            pending.events.push(Event::Note(note));
        }
        Some(reason)
    }

    /// Arms the mappings of the latent ones in which the process has come to own pages.
    pub(super) fn arm_owned(&mut self, pending: &mut Option<&mut Pending>) -> Result<()> {
        let owned = self.latent.owned()?;
        if owned.is_empty() {
            return Ok(());
        }
        let regions = self.regions.iter();
        let regions: Vec<Region> = regions
            .filter(|region| self.care(region) == Care::WhenOwned && owned.intersects(region.range))
            .cloned()
            .collect();
        for region in regions {
            for range in self.latent.take(region.range).ranges() {
                if let Some(part) = region.cut(*range) {
                    self.arm_one(part, pending)?;
                }
            }
        }
        Ok(())
    }

    /// Adds to `pending` what was written, and what is new; where that is wished, also what the last collect found.
    pub(crate) fn collect(&mut self, pending: &mut Pending) -> Result<Harvested> {
        let Some(before) = self.again.take() else {
            return self.collect_once(pending);
        };
        let older = std::mem::take(&mut pending.written);
        let outcome = self.collect_once(pending);
        self.again = Some(pending.written.clone());
        let before = before.intersection(&self.armed);
        pending.predicted = pending.predicted.difference(&before);
        pending.written.union_with(&before);
        pending.written.union_with(&older);
        outcome
    }

    /// Adds what was discarded since the last round.
    pub(super) fn add_discarded(
        &mut self,
        discarded: &PageSet,
        looked: Looked,
        pending: &mut Pending,
    ) {
        if !discarded.is_empty() {
            // What is mapped no longer was not discarded.
            let discarded = discarded.intersection(&self.armed);
            pending.add(&discarded, &PageSet::new());
        }
        pending.events.extend(looked.note.map(Event::Note));
        self.settled &= !looked.outdated;
    }

    /// Has discarded pages looked for in what is armed now, and has been reported.
    pub(super) fn follow_discards(&mut self) -> Result<()> {
        if std::mem::take(&mut self.rearranged) {
            self.discards.follow(&self.regions, &self.armed)?;
        }
        Ok(())
    }
}
