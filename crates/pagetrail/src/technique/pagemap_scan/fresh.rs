//! Which pages exist in private memory that the technique comes upon: a new mapping, or a block in
//! which the process has come to own pages.
//!
//! Arming leaves a marker in each empty entry, and a page that is being *migrated* to other
//! physical memory, or whose huge page is being split, is not in the page table for a moment
//! (`try_to_migrate` in `mm/rmap.c`). `PAGEMAP_SCAN` calls both swapped out, and nothing but a
//! privileged look at `pagemap` tells them apart. So:
//!
//! * What existed *before* the memory was armed is taken from a scan before it, when there were no
//!   markers: there, what reads as swapped out exists.
//! * A page that was created between that scan and the arming is found in memory by a scan
//!   afterwards. In case it was migrated just then, those that seem empty are looked at again by
//!   each of the next collects, [`LOOKS`] times.

use super::{PagemapScan, blocks};
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use crate::proc::status::may_be_swapped;
use crate::region::Region;
use crate::sys::pagemap::{OWNED, OWNED_IN_MEMORY, Query, existing};

/// How many collects look again at an entry that seemed empty.
const LOOKS: usize = 4;

/// What is known of memory that was armed lately.
#[derive(Default)]
pub(super) struct Fresh {
    /// The pages of new mappings that existed before these were armed.
    populated: PageSet,
    /// Entries that were not reported because they seemed empty: first those that the last collect
    /// left out, then those of the collect before, and so on.
    seemed_empty: [PageSet; LOOKS + 1],
}

impl Fresh {
    /// Remembers the pages of a new mapping that existed before it was armed.
    pub(super) fn existed(&mut self, pages: &PageSet) {
        self.populated.union_with(pages);
    }

    /// The pages of a new mapping that existed before it was armed; they are forgotten.
    fn take_existed(&mut self, range: PageRange) -> PageSet {
        let taken = self.populated.within(range);
        self.populated.remove(range);
        taken
    }

    /// Begins a collect.
    pub(super) fn begin(&mut self) {
        self.populated.clear();
        self.seemed_empty.rotate_right(1);
        self.seemed_empty[0].clear();
    }

    pub(super) fn forget(&mut self, range: PageRange) {
        self.populated.remove(range);
        for set in &mut self.seemed_empty {
            set.remove(range);
        }
    }
}

impl PagemapScan {
    /// Adds the pages of a new private mapping that exist.
    pub(super) fn add_existing(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        let mut found = self.fresh.take_existed(region.range);
        self.select(region.range, self.owned_now(), &mut found)?;
        let armed = self.seen.within(region.range);
        self.fresh.seemed_empty[0].union_with(&armed.difference(&found));
        out.union_with(&found);
        Ok(())
    }

    /// Removes from `found` the entries of the blocks `fresh` that are empty because they were
    /// never touched; `owned`: the pages in them that existed before the scan.
    pub(super) fn drop_never_touched(
        &mut self,
        fresh: &PageSet,
        owned: PageSet,
        found: &mut PageSet,
    ) -> Result<()> {
        let suspicious = found.intersection(fresh).difference(&self.shared);
        let mut owned = owned;
        let query = self.owned_now();
        for range in fresh.ranges() {
            self.select(*range, query, &mut owned)?;
        }
        let empty = suspicious.difference(&owned);
        *found = found.difference(&empty);
        self.fresh.seemed_empty[0].union_with(&empty);
        Ok(())
    }

    /// Adds the pages that seemed empty to earlier collects and exist.
    pub(super) fn look_again(&mut self, out: &mut PageSet) -> Result<()> {
        let all = |sets: &[PageSet]| sets.iter().fold(PageSet::new(), |all, set| all.union(set));
        let doubted = all(&self.fresh.seemed_empty);
        let mut found = PageSet::new();
        // Few calls, instead of one for each run of entries.
        for range in blocks(&doubted).ranges() {
            self.select(*range, OWNED_IN_MEMORY, &mut found)?;
        }
        let found = found.intersection(&doubted);
        if !found.is_empty() {
            for set in &mut self.fresh.seemed_empty {
                *set = set.difference(&found);
            }
            out.union_with(&found);
        }
        Ok(())
    }

    /// Selects the pages that the process owns, in memory that also has markers.
    fn owned_now(&self) -> Query {
        // A marker reads as a swapped page, so swapped pages are selected only if the process has
        // any.
        let swap = may_be_swapped(self.pid);
        Query {
            any_of: existing(swap),
            ..OWNED
        }
    }
}
