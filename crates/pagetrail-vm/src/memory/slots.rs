//! [`Slots`]: maps each GiB of the address space to a GiB of guest-physical memory. Pure.
//!
//! Memslot *n* is guest-physical memory from *n* GiB on. A GiB of addresses gets a memslot when the
//! guest first touches it, so that a program with a few mappings far from each other has a few
//! memslots, however much it has reserved.

use std::collections::BTreeMap;

use super::USER_END;
use crate::error::{Error, Result};
use crate::sys::kvm::{Log, Vm};

/// The length of a memslot in bytes: that of the largest page, so that KVM can use any page size.
pub(crate) const SLOT: u64 = 1 << 30;
/// The memslot that is left out: the fourth GiB has the devices of real machines, some of which KVM
/// emulates.
const DEVICES: u32 = 3;

/// A memslot of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The memslot's number in KVM.
    pub(crate) number: u32,
    /// The first virtual address.
    pub(crate) address: u64,
}

impl Slot {
    /// The guest-physical address of a virtual address in this memslot.
    pub(crate) fn physical(&self, address: u64) -> u64 {
        u64::from(self.number) * SLOT + (address - self.address)
    }

    /// The length in bytes: less than a GiB at the end of the address space.
    pub(crate) fn bytes(&self) -> u64 {
        SLOT.min(USER_END - self.address)
    }

    /// Adds the memslot to a virtual machine.
    pub(super) fn add(&self, vm: &Vm) -> Result<()> {
        let logged = vm.log() != Log::Off;
        vm.add_slot(
            self.number,
            self.physical(self.address),
            self.address,
            self.bytes(),
            logged,
        )
    }
}

/// All memslots of the program's memory.
#[derive(Debug)]
pub(crate) struct Slots {
    by_address: BTreeMap<u64, u32>,
    /// The number of the next memslot; 0 is the machine's own.
    next: u32,
    numbers_end: u32,
}

impl Slots {
    /// Starts without memslots.
    pub(crate) fn new(physical_bits: u8, slots_max: u32) -> Self {
        let physical = 1u64 << (physical_bits.clamp(32, 52) - 30);
        Self {
            by_address: BTreeMap::new(),
            next: 1,
            numbers_end: u32::try_from(physical).unwrap_or(u32::MAX).min(slots_max),
        }
    }

    /// The memslot of a virtual address.
    pub(crate) fn of(&self, address: u64) -> Option<Slot> {
        let address = address & !(SLOT - 1);
        let number = *self.by_address.get(&address)?;
        Some(Slot { number, address })
    }

    /// Creates a memslot for a virtual address that has none.
    pub(crate) fn add(&mut self, address: u64) -> Result<Slot> {
        let address = address & !(SLOT - 1);
        if self.next == DEVICES {
            self.next += 1;
        }
        let number = self.next;
        if number >= self.numbers_end {
            return Err(Error::Unsupported(format!(
                "memory in more than {} GiB-sized parts of the address space",
                self.numbers_end
            )));
        }
        self.next += 1;
        self.by_address.insert(address, number);
        Ok(Slot { number, address })
    }

    /// All memslots, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let all = self.by_address.iter();
        all.map(|(&address, &number)| Slot { number, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_physical_memory_and_back() {
        let mut slots = Slots::new(40, 509);
        for address in [
            0x40_0000,
            0xc0_0000_0000,
            0x5555_5555_4000,
            0x7fff_f7fc_1000,
            0x7fff_ffff_e000u64,
        ] {
            let slot = match slots.of(address) {
                Some(slot) => slot,
                None => slots.add(address).unwrap(),
            };
            let physical = slot.physical(address);
            assert_ne!(physical / SLOT, 0, "that is the machine's own");
            assert_ne!(physical / SLOT, u64::from(DEVICES));
            let number = (physical / SLOT) as u32;
            let back = slots.iter().find(|slot| slot.number == number).unwrap();
            assert_eq!(back.address + physical % SLOT, address);
        }
        assert_eq!(slots.iter().count(), 4, "the last two are neighbours");
        assert_eq!(slots.of(0x7fff_ffff_0000).unwrap().bytes(), SLOT - 0x1000);
    }

    #[test]
    fn there_are_as_many_as_the_processor_has_addresses_for() {
        let mut slots = Slots::new(34, 509);
        let added = (1..100u64)
            .take_while(|n| slots.add(n * SLOT).is_ok())
            .count();
        assert_eq!(
            added,
            16 - 2,
            "16 GiB less the machine's own and the devices'"
        );
    }
}
