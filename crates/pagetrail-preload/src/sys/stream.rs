//! `FILE` streams over files that we answer for.
//!
//! libc's streams read by calls that cannot be interposed. So such a stream becomes one whose reads
//! and writes are ours (`fopencookie(3)`), over the real stream, which keeps the descriptor and
//! whatever else it has. `fileno` of it is that descriptor.

use super::{exports, real};
use crate::descriptors;
use crate::descriptors::Kind;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `cookie_io_functions_t` of fopencookie(3): what is missing is left to libc.
#[repr(C)]
pub(super) struct Functions {
    pub(super) read:
        Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    pub(super) write:
        Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    pub(super) seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    pub(super) close: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    pub(super) fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: Functions,
    ) -> *mut FILE;
}

/// A stream of ours and the real one under it.
struct Pair {
    ours: AtomicPtr<FILE>,
    real: AtomicPtr<FILE>,
}

const PAIRS: usize = 64;

static TABLE: [Pair; PAIRS] = [const {
    Pair {
        ours: AtomicPtr::new(std::ptr::null_mut()),
        real: AtomicPtr::new(std::ptr::null_mut()),
    }
}; PAIRS];

/// How many pairs there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes a stream ours if its file is one that we answer for.
///
/// # Safety
///
/// `file` is null or an open stream that no other thread has yet, `mode` what it was opened with.
pub(super) unsafe fn wrap(file: *mut FILE, mode: *const c_char) -> *mut FILE {
    if file.is_null() {
        return file;
    }
    // SAFETY: an open stream, as the caller promises.
    let fd = unsafe { real::fileno(file) };
    if descriptors::find(fd).is_none() {
        let mut buffer = [0; 256];
        let kind: Option<Kind> =
            crate::sys::kernel::path(fd, &mut buffer).and_then(descriptors::may_be);
        if exports::adopt(fd, kind) < 0 {
            // It closed the descriptor; the stream goes as well, and finds it closed.
            // SAFETY: no other thread has the stream yet.
            unsafe { libc::fclose(file) };
            return std::ptr::null_mut();
        }
        if descriptors::find(fd).is_none() {
            return file;
        }
    }
    let functions = Functions {
        read: Some(read),
        write: Some(write),
        seek: Some(seek),
        close: Some(close),
    };
    // SAFETY: the functions take the real stream as their cookie.
    let ours = unsafe { fopencookie(file.cast(), mode, functions) };
    let free = TABLE.iter().find(|pair| {
        let null = std::ptr::null_mut();
        pair.real
            .compare_exchange(null, file, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    if let (Some(pair), false) = (free, ours.is_null()) {
        pair.ours.store(ours, Ordering::Release);
        COUNT.fetch_add(1, Ordering::Release);
    }
    ours
}

/// What `freopen(3)` returns to the program for a stream that it has opened under a name of such a
/// kind.
///
/// # Safety
///
/// `file` is null or an open stream.
pub(super) unsafe fn reopened(file: *mut FILE, kind: Option<Kind>) -> *mut FILE {
    if file.is_null() || kind.is_none() {
        return file;
    }
    // SAFETY: an open stream, as the caller states.
    let fd = exports::adopt(unsafe { real::fileno(file) }, kind);
    let is_pagemap = descriptors::find(fd).is_some_and(|known| known.kind == Kind::Pagemap);
    if fd < 0 || is_pagemap {
        // SAFETY: freopen(3) that fails leaves the stream closed; errno is this thread's.
        unsafe {
            libc::fclose(file);
            *libc::__errno_location() = libc::EOPNOTSUPP;
        }
        return std::ptr::null_mut();
    }
    file
}

/// The descriptor under a stream of ours.
pub(super) fn descriptor(file: *mut FILE) -> Option<c_int> {
    if super::stdout::is(file) {
        return Some(libc::STDOUT_FILENO);
    }
    if COUNT.load(Ordering::Acquire) == 0 || file.is_null() {
        return None;
    }
    let pair = TABLE
        .iter()
        .find(|pair| pair.ours.load(Ordering::Acquire) == file)?;
    let real = pair.real.load(Ordering::Acquire);
    // SAFETY: the real stream is closed after its pair is gone.
    (!real.is_null()).then(|| unsafe { real::fileno(real) })
}

unsafe extern "C-unwind" fn read(
    cookie: *mut c_void,
    buffer: *mut c_char,
    count: size_t,
) -> ssize_t {
    // SAFETY: the cookie is the real stream; the buffer is libc's.
    unsafe { exports::read(real::fileno(cookie.cast()), buffer.cast(), count) }
}

unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    buffer: *const c_char,
    count: size_t,
) -> ssize_t {
    // SAFETY: libc calls this with the cookie of an open stream and `count` readable bytes at
    // `buffer`.
    let written = unsafe { exports::write(real::fileno(cookie.cast()), buffer.cast(), count) };
    // fopencookie(3): "the write function should return 0 on error".
    written.max(0)
}

unsafe extern "C-unwind" fn seek(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: libc calls this with the cookie of an open stream and a valid pointer to an offset.
    unsafe {
        let position = libc::lseek64(real::fileno(cookie.cast()), *offset, whence);
        if position < 0 {
            return -1;
        }
        *offset = position;
    }
    0
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let real = cookie.cast::<FILE>();
    if let Some(pair) = TABLE
        .iter()
        .find(|pair| pair.real.load(Ordering::Acquire) == real)
    {
        pair.ours.store(std::ptr::null_mut(), Ordering::Release);
        pair.real.store(std::ptr::null_mut(), Ordering::Release);
        COUNT.fetch_sub(1, Ordering::Release);
    }
    // SAFETY: the stream that `wrap` was given, closed once.
    unsafe { libc::fclose(real) }
}
