//! The device by which a guest asks for its own pages, without KVM: a driver that does what
//! `research/ooh/module/log.c` does, and one that means harm.

use crate::sys::memory::{Memory, device_memory, regions};
use pagetrail_vmm::{DirtyLog, DirtyPages, Error, GuestLog, OwnWrites, Regions, Start, Tracker};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const SLOTS: u32 = 16;
const ENTRIES: u64 = 65536;
const FIRST_SLOT: u64 = 64;
const SLOT_BYTES: u64 = 56;
const RINGS: u64 = 4096;
/// `OOH_DEVICE_VIRTUAL`, `OOH_DEVICE_PHYSICAL`.
const VIRTUAL: u64 = 1;
const PHYSICAL: u64 = 2;

/// The driver's side, which knows the device's memory and its doorbell alone.
struct Driver {
    log: GuestLog,
    active: u64,
}

/// A round of one slot: the numbers of its pages, or `None` if any page may have been written.
type Pages = Option<BTreeSet<u64>>;

impl Driver {
    fn new(memory: &Memory, tracker: Option<&Tracker>) -> Self {
        let mut log = GuestLog::new(device_memory(memory)).unwrap();
        log.share(tracker);
        Self { log, active: 0 }
    }

    fn at(slot: u32) -> u64 {
        FIRST_SLOT + u64::from(slot) * SLOT_BYTES
    }

    /// Writes the half word at `offset`, and leaves its neighbour.
    fn set_half(&self, offset: u64, value: u64) {
        let (at, shift) = (offset & !7, offset % 8 * 8);
        let mask = 0xffff_ffff << shift;
        let others = self.log.memory().load(at) & !mask;
        self.log.memory().store(at, others | value << shift);
    }

    fn take_half(&self, offset: u64) -> u64 {
        let found = self.log.memory().load(offset & !7) >> (offset % 8 * 8) & 0xffff_ffff;
        self.set_half(offset, 0);
        found
    }

    /// `ooh_log_start`.
    fn start(&mut self, slot: u32, mode: u64) {
        let memory = self.log.memory();
        memory.store(Self::at(slot) + 32, memory.load(Self::at(slot) + 24));
        self.set_half(Self::at(slot) + 16, mode);
        self.active |= 1 << slot;
        self.set_half(16, self.active);
        self.log.ring(slot);
        self.set_half(Self::at(slot) + 40, 0);
    }

    /// `ooh_log_stop`.
    fn stop(&mut self, slot: u32) {
        self.active &= !(1 << slot);
        self.set_half(16, self.active);
        self.log.ring(u32::MAX);
    }

    /// `ooh_log_next_round` and `ooh_log_drain`.
    fn collect(&mut self, slot: u32) -> Pages {
        self.log.ring(slot);
        let memory = self.log.memory();
        let (head, tail) = (
            memory.load(Self::at(slot) + 24),
            memory.load(Self::at(slot) + 32),
        );
        assert!(head - tail <= ENTRIES);
        let mut pages = BTreeSet::new();
        for entry in tail..head {
            let at = RINGS + (u64::from(slot) * ENTRIES + entry % ENTRIES) * 8;
            let value = memory.load(at);
            assert_eq!(value & 1, 1, "entry {entry} is not complete");
            memory.store(at, 0);
            pages.insert(value >> 1);
        }
        memory.store(Self::at(slot) + 32, head);
        (self.take_half(Self::at(slot) + 40) == 0).then_some(pages)
    }
}

fn memories() -> Vec<Memory> {
    vec![
        Memory::new(0, 0, MIB, false),
        Memory::new(1, 4 * MIB, MIB, false),
    ]
}

fn device() -> Memory {
    Memory::new(2, 64 * MIB, GuestLog::MEMORY_BYTES, false)
}

fn tracked(memories: &[Memory]) -> (Tracker, OwnWrites) {
    let own = OwnWrites::new();
    let tracker = Tracker::new(regions(memories), vec![Box::new(own.clone())]).unwrap();
    (tracker, own)
}

fn mark(own: &OwnWrites, page: u64) {
    own.mark(page * pagetrail::page_size(), 1);
}

/// Logs that go on and off at random, and snapshots beside them: each has what was written since
/// it asked last, no less and no more.
#[test]
fn each_log_and_the_snapshots_have_all_pages() {
    let (memories, device) = (memories(), device());
    let (tracker, own) = tracked(&memories);
    let snapshots = tracker.consumer(Start::Now).unwrap();
    let mut driver = Driver::new(&device, Some(&tracker));
    let mut wanted: Vec<Option<BTreeSet<u64>>> = vec![None; SLOTS as usize + 1];
    wanted[SLOTS as usize] = Some(BTreeSet::new());
    let mut random = fastrand::Rng::with_seed(22);
    let page = pagetrail::page_size();
    for _ in 0..3000 {
        let slot = random.u32(0..SLOTS);
        match random.u8(0..8) {
            0 if wanted[slot as usize].is_none() => {
                driver.start(slot, PHYSICAL);
                wanted[slot as usize] = Some(BTreeSet::new());
            }
            1 if wanted[slot as usize].is_some() => {
                driver.stop(slot);
                wanted[slot as usize] = None;
            }
            2 | 3 => {
                if let Some(pages) = &mut wanted[slot as usize] {
                    let pages = std::mem::take(pages);
                    assert_eq!(driver.collect(slot), Some(pages), "log {slot}");
                }
            }
            4 => {
                let round = snapshots.collect().unwrap();
                let ranges = round.ranges().flat_map(|range| {
                    range.guest_address / page..(range.guest_address + range.bytes) / page
                });
                let found: BTreeSet<u64> = ranges.collect();
                let pages = wanted[SLOTS as usize].as_mut().unwrap();
                assert_eq!(found, std::mem::take(pages), "snapshots");
                round.commit();
            }
            _ => {
                let region = &memories[random.usize(0..2)];
                let written = region.guest_address / page + random.u64(0..region.bytes / page);
                mark(&own, written);
                for pages in wanted.iter_mut().flatten() {
                    pages.insert(written);
                }
            }
        }
        let on = wanted[..SLOTS as usize].iter().flatten().count();
        assert_eq!(driver.log.active(), on);
    }
}

/// A process that tracks ends, and with it the need to log anything.
#[test]
fn no_log_stays_on_after_its_last_reader() {
    let (memories, device) = (memories(), device());
    let (tracker, own) = tracked(&memories);
    let mut driver = Driver::new(&device, Some(&tracker));
    assert!(!tracker.is_wanted());
    driver.start(3, PHYSICAL);
    driver.start(4, PHYSICAL);
    driver.stop(3);
    assert!(tracker.is_wanted());
    driver.stop(4);
    assert!(!tracker.is_wanted());
    // Another reader has nothing of what was written in between.
    mark(&own, 5);
    driver.start(3, PHYSICAL);
    assert_eq!(driver.collect(3), Some(BTreeSet::new()));
}

#[test]
fn a_ring_without_room_says_that_pages_are_lost() {
    let large = ENTRIES * pagetrail::page_size();
    let memories = vec![Memory::new(0, 0, 2 * large, false)];
    let device = device();
    let (tracker, own) = tracked(&memories);
    let mut driver = Driver::new(&device, Some(&tracker));
    driver.start(0, PHYSICAL);
    own.mark(0, large);
    assert_eq!(driver.collect(0), Some((0..ENTRIES).collect()));
    own.mark(0, large + 1);
    assert_eq!(driver.collect(0), None);
    mark(&own, 7);
    assert_eq!(driver.collect(0), Some([7].into()));
    // What nobody has taken needs its room.
    own.mark(0, large - pagetrail::page_size());
    driver.log.ring(0);
    own.mark(0, 2 * pagetrail::page_size());
    assert_eq!(driver.collect(0), None);
}

/// A log of the monitor's that fails at times: its pages come later.
struct Failing(OwnWrites, Arc<AtomicBool>);

impl DirtyLog for Failing {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<(), Error> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(Error::Refused("the log fails".into())),
            false => self.0.drain(regions, dirty),
        }
    }

    fn regions_changed(&mut self, regions: &Regions) -> Result<(), Error> {
        self.0.regions_changed(regions)
    }
}

#[test]
fn without_a_log_any_page_may_have_been_written() {
    let (memories, device) = (memories(), device());
    let (own, fails) = (OwnWrites::new(), Arc::new(AtomicBool::new(false)));
    let log = Failing(own.clone(), fails.clone());
    let tracker = Tracker::new(regions(&memories), vec![Box::new(log)]).unwrap();
    let mut driver = Driver::new(&device, None);
    driver.start(0, PHYSICAL);
    assert_eq!(driver.collect(0), None);
    assert_eq!(driver.collect(0), None);
    driver.log.share(Some(&tracker));
    // Since when is not known.
    assert_eq!(driver.collect(0), None);
    mark(&own, 3);
    assert_eq!(driver.collect(0), Some([3].into()));
    mark(&own, 4);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(driver.collect(0), None);
    fails.store(false, Ordering::Relaxed);
    mark(&own, 5);
    assert_eq!(driver.collect(0), Some([4, 5].into()));
    driver.log.share(None);
    assert_eq!(driver.collect(0), None);
    // It has no virtual addresses.
    driver.start(1, VIRTUAL);
    assert_eq!(driver.log.active(), 0);
}

/// A guest that goes on elsewhere: what it wrote between its last round and the snapshot is not
/// known there.
#[test]
fn a_restored_device_has_lost_one_round() {
    let (memories, device) = (memories(), device());
    let (tracker, own) = tracked(&memories);
    let mut driver = Driver::new(&device, Some(&tracker));
    driver.start(9, PHYSICAL);
    mark(&own, 1);
    driver.log.ring(9);
    mark(&own, 2);
    let words: Vec<(u64, u64)> = driver.log.memory().words().collect();
    assert!(words.len() < 20, "{words:?}");

    let (device, memories) = (self::device(), self::memories());
    let (tracker, own) = tracked(&memories);
    let memory = device_memory(&device);
    for (at, word) in words {
        memory.store(at, word);
    }
    let mut log = GuestLog::restored(memory).unwrap();
    log.share(Some(&tracker));
    let mut driver = Driver {
        log,
        active: driver.active,
    };
    assert_eq!(driver.collect(9), None);
    mark(&own, 3);
    assert_eq!(driver.collect(9), Some([3].into()));
    driver.stop(9);
    assert!(!tracker.is_wanted());
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let short = Memory::new(2, 64 * MIB, GuestLog::MEMORY_BYTES - MIB, false);
    let error = GuestLog::new(device_memory(&short)).unwrap_err();
    let said = "a guest's log needs 16777216 bytes of memory, not 15728640";
    assert_eq!(error.to_string(), said);
    assert!(GuestLog::restored(device_memory(&short)).is_err());
}

/// The guest writes anything anywhere in the device's memory, and rings: the monitor goes on,
/// writes nowhere else, and the snapshots beside it have all pages.
#[test]
fn a_hostile_guest_harms_itself_alone() {
    for seed in 0..40 {
        let memories = memories();
        // One mapping: the device's memory lies between pages that must stay as they are.
        let all = Memory::new(2, 64 * MIB, GuestLog::MEMORY_BYTES + 2 * MIB, false);
        let device = crate::sys::memory::device_memory_within(&all, MIB, GuestLog::MEMORY_BYTES);
        let (tracker, own) = tracked(&memories);
        let snapshots = tracker.consumer(Start::Now).unwrap();
        let mut log = GuestLog::new(device).unwrap();
        log.share(Some(&tracker));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut written = BTreeSet::new();
        for _ in 0..4000 {
            let value = match random.u8(0..6) {
                0 => random.u64(..),
                1 => u64::MAX,
                2 => 1 << random.u32(0..64),
                3 => random.u64(0..32),
                4 => u64::from(random.u32(..)) << 32 | 2,
                _ => 0,
            };
            match random.u8(0..4) {
                0 => log.memory().store(random.u64(0..160) * 8, value),
                1 => {
                    let at = random.u64(0..GuestLog::MEMORY_BYTES / 8) * 8;
                    log.memory().store(at, value);
                }
                2 => log.ring(match random.bool() {
                    true => random.u32(0..20),
                    false => value as u32,
                }),
                _ => {
                    let page = random.u64(0..MIB / pagetrail::page_size());
                    mark(&own, page);
                    written.insert(page);
                }
            }
        }
        let round = snapshots.collect().unwrap();
        let found = round.dirty().of_slot(0).unwrap().ranges().flatten();
        assert_eq!(found.collect::<BTreeSet<u64>>(), written, "seed {seed}");
        round.commit();
        let contents = all.contents();
        let (before, rest) = contents.split_at(MIB as usize);
        let after = &rest[GuestLog::MEMORY_BYTES as usize..];
        assert!(before.iter().chain(after).all(|byte| *byte == 0));
        drop(log);
    }
}
