//! Which parts of a window of addresses are mapped and not under watch, straight from `PAGEMAP_SCAN(2const)`, which walks
//! mappings and holes alike. Cheaper than the text of `maps`, and allocates nothing.

use crate::sys::kernel::pagemap_scan;
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
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

/// Calls `found` with each run of addresses within `start..end` that is mapped and not registered for asynchronous
/// write-protection.
pub(crate) fn unregistered(
    fd: RawFd,
    start: u64,
    end: u64,
    mut found: impl FnMut(u64, u64),
) -> Result<(), Errno> {
    let mut regions = [NOTHING; 32];
    let mut from = start;
    while from < end {
        let mut arg = query(from, end);
        arg.category_mask = u64::from(raw::PAGE_IS_WPALLOWED);
        arg.category_inverted = u64::from(raw::PAGE_IS_WPALLOWED);
        let count = pagemap_scan(fd, &mut arg, &mut regions)?;
        for region in &regions[..count] {
            found(region.start.max(start), region.end.min(end));
        }
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(())
}
