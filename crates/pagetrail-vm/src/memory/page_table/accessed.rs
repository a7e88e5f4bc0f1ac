//! Which pages were touched, from the bits that the processor sets in the entries by which it finds an address.
//!
//! It remembers what it has found, and sets no bit for that until it forgets; whoever takes the bits has it forget
//! ([`crate::memory::Memory::take_accessed`]).

use std::sync::atomic::Ordering;

use pagetrail::{PageRange, PageSet};

use super::{ACCESSED, ADDRESS, LARGE, LEVELS, PRESENT, PageTable, Words, span};
use crate::memory::{PAGE, USER_END};

/// Ours, in an entry of the second-lowest level: its table was looked at in the last round.
const LOOKED_AT: u64 = 1 << 9;

impl<W: Words> PageTable<W> {
    /// Takes the pages that were touched since the last call; `None` where accesses are not told.
    ///
    /// What the processor remembers it finds without a bit: when it has forgotten everything, the next round has begun, and
    /// not before. What is touched in between is in this round, since whoever remembers an entry has set its bit.
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

    /// Finds the tables of pages that may have new bits, with the addresses that they begin at, below an entry's `start`.
    ///
    /// The way to a page leads through its table's own entry, whose bit is set, too. Unless the processor remembers that part of
    /// the way: it may, from the moment in which that bit was cleared until it forgets. So a table is looked at once more in
    /// the round after that.
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
    /// Of each block, so that the same ones come again and again.
    const PAGES: u64 = 4;

    type Table = PageTable<Box<[std::sync::atomic::AtomicU64]>>;

    /// A processor that remembers pages, and the ways to tables of pages.
    #[derive(Default)]
    struct Processor {
        pages: BTreeSet<u64>,
        tables: BTreeSet<u64>,
    }

    impl Processor {
        /// Touches a page; whether it has found it.
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

        fn forget(&mut self) {
            *self = Self::default();
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Touches a page, which is mapped first if it is not.
        Touch(u64),
        /// Maps all of a block, again or for the first time.
        Map(u64),
        /// Takes a page out.
        Clear(u64),
        /// Ends a round; meanwhile, before the processor has forgotten, it touches these.
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
        /// What is touched is told in its round, and nothing else; what is touched while the round ends, in this one or the next.
        #[test]
        fn every_touch_is_told(steps in steps()) {
            let mut table = empty(16);
            table.track_accesses(true);
            let mut processor = Processor::default();
            let mut touched = BTreeSet::new();
            // Of those touched while the round before ended, the ones that it does not have, and all.
            let (mut owed, mut late) = (BTreeSet::new(), BTreeSet::new());
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
                        let told = table.take_accessed().unwrap();
                        let must = set(&touched).union(&set(&owed));
                        let may = must.union(&set(&late));
                        prop_assert!(must.difference(&told).is_empty(), "{told:?} lacks of {must:?}");
                        prop_assert!(told.difference(&may).is_empty(), "{told:?} is more than {may:?}");
                        (touched, owed, late) = Default::default();
                        for page in meanwhile {
                            if processor.touch(&table, page) {
                                late.insert(page);
                                if !told.contains(page) {
                                    owed.insert(page);
                                }
                            }
                        }
                        processor.forget();
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_told_unless_it_is_asked_for() {
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
