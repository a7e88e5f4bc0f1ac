//! Descriptors of our own, out of the program's way: it expects to get the lowest numbers, and counts on them.
#![allow(
    unsafe_code,
    reason = "F_DUPFD_CLOEXEC with a lower bound is not in rustix, and neither is ownership by number"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many numbers at the end of what is allowed are ours, before those in the upper half are.
const OURS: RawFd = 128;

/// Higher numbers cost the kernel a table of that length.
const NUMBERS_MAX: u64 = 1 << 20;

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

/// Whether a file is where no file may be executed (`noexec`).
pub(crate) fn is_never_executed(number: RawFd) -> bool {
    // SAFETY: a number that is not open is an error of fstatvfs(3); nothing is kept of it.
    let found = rustix::fs::fstatvfs(unsafe { BorrowedFd::borrow_raw(number.max(0)) });
    found.is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// A copy of a descriptor with a number that the program cannot get, or else one of the last; closed by `execve(2)`.
pub(crate) fn out_of_the_way(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX) as RawFd;
    with_more_numbers(|| {
        for lowest in [limit, limit - OURS, limit / 2, 3] {
            // SAFETY: duplicates a descriptor that is open.
            let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest.max(3)) };
            if copy >= 0 {
                // SAFETY: it is new, and nobody else's.
                return Ok(unsafe { OwnedFd::from_raw_fd(copy) });
            }
        }
        Err(io::Error::last_os_error())
    })
}

/// Makes descriptors where the program can have no more, if this process may: its limit is higher meanwhile.
///
/// One at a time: the callers hold the lock of the program's threads, as calls of the program about limits do.
pub(crate) fn with_more_numbers<T>(make: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let Some(soft) = before.current else {
        return make();
    };
    // With the right to exceed the limit, numbers that nobody had left.
    let more = Some(soft.saturating_add(OURS as u64));
    let raised = [
        Rlimit {
            current: before.maximum,
            maximum: before.maximum,
        },
        Rlimit {
            current: more,
            maximum: more,
        },
    ];
    let has_room = |limit: &Rlimit| limit.current.is_none_or(|current| current > soft);
    let is_raised = raised
        .into_iter()
        .any(|limit| has_room(&limit) && setrlimit(Resource::Nofile, limit).is_ok());
    let made = make();
    if is_raised {
        // Lower, which is always allowed.
        let _ = setrlimit(Resource::Nofile, before);
    }
    made
}
