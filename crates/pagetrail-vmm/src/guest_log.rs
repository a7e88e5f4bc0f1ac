//! [`GuestLog`]: the dirty pages of a guest, for the guest itself.
//!
//! It is the hypervisor's half of SPML (*Out of Hypervisor*): the log that KVM keeps of a guest is
//! shared with the guest, where a driver (`research/ooh/module`) gives each process its own pages.
//! The device is memory with registers and rings, and a doorbell; its layout is that of
//! `research/ooh/module/device.h`. Each slot of the device is a [`Consumer`](crate::Consumer) of
//! the tracker, beside those of the monitor, so that neither takes pages from the other.
//!
//! The guest is not trusted. It may write anything to the registers and rings: what is on its side
//! of the device is what it loses. The monitor keeps its own copy of how far each ring is filled,
//! writes inside of the device's memory alone, and gives page numbers of the guest alone.

use crate::error::{Error, Result};
use crate::sys::memory::DeviceMemory;
use crate::tracker::{Consumer, Round, Start, Tracker};
use pagetrail::page_size;

/// `OOH_DEVICE_MAGIC`.
const MAGIC: u64 = 0x474f_4c2d_484f_4f00;
const VERSION: u32 = 3;
const SLOTS: usize = 16;
/// Of each slot's ring.
const ENTRIES: u64 = 65536;
/// `OOH_DEVICE_PHYSICAL`.
const PHYSICAL: u32 = 2;

/// `struct ooh_device`: offsets in bytes.
mod register {
    pub(super) const MAGIC: u64 = 0;
    pub(super) const VERSION: u64 = 8;
    pub(super) const SLOTS: u64 = 12;
    pub(super) const ACTIVE: u64 = 16;
    pub(super) const MODES: u64 = 20;
    pub(super) const IS_ASKED: u64 = 24;
    pub(super) const FIRST_SLOT: u64 = 64;
}

/// `struct ooh_device_slot`: offsets in bytes, and its length.
mod of_slot {
    pub(super) const MODE: u64 = 16;
    pub(super) const HEAD: u64 = 24;
    pub(super) const TAIL: u64 = 32;
    pub(super) const LOST: u64 = 40;
    pub(super) const BYTES: u64 = 56;
}

const RINGS: u64 = 4096;

/// A device by which a guest asks for its own dirty pages.
///
/// The monitor gives the guest [`Self::MEMORY_BYTES`] of memory as a memslot that KVM does not log,
/// at an address that guest and monitor have agreed on, and calls [`ring`](Self::ring) with what
/// the guest writes to the 32 bits after it (an exit of the vCPU, `KVM_EXIT_MMIO`).
///
/// As for every [`Consumer`](crate::Consumer), a round that must have everything needs the vCPUs
/// outside `KVM_RUN`: the one that rings is, and a guest of several must not have written by
/// another one what it asks for.
#[derive(Debug)]
pub struct GuestLog {
    memory: DeviceMemory,
    tracker: Option<Tracker>,
    slots: [Slot; SLOTS],
}

#[derive(Debug, Default)]
struct Slot {
    /// While the guest has it on, and there is a log to share.
    consumer: Option<Consumer>,
    /// How many entries were written, ever.
    head: u64,
}

impl GuestLog {
    /// The length of the device's memory.
    pub const MEMORY_BYTES: u64 = 16 << 20;
    /// Where the doorbell is: an offset from the beginning of the memory.
    pub const DOORBELL: u64 = Self::MEMORY_BYTES;

    /// Makes the device in memory that is zeros.
    ///
    /// # Errors
    ///
    /// The memory is too short.
    pub fn new(memory: DeviceMemory) -> Result<Self> {
        let device = Self::over(memory)?;
        let memory = &device.memory;
        memory.store_half(register::VERSION, VERSION);
        memory.store_half(register::SLOTS, SLOTS as u32);
        memory.store_half(register::MODES, 1 << PHYSICAL);
        memory.store_half(register::IS_ASKED, 1);
        memory.store(register::MAGIC, MAGIC);
        Ok(device)
    }

    /// Makes the device of a guest that goes on, over memory that has what it had
    /// ([`DeviceMemory::words`]). What the guest wrote before is not known here, so the first
    /// answer to each process that tracks is that any page may have been written.
    ///
    /// # Errors
    ///
    /// The memory is too short.
    pub fn restored(memory: DeviceMemory) -> Result<Self> {
        let mut device = Self::over(memory)?;
        for (number, slot) in device.slots.iter_mut().enumerate() {
            // Any value will do: the guest has the same one, or loses its own pages.
            slot.head = device.memory.load(at(number) + of_slot::HEAD);
        }
        Ok(device)
    }

    fn over(memory: DeviceMemory) -> Result<Self> {
        if memory.region().bytes() < Self::MEMORY_BYTES {
            let bytes = memory.region().bytes();
            let wanted = Self::MEMORY_BYTES;
            let reason = format!("a guest's log needs {wanted} bytes of memory, not {bytes}");
            return Err(Error::Refused(reason));
        }
        Ok(Self {
            memory,
            tracker: None,
            slots: Default::default(),
        })
    }

    /// Shares what a tracker finds. Without one, the answer to a guest that asks is that any page
    /// may have been written.
    pub fn share(&mut self, tracker: Option<&Tracker>) {
        self.tracker = tracker.cloned();
        for slot in &mut self.slots {
            slot.consumer = None;
        }
    }

    /// The device's memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// How many logs the guest has on.
    pub fn active(&self) -> usize {
        let on = |slot: &&Slot| slot.consumer.is_some();
        self.slots.iter().filter(on).count()
    }

    /// Answers the doorbell: the guest has written `number` to it. Anything the guest can write is
    /// harmless here.
    pub fn ring(&mut self, number: u32) {
        let was_on = (number as usize) < SLOTS && self.slots[number as usize].consumer.is_some();
        for slot in 0..SLOTS {
            self.follow(slot);
        }
        // One that was just switched on begins now, and one that is off has nothing.
        if !was_on {
            return;
        }
        let number = number as usize;
        let Some(consumer) = &self.slots[number].consumer else {
            return;
        };
        match consumer.collect() {
            Ok(round) => self.give(number, round),
            // What was found comes with the next.
            Err(_) => self.lose(number),
        }
    }

    /// Switches a slot as the guest has it in its registers.
    fn follow(&mut self, number: usize) {
        let active = self.memory.load_half(register::ACTIVE);
        let mode = self.memory.load_half(at(number) + of_slot::MODE);
        let is_on = active >> number & 1 != 0 && mode == PHYSICAL;
        if !is_on {
            self.slots[number].consumer = None;
        } else if self.slots[number].consumer.is_none() {
            let tracker = self.tracker.as_ref();
            let consumer = tracker.and_then(|tracker| tracker.consumer(Start::Now).ok());
            self.slots[number].consumer = consumer;
            // Since when it has been on is not known here.
            self.lose(number);
        }
    }

    /// Writes a round's pages to the slot's ring, or says that they have no room.
    fn give(&mut self, number: usize, round: Round) {
        let slot = &mut self.slots[number];
        let tail = self.memory.load(at(number) + of_slot::TAIL);
        let there = slot.head.wrapping_sub(tail);
        let pages = round.dirty().count();
        if there > ENTRIES || pages > ENTRIES - there {
            round.commit();
            return self.lose(number);
        }
        let ring = RINGS + number as u64 * ENTRIES * 8;
        for range in round.ranges() {
            let first = range.guest_address / page_size();
            for page in first..first + range.bytes / page_size() {
                let entry = ring + slot.head % ENTRIES * 8;
                self.memory.store(entry, page << 1 | 1);
                slot.head = slot.head.wrapping_add(1);
            }
        }
        self.memory.store(at(number) + of_slot::HEAD, slot.head);
        round.commit();
    }

    fn lose(&self, number: usize) {
        self.memory.store_half(at(number) + of_slot::LOST, 1);
    }
}

/// Where the registers of a slot begin.
fn at(number: usize) -> u64 {
    register::FIRST_SLOT + number as u64 * of_slot::BYTES
}
