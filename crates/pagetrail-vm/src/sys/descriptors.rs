//! Descriptors of our own, out of the program's way: it expects to get the lowest numbers, and counts on them.
#![allow(
    unsafe_code,
    reason = "F_DUPFD_CLOEXEC with a lower bound is not in rustix, and neither is ownership by number"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// How many numbers at the end of what is allowed are ours, before those in the upper half are.
const OURS: RawFd = 128;

/// Takes over a descriptor that this process was started with, by its number.
pub(crate) fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a number that is not open is an error of fcntl(2), and nobody here owns one that is.
    let copy = out_of_the_way(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: as above; the copy stays.
    unsafe { libc::close(number) };
    Ok(copy)
}

/// Closes a descriptor that a forked child has from a thread that it does not have.
pub(crate) fn close_inherited(number: RawFd) {
    // SAFETY: who owned it in the parent does not exist here, and nothing of it is dropped.
    unsafe { libc::close(number) };
}

/// A copy of a descriptor with one of the last numbers, closed by `execve(2)`.
pub(crate) fn out_of_the_way(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = limit.current.unwrap_or(1 << 20).min(1 << 20) as RawFd;
    for lowest in [limit - OURS, limit / 2, 3] {
        // SAFETY: duplicates a descriptor that is open.
        let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest.max(3)) };
        if copy >= 0 {
            // SAFETY: it is new, and nobody else's.
            return Ok(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }
    Err(io::Error::last_os_error())
}
