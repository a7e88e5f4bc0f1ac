//! Finds accessed pages by the bits that the processor sets in the entries by which it translates
//! an address.
//!
//! The processor sets no bit for a translation in its TLB. The caller therefore flushes all TLBs
//! after it has taken the bits ([`crate::memory::Memory::take_accessed`]).

use std::sync::atomic::Ordering;

use pagetrail::{PageRange, PageSet};

use super::kept::KEPT_ACCESSED;
use super::{ACCESSED, ADDRESS, LARGE, LEVELS, PRESENT, PageTable, Words, span};
use crate::memory::{PAGE, USER_END};

/// A bit that the processor ignores, in an entry of the second-lowest level: its table was scanned
/// in the last round.
const LOOKED_AT: u64 = 1 << 9;

impl<W: Words> PageTable<W> {
    /// Takes the pages that were accessed since the last call; `None` where accesses are not
    /// tracked.
    ///
    /// A processor uses a translation in its TLB without setting a bit. The next round starts only
    /// when all TLBs have been flushed. An access between the clearing of its bit and that flush
    /// belongs to this round, and is not lost, since the processor that has the translation has set
    /// the bit.
    pub(crate) fn take_accessed(&mut self) -> Option<PageSet> {
        let mut touched = self.touched.take()?;
        let mut tables = Vec::new();
        self.find_tables(self.root, LEVELS - 1, 0, &mut tables);
        for (block, table) in tables {
            let first = (table / 8) as usize;
            for (page, entry) in (block..)
                .step_by(PAGE as usize)
                .zip(&self.words[first..first + 512])
            {
                if entry.load(Ordering::Relaxed) & ACCESSED != 0 {
                    if self.keeps {
                        entry.fetch_or(KEPT_ACCESSED, Ordering::AcqRel);
                    }
                    entry.fetch_and(!ACCESSED, Ordering::AcqRel);
                    PageRange::new(page, page + PAGE)
                        .into_iter()
                        .for_each(|page| touched.add(page));
                }
            }
        }
        let pages = touched.take();
        self.touched = Some(touched);
        Some(pages)
    }

    /// Finds the tables of the lowest level that may have new bits, with the addresses that they
    /// start at, below an entry's `start`.
    ///
    /// A processor reaches a page through its table's own entry, whose bit it then sets, unless it
    /// has cached that part of the walk. It may have, from the moment in which that bit was cleared
    /// until the flush. So a table is scanned once more in the round after that.
    fn find_tables(&self, table: u64, level: u32, start: u64, found: &mut Vec<(u64, u64)>) {
        for index in 0..512 {
            let address = start + index * span(level);
            if address >= USER_END {
                return;
            }
            let entry = self.entry(table, level, address);
            let now = entry.load(Ordering::Relaxed);
            if now & PRESENT == 0 || now & LARGE != 0 {
                continue;
            }
            if level > 1 {
                self.find_tables(now & ADDRESS, level - 1, address, found);
            } else if now & ACCESSED != 0 {
                entry.fetch_or(LOOKED_AT, Ordering::AcqRel);
                entry.fetch_and(!ACCESSED, Ordering::AcqRel);
                found.push((address, now & ADDRESS));
            } else if now & LOOKED_AT != 0 {
                entry.fetch_and(!LOOKED_AT, Ordering::AcqRel);
                found.push((address, now & ADDRESS));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::tests::{RW, empty, filled};
    use super::*;
    use crate::memory::BLOCK;

    const BLOCKS: u64 = 3;
    /// The number of pages used of each block: few, so that they repeat.
    const PAGES: u64 = 4;

    type Table = PageTable<Box<[std::sync::atomic::AtomicU64]>>;

    /// Stands for a processor that caches translations and paging structures.
    #[derive(Default)]
    struct Processor {
        pages: BTreeSet<u64>,
        tables: BTreeSet<u64>,
    }

    impl Processor {
        /// Accesses a page. Returns whether it is mapped.
        fn touch(&mut self, table: &Table, page: u64) -> bool {
            if self.pages.contains(&page) {
                return true;
            }
            let mut at = table.root();
            for level in (0..LEVELS).rev() {
                let entry = table.entry(at, level, page);
                let now = entry.load(Ordering::Relaxed);
                if now & PRESENT == 0 {
                    return false;
                }
                if level == 0 || !self.tables.contains(&(page / BLOCK)) {
                    entry.fetch_or(ACCESSED, Ordering::Relaxed);
                }
                at = now & ADDRESS;
            }
            self.tables.insert(page / BLOCK);
            self.pages.insert(page);
            true
        }

        fn flush(&mut self) {
            *self = Self::default();
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Accesses a page, which is mapped first if it is not.
        Touch(u64),
        /// Maps all of a block.
        Map(u64),
        /// Removes a page.
        Clear(u64),
        /// Ends a round. Before the TLB is flushed, the processor accesses these pages.
        Round(Vec<u64>),
    }

    fn pages() -> impl Strategy<Value = u64> {
        (0..BLOCKS, 0..PAGES).prop_map(|(block, page)| block * BLOCK + page * PAGE)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => pages().prop_map(Step::Touch),
            1 => (0..BLOCKS).prop_map(Step::Map),
            1 => pages().prop_map(Step::Clear),
            2 => prop::collection::vec(pages(), 0..4).prop_map(Step::Round),
        ];
        prop::collection::vec(step, 0..60)
    }

    fn map(table: &mut Table, block: u64) {
        filled(
            table,
            block * BLOCK,
            (block + 1) * BLOCK,
            (block + 9) * BLOCK,
            RW,
        );
    }

    fn set(pages: &BTreeSet<u64>) -> PageSet {
        let pages = pages.iter();
        pages
            .filter_map(|page| PageRange::new(*page, page + PAGE))
            .collect()
    }

    proptest! {
        /// A round has exactly the pages that were accessed in it. A page accessed while the round
        /// ends is in this round or the next.
        #[test]
        fn every_access_is_in_a_round(steps in steps()) {
            let mut table = empty(16);
            table.track_accesses(true);
            let mut processor = Processor::default();
            let mut touched = BTreeSet::new();
            // The pages accessed while the round before ended: those that it lacks, and all.
            let (mut required, mut late) = (BTreeSet::new(), BTreeSet::new());
            for step in steps.into_iter().chain([Step::Round(Vec::new())]) {
                match step {
                    Step::Touch(page) => {
                        if !processor.touch(&table, page) {
                            map(&mut table, page / BLOCK);
                            prop_assert!(processor.touch(&table, page));
                        }
                        touched.insert(page);
                    }
                    Step::Map(block) => map(&mut table, block),
                    Step::Clear(page) => table.clear(page, page + PAGE),
                    Step::Round(meanwhile) => {
                        let collected = table.take_accessed().unwrap();
                        let must = set(&touched).union(&set(&required));
                        let may = must.union(&set(&late));
                        prop_assert!(must.difference(&collected).is_empty(), "{collected:?} lacks of {must:?}");
                        prop_assert!(collected.difference(&may).is_empty(), "{collected:?} is more than {may:?}");
                        (touched, required, late) = Default::default();
                        for page in meanwhile {
                            if processor.touch(&table, page) {
                                late.insert(page);
                                if !collected.contains(page) {
                                    required.insert(page);
                                }
                            }
                        }
                        processor.flush();
                    }
                }
            }
        }
    }

    #[test]
    fn accesses_are_not_tracked_unless_requested() {
        let mut table = empty(16);
        map(&mut table, 0);
        assert_eq!(table.take_accessed(), None);
        assert!(
            table
                .entry(table.root(), LEVELS - 1, 0)
                .load(Ordering::Relaxed)
                & PRESENT
                != 0
        );
    }
}
