//! What becomes of the program's writes to `clear_refs`. A "4" clears the soft-dirty bits; the
//! kernel carries out everything else.
//!
//! The program's descriptor is a sealed memfd ([`kernel::substitute`]): what libc writes past the
//! functions in [`super::exports`] fails with `EPERM`, and is never lost in silence.

use super::reads::known;
use super::{guard, kernel};
use crate::descriptors::{self, Kind};
use crate::machine;
use libc::{c_int, iovec, size_t, ssize_t};
use rustix::io::Errno;

/// How many bytes the kernel reads of a write: `PROC_NUMBUF` in fs/proc/internal.h, less the final
/// zero.
const READ_MAX: usize = 12;

/// Serves a write to `clear_refs` as `clear_refs_write` in fs/proc/task_mmu.c does; `None` for
/// other files.
pub(super) fn serve(fd: c_int, buffer: u64, count: size_t) -> Option<ssize_t> {
    let known = known(fd, Kind::ClearRefs)?;
    if let Some(machine) = machine::of(known.pid) {
        // A collector that is a guest: no lock, since each system call is a VM exit.
        let mut text = [0; READ_MAX];
        let text = &mut text[..count.min(READ_MAX)];
        let read = kernel::copy_bytes_of(known.pid as libc::pid_t, text, buffer);
        if read.is_ok() && descriptors::clears_soft_dirty(text) && machine.clear().is_ok() {
            return Some(text.len() as ssize_t);
        }
    }
    let outcome = guard::with_state(|state| {
        let mut text = [0; READ_MAX];
        let text = &mut text[..count.min(READ_MAX)];
        kernel::copy_bytes_in(text, buffer)?;
        if descriptors::clears_soft_dirty(text) {
            state.clear(known.pid);
            return Ok(text.len());
        }
        kernel::write_clear_refs(known.pid, text)
    })?;
    Some(result(outcome))
}

/// Serves a write of several parts, of which the kernel takes each for a write of its own.
pub(super) fn serve_parts(fd: c_int, parts: u64, count: c_int) -> Option<ssize_t> {
    known(fd, Kind::ClearRefs)?;
    let count = u64::try_from(count)
        .ok()
        .filter(|count| *count <= libc::UIO_MAXIOV as u64)?;
    let mut total = 0;
    for place in 0..count {
        let mut part = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let address = parts.wrapping_add(place * size_of::<iovec>() as u64);
        let length = match kernel::copy_in(&mut part, address) {
            Ok(()) => serve(fd, part.iov_base as u64, part.iov_len)?,
            Err(errno) => result(Err(errno)),
        };
        if length < 0 {
            return Some(if total > 0 { total } else { length });
        }
        total += length;
        if length as size_t != part.iov_len {
            break;
        }
    }
    Some(total)
}

/// Whether a write failed because the descriptor is a substitute for `clear_refs` that this program
/// has got from another one over `execve(2)`, or by a call that the library does not see. Enters
/// it.
pub(super) fn was_inherited(fd: c_int) -> bool {
    let errno = std::io::Error::last_os_error().raw_os_error();
    if errno != Some(libc::EPERM) || guard::is_inside() {
        return false;
    }
    let mut buffer = [0; 256];
    let path = kernel::path(fd, &mut buffer);
    path.and_then(descriptors::substitute_for).is_some()
        && guard::with_state(|state| state.adopt(fd, Kind::ClearRefs)) == Some(true)
}

fn result(outcome: Result<usize, Errno>) -> ssize_t {
    match outcome {
        Ok(count) => count as ssize_t,
        Err(errno) => {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = errno.raw_os_error() };
            -1
        }
    }
}
