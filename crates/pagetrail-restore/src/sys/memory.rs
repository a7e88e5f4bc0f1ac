//! `process_vm_readv(2)` and `process_vm_writev(2)`: the memory of the process that is being
//! restored.

use rustix::io::Errno;

fn vector(address: u64, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as usize as *mut _,
        iov_len: length,
    }
}

fn whole(result: isize, length: usize) -> Result<(), Errno> {
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        bytes if bytes as usize == length => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Copies memory of a process to `buffer`, all of it.
pub(crate) fn read(pid: u32, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let local = vector(buffer.as_mut_ptr() as u64, buffer.len());
    let remote = vector(address, buffer.len());
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, and checks the remote
    // addresses itself.
    let result =
        unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    whole(result, buffer.len())
}

/// Copies `bytes` to memory of a process, all of them.
pub(crate) fn write(pid: u32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = vector(bytes.as_ptr() as u64, bytes.len());
    let remote = vector(address, bytes.len());
    // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`, and writes to another process: a
    // child of this one, by its PID, which shares no memory with it.
    let result = unsafe {
        libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
    };
    whole(result, bytes.len())
}
