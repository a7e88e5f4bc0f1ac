//! Arming many mappings at once: each call of the kernel takes about a microsecond, however small
//! the mapping, and a program may have tens of thousands of them, most of them side by side.

use super::Space;
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::round::Pending;

impl Space {
    /// Arms the mappings at a set of addresses, as far as they should be tracked.
    pub(super) fn arm_parts(
        &mut self,
        addresses: &PageSet,
        pending: &mut Option<&mut Pending>,
    ) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let mut regions = Vec::new();
        for region in self.regions.iter().filter(|region| self.wants(region)) {
            let part = addresses.within(region.range);
            regions.extend(part.ranges().iter().filter_map(|range| region.cut(*range)));
        }
        for run in regions.chunk_by(|one, next| is_run(one) && is_run(next) && touch(one, next)) {
            if self.arm_run(run, pending)? {
                continue;
            }
            for region in run {
                self.arm_one(region.clone(), pending)?;
            }
        }
        Ok(())
    }

    /// Arms mappings side by side at once; returns false where each is to be armed by itself.
    fn arm_run(&mut self, run: &[Region], pending: &mut Option<&mut Pending>) -> Result<bool> {
        let [first, _, ..] = run else {
            return Ok(false);
        };
        let end = run.last().map_or(0, |region| region.range.end());
        let Some(range) = PageRange::new(first.range.start(), end) else {
            return Ok(false);
        };
        if self.crowded(first, pending).is_some() || !self.tracker.arm_run(range, run) {
            return Ok(false);
        }
        let mut fresh = PageSet::new();
        if pending.is_some() {
            let all = Region {
                range,
                ..first.clone()
            };
            self.tracker.add_populated(&all, &mut fresh)?;
        }
        // In this order, as for one mapping.
        self.armed.insert(range);
        self.rearrange();
        if let Some(pending) = pending {
            pending.written.union_with(&fresh);
            pending.fresh.union_with(&fresh);
            pending.remapped.insert(range);
        }
        Ok(true)
    }
}

/// Whether a mapping may be armed with others: which holes of shared memory are left alone is
/// decided for each.
fn is_run(region: &Region) -> bool {
    !region.permissions.shared && region.is_trackable()
}

fn touch(one: &Region, next: &Region) -> bool {
    one.range.end() == next.range.start()
}
