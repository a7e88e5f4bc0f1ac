//! Descriptors that come and go by other ways than `dup(2)`: in messages (`SCM_RIGHTS`, unix(7)),
//! and to children.
//!
//! What comes is entered, or the kernel, which has no soft-dirty bits, would say that nothing was
//! written. Of what goes, the position is left to the kernel: two processes may have the same.

use super::{exports, guard, kernel, real};
use crate::descriptors::{self, Kind};
use libc::{
    c_char, c_int, c_uint, cmsghdr, mmsghdr, msghdr, pid_t, posix_spawn_file_actions_t,
    posix_spawnattr_t, ssize_t, timespec,
};

/// Has forks leave positions to the kernel. `_Fork(3)` and clone(2) are not seen.
pub(super) fn follow_forks() {
    // SAFETY: the function may be called at any moment; without memory for it nothing changes.
    unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
}

extern "C" fn before_fork() {
    descriptors::share_positions();
}

/// Calls `each` with the descriptors that a message brings or takes.
///
/// # Safety
///
/// The kernel has read or filled in the message a moment ago.
unsafe fn of_message(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the kernel has checked the header, and that the control messages lie within memory of
    // the program's.
    unsafe {
        if (*message).msg_control.is_null() || (*message).msg_controllen < size_of::<cmsghdr>() {
            return;
        }
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            let header = control.read_unaligned();
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let bytes = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(control).cast::<c_int>();
                for place in 0..bytes / size_of::<c_int>() {
                    each(first.add(place).read_unaligned());
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
}

/// Enters a descriptor that has come, if it is one of ours; false when there is no room.
fn came(fd: c_int) -> bool {
    let mut buffer = [0; 256];
    let Some(path) = kernel::path(fd, &mut buffer) else {
        return true;
    };
    let kind = match descriptors::substitute_for(path) {
        Some(_) => Some(Kind::ClearRefs),
        None => descriptors::may_be(path),
    };
    let Some(kind) = kind else { return true };
    let has_room = exports::has_room(fd, kind);
    if has_room {
        descriptors::share_position(fd);
    }
    has_room
}

/// Enters a descriptor that a message has brought. Where there is no room for it, what is read by
/// it fails: better no answer than a wrong one. The program, which knows its number already, closes
/// it.
fn brought(fd: c_int) {
    if !came(fd) {
        kernel::make_unreadable(fd);
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, passed on; a message that came is as the kernel has made it.
    unsafe {
        let length = real::recvmsg(fd, message, flags);
        if length >= 0 && !guard::is_inside() {
            of_message(message, brought);
        }
        length
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    room: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program's arguments, passed on; so many messages came, as the kernel has made
    // them.
    unsafe {
        let count = real::recvmmsg(fd, messages, room, flags, timeout);
        if !guard::is_inside() {
            for place in 0..count {
                of_message(&raw const (*messages.add(place as usize)).msg_hdr, brought);
            }
        }
        count
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, passed on; the kernel has read what it has sent.
    unsafe {
        if descriptors::any() {
            descriptors::settle_positions();
        }
        let length = real::sendmsg(fd, message, flags);
        if length >= 0 && descriptors::any() {
            of_message(message, descriptors::share_position);
        }
        length
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's arguments, passed on; the kernel has read what it has sent.
    unsafe {
        if descriptors::any() {
            descriptors::settle_positions();
        }
        let sent = real::sendmmsg(fd, messages, count, flags);
        if descriptors::any() {
            for place in 0..sent {
                let message = &raw const (*messages.add(place as usize)).msg_hdr;
                of_message(message, descriptors::share_position);
            }
        }
        sent
    }
}

/// # Safety
///
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pidfd_getfd(
    pidfd: c_int,
    fd: c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: the program's arguments, passed on.
    let fd = unsafe { real::pidfd_getfd(pidfd, fd, flags) };
    if fd < 0 || guard::is_inside() || came(fd) {
        return fd;
    }
    // SAFETY: the program does not have the number yet; errno is this thread's.
    unsafe {
        libc::close(fd);
        *libc::__errno_location() = libc::EMFILE;
    }
    -1
}

macro_rules! spawning {
    ($($function:ident)*) => {
        $(
            /// # Safety
            ///
            /// As for libc's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $function(
                pid: *mut pid_t,
                path: *const c_char,
                actions: *const posix_spawn_file_actions_t,
                attributes: *const posix_spawnattr_t,
                arguments: *const *mut c_char,
                environment: *const *mut c_char,
            ) -> c_int {
                if descriptors::any() {
                    descriptors::share_positions();
                }
                // SAFETY: the program's arguments, passed on.
                unsafe { real::$function(pid, path, actions, attributes, arguments, environment) }
            }
        )*
    };
}

spawning! { posix_spawn posix_spawnp }
