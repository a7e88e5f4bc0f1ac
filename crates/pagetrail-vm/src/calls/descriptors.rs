//! Descriptors that are the machine's stay open, whatever the program closes: it cannot have meant them.

use std::os::fd::RawFd;

use crate::guest::Guest;
use crate::sys::call::{Call, call};

const EBADF: i64 = -(libc::EBADF as i64);

/// `CLOSE_RANGE_UNSHARE`: with a table of its own.
const UNSHARE: u64 = 2;
const EINVAL: i64 = -(libc::EINVAL as i64);

/// Does a call that closes descriptors.
pub(super) fn perform(guest: &Guest, wanted: &Call) -> i64 {
    let is_alone = guest.is_vforked || guest.threads.table().is_one();
    perform_excluding(&guest.descriptors(), is_alone, wanted)
}

/// The same. `ours` are the machine's, ascending; a thread that `is_alone` shares its descriptors with no other.
fn perform_excluding(ours: &[RawFd], is_alone: bool, wanted: &Call) -> i64 {
    let [a, b, ..] = wanted.arguments;
    let is_ours = |number: u64| ours.contains(&(number as RawFd));
    match wanted.number as i64 {
        libc::SYS_close if is_ours(a) => EBADF,
        libc::SYS_dup2 | libc::SYS_dup3 if is_ours(b) || is_ours(a) => EBADF,
        // All threads need the processors' descriptors, also those that come later. An older kernel does not know the flag.
        libc::SYS_close_range if wanted.arguments[2] == UNSHARE && !is_alone => EINVAL,
        // To have them closed by execve(2) closes nothing now, and ours are closed there anyway.
        libc::SYS_close_range if matches!(wanted.arguments[2], 0 | UNSHARE) => {
            let (first, last) = (a as u32, b as u32);
            for (first, last) in around(ours, first, last) {
                let result = call(libc::SYS_close_range, &[first.into(), last.into(), 0]);
                if result < 0 {
                    return result;
                }
            }
            if first > last { EINVAL } else { 0 }
        }
        _ => wanted.forward(),
    }
}

/// `first..=last` without ours.
fn around(ours: &[RawFd], mut first: u32, last: u32) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    for fd in ours.iter().map(|fd| *fd as u32) {
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
    fn ours_are_left_out_of_ranges() {
        let ours = [10, 11, 20];
        assert_eq!(
            around(&ours, 3, u32::MAX),
            [(3, 9), (12, 19), (21, u32::MAX)]
        );
        assert_eq!(around(&ours, 10, 11), []);
        assert_eq!(around(&ours, 12, 12), [(12, 12)]);
        assert_eq!(around(&ours, 5, 3), []);
    }

    #[test]
    fn ours_cannot_be_closed() {
        let close = |fd: u64| Call {
            number: libc::SYS_close as u64,
            arguments: [fd, 0, 0, 0, 0, 0],
        };
        assert_eq!(perform_excluding(&[2], true, &close(2)), EBADF);
        assert_eq!(
            perform_excluding(&[2], true, &close(1 << 30)),
            EBADF,
            "the kernel's own word"
        );
    }
}
