//! `kcmp(2)`: what two processes share.

use std::os::fd::RawFd;

// include/uapi/linux/kcmp.h
const KCMP_FILE: i64 = 0;
const KCMP_VM: i64 = 1;

/// Whether descriptor `own` of this process and `number` of `pid` are the same open file; false where the kernel does
/// not tell (CONFIG_KCMP).
pub(crate) fn same_file(own: RawFd, pid: u32, number: RawFd) -> bool {
    compare(pid, KCMP_FILE, own, number)
}

/// Whether a process runs in our memory, as a child of ours does that has not got its program yet (`vfork(2)`).
pub(crate) fn same_memory(pid: u32) -> bool {
    compare(pid, KCMP_VM, 0, 0)
}

fn compare(pid: u32, what: i64, own: RawFd, theirs: RawFd) -> bool {
    let me = i64::from(std::process::id());
    // SAFETY: all arguments are numbers.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            me,
            i64::from(pid),
            what,
            i64::from(own),
            i64::from(theirs),
        )
    };
    order == 0
}
