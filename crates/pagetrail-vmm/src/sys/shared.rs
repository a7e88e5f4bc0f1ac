//! Words that this process and others set bits in: a memfd.
#![allow(unsafe_code, reason = "mapped memory is named by its address")]

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words of a memfd, mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct SharedWords {
    file: OwnedFd,
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the value owns its mapping, whose words are atomics.
unsafe impl Send for SharedWords {}
// SAFETY: the pointer is to a mapping that this value owns, and whose words are atomics.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes words that are zero.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let file = memfd_create("pagetrail-log", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (count * 8) as u64)?;
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                count * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, count })
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, is aligned to a page, any bytes are a value, and
        // it lives as long as `self`. Others change it as atomics may.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: `new` made a mapping of this size, and borrows of it cannot outlive `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.count * 8) };
        debug_assert!(unmapped.is_ok());
    }
}
