//! [`SystemMemory`]: the guest's physical memory that is not the program's: page tables and what the processor needs to
//! enter and leave ring 3.
//!
//! Private memory, so that a forked child has its own. It is reserved, and takes what is used of it.
#![allow(unsafe_code, reason = "a mapping seen as atomic words")]

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that the virtual processors read and write by themselves, hence words that are atomic.
#[derive(Debug)]
pub(crate) struct SystemMemory {
    words: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: it owns the mapping, and gives out atomic words only.
unsafe impl Send for SystemMemory {}
// SAFETY: as above.
unsafe impl Sync for SystemMemory {}

impl SystemMemory {
    /// Reserves `bytes`, all zero.
    pub(crate) fn reserve(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { words, bytes })
    }

    /// Where it is in this process.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Writes whole words at a byte offset that is a multiple of 8; a rest is filled up with zeros.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let first = (offset / 8) as usize;
        for (word, chunk) in self[first..].iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }
}

impl Deref for SystemMemory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is that long, lives as long as `self`, and any bits are an atomic word.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.bytes / 8) }
    }
}

impl Drop for SystemMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and ends with us.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
