//! `/proc/PID/pagemap` of a target, by [`PageRange`]s, on the crate `pagemap-scan`.
//!
//! See `PAGEMAP_SCAN(2const)`, `proc_pid_pagemap(5)` and
//! `Documentation/admin-guide/mm/pagemap.rst`.

use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::memory_id;
pub(crate) use pagemap_scan::{Categories, Entry, Query, Vector};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::fs::File;
use std::io;

/// The page map of one process; it belongs to the address space for which it was opened, also after
/// `execve`.
#[derive(Debug)]
pub(crate) struct Pagemap(pagemap_scan::Pagemap);

impl AsFd for Pagemap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Pagemap {
    /// Opens the page map of `pid`, or of this process.
    pub(crate) fn open(pid: Option<u32>) -> io::Result<Self> {
        let path = pid.map_or("/proc/self/pagemap".into(), |pid| {
            format!("/proc/{}/pagemap", memory_id(pid))
        });
        Ok(Self(File::open(path)?.into()))
    }

    /// Calls `found` for each run of selected pages in `range`, in ascending order.
    ///
    /// If the kernel stops in the middle (`EPERM` at a mapping that is not registered), everything
    /// that was selected, and possibly re-armed, before that point has been passed to `found`.
    pub(crate) fn scan(
        &self,
        range: PageRange,
        query: Query,
        vector: &mut Vector,
        mut found: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        self.scan_kinds(range, query, vector, |range, _| found(range))
    }

    /// Scans like [`Self::scan`], and passes also those categories of [`Query::report`] that the
    /// pages have.
    pub(crate) fn scan_kinds(
        &self,
        range: PageRange,
        query: Query,
        vector: &mut Vector,
        mut found: impl FnMut(PageRange, Categories),
    ) -> Result<(), Errno> {
        self.0.scan(range, query, vector, |pages, kinds| {
            if let Some(range) = PageRange::new(pages.start, pages.end) {
                found(range, kinds);
            }
        })
    }

    /// Write-protects every page of `range` that has a page-table entry or shares a page table with
    /// one that has; a page that is created in a larger hole reads as written anyway.
    pub(crate) fn arm(&self, range: PageRange) -> Result<(), Errno> {
        self.0.write_protect(range)
    }

    /// Adds the pages of `range` that are in memory or swapped out, on any kernel.
    pub(crate) fn populated(
        &self,
        range: PageRange,
        vector: &mut Vector,
        out: &mut PageSet,
    ) -> io::Result<()> {
        let query = Query {
            any_of: existing(true),
            ..Query::ALL
        };
        match self.scan(range, query, vector, |range| out.insert(range)) {
            // Linux before 6.7 has no PAGEMAP_SCAN.
            Err(Errno::NOTTY) => self.matching_entries(range, Entry::is_populated, out),
            outcome => outcome.map_err(io::Error::from),
        }
    }

    /// Whether all of some adjacent pages, at most 512, are protected by a userfaultfd. Allocates
    /// nothing.
    #[cfg_attr(
        not(all(feature = "attach", target_arch = "x86_64")),
        allow(dead_code, reason = "pages are kept of processes that are attached to")
    )]
    pub(crate) fn are_protected(&self, range: PageRange) -> bool {
        let mut entries = [Entry::default(); 512];
        let Some(entries) = entries.get_mut(..range.page_count() as usize) else {
            return false;
        };
        let read = self.0.entries(range.start(), entries);
        read.is_ok_and(|count| count == entries.len())
            && entries.iter().all(|entry| entry.is_write_protected())
    }

    /// Whether the mapping of a page is registered for asynchronous write protection, with whatever
    /// userfaultfd; false also before Linux 6.7.
    pub(crate) fn is_tracked_asynchronously(&self, page: PageRange, vector: &mut Vector) -> bool {
        let query = Query {
            only_registered: true,
            ..OWNED
        };
        self.scan(page, query, vector, |_| {}).is_ok()
    }

    /// Adds the pages of `range` whose classic entry is `wanted`.
    pub(crate) fn matching_entries(
        &self,
        range: PageRange,
        wanted: impl Fn(Entry) -> bool,
        out: &mut PageSet,
    ) -> io::Result<()> {
        let page = page_size();
        let len = range.page_count().min(1 << 14) as usize;
        let mut entries = vec![Entry::default(); len];
        let mut start = range.start();
        while start < range.end() {
            let len = entries.len().min(((range.end() - start) / page) as usize);
            let count = self.0.entries(start, &mut entries[..len])?;
            for (i, &entry) in entries[..count].iter().enumerate() {
                if wanted(entry) {
                    out.extend_back(start + i as u64 * page, page);
                }
            }
            if count == 0 {
                break;
            }
            start += count as u64 * page;
        }
        Ok(())
    }

    /// Calls `found` with the address and the classic entries of each page of `range`, read from
    /// this page map, then from `other`, then from this one again.
    pub(crate) fn beside(
        &self,
        other: &Self,
        range: PageRange,
        mut found: impl FnMut(u64, [Entry; 3]),
    ) -> io::Result<()> {
        let page = page_size();
        let len = range.page_count().min(1 << 12) as usize;
        let mut entries = [(); 3].map(|()| vec![Entry::default(); len]);
        let mut start = range.start();
        while start < range.end() {
            let len = len.min(((range.end() - start) / page) as usize);
            let mut count = len;
            for (map, entries) in [self, other, self].into_iter().zip(&mut entries) {
                count = count.min(map.0.entries(start, &mut entries[..len])?);
            }
            for i in 0..count {
                found(start + i as u64 * page, entries.each_ref().map(|of| of[i]));
            }
            if count == 0 {
                break;
            }
            start += count as u64 * page;
        }
        Ok(())
    }
}

/// Selects pages in memory or swapped out that are the process's own, not the file's. A marker
/// reads as a page that is swapped out.
pub(crate) const OWNED: Query = Query {
    write_protect: false,
    only_registered: false,
    inverted: Categories::FILE,
    all_of: Categories::FILE,
    any_of: Categories::PRESENT.union(Categories::SWAPPED),
    report: Categories::NONE,
};

/// Selects pages in memory that are the process's own: neither the file's nor the page of zeros.
pub(crate) const OWNED_IN_MEMORY: Query = Query {
    write_protect: false,
    only_registered: false,
    inverted: Categories::FILE.union(Categories::ZERO),
    all_of: Categories::FILE
        .union(Categories::ZERO)
        .union(Categories::PRESENT),
    any_of: Categories::NONE,
    report: Categories::NONE,
};

/// Whether a page is populated and the process's own.
pub(crate) fn is_owned(entry: Entry) -> bool {
    entry.is_populated() && !entry.is_file()
}

/// The categories of pages that exist: in memory or, if `swap`, swapped out.
pub(crate) fn existing(swap: bool) -> Categories {
    match swap {
        true => Categories::PRESENT | Categories::SWAPPED,
        false => Categories::PRESENT,
    }
}
