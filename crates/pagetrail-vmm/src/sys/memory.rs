//! [`Region`]: memory of a guest, mapped in this process, which the guest writes at any time.
#![allow(unsafe_code, reason = "guest memory is named by its address")]

use std::sync::atomic::{AtomicU64, Ordering};

/// A piece of guest memory: one memslot of KVM, and where it is mapped in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    slot: u32,
    guest_address: u64,
    host_address: u64,
    bytes: u64,
    file_offset: Option<u64>,
}

impl Region {
    /// Describes a memslot, as it was given to `KVM_SET_USER_MEMORY_REGION`. An address space other
    /// than the first is in the upper half of `slot`, as there.
    ///
    /// Whether the numbers make sense is checked by [`Regions::new`](crate::Regions::new).
    ///
    /// # Safety
    ///
    /// As long as this region or a copy of it is in use (by a tracker, a round, a snapshot, a
    /// restore):
    ///
    /// * the `bytes` at `host_address` are mapped in this process and can be read; a file that is
    ///   mapped there is not truncated;
    /// * Rust references to them are not used for writing, except through atomics or volatile
    ///   writes, as is the rule for memory that a guest writes;
    /// * where the region is tracked by a log of KVM, the memslot `slot` has this size: the kernel
    ///   fills a bitmap of the memslot's size.
    pub unsafe fn new(slot: u32, guest_address: u64, host_address: *mut u8, bytes: u64) -> Self {
        Self {
            slot,
            guest_address,
            host_address: host_address.expose_provenance() as u64,
            bytes,
            file_offset: None,
        }
    }

    /// Says where the region begins in the file (a memfd, usually) that is mapped there.
    #[must_use]
    pub fn with_file_offset(self, file_offset: u64) -> Self {
        Self {
            file_offset: Some(file_offset),
            ..self
        }
    }

    /// The number of the memslot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The guest-physical address of the first byte.
    pub fn guest_address(&self) -> u64 {
        self.guest_address
    }

    /// The address of the first byte in this process.
    pub fn host_address(&self) -> u64 {
        self.host_address
    }

    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the region begins in the file that is mapped there.
    pub fn file_offset(&self) -> Option<u64> {
        self.file_offset
    }

    /// Copies the bytes from `offset` on, while the guest may be writing them. Each aligned word of
    /// 8 bytes is of one instant.
    ///
    /// # Panics
    ///
    /// The bytes are not all of this region, or `offset` or the length is no multiple of 8.
    pub fn copy(&self, offset: u64, out: &mut [u8]) {
        let length = out.len() as u64;
        assert!(
            offset
                .checked_add(length)
                .is_some_and(|end| end <= self.bytes),
            "bytes outside the region"
        );
        assert!(
            (self.host_address | offset | length).is_multiple_of(8),
            "not aligned"
        );
        let from = (self.host_address + offset) as usize;
        let from = std::ptr::with_exposed_provenance::<AtomicU64>(from);
        for (at, word) in out.chunks_exact_mut(8).enumerate() {
            // SAFETY: the address is aligned and within the region, as just checked, and the region
            // is mapped and can be read (`Region::new`). Others write it by atomics, by volatile
            // writes, or as a guest does.
            let value = unsafe { &*from.add(at) }.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }
}
