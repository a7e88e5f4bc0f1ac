//! Whether two processes share one address space (`kcmp(2)`).

use rustix::io::Errno;

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
    // SAFETY: the call takes numbers only and changes nothing.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    match order {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
        order => Ok(order == 0),
    }
}
