//! `process_madvise(2)`: sending pages of a process to swap, and fetching them back.
//!
//! # Safety
//!
//! `MADV_PAGEOUT` and `MADV_WILLNEED`, the only advice given here, change where memory is, never
//! what it holds.
#![allow(unsafe_code, reason = "process_madvise(2) has no safe wrapper")]

use pagetrail::PageRange;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

use super::move_pages::last_errno;

/// What is to become of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Out to swap.
    PageOut,
    /// Back into memory.
    WillNeed,
}

/// As many ranges as one call takes (`IOV_MAX`).
pub(crate) const RANGES_MAX: usize = 1024;

/// Advises on up to [`RANGES_MAX`] ranges of the process that `pidfd` names; how many bytes were
/// advised on.
pub(crate) fn advise(pidfd: impl AsFd, ranges: &[PageRange], advice: Advice) -> Result<u64, Errno> {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .take(RANGES_MAX)
        .map(|range| libc::iovec {
            iov_base: range.start() as *mut libc::c_void,
            iov_len: range.bytes() as usize,
        })
        .collect();
    let advice = match advice {
        Advice::PageOut => libc::MADV_PAGEOUT,
        Advice::WillNeed => libc::MADV_WILLNEED,
    };
    // SAFETY: the kernel reads `vectors.len()` vectors; the addresses in them are another process's
    // and mean nothing here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_fd().as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            advice,
            0,
        )
    };
    match u64::try_from(result) {
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(last_errno()),
    }
}
