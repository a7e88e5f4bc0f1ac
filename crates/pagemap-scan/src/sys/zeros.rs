//! [`Zeros`]: memory that stays zero, from which missing pages are filled.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;

/// A read-only anonymous mapping, in which nobody can write.
///
/// It is apart from every heap, so that a fault handler that reads it touches no memory that may
/// itself be protected.
#[derive(Debug)]
pub struct Zeros {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the value owns its mapping, which any thread may read and unmap.
unsafe impl Send for Zeros {}
// SAFETY: the mapping is read-only, so concurrent use is no data race.
unsafe impl Sync for Zeros {}

impl Zeros {
    /// Maps `bytes` zeros, of which none takes memory.
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// The number of zeros.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The address of the first.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: `new` made a mapping of this size, to which no reference exists.
        let _ = unsafe { munmap(self.base.as_ptr(), self.bytes) };
    }
}
