//! [`Ring`]: a virtual processor's ring of dirty pages (`KVM_CAP_DIRTY_LOG_RING`), which KVM fills and we empty.
//!
//! KVM's documentation (`Documentation/virt/kvm/api.rst`, 8.29) has the states of an entry: dirty when KVM has filled it,
//! to be reset when it was read, and free again after `KVM_RESET_DIRTY_RINGS`, which also protects its page again.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the ring begins in what a virtual processor's descriptor maps, in pages.
const OFFSET_PAGES: i64 = 64;
const DIRTY: u32 = 1;
const TO_RESET: u32 = 2;

/// `struct kvm_dirty_gfn`.
#[repr(C)]
struct Entry {
    flags: AtomicU32,
    slot: AtomicU32,
    page: AtomicU64,
}

/// The ring of one virtual processor.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: NonNull<Entry>,
    count: usize,
    /// The entry that is filled next, or was already.
    next: usize,
}

// SAFETY: it owns the mapping; the entries are atomic.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a virtual processor; `bytes` is what the capability was enabled with.
    pub(crate) fn map(cpu: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                cpu.as_raw_fd(),
                OFFSET_PAGES * 4096,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            entries: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            count: bytes / size_of::<Entry>(),
            next: 0,
        })
    }

    /// Hands out what was written, as memslot and page in it, and leaves the entries to be reset. How many they were.
    pub(crate) fn take(&mut self, mut each: impl FnMut(u32, u64)) -> u64 {
        let mut taken = 0;
        loop {
            // SAFETY: the mapping has `count` entries and lives as long as `self`.
            let entry = unsafe { self.entries.add(self.next % self.count).as_ref() };
            if entry.flags.load(Ordering::Acquire) & DIRTY == 0 {
                return taken;
            }
            // The upper half is the address space, of which there is one.
            let slot = entry.slot.load(Ordering::Relaxed) & 0xffff;
            each(slot, entry.page.load(Ordering::Relaxed));
            entry.flags.store(TO_RESET, Ordering::Release);
            self.next = (self.next + 1) % self.count;
            taken += 1;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and ends with us.
        unsafe {
            libc::munmap(
                self.entries.as_ptr().cast(),
                self.count * size_of::<Entry>(),
            )
        };
    }
}
