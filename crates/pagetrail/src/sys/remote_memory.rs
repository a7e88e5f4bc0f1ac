//! `process_vm_readv(2)` and `process_vm_writev(2)`: another process's memory, or the own without trusting pointers to it.

use crate::page_set::PageRange;
use rustix::io::Errno;

/// Ranges that one call may name (`UIO_MAXIOV`).
pub(crate) const RANGES_MAX: usize = 1024;

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
    done(unsafe {
        libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Copies up to [`RANGES_MAX`] ranges of memory of `pid`, one behind the other, into `buffer`; returns how many bytes
/// could be read before the first page that cannot.
pub(crate) fn read_ranges(
    pid: u32,
    ranges: &[PageRange],
    buffer: &mut [u8],
) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start() as usize as *mut _,
            iov_len: range.bytes() as usize,
        })
        .collect();
    let count = remote.len() as libc::c_ulong;
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`; the remote side is checked by it.
    done(unsafe {
        libc::process_vm_readv(pid as i32, &raw const local, 1, remote.as_ptr(), count, 0)
    })
}

/// Copies `bytes` to memory of `pid`, which must be writable there; returns how many were written.
pub(crate) fn write(pid: u32, address: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`; what it writes to is the other process's memory. The
    // own one is refused by the caller: it would change memory behind references.
    done(unsafe {
        libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
    })
}

fn done(result: isize) -> Result<usize, Errno> {
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        bytes => Ok(bytes as usize),
    }
}
