//! Memory that a guest may have: a memfd, or anonymous.

use pagetrail_vmm::{DeviceMemory, Region, Regions};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

/// Memory that is mapped until this is dropped.
pub(crate) struct Memory {
    pub(crate) slot: u32,
    pub(crate) guest_address: u64,
    pub(crate) bytes: u64,
    start: *mut u8,
    /// The memfd that is mapped.
    file: Option<OwnedFd>,
}

// SAFETY: the pointer is to a mapping of the process, which this value owns.
unsafe impl Send for Memory {}
// SAFETY: all access is by volatile writes and atomic loads (`Region::copy`).
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory of a memfd, in which it begins at the second page, or anonymous memory.
    pub(crate) fn new(slot: u32, guest_address: u64, bytes: u64, shared: bool) -> Self {
        let page = pagetrail::page_size();
        let file = shared.then(|| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = rustix::fs::memfd_create("guest", flags).unwrap();
            rustix::fs::ftruncate(&file, page + bytes).unwrap();
            file
        });
        let flags = rustix::mm::MapFlags::NORESERVE;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let length = bytes as usize;
        let flags = match file {
            Some(_) => flags | rustix::mm::MapFlags::SHARED,
            None => flags | rustix::mm::MapFlags::PRIVATE,
        };
        let start = match &file {
            // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
            Some(file) => unsafe {
                rustix::mm::mmap(ptr::null_mut(), length, protection, flags, file, page)
            },
            // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
            None => unsafe {
                rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, flags)
            },
        };
        Self {
            slot,
            guest_address,
            bytes,
            start: start.unwrap().cast(),
            file,
        }
    }

    /// The memory as a region. The memory must outlive it, which tests see to by their order.
    pub(crate) fn region(&self) -> Region {
        // SAFETY: the mapping has these bytes; it is written by volatile writes and by guests; its
        // memslot is made from the same numbers.
        let region = unsafe { Region::new(self.slot, self.guest_address, self.start, self.bytes) };
        match self.file {
            Some(_) => region.with_file_offset(pagetrail::page_size()),
            None => region,
        }
    }

    pub(crate) fn host_address(&self) -> u64 {
        self.start as u64
    }

    /// Writes as a monitor's device does.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.bytes);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the address is within the mapping, as just checked.
            unsafe { self.start.add(offset as usize + at).write_volatile(*byte) };
        }
    }

    /// All bytes.
    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.bytes as usize];
        self.region().copy(0, &mut contents);
        contents
    }

    /// Advises the kernel about pages.
    pub(crate) fn advise(&self, offset: u64, bytes: u64, advice: rustix::mm::Advice) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: the range is within the mapping, and its contents are not borrowed.
        unsafe {
            let start = self.start.add(offset as usize).cast();
            rustix::mm::madvise(start, bytes as usize, advice).unwrap();
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { rustix::mm::munmap(self.start.cast(), self.bytes as usize).unwrap() };
    }
}

/// The regions of memories.
pub(crate) fn regions(memories: &[Memory]) -> Regions {
    Regions::new(memories.iter().map(Memory::region)).unwrap()
}

/// All of a memory as that of a device. The memory must outlive it.
pub(crate) fn device_memory(memory: &Memory) -> DeviceMemory {
    device_memory_within(memory, 0, memory.bytes)
}

/// A memory as one that has the guest's page tables. It must outlive that.
#[cfg(target_arch = "x86_64")]
pub(crate) fn table_memory(memory: &Memory) -> pagetrail_vmm::TableMemory {
    let regions = Regions::new([memory.region()]).unwrap();
    // SAFETY: the mapping can be read and written, and is written by volatile writes, by guests and
    // by this value.
    unsafe { pagetrail_vmm::TableMemory::new(regions) }
}

/// A part of a memory as that of a device. The memory must outlive it.
pub(crate) fn device_memory_within(memory: &Memory, offset: u64, bytes: u64) -> DeviceMemory {
    assert!(offset + bytes <= memory.bytes);
    // SAFETY: the part is within the mapping, as just checked, which can be read and written, and
    // is written by volatile writes, by guests and by this value.
    unsafe {
        let start = memory.start.add(offset as usize);
        let guest_address = memory.guest_address + offset;
        DeviceMemory::new(Region::new(memory.slot, guest_address, start, bytes))
    }
}

/// Words of a file, mapped until this is dropped.
pub(crate) struct Words(Memory);

impl Words {
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has these bytes, which atomics may share, and lives as long as
        // `self`.
        unsafe { std::slice::from_raw_parts(self.0.start.cast(), (self.0.bytes / 8) as usize) }
    }
}

/// Maps a file as another process does that was sent it.
pub(crate) fn mapped_words(file: BorrowedFd<'_>, bytes: u64) -> Words {
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let shared = rustix::mm::MapFlags::SHARED;
    // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
    let start =
        unsafe { rustix::mm::mmap(ptr::null_mut(), bytes as usize, protection, shared, file, 0) };
    Words(Memory {
        slot: 0,
        guest_address: 0,
        bytes,
        start: start.unwrap().cast(),
        file: None,
    })
}

/// Memory of another process, which this one fills and protects by a userfaultfd alone.
#[cfg(feature = "store")]
pub(crate) fn region_of_another_process(slot: u32, guest: u64, host: u64, bytes: u64) -> Region {
    // SAFETY: nothing here reads it (`Region::copy`).
    unsafe { Region::new(slot, guest, host as *mut u8, bytes) }
}
