//! `kcmp(2)`: whether descriptors of two processes are the same open file.

use std::os::fd::RawFd;

/// Whether descriptor `own` of this process and `number` of `pid` are the same open file; false where the kernel does
/// not tell (CONFIG_KCMP).
pub(crate) fn same_file(own: RawFd, pid: u32, number: RawFd) -> bool {
    // include/uapi/linux/kcmp.h
    const KCMP_FILE: i64 = 0;
    let me = i64::from(std::process::id());
    // SAFETY: all arguments are numbers.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            me,
            i64::from(pid),
            KCMP_FILE,
            i64::from(own),
            i64::from(number),
        )
    };
    order == 0
}
