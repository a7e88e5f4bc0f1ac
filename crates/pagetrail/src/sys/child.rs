//! Tries in a child process what would disturb this one.

use crate::types::Status;
use std::ffi::CStr;

const MARKED: u64 = 1 << 55;
const PAGE_BYTES_MAX: usize = 1 << 16;

/// The first of the child's exit codes.
const WORKS: i32 = 0;
const NEVER_MARKED: i32 = 10;
const NOT_CLEARED: i32 = 11;
const WRITE_MISSED: i32 = 12;
const NO_ACCESS: i32 = 13;

/// Probes whether soft-dirty bits are set, cleared and set again.
///
/// Clearing affects the whole process and would clear bits that another user relies on, so a child
/// does it to itself.
pub(crate) fn soft_dirty_round_trip() -> Status {
    // Like fork(2), but without a signal at the child's end. With SIGCHLD the program around us
    // would notice: its handler would run, it might wait for the child itself, or have it reaped by
    // ignoring the signal.
    // SAFETY: the child shares no memory, makes only async-signal-safe system calls and ends by
    // `_exit`.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
    match child {
        -1 => Status::Fails(format!(
            "fork for the probe: {}",
            std::io::Error::last_os_error()
        )),
        0 => {
            // SAFETY: this is the child of a process that may have had threads; both functions
            // neither allocate nor lock.
            unsafe { libc::_exit(try_soft_dirty()) }
        }
        _ => {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the int that the kernel writes.
            while unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } == -1 {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Status::Fails(format!("waiting for the probe: {error}"));
                }
            }
            if !libc::WIFEXITED(status) {
                return Status::Fails("the probe was killed".into());
            }
            match libc::WEXITSTATUS(status) {
                WORKS => Status::Works,
                NEVER_MARKED => Status::Absent(
                    "this kernel is built without it (CONFIG_MEM_SOFT_DIRTY); clear_refs does nothing".into(),
                ),
                NOT_CLEARED => Status::Fails("writing clear_refs clears no bits".into()),
                WRITE_MISSED => Status::Fails("a write after clear_refs set no bit".into()),
                NO_ACCESS => Status::Absent("pagemap or clear_refs of a process cannot be opened".into()),
                other => Status::Fails(format!("the probe ended with {other}")),
            }
        }
    }
}

/// # Safety
///
/// Only async-signal-safe functions may be called here.
unsafe fn try_soft_dirty() -> i32 {
    // SAFETY: all calls are async-signal-safe, and the pointers are to the mapping and the local
    // made here; `memory` is checked before it is dereferenced.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory =
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES_MAX, rights, flags, -1, 0).cast::<u8>();
        let pagemap = open(c"/proc/self/pagemap", libc::O_RDONLY);
        let clear_refs = open(c"/proc/self/clear_refs", libc::O_WRONLY);
        if memory.cast() == libc::MAP_FAILED || pagemap < 0 || clear_refs < 0 {
            return NO_ACCESS;
        }
        let marked = || {
            let mut entry = 0u64;
            let at = memory as usize / page * 8;
            libc::pread(pagemap, (&raw mut entry).cast(), 8, at as libc::off_t) == 8
                && entry & MARKED != 0
        };
        memory.write_volatile(1);
        if !marked() {
            return NEVER_MARKED;
        }
        if libc::write(clear_refs, c"4".as_ptr().cast(), 1) != 1 || marked() {
            return NOT_CLEARED;
        }
        memory.write_volatile(2);
        if marked() { WORKS } else { WRITE_MISSED }
    }
}

/// # Safety
///
/// The requirements of `open(2)`, which are met by any path and flags.
unsafe fn open(path: &CStr, flags: i32) -> i32 {
    // SAFETY: `path` is a C string, which outlives the call.
    unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `SIGCHLD` ignored, the kernel reaps children that send it, so that there is nothing to
    /// wait for.
    #[test]
    fn the_probe_does_not_depend_on_sigchld() {
        let usual = soft_dirty_round_trip();
        // SAFETY: no other test of this binary starts children, and the disposition is restored
        // below.
        let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let ignored = soft_dirty_round_trip();
        // SAFETY: `before` is the disposition that `signal` returned.
        unsafe { libc::signal(libc::SIGCHLD, before) };
        assert_eq!(ignored, usual);
    }
}
