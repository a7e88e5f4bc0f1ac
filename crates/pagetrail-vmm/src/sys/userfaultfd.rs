//! The calls on a userfaultfd whose handshake its owner has made: see `ioctl_userfaultfd(2)` and
//! `Documentation/admin-guide/mm/userfaultfd.rst`.
#![allow(unsafe_code, reason = "calls that fill and protect memory by address")]
#![cfg_attr(
    not(feature = "store"),
    allow(dead_code, reason = "missing pages are filled by restores only")
)]

use linux_raw_sys::general::{
    self as raw, uffd_msg, uffdio_copy, uffdio_range, uffdio_writeprotect,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};
use std::ops::Range;

const UNREGISTER: Opcode = opcode::read::<uffdio_range>(0xaa, 1);
const WAKE: Opcode = opcode::read::<uffdio_range>(0xaa, 2);
const COPY: Opcode = opcode::read_write::<uffdio_copy>(0xaa, 3);
const WRITEPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(0xaa, 6);
/// `UFFDIO_WRITEPROTECT_MODE_WP`, which linux-raw-sys lacks.
const WRITEPROTECT_MODE_WP: u64 = 1;
/// `UFFDIO_COPY_MODE_WP`, which linux-raw-sys lacks.
const COPY_MODE_WP: u64 = 2;

/// The most messages that [`read`] takes in one call.
const MESSAGES_AT_ONCE: usize = 64;

/// What a userfaultfd says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A thread waits for the page at this address, because it is missing or write-protected.
    Fault { address: u64, write_protect: bool },
    /// These pages were discarded (`MADV_DONTNEED`, `MADV_REMOVE`), or are mapped no more.
    Removed(Range<u64>),
    /// A message that is of no concern here: a fork, or a mapping that was moved.
    Other,
}

/// Reads messages; none if none waits. The descriptor must not block.
pub(crate) fn read(uffd: BorrowedFd<'_>) -> Result<Vec<Message>, Errno> {
    let mut buffer = [0u8; MESSAGES_AT_ONCE * size_of::<uffd_msg>()];
    let length = match rustix::io::read(uffd, &mut buffer) {
        Ok(length) => length,
        Err(Errno::AGAIN) => 0,
        Err(error) => return Err(error),
    };
    let messages = buffer[..length].chunks_exact(size_of::<uffd_msg>());
    Ok(messages.map(decode).collect())
}

fn decode(bytes: &[u8]) -> Message {
    assert!(bytes.len() == size_of::<uffd_msg>(), "a whole message");
    // SAFETY: the slice has the size of a `uffd_msg`, as just checked, for which any bytes are
    // valid; alignment is not required.
    let message = unsafe { bytes.as_ptr().cast::<uffd_msg>().read_unaligned() };
    match u32::from(message.event) {
        raw::UFFD_EVENT_PAGEFAULT => {
            // SAFETY: the event says which member of the union the kernel has set.
            let fault = unsafe { message.arg.pagefault };
            Message::Fault {
                address: fault.address & !(pagetrail::page_size() - 1),
                write_protect: fault.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WP) != 0,
            }
        }
        raw::UFFD_EVENT_REMOVE | raw::UFFD_EVENT_UNMAP => {
            // SAFETY: the event says which member of the union the kernel has set.
            let removed = unsafe { message.arg.remove };
            Message::Removed(removed.start..removed.end)
        }
        _ => Message::Other,
    }
}

/// Fills missing pages from `start` on with `contents`, and wakes who waits for them. Returns how
/// many bytes were filled before the error, if there is one: `EEXIST` at a page that is there,
/// `EAGAIN` while messages must be read first.
///
/// `protect` also write-protects them, where the range is registered for that.
pub(crate) fn copy(
    uffd: BorrowedFd<'_>,
    start: u64,
    contents: &[u8],
    protect: bool,
) -> (u64, Result<(), Errno>) {
    let mut arg = uffdio_copy {
        dst: start,
        src: contents.as_ptr() as u64,
        len: contents.len() as u64,
        mode: if protect { COPY_MODE_WP } else { 0 },
        copy: 0,
    };
    // SAFETY: UFFDIO_COPY reads `contents`, and fills only pages that do not exist.
    let outcome = unsafe { rustix::ioctl::ioctl(uffd, Updater::<COPY, _>::new(&mut arg)) };
    let filled = match outcome {
        Ok(()) => contents.len() as u64,
        Err(_) => u64::try_from(arg.copy).unwrap_or(0),
    };
    (filled, outcome)
}

/// Wakes the threads that wait in a range, so that they fault again.
pub(crate) fn wake(uffd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    // SAFETY: UFFDIO_WAKE reads a `uffdio_range`, and changes no memory.
    unsafe { rustix::ioctl::ioctl(uffd, Setter::<WAKE, _>::new(described(&range))) }
}

/// Ends the registration of a range: faults in it are the kernel's again.
pub(crate) fn unregister(uffd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    // SAFETY: UFFDIO_UNREGISTER reads a `uffdio_range`; pages keep their contents.
    unsafe { rustix::ioctl::ioctl(uffd, Setter::<UNREGISTER, _>::new(described(&range))) }
}

/// Write-protects a range that is registered for that, or lifts the protection and wakes who waits.
pub(crate) fn write_protect(
    uffd: BorrowedFd<'_>,
    range: Range<u64>,
    protect: bool,
) -> Result<(), Errno> {
    let mut arg = uffdio_writeprotect {
        range: described(&range),
        mode: if protect { WRITEPROTECT_MODE_WP } else { 0 },
    };
    // SAFETY: UFFDIO_WRITEPROTECT reads a `uffdio_writeprotect`; pages keep their contents.
    unsafe { rustix::ioctl::ioctl(uffd, Updater::<WRITEPROTECT, _>::new(&mut arg)) }
}

fn described(range: &Range<u64>) -> uffdio_range {
    uffdio_range {
        start: range.start,
        len: range.end - range.start,
    }
}
