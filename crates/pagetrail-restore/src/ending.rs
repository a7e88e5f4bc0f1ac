//! The end of processes that lack pages which nobody will give them: they are killed, before they
//! could see zeros instead. Nothing here allocates, or takes a lock.
//!
//! The first process is known. A child that it has forked is known by its userfaultfd alone, until
//! one of its threads waits for a page: the message says which.

use crate::sys::missing::{self, FEATURES, Message, Missing};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, RawDir, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Time between two looks whether all processes have ended.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};
/// The directory of a process's descriptors, below `/proc/PID`.
const DESCRIPTORS: &CStr = c"fd";
const INFO: &[u8] = b"fdinfo/";
/// The length of the longest path `fdinfo/NUMBER`, with its terminating zero.
const PATH_BYTES: usize = INFO.len() + 11;
const API: &[u8] = b"API:\taa:";
/// Bits of the features in `fdinfo` that are the kernel's own flags.
const KERNELS_BITS: u64 = 1 << 31;

/// Kills a process.
pub(crate) fn kill(process: BorrowedFd<'_>) {
    // It may have ended.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Kills the process of a thread that waits for a page.
pub(crate) fn kill_waiting(thread: u32) {
    if let Some(thread) = Pid::from_raw(thread as i32) {
        let _ = kill_process(thread, Signal::KILL);
    }
}

pub(crate) fn pause() {
    let mut left = PAUSE;
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}

/// Ends every process that lacks pages and whose userfaultfd this process has inherited; `own` is
/// the directory of this process in `/proc`.
pub(crate) fn end_as_heir(own: BorrowedFd<'_>) {
    while end_those_of_descriptors(own) {
        pause();
    }
}

/// Kills the processes that wait for pages now; returns whether any process is left.
fn end_those_of_descriptors(own: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(own, DESCRIPTORS, flags, Mode::empty()) else {
        // There may be no descriptor left for it. Until this process ends, none is closed.
        return true;
    };
    let mut are_left = false;
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let Some(number) = number(entry.file_name().to_bytes()) else {
            continue;
        };
        are_left |= match waits_for_pages(own, number) {
            Some(true) => !end(&missing::inherited(number)),
            Some(false) => false,
            // The next look may find out.
            None => true,
        };
    }
    are_left
}

/// Kills the processes of threads that wait for pages of a userfaultfd; returns whether the process
/// of that userfaultfd has ended.
fn end(missing: &Missing) -> bool {
    // Messages that were read before are lost: a thread that is woken sends its message again.
    missing.wake_all();
    let each = |message| match message {
        Message::Fault { thread, .. } => kill_waiting(thread),
        // Found by its number the next time.
        Message::Fork(child) => std::mem::forget(child),
        _ => {}
    };
    while missing.messages(each).is_ok_and(|count| count > 0) {}
    missing.is_gone()
}

/// Whether a descriptor is a userfaultfd as this crate makes them: `fdinfo` has its features.
/// `None` where that cannot be read.
fn waits_for_pages(own: BorrowedFd<'_>, number: i32) -> Option<bool> {
    let mut path = [0; PATH_BYTES];
    let Some(path) = path_of(number, &mut path) else {
        return Some(false);
    };
    let file = match openat(own, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        // It was the one by which the directory is read.
        Err(Errno::NOENT) => return Some(false),
        file => file.ok()?,
    };
    let mut text = [0; 512];
    let length = rustix::io::read(&file, &mut text).ok()?;
    Some(features(&text[..length]).map(|bits| bits & !KERNELS_BITS) == Some(FEATURES))
}

/// The path of the `fdinfo` of a descriptor.
fn path_of(number: i32, path: &mut [u8; PATH_BYTES]) -> Option<&CStr> {
    path[..INFO.len()].copy_from_slice(INFO);
    let mut digits = [0; 10];
    let mut count = 0;
    let mut rest = u32::try_from(number).ok()?;
    while rest != 0 || count == 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    for (place, digit) in (INFO.len()..).zip(digits[..count].iter().rev()) {
        path[place] = *digit;
    }
    CStr::from_bytes_until_nul(path).ok()
}

/// The features of a userfaultfd in its `fdinfo` (`userfaultfd_show_fdinfo` in
/// `fs/userfaultfd.c`): `API: aa:FEATURES:..`, in hexadecimal.
fn features(text: &[u8]) -> Option<u64> {
    let at = text.windows(API.len()).position(|window| window == API)?;
    let digits = text[at + API.len()..].iter();
    let digits = digits.map_while(|byte| char::from(*byte).to_digit(16));
    let (bits, count) = digits.fold((0u64, 0), |(bits, count), digit| {
        (bits << 4 | u64::from(digit), count + 1)
    });
    (count > 0).then_some(bits)
}

/// A number in decimal.
fn number(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_userfaultfd_is_known_by_its_features() {
        let text = b"pos:\t0\nflags:\t02004002\npending:\t0\ntotal:\t1\nAPI:\taa:8000014e:3f\n";
        assert_eq!(features(text), Some(0x8000_014e));
        assert_eq!(features(b"pos:\t0\n"), None);
        let mut path = [0; PATH_BYTES];
        assert_eq!(path_of(0, &mut path), Some(c"fdinfo/0"));
        let mut path = [0; PATH_BYTES];
        assert_eq!(path_of(1070, &mut path), Some(c"fdinfo/1070"));
        assert_eq!((number(b"12"), number(b"..")), (Some(12), None));
    }

    #[test]
    fn userfaultfds_of_others_are_left_alone() {
        use std::os::fd::AsRawFd;
        let own = std::fs::File::open("/proc/self").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let of_file = waits_for_pages(own.as_fd(), file.as_raw_fd());
        assert_eq!(of_file, Some(false));
        let Ok(missing) = Missing::own() else {
            return pagetrail_skips::not_here("userfaultfd(2) needs CAP_SYS_PTRACE here");
        };
        let of_missing = waits_for_pages(own.as_fd(), missing.as_fd().as_raw_fd());
        assert_eq!(of_missing, Some(true));
    }
}
