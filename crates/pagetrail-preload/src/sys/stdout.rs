//! `stdout` while descriptor 1 is a `clear_refs`, as in a shell's `echo 4 > /proc/PID/clear_refs`.
//!
//! libc writes its streams by calls that cannot be replaced. So `stdout`, a variable, is another
//! stream meanwhile (`fopencookie(3)`), whose writes are [`super::exports`]' writes to descriptor
//! 1, whatever file that is.

use super::stream::{Functions, fopencookie};
use super::{exports, guard, kernel};
use crate::descriptors::{self, Kind};
use libc::{FILE, STDOUT_FILENO, c_char, c_int, c_void, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    /// libc's variable, of which a program may have the only copy (a copy relocation).
    #[link_name = "stdout"]
    static VARIABLE: AtomicPtr<FILE>;
}

/// The stream that takes the place of the program's; made on first use and kept.
static OURS: AtomicPtr<FILE> = AtomicPtr::new(std::ptr::null_mut());

/// The program's stream, while ours is in its place.
static PROGRAMS: AtomicPtr<FILE> = AtomicPtr::new(std::ptr::null_mut());

/// Whether a stream is the one that takes the place of `stdout`.
pub(super) fn is(file: *mut FILE) -> bool {
    !file.is_null() && file == OURS.load(Ordering::Acquire)
}

/// Enters descriptor 1 if the program has inherited a `clear_refs` there.
pub(super) fn inherit() {
    let mut buffer = [0; 256];
    let Some(path) = kernel::path(STDOUT_FILENO, &mut buffer) else {
        return;
    };
    if descriptors::may_be(path) == Some(Kind::ClearRefs)
        || descriptors::substitute_for(path).is_some()
    {
        exports::adopt(STDOUT_FILENO, Some(Kind::ClearRefs));
    }
}

/// Makes `stdout` the stream that suits descriptor 1, if that is what has just been opened.
pub(super) fn follow(fd: c_int) {
    // A child of vfork(2) would change its parent's variable.
    if fd != STDOUT_FILENO || guard::is_in_borrowed_memory() {
        return;
    }
    let is_clear_refs = descriptors::find(fd).is_some_and(|known| known.kind == Kind::ClearRefs);
    // SAFETY: libc's variable is a pointer, as aligned as an `AtomicPtr`, and lives as long as the
    // process.
    let variable = unsafe { &VARIABLE };
    let (now, ours) = (
        variable.load(Ordering::Acquire),
        OURS.load(Ordering::Acquire),
    );
    match (is_clear_refs, is(now)) {
        (true, false) => {
            let ours = if ours.is_null() { make() } else { ours };
            if !ours.is_null() {
                PROGRAMS.store(now, Ordering::Release);
                OURS.store(ours, Ordering::Release);
                variable.store(ours, Ordering::Release);
            }
        }
        (false, true) => variable.store(PROGRAMS.load(Ordering::Acquire), Ordering::Release),
        _ => {}
    }
}

fn make() -> *mut FILE {
    let functions = Functions {
        read: None,
        write: Some(write),
        seek: None,
        close: Some(close),
    };
    // SAFETY: the mode is a C string, and the functions do not use the cookie.
    unsafe { fopencookie(std::ptr::null_mut(), c"w".as_ptr(), functions) }
}

unsafe extern "C-unwind" fn write(_: *mut c_void, buffer: *const c_char, count: size_t) -> ssize_t {
    // SAFETY: the buffer is libc's, of that length. fopencookie(3) wants 0 for an error.
    unsafe { exports::write(STDOUT_FILENO, buffer.cast(), count) }.max(0)
}

/// Closes descriptor 1, as `fclose(stdout)` does.
unsafe extern "C-unwind" fn close(_: *mut c_void) -> c_int {
    OURS.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: the program closes its own standard output.
    unsafe { libc::close(STDOUT_FILENO) }
}
