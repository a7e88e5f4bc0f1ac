//! The program's own use of the machine: its write set in the page tables, and pages that it
//! protects by them ([`crate::calls::own`]).
//!
//! A protected page is one that the page tables do not let the program write to, whatever
//! `mprotect(2)` permits. The kernel's own writes to it for a system call are not stopped.

use std::sync::atomic::Ordering;

use pagetrail::{PageRange, PageSet};

use super::areas::{Access, Allowed};
use super::page_table::kept::{KEPT_ACCESSED, KEPT_DIRTY};
use super::{BLOCK, Memory, USER_END, pages_around};
use crate::error::Result;
use crate::sys::thread::is_gone;

/// What the machine does with a write to a protected page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Nothing: the page is not protected.
    Open,
    /// Records it, and opens the page.
    Recorded,
    /// Sends `SIGSEGV`, as for a page that `mprotect(2)` protects.
    Handled,
}

/// The state of a program that uses its own write set.
#[derive(Debug, Default)]
pub(crate) struct Own {
    recorded: PageSet,
    handled: PageSet,
    /// Pages that the kernel has written, and that opened by that; nobody has recorded them yet.
    unrecorded: PageSet,
    /// Threads that are ending, with their process and the pages that the kernel writes afterwards.
    /// The child of a `vfork(2)` uses this memory, too, so the process that asks may be another.
    endings: Vec<(u32, u32, PageSet)>,
    /// The address and the capacity of the program's array of recorded writes.
    records: Option<(u64, u64)>,
    /// The page among the tables with two words that the program reads: how many calls that close
    /// or replace descriptors have begun, and how many have ended.
    descriptor_calls: u64,
}

impl Own {
    /// How a page is protected.
    fn protection(&self, page: u64) -> Protection {
        match () {
            () if self.handled.contains(page) => Protection::Handled,
            () if self.recorded.contains(page) => Protection::Recorded,
            () => Protection::Open,
        }
    }

    fn open(&mut self, range: PageRange) {
        self.recorded.remove(range);
        self.handled.remove(range);
    }
}

impl Memory {
    /// Starts to keep the program's write set, or, if that has been started, does nothing.
    pub(crate) fn start_own(&mut self) -> Result<()> {
        if self.own.is_none() {
            let descriptor_calls = self.table.keep_bits_from_now_on()?;
            self.own = Some(Own {
                descriptor_calls,
                ..Own::default()
            });
            self.flush()?;
        }
        Ok(())
    }

    /// The offset from the tables' address of the words that count calls on descriptors.
    pub(crate) fn descriptor_calls(&self) -> Option<u64> {
        self.own.as_ref().map(|own| own.descriptor_calls)
    }

    /// Counts a call that closes or replaces descriptors: that it begins, or that it has ended.
    pub(crate) fn count_descriptor_call(&self, has_ended: bool) {
        if let Some(words) = self.descriptor_calls() {
            let number = (words / 8) as usize + usize::from(has_ended);
            self.system()[number].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the program's write set is kept.
    pub(crate) fn keeps_own(&self) -> bool {
        self.own.is_some()
    }

    /// Takes the pages of these kinds in a range, as far as `found` accepts them, and returns the
    /// end of what was taken. Processors may write without setting a bit until they flush.
    pub(crate) fn take_own(
        &mut self,
        range: PageRange,
        kinds: u64,
        found: &mut impl FnMut(PageRange) -> bool,
    ) -> Result<u64> {
        let end = self.table.take_kept(range, kinds, found)?;
        self.mark_endings()?;
        Ok(end)
    }

    /// Sets how the program's writes to a range are noticed. Processors may write until they flush.
    pub(crate) fn protect_own(&mut self, range: PageRange, protection: Protection) {
        let Some(own) = &mut self.own else { return };
        own.open(range);
        match protection {
            Protection::Open => {}
            Protection::Recorded => own.recorded.insert(range),
            Protection::Handled => own.handled.insert(range),
        }
        self.table.clear(range.start(), range.end());
    }

    /// Opens a page that the program has protected, and returns how it was protected. One whose
    /// writes are handled stays protected.
    pub(super) fn violated(&mut self, address: u64, access: Access) -> Protection {
        let Some(own) = self.own.as_mut().filter(|_| access == Access::Write) else {
            return Protection::Open;
        };
        let protection = own.protection(address);
        if protection == Protection::Recorded {
            pages_around(address, 1)
                .into_iter()
                .for_each(|page| own.recorded.remove(page));
        }
        protection
    }

    /// Notes that the kernel, or the machine for it, has written here.
    pub(crate) fn mark_written(&mut self, address: u64, bytes: u64) -> Result<()> {
        pages_around(address, bytes).map_or(Ok(()), |pages| self.mark_changed(pages))
    }

    /// Notes that the contents of pages have changed otherwise than by the program's stores.
    pub(super) fn mark_changed(&mut self, pages: PageRange) -> Result<()> {
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        let opened = own.recorded.intersection(&pages.into());
        for range in opened.ranges() {
            own.recorded.remove(*range);
            own.unrecorded.insert(*range);
            self.table.clear(range.start(), range.end());
        }
        self.table.mark(pages, KEPT_DIRTY | KEPT_ACCESSED)
    }

    /// Notes that the kernel has read here.
    pub(crate) fn mark_read(&mut self, address: u64, bytes: u64) -> Result<()> {
        match pages_around(address, bytes) {
            Some(pages) => self.table.mark(pages, KEPT_ACCESSED),
            None => Ok(()),
        }
    }

    /// Notes that an unknown system call may have written anywhere.
    pub(crate) fn mark_all(&mut self) -> Result<()> {
        if self.own.is_none() {
            return Ok(());
        }
        let writable = self.writable();
        writable
            .ranges()
            .iter()
            .try_for_each(|range| self.mark_changed(*range))
    }

    /// Notes that the kernel will write when a thread is gone: the word at an address, and robust
    /// futexes `anywhere`.
    pub(crate) fn mark_thread_end(
        &mut self,
        thread: u32,
        address: u64,
        anywhere: bool,
    ) -> Result<()> {
        let writable = if anywhere {
            self.writable()
        } else {
            PageSet::new()
        };
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        let word = pages_around(address, 4).filter(|_| address != 0);
        let pages = writable.union(&word.into_iter().collect());
        if !pages.is_empty() {
            own.endings.push((std::process::id(), thread, pages));
        }
        self.mark_endings()
    }

    /// Marks what the kernel may write for threads that are ending. Forgets those that are gone.
    fn mark_endings(&mut self) -> Result<()> {
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        let mut pages = PageSet::new();
        own.endings.retain(|(process, thread, written)| {
            // In this order: what a thread that is gone has written, it wrote before.
            let stays = !is_gone(*process, *thread);
            pages.union_with(written);
            stays
        });
        let mut ranges = pages.ranges().iter();
        ranges.try_for_each(|range| self.mark_changed(*range))
    }

    /// Sets kept bits again.
    pub(crate) fn mark_own(&mut self, range: PageRange, kinds: u64) -> Result<()> {
        self.table.mark(range, kinds)
    }

    /// Sets where recorded writes are stored. Returns whether the program uses its own write set.
    pub(crate) fn record_at(&mut self, array: u64, capacity: u64) -> bool {
        let own = self.own.as_mut();
        own.is_some_and(|own| {
            own.records = (array != 0).then_some((array, capacity));
            true
        })
    }

    /// Where recorded writes are stored: the address of the array, and its capacity.
    pub(crate) fn recorded_at(&self) -> Option<(u64, u64)> {
        self.own.as_ref()?.records
    }

    /// Takes the pages that the kernel has written although their writes are recorded.
    pub(crate) fn take_unrecorded(&mut self) -> PageSet {
        let own = self.own.as_mut();
        own.map_or_else(PageSet::new, |own| std::mem::take(&mut own.unrecorded))
    }

    /// Forgets the protection of what is unmapped, or mapped over.
    pub(super) fn open_replaced(&mut self, range: PageRange) {
        if let Some(own) = &mut self.own {
            own.open(range);
        }
    }

    /// The rights that the page tables give to a page with these.
    pub(super) fn rights(&self, page: u64, allowed: Allowed) -> Allowed {
        let is_protected = self
            .own
            .as_ref()
            .is_some_and(|own| own.protection(page) != Protection::Open);
        Allowed {
            write: allowed.write && !is_protected,
            ..allowed
        }
    }

    /// Where the program finds the page tables, which it may read.
    pub(crate) fn tables_address(&self) -> u64 {
        self.system().address()
    }

    /// Fills the tables for a part of the tables themselves, read-only. Returns whether the address
    /// is there, and the program uses its own write set.
    pub(super) fn fill_tables(&mut self, address: u64, access: Access) -> Result<bool> {
        let (start, bytes) = (self.system().address(), self.system().usable_bytes());
        let is_there = self.keeps_own()
            && access == Access::Read
            && address < USER_END
            && address
                .checked_sub(start)
                .is_some_and(|offset| offset < bytes);
        if is_there {
            let first = (address & !(BLOCK - 1)).max(start);
            let end = ((address & !(BLOCK - 1)) + BLOCK).min(start + bytes);
            let readable = Allowed::from_protection(libc::PROT_READ as u64);
            self.table
                .fill_pages(first, end, |page| (page - start, readable))?;
        }
        Ok(is_there)
    }
}
