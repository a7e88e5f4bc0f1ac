//! [`Descriptor`]: the heap's layout for a tracker of the process (`docs/heap-format.md`).
//!
//! A private mapping of a file in memory: the file's name makes it found in `proc_pid_maps(5)`, and
//! its being private leaves a forked child with one of its own.

use super::map;
use crate::geometry::{Aliases, PAGE, SLAB};
use crate::subpage_count::SubpageCount;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The name in `/proc/PID/maps`, where it follows `/memfd:`.
const NAME: &std::ffi::CStr = c"pagetrail-heap";
const BYTES: usize = 65536;
const MAGIC: u64 = u64::from_le_bytes(*b"PTHEAP\0\x02");
const HEADER_WORDS: usize = 8;
/// The word in which a tracker says which classes' new slabs are to be merged.
const MERGED_WORD: usize = 4;
const ENTRY_WORDS: usize = 4;
const ENTRIES_MAX: usize = (BYTES / 8 - HEADER_WORDS) / ENTRY_WORDS;

/// The mapping, or null where it could not be made. Without it the heap works, and trackers see
/// whole pages.
pub(crate) struct Descriptor(*mut AtomicU64);

// SAFETY: the words are atomic, and the mapping stays until the heap is destroyed.
unsafe impl Send for Descriptor {}
// SAFETY: the words are atomic, and entries are added only under the lock of the superblocks.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(crate) fn make(subpages: SubpageCount) -> Self {
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
        let subpages = u64::from(subpages.count());
        descriptor.word(1, PAGE as u64 | subpages << 32);
        descriptor.word(2, SLAB as u64);
        descriptor.word(3, start as u64);
        descriptor.word(0, MAGIC);
        descriptor
    }

    /// Whether a tracker wants the pages of new slabs of a class whole. No class of memory that is
    /// mapped once per sub-page has a number of 64 or more.
    pub(crate) fn merges(&self, class: usize) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: within the mapping, which exists.
        let merged = unsafe { (*self.0.add(MERGED_WORD)).load(Ordering::Relaxed) };
        merged.unbounded_shr(class as u32) & 1 != 0
    }

    fn word(&self, index: usize, value: u64) {
        // SAFETY: within the mapping, which exists.
        unsafe { (*self.0.add(index)).store(value, Ordering::Release) };
    }

    /// Adds an entry for a superblock: its aliases, and where the table of its slabs is.
    pub(crate) fn add(&self, aliases: &Aliases, table: usize, slabs: usize) {
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
        self.word(at, aliases.base() as u64);
        self.word(at + 1, aliases.bytes() as u64);
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
            // SAFETY: `make` mapped so many bytes here, and the caller's heap, their only user, is
            // gone.
            unsafe { map::unmap(self.0.cast(), BYTES) };
        }
    }
}
