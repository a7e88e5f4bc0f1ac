//! [`Ring`]: the dirty ring of one vCPU, which KVM fills and this code empties.
//!
//! KVM's documentation (`Documentation/virt/kvm/api.rst`, 8.29) has the states of an entry: dirty
//! when KVM has filled it, to be reset when it has been read, and free again after
//! `KVM_RESET_DIRTY_RINGS`, which also write-protects its page.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// `KVM_DIRTY_LOG_PAGE_OFFSET`, the offset in the mapping of a vCPU's descriptor, in pages.
const OFFSET_PAGES: u64 = 64;
const DIRTY: u32 = 1;
const TO_RESET: u32 = 2;

/// `struct kvm_dirty_gfn`.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    flags: AtomicU32,
    /// The memslot; its address space is in the upper half.
    slot: AtomicU32,
    page: AtomicU64,
}

/// The dirty ring of one vCPU.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: NonNull<Entry>,
    count: usize,
    /// The index of the next entry that KVM fills.
    next: usize,
    /// Whether the ring was full to its last entry, and KVM may have gone beyond it.
    overrun: bool,
    /// Whether `next` is unknown after an overrun.
    lost: bool,
}

// SAFETY: the value owns its mapping, and its entries are atomic.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a vCPU; `bytes` is the length with which the capability was enabled.
    pub(crate) fn map(vcpu: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                (OFFSET_PAGES * pagetrail::page_size()) as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            entries: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            count: bytes / size_of::<Entry>(),
            next: 0,
            overrun: false,
            lost: false,
        })
    }

    /// Whether the ring has ever been full to its last entry. KVM stops a vCPU before that
    /// (`KVM_DIRTY_RING_RSVD_ENTRIES`); a KVM that does not overwrites entries, with no more than a
    /// warning in its log (`kvm_dirty_ring_push` in virt/kvm/dirty_ring.c). Then pages are lost,
    /// and others may never be write-protected again.
    pub(crate) fn was_overrun(&self) -> bool {
        self.overrun
    }

    /// Takes the entries that KVM has filled: calls `each` with memslot and page, and marks them as
    /// to be reset. Returns how many there were; at most a ring full, however fast KVM fills it.
    pub(crate) fn take(&mut self, mut each: impl FnMut(u32, u64)) -> usize {
        if self.lost {
            self.find_next();
        }
        for taken in 0..self.count {
            let entry = self.entry(0);
            if entry.flags.load(Ordering::Acquire) & DIRTY == 0 {
                return taken;
            }
            let (slot, page) = (&entry.slot, &entry.page);
            each(slot.load(Ordering::Relaxed), page.load(Ordering::Relaxed));
            entry.flags.store(TO_RESET, Ordering::Release);
            self.next = (self.next + 1) % self.count;
        }
        (self.overrun, self.lost) = (true, true);
        self.count
    }

    /// Finds the next entry after an overrun: KVM has counted entries that it overwrote, and waits
    /// for them to be given back, too.
    fn find_next(&mut self) {
        let is_dirty = |n: &usize| self.entry(*n).flags.load(Ordering::Acquire) & DIRTY != 0;
        if let Some(skipped) = (0..self.count).find(is_dirty) {
            for n in 0..skipped {
                self.entry(n).flags.store(TO_RESET, Ordering::Release);
            }
            self.next = (self.next + skipped) % self.count;
            self.lost = false;
        }
    }

    /// The entry `n` places after the next one.
    fn entry(&self, n: usize) -> &Entry {
        // SAFETY: the index is below `count`, which is the number of entries in the mapping; the
        // mapping lives as long as `self`, and any bits are a valid entry.
        unsafe { self.entries.add((self.next + n) % self.count).as_ref() }
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
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const ENTRIES: usize = 256;
    const BYTES: usize = ENTRIES * size_of::<Entry>();

    fn at(n: usize) -> u64 {
        OFFSET_PAGES * pagetrail::page_size() + (n % ENTRIES * size_of::<Entry>()) as u64
    }

    /// Fills an entry as KVM does.
    fn fill(file: &File, n: usize, slot: u32, page: u64) {
        let mut bytes = [DIRTY.to_ne_bytes(), slot.to_ne_bytes()].concat();
        bytes.extend(page.to_ne_bytes());
        file.write_all_at(&bytes, at(n)).unwrap();
    }

    /// Resets an entry as KVM does; it must have been given back.
    fn reset(file: &File, n: usize) {
        let mut flags = [0; 4];
        file.read_exact_at(&mut flags, at(n)).unwrap();
        assert_eq!(u32::from_ne_bytes(flags), TO_RESET, "entry {n}");
        file.write_all_at(&[0; 4], at(n)).unwrap();
    }

    #[test]
    fn every_entry_is_taken_once_and_given_back() {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = OFFSET_PAGES * pagetrail::page_size() + BYTES as u64;
        rustix::fs::ftruncate(&file, bytes).unwrap();
        let mut ring = Ring::map(file.as_fd(), BYTES).unwrap();
        let file = File::from(file);
        let mut first = 0;
        for count in [0, 3, ENTRIES - 1, 1, ENTRIES - 1, 100] {
            let pages = || (0..count).map(|n| (n as u32 | 1 << 16, n as u64 * 7));
            for (n, (slot, page)) in pages().enumerate() {
                fill(&file, first + n, slot, page);
            }
            let mut taken = Vec::new();
            assert_eq!(ring.take(|slot, page| taken.push((slot, page))), count);
            assert_eq!(taken, pages().collect::<Vec<_>>());
            for n in 0..count {
                reset(&file, first + n);
            }
            first += count;
        }
        assert!(!ring.was_overrun());
        // KVM goes 5 entries beyond the last one.
        for n in 0..ENTRIES + 5 {
            fill(&file, first + n, 0, n as u64);
        }
        assert_eq!(ring.take(|_, _| {}), ENTRIES);
        assert!(ring.was_overrun());
        (0..ENTRIES).for_each(|n| reset(&file, first + n));
        // It counts 5 more that are not given back, and goes on after them.
        assert_eq!(ring.take(|_, _| {}), 0);
        fill(&file, first + ENTRIES + 5, 4, 77);
        let mut taken = Vec::new();
        ring.take(|slot, page| taken.push((slot, page)));
        assert_eq!(taken, [(4, 77)]);
        (0..6).for_each(|n| reset(&file, first + ENTRIES + n));
    }
}
