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
/// `exit_reason` of `struct kvm_run`, which a vCPU's descriptor has at its beginning, in bytes.
const EXIT_REASON: usize = 8;
/// `KVM_EXIT_DIRTY_RING_FULL`.
const RING_FULL: u32 = 31;

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
    /// The first page of the vCPU's `struct kvm_run`.
    run: NonNull<u8>,
    /// The index of the next entry that KVM fills.
    next: usize,
    /// Whether the ring was full to its last entry, and KVM may have gone beyond it.
    overrun: bool,
    /// How many entries in a row were given back after that without a filled one among them.
    given_back: usize,
}

// SAFETY: the value owns its mapping, and its entries are atomic.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a vCPU; `bytes` is the length with which the capability was enabled.
    pub(crate) fn map(vcpu: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let page = pagetrail::page_size();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let entries = map(vcpu, OFFSET_PAGES * page, bytes, both)?;
        let run = map(vcpu, 0, page as usize, libc::PROT_READ);
        let run = run.inspect_err(|_| unmap(entries, bytes))?;
        Ok(Self {
            entries: entries.cast(),
            count: bytes / size_of::<Entry>(),
            run,
            next: 0,
            overrun: false,
            given_back: 0,
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
    /// to be reset. Returns how many entries KVM gets back, at most a ring full of them, however
    /// fast it fills it.
    pub(crate) fn take(&mut self, mut each: impl FnMut(u32, u64)) -> usize {
        if self.overrun {
            return self.take_after_overrun(each);
        }
        for taken in 0..self.count {
            if !self.take_one(taken, &mut each) {
                self.next = (self.next + taken) % self.count;
                return taken;
            }
        }
        self.overrun = true;
        self.count
    }

    /// [`Self::take`] once entries were overwritten. KVM has counted those, and waits for them to
    /// be given back, too: whatever lies before a filled entry.
    ///
    /// Where the ring is full of them, KVM fills none before some are given back: one is, each time
    /// that the vCPU has stopped for that, or has not stopped since. A full ring has at least a
    /// quarter of its entries: all but `kvm_dirty_ring_get_rsvd_entries` in virt/kvm/dirty_ring.c.
    fn take_after_overrun(&mut self, mut each: impl FnMut(u32, u64)) -> usize {
        let last = (0..self.count).rev().find(|n| self.is_dirty(*n));
        let given = match last {
            Some(last) => last + 1,
            None if self.is_full() && self.given_back < self.count / 4 => 1,
            None => 0,
        };
        self.given_back = match last {
            Some(_) => 0,
            None => self.given_back + given,
        };
        for n in 0..given {
            if !self.take_one(n, &mut each) {
                self.entry(n).flags.store(TO_RESET, Ordering::Release);
            }
        }
        self.next = (self.next + given) % self.count;
        given
    }

    /// Takes the entry `n` places after the next one, if KVM has filled it.
    fn take_one(&self, n: usize, each: &mut impl FnMut(u32, u64)) -> bool {
        if !self.is_dirty(n) {
            return false;
        }
        let entry = self.entry(n);
        let (slot, page) = (&entry.slot, &entry.page);
        each(slot.load(Ordering::Relaxed), page.load(Ordering::Relaxed));
        entry.flags.store(TO_RESET, Ordering::Release);
        true
    }

    fn is_dirty(&self, n: usize) -> bool {
        self.entry(n).flags.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Whether the vCPU's last exit was for its ring.
    fn is_full(&self) -> bool {
        // SAFETY: the page is mapped as long as `self`, and KVM writes aligned words.
        let reason = unsafe { self.run.add(EXIT_REASON).cast::<u32>().read_volatile() };
        reason == RING_FULL
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
        unmap(self.entries.cast(), self.count * size_of::<Entry>());
        unmap(self.run, pagetrail::page_size() as usize);
    }
}

/// Maps a part of a vCPU's descriptor.
fn map(vcpu: BorrowedFd<'_>, offset: u64, bytes: usize, rights: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            rights,
            libc::MAP_SHARED,
            vcpu.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Unmaps what [`map`] mapped, and nothing refers to any more.
fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: a `Ring` owns the mapping, and no reference to an entry outlives the value.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
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

    /// A ring, and what stands for the descriptor of its vCPU.
    fn ring() -> (Ring, File) {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = OFFSET_PAGES * pagetrail::page_size() + BYTES as u64;
        rustix::fs::ftruncate(&file, bytes).unwrap();
        let ring = Ring::map(file.as_fd(), BYTES).unwrap();
        (ring, File::from(file))
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
        let (mut ring, file) = ring();
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
        assert_eq!(ring.take(|slot, page| taken.push((slot, page))), 6);
        assert_eq!(taken, [(4, 77)]);
        (0..6).for_each(|n| reset(&file, first + ENTRIES + n));
    }

    #[test]
    fn a_ring_that_is_full_of_overwritten_entries_gets_some_of_them_back() {
        let (mut ring, file) = ring();
        let exit = |reason: u32| {
            file.write_all_at(&reason.to_ne_bytes(), EXIT_REASON as u64)
                .unwrap();
        };
        // KVM goes 200 entries beyond the last one, more than it lets a vCPU run with.
        (0..ENTRIES + 200).for_each(|n| fill(&file, n, 0, n as u64));
        assert_eq!(ring.take(|_, _| {}), ENTRIES);
        (0..ENTRIES).for_each(|n| reset(&file, n));
        // It has stopped for something else.
        exit(5);
        assert_eq!(ring.take(|_, _| {}), 0);
        exit(RING_FULL);
        for n in 0..10 {
            assert_eq!(ring.take(|_, _| {}), 1);
            reset(&file, ENTRIES + n);
        }
        // The vCPU runs again, and KVM goes on after those that it has counted.
        fill(&file, ENTRIES + 200, 4, 77);
        let mut taken = Vec::new();
        assert_eq!(ring.take(|slot, page| taken.push((slot, page))), 191);
        assert_eq!(taken, [(4, 77)]);
        (10..201).for_each(|n| reset(&file, ENTRIES + n));
        // Beyond the last one twice, before the entries that it has counted were given back: some
        // of these are filled again, and those after them are not.
        (201..ENTRIES + 221).for_each(|n| fill(&file, ENTRIES + n, 0, 0));
        assert_eq!(ring.take(|_, _| {}), ENTRIES);
        (201..201 + ENTRIES).for_each(|n| reset(&file, ENTRIES + n));
        (221..ENTRIES + 206).for_each(|n| fill(&file, 2 * ENTRIES + n, 0, 0));
        assert_eq!(ring.take(|_, _| {}), ENTRIES);
        (201..201 + ENTRIES).for_each(|n| reset(&file, 2 * ENTRIES + n));
        // A vCPU that runs on with a few of them has not stopped since: not all are given back.
        (201..201 + ENTRIES).for_each(|n| fill(&file, ENTRIES + n, 0, 0));
        assert_eq!(ring.take(|_, _| {}), ENTRIES);
        (201..201 + ENTRIES).for_each(|n| reset(&file, ENTRIES + n));
        let given: usize = (0..ENTRIES).map(|_| ring.take(|_, _| {})).sum();
        assert_eq!(given, ENTRIES / 4);
    }
}
