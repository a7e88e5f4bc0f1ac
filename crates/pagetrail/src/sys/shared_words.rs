//! [`SharedWords`]: memory of its own, apart from every heap, for what a fault handler writes.
//!
//! A handler must never touch memory that may itself be protected; a mapping made here is in nobody's tracked
//! ranges.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// An anonymous mapping used as atomic words, zero at first; pages come into being when touched.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are atomics, and the mapping belongs to this value alone.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    pub(crate) fn new(len: usize) -> rustix::io::Result<Self> {
        let bytes = (len * size_of::<AtomicU64>()).max(1);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `len` words, zeros are valid ones, and it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<AtomicU64>()).max(1);
        // SAFETY: this value made the mapping, and no borrow of it can be left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
    }
}
