//! libc's own functions, which ours replace: the next of their names in the search order
//! (`dlsym(3)`, `RTLD_NEXT`).
//!
//! Looked up by the library's initializer, while the process has one thread and holds no lock; a
//! call that comes earlier, from another library's, looks up on the spot.
//!
//! A thread that is cancelled in one of them (`pthread_cancel(3)`) unwinds its stack through ours,
//! which it may only where the ABI says so (`C-unwind`): otherwise the program would end. So no
//! value that is to be dropped is alive during such a call.

use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, mmsghdr, mode_t, msghdr, off_t,
    pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, size_t, ssize_t, timespec,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

fn next(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a constant name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    found
}

macro_rules! functions {
    ($($function:ident($($argument:ident: $type:ty),*) -> $result:ty = $none:expr;)*) => {
        #[allow(non_upper_case_globals, reason = "they are named as the functions are")]
        mod place {
            use super::*;
            $(pub(super) static $function: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// Looks all of them up.
        pub(crate) fn find_all() {
            $(next(&place::$function, const { name(concat!(stringify!($function), "\0")) });)*
        }

        $(
            /// libc's function of this name; fails with `ENOSYS` where there is none.
            ///
            /// # Safety
            ///
            /// As for libc's function.
            #[inline]
            pub(crate) unsafe fn $function($($argument: $type),*) -> $result {
                let found = next(&place::$function, const { name(concat!(stringify!($function), "\0")) });
                if found.is_null() {
                    // SAFETY: this thread's own errno.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return $none;
                }
                // SAFETY: the function of this name has this signature; arguments as the caller
                // promises.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> $result = std::mem::transmute(found);
                    function($($argument),*)
                }
            }
        )*
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

functions! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    __open_2(path: *const c_char, flags: c_int) -> c_int = -1;
    __open64_2(path: *const c_char, flags: c_int) -> c_int = -1;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = -1;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = -1;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fileno(stream: *mut FILE) -> c_int = -1;
    fileno_unlocked(stream: *mut FILE) -> c_int = -1;
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t = -1;
    __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t = -1;
    pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t = -1;
    pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t = -1;
    __pread_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, size: size_t) -> ssize_t = -1;
    __pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, size: size_t) -> ssize_t = -1;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = -1;
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t = -1;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = -1;
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = -1;
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = -1;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = -1;
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = -1;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t = -1;
    pwrite(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t = -1;
    pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t = -1;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = -1;
    dup(fd: c_int) -> c_int = -1;
    dup2(fd: c_int, number: c_int) -> c_int = -1;
    dup3(fd: c_int, number: c_int, flags: c_int) -> c_int = -1;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int = -1;
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int = -1;
    ptrace(request: c_uint, pid: pid_t, address: *mut c_void, data: *mut c_void) -> c_long = -1;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = -1;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, room: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = -1;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = -1;
    pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int = -1;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int = libc::ENOSYS;
    posix_spawnp(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int = libc::ENOSYS;
}
