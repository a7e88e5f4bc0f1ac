//! `/proc/PID/pagemap`: the `PAGEMAP_SCAN` ioctl (Linux 6.7) and the classic entries.

use crate::categories::Categories;
use crate::entry::Entry;
use crate::page_size;
use crate::query::Query;
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The page map of one process; it belongs to the address space for which it was opened, also after
/// `execve`.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

/// The most regions that one ioctl returns; a scan that finds more continues with another.
const VECTOR_LEN: usize = 4096;

/// The vector that scans fill, to be reused from one scan to the next (96 KiB).
#[derive(Debug)]
pub struct Vector(Box<[page_region]>);

impl Vector {
    /// Allocates the vector.
    pub fn new() -> Self {
        Self(vec![EMPTY; VECTOR_LEN].into_boxed_slice())
    }
}

impl Default for Vector {
    fn default() -> Self {
        Self::new()
    }
}

const EMPTY: page_region = page_region {
    start: 0,
    end: 0,
    categories: 0,
};

impl From<File> for Pagemap {
    /// Takes an open `/proc/PID/pagemap`.
    fn from(file: File) -> Self {
        Self { file }
    }
}

impl Pagemap {
    /// Opens the page map of this process.
    pub fn own() -> io::Result<Self> {
        Ok(File::open("/proc/self/pagemap")?.into())
    }

    /// Opens the page map of another process, which needs the permission to trace it
    /// (`PTRACE_MODE_READ_FSCREDS`).
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Ok(File::open(format!("/proc/{pid}/pagemap"))?.into())
    }

    /// Calls `found` for each run of selected pages in `range`, in ascending order, with those
    /// categories of [`Query::report`] that the pages have.
    ///
    /// # Errors
    ///
    /// `ENOTTY` on Linux before 6.7; `EPERM` at a mapping that is not registered, if the query
    /// requires that; `ESRCH` once the address space is gone. Everything that was selected, and
    /// possibly write-protected, before that point has been passed to `found` all the same.
    pub fn scan(
        &self,
        range: impl Into<Range<u64>>,
        query: Query,
        vector: &mut Vector,
        mut found: impl FnMut(Range<u64>, Categories),
    ) -> Result<(), Errno> {
        let range = range.into();
        let mut start = range.start;
        while start < range.end {
            // The kernel allocates memory for as many regions as the vector has, so a scan of a few
            // pages passes a short one.
            let most = ((range.end - start) / page_size() / 2 + 1).min(VECTOR_LEN as u64);
            let mut call = Scan {
                arg: arg(query, start, range.end, &mut vector.0[..most as usize]),
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
                if region.start < region.end {
                    let categories = Categories::from_bits(region.categories);
                    found(region.start..region.end, categories);
                }
                region.end = 0;
            }
            outcome?;
            start = call.arg.walk_end.max(start.saturating_add(page_size()));
        }
        Ok(())
    }

    /// Write-protects every page of `range` that has a page-table entry or shares a page table with
    /// one that has, and reports nothing.
    ///
    /// Larger holes stay untouched: protecting them would create page tables for a sparse mapping
    /// of gigabytes, and a page that is created in a hole reads as written anyway.
    pub fn write_protect(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        let query = Query {
            write_protect: true,
            all_of: Categories::WRITTEN,
            ..Query::ALL
        };
        let range = range.into();
        let mut start = range.start;
        while start < range.end {
            let mut call = Scan {
                arg: arg(query, start, range.end, &mut []),
            };
            // SAFETY: without a vector the kernel writes only to `call`.
            unsafe { rustix::ioctl::ioctl(&self.file, &mut call)? };
            start = call.arg.walk_end.max(start.saturating_add(page_size()));
        }
        Ok(())
    }

    /// Reads classic entries, one per page beginning at the address `start`; returns how many were
    /// read.
    pub fn entries(&self, start: u64, entries: &mut [Entry]) -> io::Result<usize> {
        // SAFETY: an `Entry` is a `u64`, for which any bytes are valid, and the slice covers
        // exactly the memory of `entries`, which it borrows.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        Ok(self.file.read_at(bytes, start / page_size() * 8)? / 8)
    }
}

impl AsFd for Pagemap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn arg(query: Query, start: u64, end: u64, vector: &mut [page_region]) -> pm_scan_arg {
    let mut flags = 0;
    if query.write_protect {
        flags |= raw::PM_SCAN_WP_MATCHING;
    }
    if query.write_protect || query.only_registered {
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
        category_inverted: query.inverted.bits(),
        category_mask: query.all_of.bits(),
        category_anyof_mask: query.any_of.bits(),
        return_mask: query.report.bits(),
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
