//! [`Region`]: memory of a guest, mapped in this process, which the guest writes at any time; and
//! [`DeviceMemory`] and [`TableMemory`], which the monitor writes as well.
#![allow(unsafe_code, reason = "guest memory is named by its address")]

use crate::regions::Regions;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// * the `bytes` at `host_address` are mapped in this process and can be read, unless the
    ///   memory is another process's and its contents are asked of nobody here ([`Self::copy`],
    ///   snapshots); a file that is mapped there is not truncated;
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

/// Memory of a device that guest and monitor both write: registers, and rings.
///
/// The guest may write anything to it at any time. So all access is by atomics, within bounds, and
/// who reads a number from it has to doubt it.
#[derive(Debug)]
pub struct DeviceMemory(Region);

impl DeviceMemory {
    /// Takes memory that is mapped in this process, and that a memslot of the guest may have.
    ///
    /// # Safety
    ///
    /// As long as this value lives, the region's bytes can be written, too, and belong to this
    /// device alone: besides the guest and this value, nobody in this process writes them. The
    /// rules of [`Region::new`] hold.
    pub unsafe fn new(region: Region) -> Self {
        Self(region)
    }

    /// Where it is.
    pub fn region(&self) -> &Region {
        &self.0
    }

    /// Reads the aligned word of 8 bytes at `offset`.
    ///
    /// # Panics
    ///
    /// The word is not in the memory, or not aligned.
    pub fn load(&self, offset: u64) -> u64 {
        self.word::<AtomicU64>(offset).load(Ordering::Acquire)
    }

    /// Writes the aligned word of 8 bytes at `offset`; what was written before is visible to who
    /// reads it.
    ///
    /// # Panics
    ///
    /// The word is not in the memory, or not aligned.
    pub fn store(&self, offset: u64, value: u64) {
        self.word::<AtomicU64>(offset)
            .store(value, Ordering::Release);
    }

    /// All words of 8 bytes that are not zero, each with its offset: what a monitor keeps of the
    /// memory when it saves the guest.
    pub fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let offsets = (0..self.0.bytes() / 8).map(|at| at * 8);
        offsets
            .map(|at| (at, self.load(at)))
            .filter(|(_, word)| *word != 0)
    }

    pub(crate) fn load_half(&self, offset: u64) -> u32 {
        self.word::<AtomicU32>(offset).load(Ordering::Acquire)
    }

    pub(crate) fn store_half(&self, offset: u64, value: u32) {
        self.word::<AtomicU32>(offset)
            .store(value, Ordering::Release);
    }

    /// An atomic of the memory.
    fn word<A: Atomic>(&self, offset: u64) -> &A {
        let bytes = size_of::<A>() as u64;
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.0.bytes()),
            "a word outside the device's memory"
        );
        let at = self.0.host_address() + offset;
        assert!(at.is_multiple_of(bytes), "not aligned");
        let at = std::ptr::with_exposed_provenance::<A>(at as usize);
        // SAFETY: the address is aligned and within the region, as just checked, and the region can
        // be read and written (`DeviceMemory::new`). An atomic has any bytes. Others write the
        // memory as a guest does, or by this function's atomics.
        unsafe { &*at }
    }
}

/// Guest memory in which a monitor clears accessed bits of the guest's page tables.
#[derive(Clone, Debug)]
pub struct TableMemory(Regions);

impl TableMemory {
    /// Takes the guest memory in which page tables may lie: all of it, usually.
    ///
    /// # Safety
    ///
    /// As long as this value or a copy of it lives, the regions' bytes can be written, too, and
    /// nothing in this process has a Rust reference to them but to atomics. The rules of
    /// [`Region::new`] hold.
    pub unsafe fn new(regions: Regions) -> Self {
        Self(regions)
    }

    /// Where it is.
    pub fn regions(&self) -> &Regions {
        &self.0
    }

    /// Replaces the aligned word of 8 bytes at a guest-physical address by another one, if it is
    /// the expected one, in one step; whether it was.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn replace(&self, guest_address: u64, expected: u64, new: u64) -> bool {
        let Some(region) = self.0.at_guest_address(guest_address) else {
            return false;
        };
        assert!(guest_address.is_multiple_of(8), "not aligned");
        let at = region.host_address() + (guest_address - region.guest_address());
        let word = std::ptr::with_exposed_provenance::<AtomicU64>(at as usize);
        // SAFETY: the address is aligned and within the region, whose length is a multiple of
        // pages, and the region can be read and written (`TableMemory::new`). Others write it by
        // atomics, by volatile writes, or as a guest does.
        let word = unsafe { &*word };
        word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// An atomic integer of the size of its value.
trait Atomic {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}
