//! Dirty and accessed bits that the program reads itself ([`crate::calls::own`]).
//!
//! A processor sets them in the entry by which it translates an address (Intel's manual, volume 3,
//! section 5.8; AMD's, volume 2, section 5.4.2). Entries come and go, though, and the kernel writes
//! without them. Two bits that processors ignore therefore keep what the processor's own would
//! lose: [`KEPT_DIRTY`] and [`KEPT_ACCESSED`], in the entry of a page, or of a larger part that has
//! no table. They stay in an entry that is not present, and go over to the entries of a table that
//! comes in its place. So the tables alone always have the whole set, and a reader needs
//! nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use pagetrail::PageRange;

use super::{ACCESSED, ADDRESS, LARGE, LEVELS, PRESENT, PageTable, Words, span};
use crate::error::Result;
use crate::memory::{PAGE, USER_END};

/// The processor has written by the entry.
pub(super) const DIRTY: u64 = 1 << 6;
/// The page has been dirtied since that was last cleared.
pub(crate) const KEPT_DIRTY: u64 = 1 << 10;
/// The page has been accessed since that was last cleared.
pub(crate) const KEPT_ACCESSED: u64 = 1 << 11;
/// Both kinds.
pub(crate) const KEPT: u64 = KEPT_DIRTY | KEPT_ACCESSED;

/// Whether an entry maps memory, and not a table.
fn is_leaf(entry: u64, level: u32) -> bool {
    level == 0 || entry & PRESENT == 0 || entry & LARGE != 0
}

/// The kinds that an entry that is no table's has, from both sorts of bits.
pub(super) fn kept(entry: u64) -> u64 {
    let mut kept = entry & KEPT;
    if entry & PRESENT != 0 {
        if entry & DIRTY != 0 {
            kept |= KEPT_DIRTY;
        }
        if entry & ACCESSED != 0 {
            kept |= KEPT_ACCESSED;
        }
    }
    kept
}

/// The bits of an entry that must be cleared for these kinds.
fn bits(kinds: u64) -> u64 {
    let mut bits = kinds;
    if kinds & KEPT_DIRTY != 0 {
        bits |= DIRTY;
    }
    if kinds & KEPT_ACCESSED != 0 {
        bits |= ACCESSED;
    }
    bits
}

impl<W: Words> PageTable<W> {
    /// Starts to keep the bits, with none set: what was written until now is in no set. Adds a page
    /// for counts beside them; where there is no room for it, nothing changes.
    pub(crate) fn keep_bits_from_now_on(&mut self) -> Result<u64> {
        let counts = self.add_page()?;
        // Before the bits are kept.
        self.clear(0, USER_END);
        self.keep_bits();
        Ok(counts)
    }

    /// Starts to keep the bits. Must be called when no page of the program has an entry.
    fn keep_bits(&mut self) {
        self.keeps = true;
    }

    /// Sets kept bits for all pages of a range.
    pub(crate) fn mark(&mut self, range: PageRange, kinds: u64) -> Result<()> {
        match self.keeps {
            true => self.mark_in(self.root, LEVELS - 1, range.start(), range.end(), kinds),
            false => Ok(()),
        }
    }

    fn mark_in(&mut self, table: u64, level: u32, start: u64, end: u64, kinds: u64) -> Result<()> {
        let mut address = start;
        while address < end {
            let first = address & !(span(level) - 1);
            let next = first + span(level);
            let entry = self.entry(table, level, address);
            let now = entry.load(Ordering::Relaxed);
            if is_leaf(now, level) && (level == 0 || address == first && next <= end) {
                entry.fetch_or(kinds, Ordering::AcqRel);
            } else {
                let below = self.table_for(address, level - 1)?;
                self.mark_in(below, level - 1, address, next.min(end), kinds)?;
            }
            address = next;
        }
        Ok(())
    }

    /// Clears the bits of these kinds in a range, and passes on, in ascending order, the pages that
    /// had one. Stops when `found` returns false, and returns the address up to which all is done.
    ///
    /// Processors may write without setting a bit until they have flushed their TLBs. Such a write
    /// is to a page that had its bit, and was passed on.
    pub(crate) fn take_kept(
        &mut self,
        range: PageRange,
        kinds: u64,
        found: &mut impl FnMut(PageRange) -> bool,
    ) -> Result<u64> {
        let stopped = self.take_in(
            (self.root, LEVELS - 1),
            range.start(),
            range.end(),
            kinds,
            found,
        )?;
        Ok(stopped.unwrap_or(range.end()))
    }

    fn take_in(
        &mut self,
        (table, level): (u64, u32),
        start: u64,
        end: u64,
        kinds: u64,
        found: &mut impl FnMut(PageRange) -> bool,
    ) -> Result<Option<u64>> {
        let mut address = start;
        loop {
            if level == 0 {
                address = self.next_of(table, address, end, bits(kinds));
            }
            if address >= end {
                break;
            }
            let first = address & !(span(level) - 1);
            let next = first + span(level);
            let now = self.entry(table, level, address).load(Ordering::Relaxed);
            if !is_leaf(now, level) {
                let below = (now & ADDRESS, level - 1);
                let stopped = self.take_in(below, address, next.min(end), kinds, found)?;
                if stopped.is_some() {
                    return Ok(stopped);
                }
            } else if kept(now) & kinds != 0 {
                if level > 0 && (address != first || next > end) {
                    // A part of it keeps its bits.
                    let below = (self.table_for(address, level - 1)?, level - 1);
                    let stopped = self.take_in(below, address, next.min(end), kinds, found)?;
                    if stopped.is_some() {
                        return Ok(stopped);
                    }
                } else {
                    let pages = PageRange::new(address, next);
                    if !pages.is_none_or(&mut *found) {
                        return Ok(Some(address));
                    }
                    let entry = self.entry(table, level, address);
                    let before = entry.fetch_and(!bits(kinds), Ordering::AcqRel);
                    self.keep_touched(before, address, kinds);
                }
            }
            address = next;
        }
        Ok(None)
    }

    /// The first address, before `end`, whose entry in a table of the lowest level has one of these
    /// bits; otherwise `end`. A program that takes its set looks at all of its memory, of which
    /// most has none, so that this decides what taking it costs.
    fn next_of(&self, table: u64, address: u64, end: u64, bits: u64) -> u64 {
        if address >= end {
            return end;
        }
        let first = (table / 8 + (address / PAGE % 512)) as usize;
        let count = ((end - address) / PAGE) as usize;
        let entries = &self.words[first..first + count];
        let has_one = |entry: &AtomicU64| entry.load(Ordering::Relaxed) & bits != 0;
        let found = entries.iter().position(has_one).unwrap_or(count);
        address + found as u64 * PAGE
    }

    /// Adds a page whose accessed bit has been cleared to the accesses of the round.
    fn keep_touched(&mut self, before: u64, address: u64, kinds: u64) {
        if before & (PRESENT | ACCESSED) == PRESENT | ACCESSED
            && kinds & KEPT_ACCESSED != 0
            && let Some((touched, page)) = self
                .touched
                .as_mut()
                .zip(PageRange::new(address, address + PAGE))
        {
            touched.add(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::super::BLOCK;
    use super::super::WRITABLE;
    use super::super::tests::{RW, empty};
    use super::*;

    type Table = PageTable<Box<[std::sync::atomic::AtomicU64]>>;

    const BASE: u64 = 7 << 30;
    /// Pages at the ends of blocks, of which there are three, two side by side.
    const PAGES: [u64; 6] = [0, 1, 511, 512, 513, 5 * 512 + 3];

    fn address(n: usize) -> u64 {
        BASE + PAGES[n] * PAGE
    }

    fn page(address: u64) -> PageRange {
        PageRange::new(address, address + PAGE).unwrap()
    }

    /// A processor that caches translations with their dirty bits.
    #[derive(Default)]
    struct Processor(BTreeSet<(u64, bool)>);

    impl Processor {
        /// Accesses a page; returns whether it could.
        fn access(&mut self, table: &Table, address: u64, writes: bool) -> bool {
            if self.0.contains(&(address, true)) || !writes && self.0.contains(&(address, false)) {
                return true;
            }
            let mut at = table.root();
            for level in (0..LEVELS).rev() {
                let entry = table.entry(at, level, address);
                let now = entry.load(Ordering::Relaxed);
                if now & PRESENT == 0 {
                    return false;
                }
                assert_eq!(now & LARGE, 0, "each page has an entry of its own");
                let set = if level == 0 && writes {
                    ACCESSED | DIRTY
                } else {
                    ACCESSED
                };
                if level == 0 && writes && now & WRITABLE == 0 {
                    return false;
                }
                entry.fetch_or(set, Ordering::Relaxed);
                at = now & ADDRESS;
            }
            self.0.insert((address, writes));
            true
        }
    }

    /// What a program finds that walks the tables itself.
    fn read(table: &Table, address: u64) -> u64 {
        let mut at = table.root();
        for level in (0..LEVELS).rev() {
            let entry = table.entry(at, level, address).load(Ordering::Relaxed);
            if is_leaf(entry, level) {
                return kept(entry);
            }
            at = entry & ADDRESS;
        }
        unreachable!("level 0 has no tables")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Access(usize, usize, bool),
        Fill(usize),
        /// The pages between two are unmapped, or protected.
        Clear(usize, usize),
        /// The kernel has written, or memory was discarded.
        Mark(usize, usize),
        MarkAll,
        Take(usize, usize, bool),
        TakeAll,
        Rounds,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let n = || 0..PAGES.len();
        let step = prop_oneof![
            8 => (0..2usize, n(), any::<bool>()).prop_map(|(cpu, n, writes)| Step::Access(cpu, n, writes)),
            4 => n().prop_map(Step::Fill),
            2 => (n(), n()).prop_map(|(a, b)| Step::Clear(a, b)),
            2 => (n(), n()).prop_map(|(a, b)| Step::Mark(a, b)),
            1 => Just(Step::MarkAll),
            3 => (n(), n(), any::<bool>()).prop_map(|(a, b, both)| Step::Take(a, b, both)),
            1 => Just(Step::TakeAll),
            1 => Just(Step::Rounds),
        ];
        prop::collection::vec(step, 0..120)
    }

    #[test]
    fn without_room_for_counts_nothing_changes() {
        let mut table = empty(16);
        let start = BASE;
        table.fill(start, start + PAGE, 0x4000_0000, RW).unwrap();
        while table.add_page().is_ok() {}
        assert!(table.keep_bits_from_now_on().is_err());
        table.mark(page(start), KEPT_DIRTY).unwrap();
        assert_eq!(read(&table, start), 0, "bits are kept");
        let mut processor = Processor::default();
        assert!(processor.access(&table, start, true), "its page has gone");
        let mut roomy = empty(64);
        roomy.fill(start, start + PAGE, 0x4000_0000, RW).unwrap();
        roomy.keep_bits_from_now_on().unwrap();
        roomy.mark(page(start), KEPT_DIRTY).unwrap();
        assert_eq!(read(&roomy, start) & KEPT_DIRTY, KEPT_DIRTY);
    }

    fn between(a: usize, b: usize) -> PageRange {
        PageRange::new(address(a.min(b)), address(a.max(b)) + PAGE).unwrap()
    }

    proptest! {
        /// The tables have every page that was written or accessed since it was last taken, and no
        /// page that was not touched at all.
        #[test]
        fn the_tables_have_the_whole_set(steps in steps(), accesses in any::<bool>()) {
            let mut table = empty(64);
            table.track_accesses(accesses);
            table.keep_bits();
            let mut processors = [Processor::default(), Processor::default()];
            let (mut dirty, mut accessed) = (BTreeSet::new(), BTreeSet::new());
            // Pages that have been touched at all since everything was taken, by anybody.
            let mut possible: BTreeSet<u64> = BTreeSet::new();
            for step in steps {
                let mut take = |table: &mut Table, range: PageRange, kinds: u64| {
                    let mut taken = BTreeSet::new();
                    let all: Vec<u64> = (0..PAGES.len()).map(address).collect();
                    let inside = |page: &u64| range.contains(*page);
                    let mut found = Vec::new();
                    table.take_kept(range, kinds, &mut |pages| { found.push(pages); true }).unwrap();
                    assert!(found.is_sorted());
                    for pages in found {
                        assert_eq!(range.intersection(&pages), Some(pages));
                        taken.extend(all.iter().copied().filter(|page| pages.contains(*page)));
                    }
                    for page in all.into_iter().filter(inside) {
                        let required = kinds & KEPT_DIRTY != 0 && dirty.contains(&page)
                            || kinds & KEPT_ACCESSED != 0 && accessed.contains(&page);
                        assert!(!required || taken.contains(&page), "{page:#x} is missing");
                        assert!(!taken.contains(&page) || possible.contains(&page), "{page:#x} was not touched");
                        assert_eq!(read(table, page) & kinds, 0);
                    }
                    if kinds & KEPT_DIRTY != 0 {
                        dirty.retain(|page| !inside(page));
                    }
                    if kinds & KEPT_ACCESSED != 0 {
                        accessed.retain(|page| !inside(page));
                    }
                };
                match step {
                    Step::Access(cpu, n, writes) => {
                        if processors[cpu].access(&table, address(n), writes) {
                            accessed.insert(address(n));
                            possible.insert(address(n));
                            if writes {
                                dirty.insert(address(n));
                            }
                        }
                    }
                    Step::Fill(n) => {
                        // As a fault does: the rest of the block, too.
                        let start = address(n) & !(BLOCK - 1);
                        table.fill(start, start + BLOCK, start, RW).unwrap();
                    }
                    Step::Clear(a, b) => {
                        let range = between(a, b);
                        table.clear(range.start(), range.end());
                        processors.iter_mut().for_each(|processor| {
                            processor.0.retain(|(page, _)| !range.contains(*page));
                        });
                    }
                    Step::Mark(a, b) => {
                        let range = between(a, b);
                        table.mark(range, KEPT_DIRTY).unwrap();
                        let pages = (0..PAGES.len()).map(address).filter(|page| range.contains(*page));
                        let pages: Vec<u64> = pages.collect();
                        dirty.extend(&pages);
                        possible.extend(pages);
                    }
                    Step::MarkAll => {
                        table.mark(PageRange::new(PAGE, USER_END).unwrap(), KEPT_DIRTY).unwrap();
                        dirty.extend((0..PAGES.len()).map(address));
                        possible.extend((0..PAGES.len()).map(address));
                    }
                    Step::Take(a, b, both) => {
                        take(&mut table, between(a, b), if both { KEPT } else { KEPT_DIRTY });
                        processors = Default::default();
                    }
                    Step::TakeAll => {
                        take(&mut table, PageRange::new(PAGE, USER_END).unwrap(), KEPT);
                        processors = Default::default();
                        possible.clear();
                    }
                    Step::Rounds => {
                        table.take_accessed();
                        processors = Default::default();
                    }
                }
                for page in &dirty {
                    prop_assert!(read(&table, *page) & KEPT_DIRTY != 0);
                }
                for page in &accessed {
                    prop_assert!(read(&table, *page) & KEPT_ACCESSED != 0);
                }
            }
        }
    }

    #[test]
    fn a_terabyte_is_marked_without_tables() {
        let mut table = empty(8);
        table.keep_bits();
        let all = PageRange::new(PAGE * 5, (1 << 40) + PAGE).unwrap();
        table.mark(all, KEPT_DIRTY).unwrap();
        assert_eq!(read(&table, PAGE * 4), 0);
        assert_eq!(read(&table, PAGE * 5), KEPT_DIRTY);
        assert_eq!(read(&table, 1 << 39), KEPT_DIRTY);
        assert_eq!(read(&table, (1 << 40) + PAGE), 0);
        let mut pages = 0;
        let done = table.take_kept(all, KEPT, &mut |range| {
            pages += range.page_count();
            true
        });
        assert_eq!((done.unwrap(), pages), (all.end(), all.page_count()));
    }

    #[test]
    fn what_is_not_passed_on_keeps_its_bit() {
        let mut table = empty(16);
        table.keep_bits();
        table.mark(between(0, 1), KEPT_DIRTY).unwrap();
        let mut room = 1;
        let stopped = table.take_kept(between(0, 5), KEPT_DIRTY, &mut |_| {
            room -= 1;
            room >= 0
        });
        assert_eq!(stopped.unwrap(), address(1));
        assert_eq!(read(&table, address(0)), 0);
        assert_eq!(read(&table, address(1)), KEPT_DIRTY);
        assert_eq!(page(address(1)).start(), address(1));
    }
}
