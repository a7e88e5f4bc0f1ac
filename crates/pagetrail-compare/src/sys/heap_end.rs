//! The end of the data segment (`brk(2)`).

use std::io;

/// Bytes of a page, as far as touching each goes: no page is smaller.
const PAGE: usize = 4096;

/// The end of the data segment, moved up and back by the first thread of a process.
#[derive(Debug)]
pub(crate) struct HeapEnd(());

impl HeapEnd {
    /// Fails in another thread than the first.
    pub(crate) fn take() -> io::Result<Self> {
        super::check_is_first_thread().map(|()| Self(()))
    }

    /// Moves the end up by so many bytes and back; meanwhile writes to each of the new pages if
    /// `touch` says so. Gives how many of them it has found empty.
    pub(crate) fn swing(&mut self, bytes: usize, touch: bool) -> io::Result<u64> {
        // SAFETY: this asks for the end, and moves nothing.
        let end = unsafe { libc::syscall(libc::SYS_brk, 0) };
        let above = end + bytes as libc::c_long;
        // SAFETY: the memory above the end is not in use. The C library, which keeps the end in
        // mind, finds it where it was: it is moved back before anything is allocated.
        if unsafe { libc::syscall(libc::SYS_brk, above) } != above {
            return Err(io::Error::other("the data segment cannot grow"));
        }
        let mut empty = 0;
        if touch {
            // SAFETY: the kernel has just mapped these bytes, readable, writable and zero, and
            // nobody else knows of them.
            let new = unsafe { std::slice::from_raw_parts_mut(end as *mut u8, bytes) };
            for page in new.chunks_mut(PAGE) {
                empty += u64::from(super::write_first(page));
            }
        }
        // SAFETY: this asks for the end, and moves nothing.
        if unsafe { libc::syscall(libc::SYS_brk, 0) } != above {
            return Err(io::Error::other("somebody else has moved the data segment"));
        }
        // SAFETY: the borrow of the new memory is over, this thread has allocated nothing since,
        // and the end is where this function has put it, so nobody else has allocated above.
        match unsafe { libc::syscall(libc::SYS_brk, end) } == end {
            true => Ok(empty),
            false => Err(io::Error::other("the data segment cannot shrink")),
        }
    }
}
