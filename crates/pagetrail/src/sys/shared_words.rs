//! [`SharedWords`]: a mapping of its own, apart from every heap, for the data that a fault handler
//! writes.
//!
//! A handler must never touch memory that may itself be protected; a mapping made here is in no
//! tracked range.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// An anonymous mapping used as atomic words, initially zero; its pages are created when touched.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the value owns its mapping, which any thread may use and unmap, and the words are
// atomics.
unsafe impl Send for SharedWords {}
// SAFETY: shared references give access to atomics only, so concurrent use is no data race.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    pub(crate) fn new(len: usize) -> rustix::io::Result<Self> {
        let bytes = (len * size_of::<AtomicU64>()).max(1);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
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
        // SAFETY: the mapping has `len` words, is aligned to a page, zeros are valid values, and it
        // lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<AtomicU64>()).max(1);
        // SAFETY: `new` made a mapping of this size, and borrows of it cannot outlive `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
    }
}
