//! `process_vm_readv(2)` and `process_vm_writev(2)`: access to another process's memory, or to the
//! own memory without trusting pointers to it.

use crate::page_set::PageRange;
use crate::proc::status::memory_id;
use rustix::io::Errno;

/// The most ranges that one call may have (`UIO_MAXIOV`).
pub(crate) const RANGES_MAX: usize = 1024;

/// Copies memory of `pid`, beginning at `address`, into `buffer`; returns the number of bytes
/// before the first page that cannot be read.
pub(crate) fn read(pid: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut _,
        iov_len: buffer.len(),
    };
    transfer(pid, |id| {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, and checks the remote
        // addresses itself.
        unsafe { libc::process_vm_readv(id, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Copies up to [`RANGES_MAX`] ranges of memory of `pid`, one after the other, into `buffer`;
/// returns the number of bytes before the first page that cannot be read.
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
    transfer(pid, |id| {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, and checks the remote
        // addresses itself.
        unsafe { libc::process_vm_readv(id, &raw const local, 1, remote.as_ptr(), count, 0) }
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
    transfer(pid, |id| {
        // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`. It writes to another process,
        // since `Memory` refuses this one, whose references would be violated; or it writes a word
        // of a heap's description, which its heap reads as an atomic one.
        unsafe { libc::process_vm_writev(id, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Makes a call by the process's ID, or by that of a thread if the main one has ended.
fn transfer(pid: u32, call: impl Fn(i32) -> isize) -> Result<usize, Errno> {
    match done(call(pid as i32)) {
        Err(Errno::SRCH) => done(call(memory_id(pid) as i32)),
        outcome => outcome,
    }
}

fn done(result: isize) -> Result<usize, Errno> {
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        bytes => Ok(bytes as usize),
    }
}
