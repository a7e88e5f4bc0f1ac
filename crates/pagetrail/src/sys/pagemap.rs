//! `/proc/PID/pagemap`: the `PAGEMAP_SCAN` ioctl (Linux 6.7) and the classic entries.
//!
//! See `PAGEMAP_SCAN(2const)`, `proc_pid_pagemap(5)` and
//! `Documentation/admin-guide/mm/pagemap.rst`.

use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::memory_id;
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The categories of pages, as bits (`PAGE_IS_*`).
pub(crate) mod category {
    use linux_raw_sys::general as raw;
    pub(crate) const WRITTEN: u64 = raw::PAGE_IS_WRITTEN as u64;
    pub(crate) const FILE: u64 = raw::PAGE_IS_FILE as u64;
    pub(crate) const PRESENT: u64 = raw::PAGE_IS_PRESENT as u64;
    pub(crate) const SWAPPED: u64 = raw::PAGE_IS_SWAPPED as u64;
    pub(crate) const PFNZERO: u64 = raw::PAGE_IS_PFNZERO as u64;
    pub(crate) const HUGE: u64 = raw::PAGE_IS_HUGE as u64;
    pub(crate) const SOFT_DIRTY: u64 = raw::PAGE_IS_SOFT_DIRTY as u64;
    /// `PAGE_IS_ACCESSED` (Linux 7.3), which linux-raw-sys lacks.
    pub(crate) const ACCESSED: u64 = 1 << 9;
}

/// Which pages a scan selects, and what it does with them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query {
    /// Write-protect the selected pages in the same step; fail with `EPERM` if a mapping does not
    /// allow it.
    pub(crate) rearm: bool,
    /// Fail with `EPERM` if a mapping is not registered for asynchronous write protection; included
    /// in `rearm`.
    pub(crate) registered: bool,
    /// Categories that select pages by their absence instead of their presence.
    pub(crate) inverted: u64,
    /// Categories all of which a page must have.
    pub(crate) all_of: u64,
    /// Categories at least one of which a page must have, unless 0.
    pub(crate) any_of: u64,
    /// Categories to report; adjacent pages that agree in them share a region.
    pub(crate) report: u64,
}

/// The page map of one process; it belongs to the address space for which it was opened, also after
/// `execve`.
#[derive(Debug)]
pub(crate) struct Pagemap {
    file: File,
}

/// The most regions that one ioctl returns; a scan that finds more continues with another.
const VECTOR_LEN: usize = 4096;

/// The vector that scans fill, reused from one scan to the next.
#[derive(Debug)]
pub(crate) struct Vector(Box<[page_region]>);

impl Vector {
    pub(crate) fn new() -> Self {
        Self(vec![EMPTY; VECTOR_LEN].into_boxed_slice())
    }
}

const EMPTY: page_region = page_region {
    start: 0,
    end: 0,
    categories: 0,
};

impl Pagemap {
    /// Opens the page map of `pid`, or of this process.
    pub(crate) fn open(pid: Option<u32>) -> io::Result<Self> {
        let path = pid.map_or("/proc/self/pagemap".into(), |pid| {
            format!("/proc/{}/pagemap", memory_id(pid))
        });
        Ok(Self {
            file: File::open(path)?,
        })
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
        mut found: impl FnMut(PageRange, u64),
    ) -> Result<(), Errno> {
        let mut start = range.start();
        while start < range.end() {
            // The kernel allocates memory for as many regions as the vector has, so a scan of a few
            // pages passes a short one.
            let most = ((range.end() - start) / page_size() / 2 + 1).min(VECTOR_LEN as u64);
            let mut call = Scan {
                arg: query.arg(start, range.end(), &mut vector.0[..most as usize]),
            };
            // SAFETY: `arg` describes a part of `vector`, which outlives the call and has `vec_len`
            // regions.
            let outcome = unsafe { rustix::ioctl::ioctl(&self.file, &mut call) };
            // On failure the kernel has still copied what it found, but returns no count: a region
            // that is not empty is one of those, because the vector was empty before the call.
            let filled = match outcome {
                Ok(count) => count,
                Err(_) => vector
                    .0
                    .iter()
                    .position(|r| r.end == 0)
                    .unwrap_or(vector.0.len()),
            };
            for region in &mut vector.0[..filled] {
                if let Some(range) = PageRange::new(region.start, region.end) {
                    found(range, region.categories);
                }
                region.end = 0;
            }
            outcome?;
            start = call.arg.walk_end.max(start + page_size());
        }
        Ok(())
    }

    /// Write-protects every page of `range` that has a page-table entry or shares a page table with
    /// one that has, and reports nothing.
    ///
    /// Larger holes stay untouched: protecting them would create page tables for a sparse mapping
    /// of gigabytes, and a page that is created in a hole reads as written anyway.
    pub(crate) fn arm(&self, range: PageRange) -> Result<(), Errno> {
        let query = Query {
            rearm: true,
            all_of: category::WRITTEN,
            ..Query::default()
        };
        let mut start = range.start();
        while start < range.end() {
            let mut call = Scan {
                arg: query.arg(start, range.end(), &mut []),
            };
            // SAFETY: without a vector the kernel writes only to `call`.
            unsafe { rustix::ioctl::ioctl(&self.file, &mut call)? };
            start = call.arg.walk_end.max(start + page_size());
        }
        Ok(())
    }

    /// Adds the pages of `range` that are in memory or swapped out, on any kernel.
    pub(crate) fn populated(
        &self,
        range: PageRange,
        vector: &mut Vector,
        out: &mut PageSet,
    ) -> io::Result<()> {
        let query = Query {
            any_of: category::PRESENT | category::SWAPPED,
            ..Query::default()
        };
        match self.scan(range, query, vector, |range| out.insert(range)) {
            // Linux before 6.7 has no PAGEMAP_SCAN.
            Err(Errno::NOTTY) => {
                self.matching_entries(range, |entry| entry & entry::POPULATED != 0, out)
            }
            outcome => outcome.map_err(io::Error::from),
        }
    }

    /// Adds the pages of `range` whose classic entry is `wanted`.
    pub(crate) fn matching_entries(
        &self,
        range: PageRange,
        wanted: impl Fn(u64) -> bool,
        out: &mut PageSet,
    ) -> io::Result<()> {
        let page = page_size();
        let mut entries = vec![0; 1 << 14];
        let mut start = range.start();
        while start < range.end() {
            let len = entries.len().min(((range.end() - start) / page) as usize);
            let count = self.entries(start, &mut entries[..len])?;
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

    /// Reads classic entries, one `u64` per page beginning at `start`; returns how many were read.
    fn entries(&self, start: u64, entries: &mut [u64]) -> io::Result<usize> {
        // SAFETY: any bytes are a valid u64, and the slice covers exactly the memory of `entries`,
        // which it borrows.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        Ok(self.file.read_at(bytes, start / page_size() * 8)? / 8)
    }
}

/// The bits of a classic entry.
pub(crate) mod entry {
    pub(crate) const SOFT_DIRTY: u64 = 1 << 55;
    /// The page belongs to a file, or is shared.
    pub(crate) const FILE: u64 = 1 << 61;
    /// The page is in memory.
    pub(crate) const PRESENT: u64 = 1 << 63;
    /// The page is in memory or swapped out.
    pub(crate) const POPULATED: u64 = PRESENT | 1 << 62;

    /// Whether the page is populated and the process's own.
    pub(crate) fn is_owned(entry: u64) -> bool {
        entry & POPULATED != 0 && entry & FILE == 0
    }
}

impl Query {
    fn arg(&self, start: u64, end: u64, vector: &mut [page_region]) -> pm_scan_arg {
        let mut flags = 0;
        if self.rearm {
            flags |= raw::PM_SCAN_WP_MATCHING;
        }
        if self.rearm || self.registered {
            flags |= raw::PM_SCAN_CHECK_WPASYNC;
        }
        pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: u64::from(flags),
            start,
            end,
            walk_end: 0,
            vec: if vector.is_empty() {
                0
            } else {
                vector.as_mut_ptr() as u64
            },
            vec_len: vector.len() as u64,
            max_pages: 0,
            category_inverted: self.inverted,
            category_mask: self.all_of,
            category_anyof_mask: self.any_of,
            return_mask: self.report,
        }
    }
}

struct Scan {
    arg: pm_scan_arg,
}

// SAFETY: the opcode is PAGEMAP_SCAN's, `_IOWR('f', 16, struct pm_scan_arg)` in uapi/linux/fs.h,
// and the pointer is to that struct; the kernel writes `walk_end` in it and regions to its vector.
unsafe impl Ioctl for &mut Scan {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<pm_scan_arg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.arg).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(out as usize)
    }
}
