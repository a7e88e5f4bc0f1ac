//! The functions that programs call instead of libc's. Each calls libc's own, and does more only
//! for descriptors that [`crate::descriptors`] knows, or for files whose name may make them such.
//!
//! `open`, `fcntl` and `ioctl` are variadic in C. They are declared with the one argument that may
//! follow, which on the Linux ABIs of all 64-bit processors is where a variadic one would be.

use super::reads::{amend, amend_parts, known, read_bare, set_position};
use super::writes::{serve, serve_parts, was_inherited};
use super::{guard, passed, real, stdout, stream};
use crate::descriptors::{self, Kind, Known};
use crate::spans::query;
use crate::sys::kernel::{self, PAGEMAP_SCAN, UFFDIO_REGISTER};
use crate::{own, scan};
use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, mode_t, off_t, pid_t, size_t,
    ssize_t,
};
use linux_raw_sys::general::pm_scan_arg;
use rustix::fd::RawFd;
use std::ffi::CStr;
use std::mem::offset_of;

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZER: extern "C" fn() = find_all;

extern "C" fn find_all() {
    real::find_all();
    if kernel::may_have_inherited_clear_refs() {
        stdout::inherit();
    }
    if kernel::descriptors(inherit_pagemap).is_err() {
        (0..LOOKED_AT_MAX).for_each(inherit_pagemap);
    }
    passed::follow_forks();
}

/// How many descriptors of a program that begins are looked at where there is no list of them, one
/// call for each.
const LOOKED_AT_MAX: c_int = 64;

/// Enters a descriptor if it is the `pagemap` of another process, inherited over `execve(2)`. What
/// this process had opened before was of its memory then.
fn inherit_pagemap(fd: c_int) {
    if !kernel::is_open(fd) {
        return;
    }
    let mut buffer = [0; 256];
    // Its name first: to ask a file system that lies elsewhere could take for ever.
    let Some(path) = kernel::path(fd, &mut buffer) else {
        return;
    };
    if descriptors::may_be(path) == Some(Kind::Pagemap)
        && descriptors::process_of(path).is_some_and(|pid| pid != std::process::id())
        && !has_room(fd, Kind::Pagemap)
    {
        // The program knows the number, and closes it.
        kernel::make_unreadable(fd);
    }
}

/// What a path may lead to.
///
/// # Safety
///
/// `path` is null or a C string.
unsafe fn may_be(path: *const c_char) -> Option<Kind> {
    if path.is_null() || guard::is_inside() {
        return None;
    }
    // SAFETY: `path` is not null, and the caller of libc's function passes a C string.
    descriptors::may_be(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Enters what was opened under a name that made it likely; fails as with too many open files when
/// there is no room.
pub(super) fn adopt(fd: c_int, kind: Option<Kind>) -> c_int {
    let Some(kind) = kind.filter(|_| fd >= 0) else {
        return fd;
    };
    if !has_room(fd, kind) {
        // SAFETY: the number was opened a moment ago, and the program does not have it yet; errno
        // is this thread's.
        unsafe {
            libc::close(fd);
            *libc::__errno_location() = libc::EMFILE;
        }
        return -1;
    }
    fd
}

/// Enters what was opened under a name that made it likely; false when there is no room.
pub(super) fn has_room(fd: c_int, kind: Kind) -> bool {
    if guard::with_state(|state| state.adopt(fd, kind)) == Some(false) {
        return false;
    }
    stdout::follow(fd);
    true
}

/// Enters what was opened by a path, if the path makes it likely. One by which nothing was opened
/// may be no string at all, as the kernel has found out.
///
/// # Safety
///
/// `path` is a C string where `fd` is a descriptor.
unsafe fn opened(fd: c_int, path: *const c_char) -> c_int {
    match fd {
        // SAFETY: the kernel has read the path a moment ago.
        0.. => adopt(fd, unsafe { may_be(path) }),
        _ => fd,
    }
}

macro_rules! opening {
    ($($function:ident($($argument:ident: $type:ty),*), $path:ident;)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function($($argument: $type),*) -> c_int {
                // SAFETY: the program's arguments, passed on.
                unsafe { opened(real::$function($($argument),*), $path) }
            }
        )*
    };
}

opening! {
    open(path: *const c_char, flags: c_int, mode: mode_t), path;
    open64(path: *const c_char, flags: c_int, mode: mode_t), path;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), path;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), path;
    __open_2(path: *const c_char, flags: c_int), path;
    __open64_2(path: *const c_char, flags: c_int), path;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int), path;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int), path;
}

macro_rules! reading {
    ($($function:ident($($argument:ident: $type:ty),*), $offset:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function(fd: c_int, buffer: *mut c_void, count: size_t $(, $argument: $type)*) -> ssize_t {
                // SAFETY: the program's arguments, passed on.
                unsafe {
                    if descriptors::any() && let Some(length) = read_bare(fd, buffer, count, $offset) {
                        return length;
                    }
                    let length = real::$function(fd, buffer, count $(, $argument)*);
                    if descriptors::any() {
                        amend(fd, buffer, length, $offset);
                    }
                    length
                }
            }
        )*
    };
}

reading! {
    read(), None;
    __read_chk(size: size_t), None;
    pread(offset: off_t), Some(offset);
    pread64(offset: off_t), Some(offset);
    __pread_chk(offset: off_t, size: size_t), Some(offset);
    __pread64_chk(offset: off_t, size: size_t), Some(offset);
}

macro_rules! reading_parts {
    ($($function:ident($($argument:ident: $type:ty),*), $offset:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function(fd: c_int, parts: *const iovec, count: c_int $(, $argument: $type)*) -> ssize_t {
                if descriptors::any() {
                    descriptors::settle_position(fd);
                }
                // SAFETY: the program's arguments, passed on.
                unsafe {
                    let length = real::$function(fd, parts, count $(, $argument)*);
                    if descriptors::any() {
                        amend_parts(fd, parts, count, length, $offset);
                    }
                    length
                }
            }
        )*
    };
}

reading_parts! {
    readv(), None;
    preadv(offset: off_t), Some(offset);
    preadv64(offset: off_t), Some(offset);
    preadv2(offset: off_t, flags: c_int), Some(offset);
    preadv64v2(offset: off_t, flags: c_int), Some(offset);
}

macro_rules! writing {
    ($($function:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function(fd: c_int, buffer: *const c_void, count: size_t $(, $argument: $type)*) -> ssize_t {
                // SAFETY: the program's arguments, passed on.
                unsafe {
                    if descriptors::any() && let Some(length) = serve(fd, buffer as u64, count) {
                        return length;
                    }
                    let length = real::$function(fd, buffer, count $(, $argument)*);
                    if length == -1 && was_inherited(fd) && let Some(length) = serve(fd, buffer as u64, count) {
                        return length;
                    }
                    length
                }
            }
        )*
    };
}

writing! {
    write();
    pwrite(offset: off_t);
    pwrite64(offset: off_t);
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
) -> ssize_t {
    if descriptors::any()
        && let Some(length) = serve_parts(fd, parts as u64, count)
    {
        return length;
    }
    // SAFETY: the program's arguments, passed on to the function that they are for.
    let length = unsafe { real::writev(fd, parts, count) };
    if length == -1
        && was_inherited(fd)
        && let Some(length) = serve_parts(fd, parts as u64, count)
    {
        return length;
    }
    length
}

macro_rules! seeking {
    ($($function:ident)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function(fd: c_int, offset: off_t, whence: c_int) -> off_t {
                if descriptors::any() {
                    if let Some(position) = set_position(fd, offset, whence) {
                        return position;
                    }
                    descriptors::settle_position(fd);
                }
                // SAFETY: the program's arguments, passed on.
                unsafe { real::$function(fd, offset, whence) }
            }
        )*
    };
}

seeking! { lseek lseek64 }

/// The descriptor, with the position that its duplicate is to have, too.
fn settled(fd: c_int) -> c_int {
    if descriptors::any() {
        descriptors::settle_position(fd);
    }
    fd
}

/// Enters the duplicate of a descriptor that is known.
fn duplicated(of: RawFd, fd: c_int) -> c_int {
    if fd < 0 || !descriptors::any() || guard::is_inside() {
        return fd;
    }
    let fd = match descriptors::find(of) {
        Some(known) => {
            let fd = match guard::with_state(|_| descriptors::enter(fd, known)) {
                Some(false) => adopt(fd, Some(known.kind)),
                _ => fd,
            };
            descriptors::share_position(of);
            descriptors::share_position(fd);
            fd
        }
        None => fd,
    };
    stdout::follow(fd);
    fd
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the program's arguments, passed on.
    duplicated(fd, unsafe { real::dup(settled(fd)) })
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup2(fd: c_int, number: c_int) -> c_int {
    // SAFETY: the program's arguments, passed on.
    duplicated(fd, unsafe { real::dup2(settled(fd), number) })
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's arguments, passed on.
    duplicated(fd, unsafe { real::dup3(settled(fd), number, flags) })
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments, passed on.
    let result = unsafe { real::fcntl(settled(fd), command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        _ => result,
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: the program's arguments, passed on.
    let result = unsafe { real::fcntl64(settled(fd), command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        _ => result,
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program's arguments, passed on; for PAGEMAP_SCAN they are what its manual page
    // says.
    unsafe {
        if request == c_ulong::from(PAGEMAP_SCAN)
            && !argument.is_null()
            && let Some(known) = known(fd, Kind::Pagemap)
            && let Some(result) = answer_scan(known, fd, argument as u64)
        {
            return result;
        }
        if request == c_ulong::from(UFFDIO_REGISTER) && !guard::is_inside() {
            own::note_foreign_userfaultfd();
        }
        real::ioctl(fd, request, argument)
    }
}

/// Attaches to a process before the program traces it: no other process can do so afterwards, and a
/// checkpointer clears later.
///
/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ptrace(
    request: c_uint,
    pid: pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request == libc::PTRACE_SEIZE && !guard::is_inside() {
        guard::with_state(|state| state.about_to_trace(pid.unsigned_abs()));
    }
    // SAFETY: the program's arguments, passed on.
    unsafe { real::ptrace(request, pid, address, data) }
}

/// Answers a `PAGEMAP_SCAN`, unless the kernel can or refuses it. Neither the argument nor the
/// vector that it names is touched but by the kernel's own copies, so bad addresses are errors and
/// nothing worse.
fn answer_scan(known: Known, fd: c_int, argument: u64) -> Option<c_int> {
    let outcome = guard::with_state(|state| {
        let mut arg = query(0, 0);
        let bytes = size_of::<pm_scan_arg>();
        // Whatever cannot be read is the kernel's to refuse.
        kernel::copy_in(&mut arg, argument).ok()?;
        if arg.size != bytes as u64 || !scan::concerns(&arg) || scan::is_refused(&arg) {
            return None;
        }
        state.look_again(known.pid);
        let found = scan::run(state.view(known.pid), fd, &mut arg);
        let walk_end = argument + offset_of!(pm_scan_arg, walk_end) as u64;
        Some(found.and_then(|count| kernel::copy_out(walk_end, &[arg.walk_end]).map(|()| count)))
    })??;
    Some(match outcome {
        Ok(count) => count as c_int,
        Err(errno) => {
            // SAFETY: this thread's own errno.
            unsafe { *libc::__errno_location() = errno.raw_os_error() };
            -1
        }
    })
}

/// [`opened`], for a stream.
///
/// # Safety
///
/// `path` and `mode` are C strings where `file` is a stream.
unsafe fn opened_stream(file: *mut FILE, path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the kernel has read the path a moment ago, and libc the mode.
    unsafe {
        match !file.is_null() && may_be(path).is_some() {
            true => stream::wrap(file, mode),
            false => file,
        }
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fopen(
    path: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    // SAFETY: the program's arguments, passed on.
    unsafe { opened_stream(real::fopen(path, mode), path, mode) }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fopen64(
    path: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    // SAFETY: the program's arguments, passed on.
    unsafe { opened_stream(real::fopen64(path, mode), path, mode) }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's arguments, passed on.
    unsafe {
        let file = real::fdopen(settled(fd), mode);
        if descriptors::any() && !guard::is_inside() && descriptors::find(fd).is_some() {
            return stream::wrap(file, mode);
        }
        file
    }
}

/// [`opened`], for a stream that was another before.
///
/// # Safety
///
/// `path` is null or a C string where `file` is a stream.
unsafe fn reopened(file: *mut FILE, path: *const c_char) -> *mut FILE {
    match file.is_null() {
        true => file,
        // SAFETY: the kernel has read the path a moment ago, unless it is null.
        false => unsafe { stream::reopened(file, may_be(path)) },
    }
}

/// Refuses to make an open stream one over `pagemap`: libc would read past the library, and every
/// page would look clean. A stream over `clear_refs` fails when it is written, but for `stdout`.
///
/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's arguments, passed on to the function that they are for.
    unsafe { reopened(real::freopen(path, mode, file), path) }
}

/// See [`freopen`].
///
/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's arguments, passed on to the function that they are for.
    unsafe { reopened(real::freopen64(path, mode, file), path) }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    // SAFETY: the program's arguments, passed on.
    stream::descriptor(file).unwrap_or_else(|| unsafe { real::fileno(file) })
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fileno_unlocked(file: *mut FILE) -> c_int {
    // SAFETY: the program's arguments, passed on.
    stream::descriptor(file).unwrap_or_else(|| unsafe { real::fileno_unlocked(file) })
}
