//! The machine's descriptors, with high numbers: the program expects the lowest ones for its files.
#![allow(
    unsafe_code,
    reason = "F_DUPFD_CLOEXEC with a lower bound is not in rustix, and neither is ownership by number"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The numbers at the end of the permitted range that the machine tries before the upper half.
const RESERVED: RawFd = 128;

/// The highest number to use: the kernel's table of descriptors is as long as the highest number.
const NUMBERS_MAX: u64 = 1 << 20;

/// Takes ownership of a descriptor that this process was started with, by its number.
pub(crate) fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the borrow ends with this call, in which no other code closes the number; fcntl(2)
    // rejects a number that is not open.
    let copy = out_of_the_way(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: the descriptor was passed to this process for this function, so that no Rust object
    // owns the number.
    unsafe { libc::close(number) };
    Ok(copy)
}

/// Borrows one of the program's descriptors by its number.
pub(crate) fn borrow(number: RawFd) -> io::Result<BorrowedFd<'static>> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the program's calls name its descriptors by numbers. One that is not open, or is
    // closed meanwhile, makes the kernel's calls on it fail; no Rust object owns it.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Closes a descriptor that nothing owns: a forked child has inherited it from a thread that does
/// not exist in it, or it was made for a program to be executed.
pub(crate) fn close_inherited(number: RawFd) {
    // SAFETY: the object that owns the number belongs to a thread of the parent, and is never used
    // or dropped in this process; or there is none.
    unsafe { libc::close(number) };
}

/// Whether a file is on a file system without execution (`noexec`).
pub(crate) fn is_never_executed(number: RawFd) -> bool {
    // SAFETY: the borrow ends with this call; fstatvfs(3) rejects a number that is not open.
    let found = rustix::fs::fstatvfs(unsafe { BorrowedFd::borrow_raw(number.max(0)) });
    found.is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// Duplicates a descriptor to a number that the program cannot get, or else to one of the last
/// numbers. `execve(2)` closes it.
pub(crate) fn out_of_the_way(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let copy = copy_out_of_the_way(fd, libc::F_DUPFD_CLOEXEC)?;
    // SAFETY: fcntl(2) has just returned this number, so that nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Like [`out_of_the_way`], but `execve(2)` leaves the copy open. Nothing owns its number.
pub(crate) fn inheritable_copy(fd: BorrowedFd<'_>) -> io::Result<RawFd> {
    copy_out_of_the_way(fd, libc::F_DUPFD)
}

fn copy_out_of_the_way(fd: BorrowedFd<'_>, how: libc::c_int) -> io::Result<RawFd> {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX) as RawFd;
    with_more_numbers(|| {
        for lowest in [limit, limit - RESERVED, limit / 2, 3] {
            // SAFETY: fcntl(2) takes integers only, and `fd` is open while it is borrowed.
            let copy = unsafe { libc::fcntl(fd.as_raw_fd(), how, lowest.max(3)) };
            if copy >= 0 {
                return Ok(copy);
            }
        }
        Err(io::Error::last_os_error())
    })
}

/// Calls `make` with a raised limit on descriptors where this process may raise it, so that the
/// machine gets a descriptor where the program could not.
///
/// One at a time: the callers hold the lock of the program's threads, as the program's calls about
/// limits do.
pub(crate) fn with_more_numbers<T>(make: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let Some(soft) = before.current else {
        return make();
    };
    // With the right to exceed the hard limit, use numbers beyond it.
    let more = Some(soft.saturating_add(RESERVED as u64));
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
        // Lowering a limit is always permitted.
        let _ = setrlimit(Resource::Nofile, before);
    }
    made
}
