//! [`PageTable`]: the four levels of x86-64's page tables, over words that the processor reads by
//! itself.
//!
//! Tables are created as they are needed and never freed, so that a processor that still has a
//! table's address cached finds a table there. An entry that is removed comes back by a page fault.
//!
//! A processor sets a bit in each entry by which it translates an address (Intel's manual, volume
//! 3, section 5.8; AMD's, volume 2, section 5.4.2). Where those bits are to show which pages were
//! accessed ([`PageTable::track_accesses`], [`accessed`]), each page has its own entry.

mod accessed;
pub(crate) mod kept;

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use pagetrail::PageRange;

use super::accumulator::PageAccumulator;
use super::areas::Allowed;
use super::{BLOCK, PAGE};
use crate::error::{Error, Result};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// The processor has used the entry.
const ACCESSED: u64 = 1 << 5;
/// In an entry of the second-lowest level: the entry maps 2 MiB itself.
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const RIGHTS: u64 = PRESENT | WRITABLE | USER | NO_EXECUTE;
const LEVELS: u32 = 4;

/// Page tables in `W`, whose first byte is at guest-physical address 0.
#[derive(Debug)]
pub(crate) struct PageTable<W> {
    words: W,
    root: u64,
    /// The address of the next table.
    next: u64,
    /// Pages that were accessed and whose entries are gone; `None` where accesses are not tracked.
    touched: Option<PageAccumulator>,
    /// Whether dirty and accessed bits outlive their entries ([`kept`]).
    keeps: bool,
}

/// The bytes that an entry of a level maps.
const fn span(level: u32) -> u64 {
    PAGE << (9 * level)
}

/// The flags of an entry with these rights.
fn flags(allowed: Allowed) -> u64 {
    let mut flags = USER;
    if allowed.read {
        flags |= PRESENT;
    }
    if allowed.write {
        flags |= WRITABLE;
    }
    if !allowed.execute {
        flags |= NO_EXECUTE;
    }
    flags
}

/// The memory of page tables.
pub(crate) trait Words: Deref<Target = [AtomicU64]> {
    /// Makes more words accessible, all zero. Returns false where there is no more memory.
    fn grow(&mut self) -> bool;
}

impl<W: Words> PageTable<W> {
    /// Creates an empty root at `from`; other tables follow it.
    pub(crate) fn new(words: W, from: u64) -> Self {
        Self {
            words,
            root: from,
            next: from + PAGE,
            touched: None,
            keeps: false,
        }
    }

    /// Starts to track accesses, before anything is mapped; or stops it.
    pub(crate) fn track_accesses(&mut self, track: bool) {
        self.touched = track.then(PageAccumulator::default);
    }

    /// Whether accesses are tracked.
    pub(crate) fn tracks_accesses(&self) -> bool {
        self.touched.is_some()
    }

    /// Whether each page has its own entry.
    fn is_by_page(&self) -> bool {
        self.keeps || self.tracks_accesses()
    }

    pub(crate) fn words(&self) -> &W {
        &self.words
    }

    /// The guest-physical address of the root.
    pub(crate) fn root(&self) -> u64 {
        self.root
    }

    /// Maps a page for ring 0 only.
    pub(crate) fn map_system(&mut self, address: u64, physical: u64) -> Result<()> {
        let table = self.table_for(address, 0)?;
        self.entry(table, 0, address)
            .store(physical | PRESENT | WRITABLE, Ordering::Release);
        Ok(())
    }

    /// Maps `start..end`, within one block of 2 MiB, for ring 3. A whole block takes one entry,
    /// unless it already has a table.
    pub(crate) fn fill(
        &mut self,
        start: u64,
        end: u64,
        physical: u64,
        allowed: Allowed,
    ) -> Result<()> {
        let flags = flags(allowed);
        if end - start == BLOCK && !self.is_by_page() {
            let middle = self.table_for(start, 1)?;
            let entry = self.entry(middle, 1, start);
            let now = entry.load(Ordering::Relaxed);
            if now & PRESENT == 0 || now & LARGE != 0 {
                entry.store(physical | flags | LARGE, Ordering::Release);
                return Ok(());
            }
        }
        self.fill_pages(start, end, |page| (physical + (page - start), allowed))
    }

    /// Maps each page of `start..end`, within one block of 2 MiB, for ring 3, by an entry of its
    /// own: to the guest-physical address, and with the rights, that `target` returns for it.
    pub(crate) fn fill_pages(
        &mut self,
        start: u64,
        end: u64,
        target: impl Fn(u64) -> (u64, Allowed),
    ) -> Result<()> {
        let table = self.table_for(start, 0)?;
        for page in (start..end).step_by(PAGE as usize) {
            let (physical, allowed) = target(page);
            self.put(table, 0, page, physical | flags(allowed));
        }
        Ok(())
    }

    /// Makes a page's entry point elsewhere, with the same rights. A page that has none gets none,
    /// but never one of a whole block from now on.
    pub(crate) fn repoint(&mut self, page: u64, physical: u64) -> Result<()> {
        let table = self.table_for(page, 0)?;
        let now = self.entry(table, 0, page).load(Ordering::Relaxed);
        if now & PRESENT != 0 {
            self.put(table, 0, page, physical | now & RIGHTS);
        }
        Ok(())
    }

    /// Maps the whole blocks in `start..end`, within one GiB, that have no entry yet. Maps none
    /// where each page has its own entry.
    pub(crate) fn fill_blocks(
        &mut self,
        start: u64,
        end: u64,
        physical: u64,
        allowed: Allowed,
    ) -> Result<()> {
        if self.is_by_page() {
            return Ok(());
        }
        let flags = flags(allowed) | LARGE;
        let middle = self.table_for(start, 1)?;
        for block in (start..end).step_by(BLOCK as usize) {
            let entry = self.entry(middle, 1, block);
            if entry.load(Ordering::Relaxed) & PRESENT == 0 {
                entry.store((physical + (block - start)) | flags, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Removes `start..end`, and the rest of a block that a single entry maps.
    pub(crate) fn clear(&mut self, start: u64, end: u64) {
        self.clear_in(self.root, LEVELS - 1, start..end);
    }

    fn clear_in(&mut self, table: u64, level: u32, range: Range<u64>) {
        let mut address = range.start;
        while address < range.end {
            let next = (address & !(span(level) - 1)) + span(level);
            let now = self.entry(table, level, address).load(Ordering::Relaxed);
            if now & PRESENT != 0 {
                if level == 0 || now & LARGE != 0 {
                    self.put(table, level, address, 0);
                } else {
                    self.clear_in(now & ADDRESS, level - 1, address..next.min(range.end));
                }
            }
            address = next;
        }
    }

    /// Replaces an entry. Its bits are kept where somebody needs them.
    fn put(&mut self, table: u64, level: u32, address: u64, new: u64) {
        let entry = self.entry(table, level, address);
        if !self.is_by_page() {
            entry.store(new, Ordering::Release);
            return;
        }
        // In one step, since the processor may be setting a bit, and the program may be reading.
        let with_kept = |before| match self.keeps {
            true => new | kept::kept(before),
            false => new,
        };
        let mut before = entry.load(Ordering::Relaxed);
        while let Err(now) = entry.compare_exchange_weak(
            before,
            with_kept(before),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            before = now;
        }
        let touched = self.touched.as_mut();
        if before & (PRESENT | ACCESSED) == PRESENT | ACCESSED
            && let Some((touched, page)) = touched.zip(PageRange::new(address, address + PAGE))
        {
            touched.add(page);
        }
    }

    /// The table of a level with the entry for an address, created where there is none. An entry in
    /// its place that maps a block is removed: the block comes back by page faults.
    fn table_for(&mut self, address: u64, level: u32) -> Result<u64> {
        let mut table = self.root;
        for above in (level + 1..LEVELS).rev() {
            let now = self.entry(table, above, address).load(Ordering::Relaxed);
            table = if now & PRESENT != 0 && now & LARGE == 0 {
                now & ADDRESS
            } else {
                let added = self.add_page()?;
                let kept = if self.keeps { kept::kept(now) } else { 0 };
                let first = (added / 8) as usize;
                if kept != 0 {
                    let entries = &self.words[first..first + 512];
                    entries
                        .iter()
                        .for_each(|entry| entry.store(kept, Ordering::Relaxed));
                }
                let entry = added | PRESENT | WRITABLE | USER;
                self.entry(table, above, address)
                    .store(entry, Ordering::Release);
                added
            };
        }
        Ok(table)
    }

    /// A page among the tables that nothing else uses, all zero: its guest-physical address.
    pub(crate) fn add_page(&mut self) -> Result<u64> {
        let added = self.next;
        if added + PAGE > self.words.len() as u64 * 8 && !self.words.grow() {
            return Err(Error::Unsupported(
                "more memory than the page tables have room for".into(),
            ));
        }
        self.next += PAGE;
        Ok(added)
    }

    fn entry(&self, table: u64, level: u32, address: u64) -> &AtomicU64 {
        let index = address >> (12 + 9 * level) & 511;
        &self.words[(table / 8 + index) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SYSTEM_BASE, USER_END};
    use super::*;

    pub(super) const RW: Allowed = Allowed {
        read: true,
        write: true,
        execute: false,
        declared: 3,
    };

    impl Words for Box<[AtomicU64]> {
        fn grow(&mut self) -> bool {
            false
        }
    }

    /// What a processor finds for an address: the guest-physical address and the entry.
    fn translate(table: &PageTable<Box<[AtomicU64]>>, address: u64) -> Option<(u64, u64)> {
        let mut at = table.root();
        for level in (0..LEVELS).rev() {
            let entry = table.entry(at, level, address).load(Ordering::Relaxed);
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & LARGE != 0 {
                let offset = address & (span(level) - 1);
                return Some(((entry & ADDRESS) + offset, entry));
            }
            at = entry & ADDRESS;
        }
        None
    }

    pub(super) fn empty(pages: usize) -> PageTable<Box<[AtomicU64]>> {
        let words = (0..pages * 512).map(|_| AtomicU64::new(0)).collect();
        PageTable::new(words, PAGE)
    }

    pub(super) fn filled(
        table: &mut PageTable<Box<[AtomicU64]>>,
        start: u64,
        end: u64,
        physical: u64,
        allowed: Allowed,
    ) {
        table.fill(start, end, physical, allowed).unwrap();
    }

    #[test]
    fn pages_are_where_they_were_put_with_their_rights() {
        let mut table = empty(16);
        let code = Allowed {
            execute: true,
            write: false,
            ..RW
        };
        filled(&mut table, 0x40_0000, 0x40_3000, 0x4000_0000, code);
        filled(&mut table, 0x40_3000, 0x40_4000, 0x4000_3000, RW);
        let (physical, entry) = translate(&table, 0x40_2abc).unwrap();
        assert_eq!(physical, 0x4000_2abc);
        assert_eq!(entry & (NO_EXECUTE | WRITABLE | USER), USER);
        let (physical, entry) = translate(&table, 0x40_3000).unwrap();
        assert_eq!(physical, 0x4000_3000);
        assert_eq!(
            entry & (NO_EXECUTE | WRITABLE | USER),
            NO_EXECUTE | WRITABLE | USER
        );
        assert_eq!(translate(&table, 0x40_4000), None);
        table.clear(0x40_1000, 0x40_2000);
        assert_eq!(translate(&table, 0x40_1000), None);
        assert!(translate(&table, 0x40_0000).is_some() && translate(&table, 0x40_2000).is_some());
    }

    #[test]
    fn a_whole_block_takes_one_entry_and_no_table() {
        let mut table = empty(16);
        filled(&mut table, BLOCK * 7, BLOCK * 8, BLOCK * 700, RW);
        let used = table.next;
        assert_eq!(translate(&table, BLOCK * 8 - 1).unwrap().0, BLOCK * 701 - 1);
        assert_eq!(used, PAGE * 4, "root and two levels");
        // Removing a part removes the block, which comes back page by page.
        table.clear(BLOCK * 7 + PAGE, BLOCK * 7 + 2 * PAGE);
        assert_eq!(translate(&table, BLOCK * 7), None);
        filled(&mut table, BLOCK * 7, BLOCK * 7 + PAGE, BLOCK * 700, RW);
        assert_eq!(translate(&table, BLOCK * 7).unwrap().0, BLOCK * 700);
        assert_eq!(translate(&table, BLOCK * 7 + PAGE), None);
        assert_eq!(table.next, used + PAGE);
        // The whole block is mapped again, by the table, which stays.
        filled(&mut table, BLOCK * 7, BLOCK * 8, BLOCK * 700, RW);
        assert_eq!(
            translate(&table, BLOCK * 7 + 5 * PAGE).unwrap().0,
            BLOCK * 700 + 5 * PAGE
        );
        assert_eq!(table.next, used + PAGE);
    }

    #[test]
    fn blocks_come_together_and_leave_alone_what_is_there() {
        let mut table = empty(16);
        filled(
            &mut table,
            BLOCK * 9 + PAGE,
            BLOCK * 9 + 2 * PAGE,
            BLOCK * 909,
            RW,
        );
        table
            .fill_blocks(BLOCK * 8, BLOCK * 12, BLOCK * 700, RW)
            .unwrap();
        for (block, physical) in [(8, 700), (10, 702), (11, 703)] {
            let found = translate(&table, BLOCK * block + 5).unwrap();
            assert_eq!(found.0, BLOCK * physical + 5);
        }
        assert_eq!(translate(&table, BLOCK * 9 + PAGE).unwrap().0, BLOCK * 909);
        assert_eq!(translate(&table, BLOCK * 9), None);
        assert_eq!(translate(&table, BLOCK * 12), None);
        assert_eq!(translate(&table, BLOCK * 7), None);
    }

    #[test]
    fn a_page_points_elsewhere_with_its_rights() {
        let mut table = empty(16);
        filled(&mut table, BLOCK * 7, BLOCK * 8, BLOCK * 700, RW);
        let page = BLOCK * 7 + PAGE;
        // The entry of the block goes, and comes back page by page.
        table.repoint(page, PAGE * 5).unwrap();
        assert_eq!(translate(&table, page), None);
        assert_eq!(translate(&table, page + PAGE), None);
        let target = |at: u64| (if at == page { PAGE * 5 } else { at + BLOCK }, RW);
        table.fill_pages(BLOCK * 7, BLOCK * 8, target).unwrap();
        assert_eq!(translate(&table, page + 3).unwrap().0, PAGE * 5 + 3);
        assert_eq!(
            translate(&table, page + PAGE).unwrap().0,
            page + PAGE + BLOCK
        );
        let before = translate(&table, page).unwrap().1;
        table.repoint(page, PAGE * 6).unwrap();
        let (physical, entry) = translate(&table, page).unwrap();
        assert_eq!(physical, PAGE * 6);
        assert_eq!(entry & !ADDRESS, before & !ADDRESS);
    }

    #[test]
    fn terabytes_without_tables_are_cleared_at_once() {
        let mut table = empty(16);
        filled(&mut table, 1 << 40, (1 << 40) + PAGE, BLOCK, RW);
        table.clear(0, USER_END);
        assert_eq!(translate(&table, 1 << 40), None);
    }

    #[test]
    fn what_is_ring_0s_is_not_the_programs() {
        let mut table = empty(16);
        table.map_system(SYSTEM_BASE + 0x1000, 0x1000).unwrap();
        let (physical, entry) = translate(&table, SYSTEM_BASE + 0x1234).unwrap();
        assert_eq!((physical, entry & USER), (0x1234, 0));
    }

    #[test]
    fn no_room_is_an_error() {
        let mut table = empty(4);
        let mut put = |n: u64| table.fill(n << 30, (n << 30) + PAGE, n << 30, RW);
        assert!(put(1).is_err());
    }
}
