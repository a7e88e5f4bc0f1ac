//! [`Pool`]: memory for a heap's own metadata, apart from its objects: private, so that a forked
//! child has its own.

use super::map;
use rustix::io::Errno;
use std::ptr::null_mut;

/// How much memory is mapped at a time, in bytes.
const CHUNK_BYTES: usize = 1 << 20;
const SMALLEST_SHIFT: u32 = 6;
const SIZES: usize = 10;
/// What is larger gets a mapping of its own.
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + SIZES - 1);

/// Blocks of powers of two of bytes, from chunks.
pub(crate) struct Pool {
    free: [*mut Link; SIZES],
    next: *mut u8,
    left: usize,
    chunks: *mut Link,
}

struct Link {
    next: *mut Link,
}

// SAFETY: its pointers are to memory that it alone has.
unsafe impl Send for Pool {}

impl Pool {
    pub(crate) const fn new() -> Self {
        Self {
            free: [null_mut(); SIZES],
            next: null_mut(),
            left: 0,
            chunks: null_mut(),
        }
    }

    /// Memory, aligned to 64 bytes; not zeroed, unless it is larger than blocks of the pool.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<*mut u8, Errno> {
        if bytes > LARGEST {
            return map::private(bytes, 64, true);
        }
        let size = size_index(bytes);
        let block = self.free[size];
        if !block.is_null() {
            // SAFETY: a free block of ours; its first word is the link.
            self.free[size] = unsafe { (*block).next };
            return Ok(block.cast());
        }
        let bytes = 1 << (SMALLEST_SHIFT as usize + size);
        if self.left < bytes {
            let chunk = map::private(CHUNK_BYTES, 64, true)?;
            // SAFETY: fresh, and ours; the first 64 bytes are for the link.
            unsafe {
                chunk.cast::<Link>().write(Link { next: self.chunks });
                self.next = chunk.add(64);
            }
            self.chunks = chunk.cast();
            self.left = CHUNK_BYTES - 64;
        }
        let block = self.next;
        // SAFETY: so many bytes are left in the chunk.
        self.next = unsafe { block.add(bytes) };
        self.left -= bytes;
        Ok(block)
    }

    /// Takes memory back.
    ///
    /// # Safety
    ///
    /// The block is from [`Self::take`] with the same size, and is not used any more.
    pub(crate) unsafe fn give(&mut self, block: *mut u8, bytes: usize) {
        if bytes > LARGEST {
            // SAFETY: `take` mapped a block of this size by itself, and it is not used any more.
            unsafe { map::unmap(block, bytes) };
            return;
        }
        let size = size_index(bytes);
        let link = block.cast::<Link>();
        // SAFETY: a block has at least 64 bytes, and the caller does not use it any more.
        unsafe {
            link.write(Link {
                next: self.free[size],
            });
        }
        self.free[size] = link;
    }

    /// Gives all chunks back to the kernel.
    ///
    /// # Safety
    ///
    /// No block is used any more.
    pub(crate) unsafe fn drop_all(&mut self) {
        let mut chunk = self.chunks;
        while !chunk.is_null() {
            // SAFETY: a chunk of ours.
            unsafe {
                let next = (*chunk).next;
                map::unmap(chunk.cast(), CHUNK_BYTES);
                chunk = next;
            }
        }
        *self = Self::new();
    }
}

fn size_index(bytes: usize) -> usize {
    let shift = bytes.next_power_of_two().trailing_zeros();
    (shift.max(SMALLEST_SHIFT) - SMALLEST_SHIFT) as usize
}
