//! [`Ring`]: a vCPU's dirty ring (`KVM_CAP_DIRTY_LOG_RING`), which KVM fills and this code empties.
//!
//! KVM's documentation (`Documentation/virt/kvm/api.rst`, 8.29) has the states of an entry: dirty
//! when KVM has filled it, to be reset when it has been read, and free again after
//! `KVM_RESET_DIRTY_RINGS`, which also re-protects its page.
//!
//! The page that is re-protected for an entry is the one that the entry names at that time. KVM
//! re-protects pages together if their entries are neighbours and the pages are near each other
//! (virt/kvm/dirty_ring.c), so that it pays to return the pages of entries in address order.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The offset of the ring in the mapping of a vCPU's descriptor, in pages.
const OFFSET_PAGES: i64 = 64;
const DIRTY: u32 = 1;
const TO_RESET: u32 = 2;

/// `struct kvm_dirty_gfn`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    flags: AtomicU32,
    slot: AtomicU32,
    page: AtomicU64,
}

/// The dirty ring of one vCPU.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: NonNull<Entry>,
    count: usize,
    /// The index of the first entry that was not given back.
    first: usize,
    /// The number of entries from there on that were read.
    read: usize,
}

// SAFETY: the value owns its mapping, and its entries are atomic.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a vCPU. `bytes` is the length with which the capability was enabled.
    pub(crate) fn map(cpu: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
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
            first: 0,
            read: 0,
        })
    }

    /// Yields the pages dirtied since the last call, as memslot and page in it. Returns the number
    /// of entries.
    pub(crate) fn read(&mut self, mut each: impl FnMut(u32, u64)) -> u64 {
        let before = self.read;
        while self.read < self.count {
            let entry = self.entry(self.read);
            if entry.flags.load(Ordering::Acquire) & DIRTY == 0 {
                break;
            }
            // The upper half is the address space; there is only one.
            let slot = entry.slot.load(Ordering::Relaxed) & 0xffff;
            each(slot, entry.page.load(Ordering::Relaxed));
            self.read += 1;
        }
        (self.read - before) as u64
    }

    /// The entries that were read, to be changed. All rings' entries together must still name the
    /// same pages.
    pub(crate) fn entries_read(&self) -> impl Iterator<Item = &Entry> {
        (0..self.read).map(|n| self.entry(n))
    }

    /// Marks the entries that were read as to be reset.
    pub(crate) fn give_back(&mut self) {
        for entry in self.entries_read() {
            entry.flags.store(TO_RESET, Ordering::Release);
        }
        self.first = (self.first + self.read) % self.count;
        self.read = 0;
    }

    /// The entry `n` places after the first one.
    fn entry(&self, n: usize) -> &Entry {
        // SAFETY: the index is below `count`, which is the number of entries in the mapping; the
        // mapping lives as long as `self`, and any bits are a valid entry.
        unsafe { self.entries.add((self.first + n) % self.count).as_ref() }
    }
}

impl Entry {
    /// Sets the page to be re-protected for this entry.
    pub(crate) fn put(&self, slot: u32, page: u64) {
        self.slot.store(slot, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference to an entry outlives the value.
        unsafe {
            libc::munmap(
                self.entries.as_ptr().cast(),
                self.count * size_of::<Entry>(),
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const ENTRIES: usize = 256;
    const BYTES: usize = ENTRIES * size_of::<Entry>();
    const RING_AT: u64 = OFFSET_PAGES as u64 * 4096;

    /// Stands for KVM's side of the ring.
    struct Kvm(File);

    impl Kvm {
        fn entry(&self, n: usize) -> [u8; 16] {
            let mut bytes = [0; 16];
            let at = RING_AT + (n % ENTRIES * 16) as u64;
            self.0.read_exact_at(&mut bytes, at).unwrap();
            bytes
        }

        fn set(&self, n: usize, flags: u32, slot: u32, page: u64) {
            let words = [flags.to_le_bytes(), slot.to_le_bytes()].concat();
            let at = RING_AT + (n % ENTRIES * 16) as u64;
            let bytes = [words, page.to_le_bytes().to_vec()].concat();
            self.0.write_all_at(&bytes, at).unwrap();
        }

        /// Resets an entry that was given back.
        fn reset(&self, n: usize) -> (u32, u64) {
            let bytes = self.entry(n);
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(word(0), TO_RESET, "entry {n}");
            let page = u64::from_le_bytes(bytes[8..].try_into().unwrap());
            self.set(n, 0, word(4), page);
            (word(4), page)
        }
    }

    #[test]
    fn entries_are_read_once_and_given_back_as_they_are_then() {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, RING_AT + BYTES as u64).unwrap();
        let mut ring = Ring::map(file.as_fd(), BYTES).unwrap();
        let kvm = Kvm(file.into());
        let read = |ring: &mut Ring| {
            let mut read = Vec::new();
            let count = ring.read(|slot, page| read.push((slot, page)));
            assert_eq!(count, read.len() as u64);
            read
        };
        assert_eq!(read(&mut ring), []);
        let mut at = 0;
        for filled in [3, ENTRIES, 1, ENTRIES - 1, 100] {
            let pages: Vec<(u32, u64)> = (0..filled as u64).map(|n| (7, n * 5)).collect();
            for (n, (slot, page)) in pages.iter().enumerate() {
                kvm.set(at + n, DIRTY, *slot, *page);
                if n == 1 {
                    assert_eq!(read(&mut ring), pages[..2]);
                }
            }
            let rest = read(&mut ring);
            assert_eq!(rest, pages[pages.len() - rest.len()..]);
            assert_eq!(ring.entries_read().count(), filled);
            // The pages are returned in the opposite order.
            for (entry, (slot, page)) in ring.entries_read().zip(pages.iter().rev()) {
                entry.put(*slot, *page);
            }
            ring.give_back();
            for (n, page) in pages.iter().rev().enumerate() {
                assert_eq!(kvm.reset(at + n), *page);
            }
            assert_eq!(read(&mut ring), []);
            at += filled;
        }
    }
}
