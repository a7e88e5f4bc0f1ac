//! Memory mapped for a test (`mmap(2)`), and unmapped when it is dropped.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping of our own.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Private memory of zeros.
    pub(crate) fn private(bytes: usize) -> io::Result<Self> {
        Self::anonymous(bytes, MapFlags::PRIVATE)
    }

    /// Memory of zeros that children share.
    pub(crate) fn shared(bytes: usize) -> io::Result<Self> {
        Self::anonymous(bytes, MapFlags::SHARED)
    }

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address the kernel takes one where nothing is.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        // Linux has huge pages only where there is memory enough (`hugepage_init` in
        // mm/huge_memory.c), so that a small guest would take 512 faults for one. A kernel that
        // has none at all refuses.
        // SAFETY: the mapping is our own, and its content stays.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) };
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// All of it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable, as long as this says, and our own until
        // it is dropped. What is shared is written by one process at a time, which tests agree on
        // by pipes.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Maps the beginning of a file for reading, reads one byte of it, and unmaps it.
pub(crate) fn peek(file: BorrowedFd<'_>, bytes: usize) -> io::Result<u8> {
    let (protection, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: without an address the kernel takes one where nothing is.
    let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, 0) }?;
    let mapping = Mapping {
        start: start.cast(),
        bytes,
    };
    // SAFETY: the mapping has at least one page, is readable, and lives; the caller's file is as
    // long as the mapping, and nobody shortens it.
    Ok(unsafe { mapping.start.read_volatile() })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and no borrow of it is left.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
