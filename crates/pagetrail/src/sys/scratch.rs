//! [`Scratch`]: a few pages of anonymous memory to try techniques on.

use crate::page_set::{PageRange, page_size};
#[cfg(test)]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// A private anonymous mapping of small pages. A page without rights on each side keeps the kernel
/// from making one mapping of it and its neighbours, which may be another scratch.
#[derive(Debug)]
pub(crate) struct Scratch {
    range: PageRange,
}

impl Scratch {
    /// Maps `bytes`, a multiple of the page size.
    pub(crate) fn new(bytes: u64) -> rustix::io::Result<Self> {
        let length = (bytes + 2 * page_size()) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )?
        };
        let start = base as u64 + page_size();
        let scratch = PageRange::new(start, start + bytes).map(|range| Self { range });
        let scratch = scratch.ok_or(rustix::io::Errno::INVAL)?;
        let rights = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages belong to the new mapping, of which nobody knows yet.
        unsafe { mprotect(start as *mut _, bytes as usize, rights)? };
        Ok(scratch)
    }

    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Reads one byte; the compiler cannot omit the read.
    pub(crate) fn read(&self, offset: u64) -> u8 {
        assert!(offset < self.range.bytes());
        // SAFETY: the address is within the mapping, as just asserted; it is readable, and only
        // this value uses it.
        unsafe { std::ptr::read_volatile((self.range.start() + offset) as *const u8) }
    }

    /// Writes one byte; the compiler cannot omit the write.
    pub(crate) fn write(&mut self, offset: u64, value: u8) {
        assert!(offset < self.range.bytes());
        // SAFETY: the address is within the mapping, as just asserted; it is writable, and only
        // this value uses it.
        unsafe { std::ptr::write_volatile((self.range.start() + offset) as *mut u8, value) };
    }
}

#[cfg(test)]
impl Scratch {
    /// Makes a part of it read-only: a mapping of its own.
    pub(crate) fn make_read_only(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        assert!(offset + bytes <= self.range.bytes());
        let start = self.range.start() + offset;
        // SAFETY: the addresses are within the mapping, as just asserted, to whose memory no
        // reference exists.
        unsafe { mprotect(start as *mut _, bytes as usize, MprotectFlags::READ) }
    }

    /// Discards pages: they are zeros from then on.
    pub(crate) fn discard(&mut self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        assert!(offset + bytes <= self.range.bytes());
        let start = self.range.start() + offset;
        // SAFETY: the addresses are within the mapping, as just asserted, to whose memory no
        // reference exists.
        unsafe { madvise(start as *mut _, bytes as usize, Advice::LinuxDontNeed) }
    }

    /// Replaces the mapping of a scratch by shared memory.
    pub(crate) fn share(range: PageRange) -> rustix::io::Result<()> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the addresses belong to a scratch, of whose memory no reference exists.
        unsafe {
            mmap_anonymous(
                range.start() as *mut _,
                range.bytes() as usize,
                rights,
                flags,
            )?
        };
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let start = self.range.start() - page_size();
        let length = self.range.bytes() + 2 * page_size();
        // SAFETY: `new` made this mapping, with the pages on both sides, and no reference to its
        // memory exists.
        let _ = unsafe { munmap(start as *mut _, length as usize) };
    }
}
