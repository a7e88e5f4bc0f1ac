//! `/dev/ooh`: the log of a process's dirty pages, which a processor or a hypervisor keeps; the
//! driver is `research/ooh/module`, and its `ooh.h` describes the interface.
//!
//! The ring is read-only memory that the driver writes to. What it says is checked: no entry is
//! taken for a range of addresses that it cannot be.

use crate::page_set::{PageRange, page_size};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The version of the interface that this code speaks.
pub(crate) const VERSION: u32 = 1;

const PATH: &str = "/dev/ooh";

/// Who keeps the log, and what its entries are; the driver's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Log {
    /// The processor logs virtual addresses.
    Virtual = 1,
    /// The hypervisor logs page frames.
    Frames = 2,
    /// The hypervisor logs page frames, and the driver finds where the process has them mapped.
    Owned = 4,
}

/// `struct ooh_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Info {
    pub(crate) version: u32,
    modes: u32,
    tracked: u32,
    slots: u32,
}

impl Info {
    #[cfg(test)]
    pub(crate) fn of(version: u32, modes: u32) -> Self {
        Self {
            version,
            modes,
            ..Self::default()
        }
    }

    pub(crate) fn has(&self, log: Log) -> bool {
        self.modes & log as u32 != 0
    }
}

/// `struct ooh_track`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Track {
    pid: i32,
    mode: u32,
    entries: u64,
}

/// `struct ooh_round`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Round {
    first: u64,
    end: u64,
    flags: u32,
    unused: u32,
    logged: u64,
    foreign: u64,
}

const LOST: u32 = 1;
const ENDED: u32 = 2;

const INFO: Opcode = opcode::read::<Info>(b'O', 0);
const TRACK: Opcode = opcode::read_write::<Track>(b'O', 1);
const COLLECT: Opcode = opcode::read::<Round>(b'O', 2);

/// More than any driver has; a larger ring is none.
const ENTRIES_MAX: u64 = 1 << 24;

/// An open `/dev/ooh`, which tracks nothing yet.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        open(PATH, flags, rustix::fs::Mode::empty()).map(Self)
    }

    /// What the driver says of itself; fails with `ENOTTY` if the file is another driver's.
    pub(crate) fn info(&self) -> Result<Info, Errno> {
        // SAFETY: the driver of this number fills a `struct ooh_info`, which `Info` is; another
        // driver refuses a number with a letter that is not its own.
        unsafe { ioctl(&self.0, Getter::<INFO, Info>::new()) }
    }

    /// Begins to log the memory of process `pid`.
    pub(crate) fn track(self, pid: u32, log: Log) -> Result<Session, Errno> {
        let mut track = Track {
            pid: pid.try_into().map_err(|_| Errno::SRCH)?,
            mode: log as u32,
            entries: 0,
        };
        // SAFETY: the driver reads and fills a `struct ooh_track`, which `Track` is.
        unsafe { ioctl(&self.0, Updater::<TRACK, Track>::new(&mut track))? };
        if !(1..=ENTRIES_MAX).contains(&track.entries) {
            return Err(Errno::PROTO);
        }
        let ring = Ring::map(&self.0, track.entries)?;
        Ok(Session { fd: self.0, ring })
    }
}

/// What a round holds besides its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Whether any page may have been written: the log had no room, or its ring says what cannot
    /// be.
    pub(crate) lost: bool,
    /// Whether the address space is gone.
    pub(crate) ended: bool,
}

/// A range of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Pages of the process.
    Pages(PageRange),
    /// Page frames: physical addresses.
    Frames(PageRange),
}

/// A process that is being logged, until this is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    fd: OwnedFd,
    ring: Ring,
}

impl Session {
    /// Ends the round and calls `each` with its entries.
    pub(crate) fn collect(&mut self, each: impl FnMut(Entry)) -> Result<Collected, Errno> {
        // SAFETY: the driver fills a `struct ooh_round`, which `Round` is.
        let round = unsafe { ioctl(&self.fd, Getter::<COLLECT, Round>::new())? };
        let whole = self.ring.read(round.first, round.end, each);
        Ok(Collected {
            lost: round.flags & LOST != 0 || !whole,
            ended: round.flags & ENDED != 0,
        })
    }
}

/// `struct ooh_entry`.
#[derive(Debug, Default)]
#[repr(C)]
struct RawEntry {
    start: AtomicU64,
    pages: AtomicU32,
    kind: AtomicU32,
}

/// The ring's mapping.
#[derive(Debug)]
struct Ring {
    entries: NonNull<RawEntry>,
    count: u64,
}

// SAFETY: the value owns its mapping, whose entries are atomics that are only loaded.
unsafe impl Send for Ring {}

impl Ring {
    fn map(fd: &OwnedFd, count: u64) -> Result<Self, Errno> {
        let bytes = count as usize * size_of::<RawEntry>();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let entries = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { entries, count })
    }

    fn entries(&self) -> &[RawEntry] {
        // SAFETY: the mapping has `count` entries, is aligned to a page, any bytes are valid
        // values, and it lives as long as `self`. The driver changes it meanwhile, which atomics
        // may.
        unsafe { std::slice::from_raw_parts(self.entries.as_ptr(), self.count as usize) }
    }

    fn read(&self, first: u64, end: u64, each: impl FnMut(Entry)) -> bool {
        read(self.entries(), first, end, each)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let bytes = self.count as usize * size_of::<RawEntry>();
        // SAFETY: `map` made a mapping of this size, and borrows of it cannot outlive `self`.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), bytes) };
    }
}

/// Calls `each` with the entries from `first` up to `end`; returns whether all of them, and their
/// number, can be true.
fn read(entries: &[RawEntry], first: u64, end: u64, mut each: impl FnMut(Entry)) -> bool {
    let count = end.wrapping_sub(first);
    if count > entries.len() as u64 {
        return false;
    }
    let mut whole = true;
    for n in 0..count {
        let at = first.wrapping_add(n) % entries.len() as u64;
        match entry(&entries[at as usize]) {
            Some(entry) => each(entry),
            None => whole = false,
        }
    }
    whole
}

fn entry(raw: &RawEntry) -> Option<Entry> {
    let start = raw.start.load(Ordering::Relaxed);
    let pages = u64::from(raw.pages.load(Ordering::Relaxed));
    let end = start.checked_add(pages.checked_mul(page_size())?)?;
    if !start.is_multiple_of(page_size()) {
        return None;
    }
    let range = PageRange::new(start, end)?;
    match raw.kind.load(Ordering::Relaxed) {
        0 => Some(Entry::Pages(range)),
        1 => Some(Entry::Frames(range)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(start: u64, pages: u32, kind: u32) -> RawEntry {
        RawEntry {
            start: start.into(),
            pages: pages.into(),
            kind: kind.into(),
        }
    }

    fn all(ring: &[RawEntry], first: u64, end: u64) -> (Vec<Entry>, bool) {
        let mut found = Vec::new();
        let whole = read(ring, first, end, |entry| found.push(entry));
        (found, whole)
    }

    fn range(first: u64, pages: u64) -> PageRange {
        let page = page_size();
        PageRange::new(first * page, (first + pages) * page).unwrap()
    }

    #[test]
    fn a_round_goes_around_the_end_of_the_ring() {
        let page = page_size();
        let ring = [raw(3 * page, 2, 0), raw(9 * page, 1, 1), raw(page, 1, 0)];
        let (found, whole) = all(&ring, 5, 7);
        assert!(whole);
        assert_eq!(
            found,
            [Entry::Pages(range(1, 1)), Entry::Pages(range(3, 2))]
        );
        let (found, _) = all(&ring, 4, 5);
        assert_eq!(found, [Entry::Frames(range(9, 1))]);
        assert_eq!(all(&ring, 8, 8), (vec![], true));
        // Counters may pass the largest number.
        assert_eq!(all(&ring, u64::MAX, 0).0.len(), 1);
    }

    #[test]
    fn what_cannot_be_is_a_loss_and_no_range() {
        let page = page_size();
        for (start, pages, kind) in [
            (page, 0, 0),
            (page + 1, 1, 0),
            (0u64.wrapping_sub(page), 1, 0),
            (0u64.wrapping_sub(page), u32::MAX, 1),
            (page, 1, 2),
        ] {
            assert_eq!(all(&[raw(start, pages, kind)], 0, 1), (vec![], false));
        }
        // More entries than the ring has, and an end before the beginning.
        let ring = [raw(page, 1, 0)];
        assert_eq!(all(&ring, 0, 2), (vec![], false));
        assert_eq!(all(&ring, 5, 4), (vec![], false));
    }

    #[test]
    fn any_bytes_in_the_ring_do_no_harm() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let mut word = || match random.u8(..4) {
                0 => random.u64(..),
                1 => random.u64(..1 << 20) * page_size(),
                2 => u64::MAX - random.u64(..1 << 20),
                _ => random.u64(..8),
            };
            let ring: Vec<RawEntry> = (0..8)
                .map(|_| raw(word(), word() as u32, word() as u32))
                .collect();
            let (found, _) = all(&ring, word(), word());
            assert!(found.len() <= ring.len());
            for entry in &found {
                let (Entry::Pages(range) | Entry::Frames(range)) = entry;
                assert!(range.start() < range.end() && range.start() % page_size() == 0);
            }
        }
    }
}
