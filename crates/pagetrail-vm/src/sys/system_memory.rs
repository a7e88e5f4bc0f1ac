//! [`SystemMemory`]: guest-physical memory that is not the program's: page tables, and what the
//! processor needs to enter and leave ring 3.
//!
//! The memory is private, so that a forked child has its own. It is reserved, and made accessible
//! as it is needed: what is only reserved does not count against the program's limit on data
//! (`RLIMIT_DATA`).
#![allow(unsafe_code, reason = "a mapping seen as atomic words")]

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that the vCPUs read and write by themselves, hence atomic words.
#[derive(Debug)]
pub(crate) struct SystemMemory {
    words: NonNull<AtomicU64>,
    bytes: usize,
    /// The length in bytes of the accessible part.
    usable: usize,
    /// The protection that [`Self::flush_translations`] toggles.
    is_executable: AtomicBool,
}

// SAFETY: the value owns its mapping, which any thread may access and unmap.
unsafe impl Send for SystemMemory {}
// SAFETY: shared access is to atomic words only; extending needs `&mut self`.
unsafe impl Sync for SystemMemory {}

impl SystemMemory {
    /// Reserves `bytes` of zeros, of which the first `usable` bytes are accessible at once.
    pub(crate) fn reserve(bytes: usize, usable: usize) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
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

    /// Makes `bytes` more accessible.
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
        // SAFETY: the callers pass a range within the mapping, which this value owns; it becomes or
        // stays readable and writable, so that no reference to it is invalidated.
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

    /// The address in this process.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// The length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The length in bytes of the accessible part.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.usable as u64
    }

    /// Makes all vCPUs flush their TLBs, by making the kernel take a part of this memory out of all
    /// page tables, KVM's included. The pages come back at their next use.
    ///
    /// The part's protection toggles between with and without the right to execute, which nothing
    /// uses. Reads and writes continue meanwhile (`mprotect(2)`; the MMU notifiers are in
    /// mm/mprotect.c and virt/kvm/kvm_main.c).
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

    /// Writes at a byte offset that is a multiple of 8. An incomplete last word is filled with
    /// zeros.
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
        // SAFETY: the first `usable` bytes are readable and writable, the mapping is page-aligned
        // and lives as long as `self`, and any bits are a valid `AtomicU64`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.usable / 8) }
    }
}

impl Drop for SystemMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference to it outlives the value.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
