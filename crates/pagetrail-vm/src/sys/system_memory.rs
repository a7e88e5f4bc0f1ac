//! [`SystemMemory`]: the guest's physical memory that is not the program's: page tables and what the processor needs to
//! enter and leave ring 3.
//!
//! Private memory, so that a forked child has its own. It is reserved, and made usable as it is needed: what is not counts
//! nothing against the limit on the program's data (`RLIMIT_DATA`).
#![allow(unsafe_code, reason = "a mapping seen as atomic words")]

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that the virtual processors read and write by themselves, hence words that are atomic.
#[derive(Debug)]
pub(crate) struct SystemMemory {
    words: NonNull<AtomicU64>,
    bytes: usize,
    /// How much of it may be used.
    usable: usize,
    /// What [`Self::flush_translations`] changes.
    is_executable: AtomicBool,
}

// SAFETY: it owns the mapping, and gives out atomic words only.
unsafe impl Send for SystemMemory {}
// SAFETY: as above.
unsafe impl Sync for SystemMemory {}

impl SystemMemory {
    /// Reserves `bytes`, all zero, of which some may be used at once.
    pub(crate) fn reserve(bytes: usize, usable: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut memory = Self {
            words,
            bytes,
            usable: 0,
            is_executable: AtomicBool::new(false),
        };
        memory.extend(usable)?;
        Ok(memory)
    }

    /// Makes so much more of it usable.
    pub(crate) fn extend(&mut self, bytes: usize) -> io::Result<()> {
        let end = self.usable.checked_add(bytes);
        let end = end.filter(|end| *end <= self.bytes);
        let end = end.ok_or(io::ErrorKind::OutOfMemory)?;
        self.protect(self.usable as u64, bytes as u64, 0)?;
        self.usable = end;
        Ok(())
    }

    fn protect(&self, offset: u64, bytes: u64, execute: libc::c_int) -> io::Result<()> {
        let address = self.address() + offset;
        // SAFETY: the callers have made sure that it is a part of the mapping, which can be read and written from here on.
        let done = unsafe {
            libc::mprotect(
                address as *mut _,
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE | execute,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where it is in this process.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Has the kernel take a part of it out of all page tables, KVM's too, whence it comes back when it is used.
    ///
    /// It is protected otherwise: with the right to execute it or without, in turns, of which nobody makes use. Reading and
    /// writing go on meanwhile (`mprotect(2)`; the notifiers are in mm/mprotect.c and virt/kvm/kvm_main.c).
    pub(crate) fn flush_translations(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > self.usable as u64)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let execute = match self.is_executable.fetch_xor(true, Ordering::Relaxed) {
            true => 0,
            false => libc::PROT_EXEC,
        };
        self.protect(offset, bytes, execute)
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
        // SAFETY: so much of the mapping can be read and written, lives as long as `self`, and any bits are an atomic word.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.usable / 8) }
    }
}

impl Drop for SystemMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and ends with us.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
