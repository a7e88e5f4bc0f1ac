//! Whether two processes share one address space (`kcmp(2)`).

use rustix::io::Errno;
use std::cmp::Ordering;

/// `KCMP_VM` of `linux/kcmp.h`: compares address spaces.
const KCMP_VM: libc::c_int = 1;

/// Whether the processes share their address space, as the child of a `vfork(2)` does with its
/// parent until it executes a program.
///
/// # Errors
///
/// `ENOSYS` where the kernel is built without `kcmp(2)`, `EPERM` where it is not allowed, `ESRCH`
/// when one of them has ended.
pub(crate) fn share_memory(one: u32, other: u32) -> Result<bool, Errno> {
    compare_memory(one, other).map(|order| order == Ordering::Equal)
}

/// The order of the processes' address spaces, which means nothing but stays until one of them
/// executes a program.
///
/// # Errors
///
/// As [`share_memory`].
pub(crate) fn compare_memory(one: u32, other: u32) -> Result<Ordering, Errno> {
    // SAFETY: the call takes numbers only and changes nothing.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    match order {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        // 3 would be that they differ in no order.
        _ => Ok(Ordering::Greater),
    }
}
