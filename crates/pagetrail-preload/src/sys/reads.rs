//! The answers to the program's reads of `pagemap`: the kernel's entries with bit 55 set, or, where
//! a collector reads its own, bare ones without the kernel's. [`super::exports`] has the functions
//! that these reads come through.
//!
//! The program's buffer is written to only once it is known that it can be; otherwise the kernel
//! answers, with `EFAULT` if need be.

use super::{guard, kernel};
use crate::answer;
use crate::descriptors::{self, Kind, Known};
use crate::machine::{self, Machine};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// The entry of a descriptor, if it is of this kind and the call comes from the program.
#[inline]
pub(super) fn known(fd: c_int, kind: Kind) -> Option<Known> {
    if !descriptors::any() || guard::is_inside() {
        return None;
    }
    descriptors::find(fd).filter(|known| known.kind == kind)
}

/// Sets bit 55 in what a read has returned; `offset` is where it began, or `None` for "before the
/// file's position".
///
/// # Safety
///
/// `length` bytes at `buffer` are the program's to write.
pub(super) unsafe fn amend(fd: c_int, buffer: *mut c_void, length: ssize_t, offset: Option<off_t>) {
    let Some(bytes) = usize::try_from(length).ok().filter(|&bytes| bytes > 0) else {
        return;
    };
    let Some(known) = known(fd, Kind::Pagemap) else {
        return;
    };
    // SAFETY: the kernel has just written `length` bytes there, and they are the program's to
    // write.
    let entries = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
    let amended = guard::with_state(|state| {
        let offset = match offset {
            Some(offset) => u64::try_from(offset).ok()?,
            None => kernel::position(fd)?.checked_sub(bytes as u64)?,
        };
        let first = offset / 8 * pagetrail::page_size();
        state.look_again(known.pid);
        answer::amend(state.view(known.pid), fd, first, entries);
        Some(())
    });
    if amended.flatten().is_none() {
        answer::mark_all(entries);
    }
}

/// Sets the position of a collector's own entries, where the machine answers for them: no system
/// call.
pub(super) fn set_position(fd: c_int, offset: off_t, whence: c_int) -> Option<off_t> {
    let known = known(fd, Kind::Pagemap)?;
    let position = u64::try_from(offset).ok()?;
    if whence != libc::SEEK_SET || machine::of(known.pid).is_none() {
        return None;
    }
    descriptors::set_position(fd, position).then_some(offset)
}

/// Answers a read of the own entries without the kernel's, if the program wants them bare and the
/// read is a plain one. Where it does not, the kernel has the position that the program has set.
///
/// # Safety
///
/// `count` bytes at `buffer` are the program's to write.
pub(super) unsafe fn read_bare(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: Option<off_t>,
) -> Option<ssize_t> {
    // SAFETY: the caller promises the same.
    let answered = unsafe { read_bare_entries(fd, buffer, count, offset) };
    if answered.is_none() {
        descriptors::settle_position(fd);
    }
    answered
}

/// [`read_bare`], whatever the kernel has for a position.
///
/// # Safety
///
/// As for [`read_bare`].
unsafe fn read_bare_entries(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: Option<off_t>,
) -> Option<ssize_t> {
    let known = known(fd, Kind::Pagemap)?;
    if buffer.is_null() || !answer::is_plain(count) {
        return None;
    }
    if let Some(machine) = machine::of(known.pid)
        && machine.can_write(buffer as u64, count as u64)
    {
        // SAFETY: `count` bytes at `buffer` are the program's to write, which the caller
        // guarantees; and the page tables have just said that they can be written.
        let entries = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count) };
        if let Some(length) = read_by_machine(machine, fd, entries, offset) {
            return Some(length);
        }
    }
    descriptors::settle_position(fd);
    guard::with_state(|state| {
        if !state.answers_bare(known.pid) {
            return None;
        }
        let from = match offset {
            Some(offset) => u64::try_from(offset).ok()?,
            None => kernel::position(fd)?,
        };
        if !from.is_multiple_of(8) {
            return None;
        }
        // Beyond the end of the address space, where reads come short, the scan fails, and the
        // kernel has its say.
        let first = (from / 8).checked_mul(pagetrail::page_size())?;
        if !kernel::is_writable(buffer as u64, count as u64) {
            return None;
        }
        // SAFETY: `count` bytes at `buffer` are the program's to write, which the caller
        // guarantees; and the kernel has just written to each of their pages.
        let entries = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count) };
        if !state.bare_by_log(first, entries) {
            answer::bare(state.view(known.pid), fd, first, entries).ok()?;
        }
        if offset.is_none() {
            kernel::seek(fd, from + count as u64)?;
        }
        Some(count as ssize_t)
    })?
}

/// [`read_bare`] without the lock, and without a system call where the position is known. Where the
/// machine cannot answer, everything is as before.
fn read_by_machine(
    machine: &Machine,
    fd: c_int,
    entries: &mut [u8],
    offset: Option<off_t>,
) -> Option<ssize_t> {
    let bytes = entries.len() as u64;
    let kept = match offset {
        Some(_) => None,
        None => descriptors::advance(fd, bytes),
    };
    let from = match (offset, kept) {
        (Some(offset), _) => u64::try_from(offset).ok()?,
        (None, Some(kept)) => kept,
        (None, None) => kernel::advance(fd, bytes)?,
    };
    let is_answered = from.is_multiple_of(8)
        && (from / 8)
            .checked_mul(pagetrail::page_size())
            .is_some_and(|first| machine.bare(first, entries));
    match (offset, kept) {
        (None, Some(_)) if !is_answered => {
            descriptors::set_position(fd, from);
        }
        (None, None) if !is_answered => {
            kernel::seek(fd, from)?;
        }
        _ => {}
    }
    is_answered.then_some(entries.len() as ssize_t)
}

/// Sets bit 55 as [`amend`] does, for a read into several buffers (`readv(2)`).
///
/// # Safety
///
/// The parts are the program's to write, as far as `length` reaches.
pub(super) unsafe fn amend_parts(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    length: ssize_t,
    offset: Option<off_t>,
) {
    if length <= 0 || known(fd, Kind::Pagemap).is_none() {
        return;
    }
    let begin = match offset.filter(|offset| *offset >= 0) {
        Some(offset) => offset,
        None => kernel::position(fd).map_or(0, |end| end as off_t - length as off_t),
    };
    // SAFETY: the kernel has read the parts from there a moment ago.
    let parts = unsafe { std::slice::from_raw_parts(parts, usize::try_from(count).unwrap_or(0)) };
    let mut done = 0;
    for part in parts {
        let here = (length - done).min(part.iov_len as ssize_t);
        // SAFETY: the kernel has written that many bytes there. (It fills each part by whole
        // entries or fails.)
        unsafe { amend(fd, part.iov_base, here, Some(begin + done as off_t)) };
        done += here;
    }
}
