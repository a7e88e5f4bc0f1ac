//! Which parts of a window of addresses are mapped and not under watch, or were written, straight
//! from `PAGEMAP_SCAN(2const)`, which walks mappings and holes alike. Cheaper than the text of
//! `maps`, and allocates nothing.

use crate::sys::kernel::pagemap_scan;
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
use pagetrail::PageRange;
use rustix::fd::RawFd;
use rustix::io::Errno;

pub(crate) const NOTHING: page_region = page_region {
    start: 0,
    end: 0,
    categories: 0,
};

/// A `PAGEMAP_SCAN` of a window that selects and reports as given.
pub(crate) fn query(start: u64, end: u64) -> pm_scan_arg {
    pm_scan_arg {
        size: 0,
        flags: 0,
        start,
        end,
        walk_end: 0,
        vec: 0,
        vec_len: 0,
        max_pages: 0,
        category_inverted: 0,
        category_mask: 0,
        category_anyof_mask: 0,
        return_mask: 0,
    }
}

/// What a page is that is not clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Written, or not under watch.
    Dirty,
    /// Nothing, in watched memory.
    Empty,
}

/// Calls `found` with each run of addresses that is not clean: written or empty, or mapped and not
/// registered.
pub(crate) fn written_or_unregistered(
    fd: RawFd,
    start: u64,
    end: u64,
    mut found: impl FnMut(PageRange, Judged),
) -> Result<(), Errno> {
    let exists = u64::from(raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED);
    let registered = u64::from(raw::PAGE_IS_WPALLOWED);
    let mut arg = query(start, end);
    arg.category_inverted = registered;
    arg.category_anyof_mask = registered | u64::from(raw::PAGE_IS_WRITTEN);
    arg.return_mask = registered | exists;
    scan(fd, arg, |range, categories| {
        let is_empty = categories & registered != 0 && categories & exists == 0;
        found(
            range,
            if is_empty {
                Judged::Empty
            } else {
                Judged::Dirty
            },
        );
    })
}

/// Calls `found` with each run of pages that were written, or are empty where there is a page
/// table: the kernel's quickest answer. `EPERM` where something is mapped and not registered.
pub(crate) fn written_or_empty(
    fd: RawFd,
    start: u64,
    end: u64,
    mut found: impl FnMut(PageRange),
) -> Result<(), Errno> {
    let mut arg = query(start, end);
    arg.flags = u64::from(raw::PM_SCAN_CHECK_WPASYNC);
    arg.category_mask = u64::from(raw::PAGE_IS_WRITTEN);
    arg.return_mask = u64::from(raw::PAGE_IS_WRITTEN);
    scan(fd, arg, |range, _| found(range))
}

/// Calls `found` with each run of pages that exist, or are mapped and not registered.
pub(crate) fn existing_or_unregistered(
    fd: RawFd,
    start: u64,
    end: u64,
    mut found: impl FnMut(PageRange),
) -> Result<(), Errno> {
    let registered = u64::from(raw::PAGE_IS_WPALLOWED);
    let mut arg = query(start, end);
    arg.category_inverted = registered;
    arg.category_anyof_mask = registered | u64::from(raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED);
    scan(fd, arg, |range, _| found(range))
}

/// Calls `found` with each run of addresses within `start..end` that is mapped and not registered
/// for asynchronous write-protection.
pub(crate) fn unregistered(
    fd: RawFd,
    start: u64,
    end: u64,
    mut found: impl FnMut(u64, u64),
) -> Result<(), Errno> {
    let mut arg = query(start, end);
    arg.category_mask = u64::from(raw::PAGE_IS_WPALLOWED);
    arg.category_inverted = u64::from(raw::PAGE_IS_WPALLOWED);
    scan(fd, arg, |range, _| found(range.start(), range.end()))
}

/// Calls `found` with everything that a scan selects.
fn scan(
    fd: RawFd,
    mut arg: pm_scan_arg,
    mut found: impl FnMut(PageRange, u64),
) -> Result<(), Errno> {
    let mut regions = [NOTHING; 32];
    let (start, end) = (arg.start, arg.end);
    while arg.start < end {
        let count = pagemap_scan(fd, &mut arg, &mut regions)?;
        for region in &regions[..count] {
            if let Some(range) = PageRange::new(region.start.max(start), region.end.min(end)) {
                found(range, region.categories);
            }
        }
        if arg.walk_end <= arg.start {
            break;
        }
        arg.start = arg.walk_end;
    }
    Ok(())
}
