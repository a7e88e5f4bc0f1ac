//! [`Descriptor`]: what a heap tells whoever watches its process, as `docs/heap-format.md` has it.
//!
//! A private mapping of a file in memory: the file's name makes it found in `proc_pid_maps(5)`, and its being private
//! leaves a forked child with one of its own.

use super::map;
use crate::geometry::{PAGE, SLAB, Windows};
use crate::parts::Parts;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// As it stands in `/proc/PID/maps`, behind `/memfd:`.
const NAME: &std::ffi::CStr = c"pagetrail-heap";
const BYTES: usize = 65536;
const MAGIC: u64 = u64::from_le_bytes(*b"PTHEAP\0\x01");
const HEADER_WORDS: usize = 8;
const ENTRY_WORDS: usize = 4;
const ENTRIES_MAX: usize = (BYTES / 8 - HEADER_WORDS) / ENTRY_WORDS;

/// The mapping, or null where it cannot be had: then the heap works, and nobody learns of its parts.
pub(crate) struct Descriptor(*mut AtomicU64);

// SAFETY: its words are atomic, and added to under the lock of the superblocks.
unsafe impl Send for Descriptor {}
// SAFETY: the same.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(crate) fn make(parts: Parts) -> Self {
        let mapped = || {
            let file = memfd_create(NAME, MemfdFlags::CLOEXEC)?;
            ftruncate(&file, BYTES as u64)?;
            // SAFETY: a fresh mapping where the kernel finds room.
            unsafe {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                rustix::mm::mmap(null_mut(), BYTES, protection, MapFlags::PRIVATE, &file, 0)
            }
        };
        // Not to be killed by `SIGXFSZ` where files may not be so long.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|bytes| bytes < BYTES as u64) {
            return Self(null_mut());
        }
        let Ok(start) = mapped() else {
            return Self(null_mut());
        };
        let descriptor = Self(start.cast());
        let parts = u64::from(parts.count());
        descriptor.word(1, PAGE as u64 | parts << 32);
        descriptor.word(2, SLAB as u64);
        descriptor.word(3, start as u64);
        descriptor.word(0, MAGIC);
        descriptor
    }

    fn word(&self, index: usize, value: u64) {
        // SAFETY: within the mapping, which exists.
        unsafe { (*self.0.add(index)).store(value, Ordering::Release) };
    }

    /// Enters a superblock: its windows, and where the table of its slabs is.
    pub(crate) fn add(&self, windows: &Windows, table: usize, slabs: usize) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: the number of superblocks, the upper half of word 2, within the mapping.
        let count = unsafe { &*self.0.cast::<AtomicU32>().add(5) };
        let index = count.load(Ordering::Relaxed) as usize;
        if index == ENTRIES_MAX {
            return;
        }
        let at = HEADER_WORDS + index * ENTRY_WORDS;
        self.word(at, windows.base() as u64);
        self.word(at + 1, windows.bytes() as u64);
        self.word(at + 2, table as u64);
        self.word(at + 3, slabs as u64);
        count.store(index as u32 + 1, Ordering::Release);
    }

    /// Gives the mapping back.
    ///
    /// # Safety
    ///
    /// The heap is gone.
    pub(crate) unsafe fn drop_mapping(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `make`, and used by nobody any more.
            unsafe { map::unmap(self.0.cast(), BYTES) };
        }
    }
}
