//! Keeps the machine's descriptors open, whatever the program closes: it cannot have meant them.

use std::os::fd::RawFd;

use crate::guest::Guest;
use crate::sys::call::{Call, call};
use crate::sys::signal::forward_unless_signalled;

const EBADF: i64 = -(libc::EBADF as i64);

/// `CLOSE_RANGE_UNSHARE`: the caller gets its own table of descriptors first.
const UNSHARE: u64 = 2;
const EINVAL: i64 = -(libc::EINVAL as i64);

/// `close(2)`, which reports the machine's descriptors as not open.
pub(super) fn close(guest: &Guest, call: &Call) -> i64 {
    close_unless(&guest.descriptors(), call)
}

fn close_unless(reserved: &[RawFd], call: &Call) -> i64 {
    match reserved.contains(&(call.arguments[0] as RawFd)) {
        true => EBADF,
        false => call.forward(),
    }
}

/// `dup2(2)` and `dup3(2)`, which neither copy nor replace the machine's descriptors.
pub(super) fn duplicate(guest: &Guest, call: &Call) -> i64 {
    let [from, to, ..] = call.arguments;
    let reserved = guest.descriptors();
    match [from, to]
        .iter()
        .any(|number| reserved.contains(&(*number as RawFd)))
    {
        true => EBADF,
        false => call.forward(),
    }
}

/// `close_range(2)`, which leaves the machine's descriptors open.
pub(super) fn close_range(guest: &Guest, wanted: &Call) -> i64 {
    let [first, last, flags, ..] = wanted.arguments;
    let shares_no_descriptors = guest.is_vforked || guest.threads.table().is_one();
    match flags {
        // All threads need the processors' descriptors, including threads that start later. The
        // result is that of a kernel that does not know the flag.
        UNSHARE if !shares_no_descriptors => EINVAL,
        0 | UNSHARE => close_around(&guest.descriptors(), first as u32, last as u32),
        // CLOSE_RANGE_CLOEXEC closes nothing now, and execve(2) closes the machine's descriptors
        // anyway.
        _ => wanted.forward(),
    }
}

fn close_around(reserved: &[RawFd], first: u32, last: u32) -> i64 {
    for (first, last) in around(reserved, first, last) {
        let result = call(libc::SYS_close_range, &[first.into(), last.into(), 0]);
        if result < 0 {
            return result;
        }
    }
    if first > last { EINVAL } else { 0 }
}

/// `getrlimit(2)`, `setrlimit(2)` and `prlimit(2)`. The machine raises a limit for a moment while
/// it makes descriptors; the lock keeps that from the program.
pub(super) fn resource_limit(guest: &Guest, call: &Call) -> i64 {
    let _table = guest.threads.table();
    forward_unless_signalled(call)
}

/// Splits `first..=last` around the machine's descriptors, which are `reserved`.
fn around(reserved: &[RawFd], mut first: u32, last: u32) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    for fd in reserved.iter().map(|fd| *fd as u32) {
        if (first..=last).contains(&fd) {
            if first < fd {
                ranges.push((first, fd - 1));
            }
            first = fd + 1;
        }
    }
    if first <= last {
        ranges.push((first, last));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_leave_out_the_machines_descriptors() {
        let reserved = [10, 11, 20];
        assert_eq!(
            around(&reserved, 3, u32::MAX),
            [(3, 9), (12, 19), (21, u32::MAX)]
        );
        assert_eq!(around(&reserved, 10, 11), []);
        assert_eq!(around(&reserved, 12, 12), [(12, 12)]);
        assert_eq!(around(&reserved, 5, 3), []);
    }

    #[test]
    fn the_machines_descriptors_cannot_be_closed() {
        let close = |fd: u64| Call {
            number: libc::SYS_close as u64,
            arguments: [fd, 0, 0, 0, 0, 0],
        };
        assert_eq!(close_unless(&[2], &close(2)), EBADF);
        assert_eq!(
            close_unless(&[2], &close(1 << 30)),
            EBADF,
            "the kernel's own word"
        );
    }
}
