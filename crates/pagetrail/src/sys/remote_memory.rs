//! `process_vm_readv(2)`: reading another process's memory, or the own without trusting pointers to it.

use rustix::io::Errno;

/// Copies memory of `pid` from `address` on into `buffer`; returns how many bytes could be read before the first
/// page that cannot.
pub(crate) fn read(pid: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut _,
        iov_len: buffer.len(),
    };
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`; the remote side is checked by it.
    match unsafe {
        libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
    } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        read => Ok(read as usize),
    }
}
