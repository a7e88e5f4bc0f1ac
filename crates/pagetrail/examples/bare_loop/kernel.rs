//! Memory to write to, and the kernel's calls.
#![allow(unsafe_code, reason = "it measures bare system calls")]

use pagetrail::{PageRange, page_size};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A mapping of small pages.
pub(crate) struct Memory {
    pub(crate) range: PageRange,
}

impl Memory {
    pub(crate) fn new(bytes: u64, flags: MapFlags) -> Outcome<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, rights, flags)? };
        // SAFETY: the advice concerns the mapping made above, and changes no content.
        unsafe { madvise(base, bytes as usize, Advice::LinuxNoHugepage)? };
        let start = base as u64;
        let range = PageRange::new(start, start + bytes).ok_or("no memory")?;
        Ok(Self { range })
    }

    /// Writes one word to every n-th page.
    pub(crate) fn write(&self, every: u64) -> Duration {
        let began = Instant::now();
        for address in
            (self.range.start()..self.range.end()).step_by((every * page_size()) as usize)
        {
            // SAFETY: the address is in the mapping, which is writable and only this value uses.
            unsafe { std::ptr::write_volatile(address as *mut u64, address) };
        }
        began.elapsed()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and no reference to its memory exists.
        let _ = unsafe { munmap(self.range.start() as *mut _, self.range.bytes() as usize) };
    }
}

pub(crate) fn ioctl<T>(fd: &impl AsRawFd, request: u32, arg: &mut T) -> std::io::Result<usize> {
    // SAFETY: each caller passes the struct that its request takes, with valid pointers in it.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), std::ptr::from_mut(arg)) } {
        result @ 0.. => Ok(result as usize),
        _ => Err(std::io::Error::last_os_error()),
    }
}
