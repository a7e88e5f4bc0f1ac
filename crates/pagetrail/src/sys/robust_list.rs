//! `get_robust_list(2)`: where a thread keeps the list of its robust futexes.

use rustix::io::Errno;

/// The address of the head of the list of a thread (`struct robust_list_head`); 0 if it has none.
///
/// # Errors
///
/// `ESRCH` if there is no such thread, `EPERM` if it may not be traced.
pub(crate) fn head(tid: u32) -> Result<u64, Errno> {
    let (mut head, mut len) = (0_u64, 0_usize);
    // SAFETY: the kernel writes an address and a length to the two locals, which have these sizes.
    let outcome =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    match outcome {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
        _ => Ok(head),
    }
}
