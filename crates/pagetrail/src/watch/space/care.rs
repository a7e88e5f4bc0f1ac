//! How each region is tracked, and the two things that no technique detects: writes to memory that
//! is not armed yet, and discarded pages.

use super::{CollectStats, Space};
use crate::error::Result;
use crate::page_set::PageSet;
use crate::proc::maps::read_only;
use crate::region::Region;
use crate::round::Pending;
use crate::types::Event;
use crate::watch::discards::Checked;
use crate::watch::latent::Unwritable;

/// How a region is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    Arm,
    /// It is armed once the process owns a page there.
    WhenOwned,
    LeaveOut,
}

impl Space {
    /// Decides how a region is tracked.
    pub(super) fn care(&self, region: &Region) -> Care {
        if region.permissions.write {
            return Care::Arm;
        }
        if !region.is_trackable() {
            return Care::LeaveOut;
        }
        // Accesses to read-only memory are tracked only without a file: of files, the kernel does
        // not report them.
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

    /// Whether a region is shared memory that can never be made writable, such as that of a file
    /// opened for reading.
    pub(super) fn is_read_only(&mut self, region: &Region) -> bool {
        if region.permissions.write || !region.permissions.shared {
            return false;
        }
        let pid = self.pid;
        let all = self.read_only_now.get_or_insert_with(|| read_only(pid));
        all.contains(region.range.start())
    }

    /// Forgets that `changed` mappings could not be tracked: the same file, opened for writing, may
    /// be mapped in the place of one that was not, also where nobody may write there by now.
    pub(super) fn try_again(&mut self, changed: &PageSet) {
        self.read_only = self.read_only.difference(changed);
        let is_same = |range| !changed.intersects(range);
        self.untracked
            .retain(|one| one.compared || is_same(one.region.range));
    }

    /// Why a region that was mapped while the target is tracked should not be armed, if so: memory
    /// that is armed after it was touched does not merge with its neighbours, and the kernel limits
    /// the number of mappings (`vm.max_map_count`).
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
            let note = format!("{reason}: new mappings are tracked by compare");
            pending.events.push(Event::Note(note));
        }
        Some(reason)
    }

    /// Notes where mappings have come, tracked or not, or others were `replaced`: a page there may
    /// hold something else, and nothing but this says so of one that shows what a file holds.
    pub(super) fn add_remapped(&self, now: &[Region], replaced: &PageSet, pending: &mut Pending) {
        let before: PageSet = self.regions.iter().map(|region| region.range).collect();
        let now: PageSet = now.iter().map(|region| region.range).collect();
        let mut remapped = now.difference(&before).union(replaced);
        if let Some(within) = &self.within {
            remapped = remapped.intersection(within);
        }
        pending.remapped.union_with(&remapped);
    }

    /// Arms the latent mappings in which the process now owns pages.
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

    /// Arms what has taken the place of read-only mappings and looks like them in
    /// `/proc/PID/maps`, where the technique finds out: the kernel registers what can be made
    /// writable, and refuses the rest, in about a microsecond each.
    pub(super) fn arm_writable(&mut self, pending: &mut Option<&mut Pending>) -> Result<()> {
        if self.read_only.is_empty() || !self.tracker.refuses_read_only() {
            return Ok(());
        }
        let regions = self.regions.iter();
        let regions: Vec<Region> = regions
            .filter(|region| self.read_only.intersects(region.range) && self.wants(region))
            .cloned()
            .collect();
        for region in regions {
            let parts = self.read_only.within(region.range);
            for range in parts.ranges() {
                let Some(part) = region.cut(*range) else {
                    continue;
                };
                self.read_only.remove(*range);
                if let Err(error) = self.arm_one(part, pending) {
                    self.read_only.insert(*range);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Adds to `pending` what was written and what is new; with
    /// [`ReportPages::Twice`](crate::ReportPages), also what the last
    /// collect found.
    pub(crate) fn collect(&mut self, pending: &mut Pending) -> Result<CollectStats> {
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
        checked: Checked,
        pending: &mut Pending,
    ) {
        if !discarded.is_empty() {
            // Memory that was unmapped has no contents that could have changed.
            let discarded = discarded.intersection(&self.armed);
            pending.add(&discarded, &PageSet::new());
        }
        pending.events.extend(checked.note.map(Event::Note));
        self.settled &= !checked.outdated;
    }

    /// Updates which memory is checked for discarded pages to what is armed now; its present
    /// contents are reported already.
    pub(super) fn follow_discards(&mut self) -> Result<()> {
        if std::mem::take(&mut self.rearranged) {
            self.discards.follow(&self.regions, &self.armed)?;
        }
        Ok(())
    }
}
