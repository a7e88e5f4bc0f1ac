//! Page-modification logs: the processor's (Intel manual, volume 3, section 29.3.6) and EPML's.
//!
//! A log is one page of 512 addresses and an index that counts down from 511. It is full when the
//! index has wrapped to 0xffff. Both logs have this form; what happens when one is full differs and
//! is decided by the [walker](super::walk).

use super::address::Hpa;
use super::memory::PhysicalMemory;

/// Entries of a log.
pub const PML_ENTRIES: u16 = 512;

/// Address and index of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pml {
    pub(crate) address: Hpa,
    pub(crate) index: u16,
}

impl Pml {
    /// An empty log on `page`.
    pub(crate) const fn empty(page: Hpa) -> Self {
        Self {
            address: page,
            index: PML_ENTRIES - 1,
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.index >= PML_ENTRIES
    }

    /// Appends `address`, without its low 12 bits. The log must not be full.
    pub(crate) fn push(&mut self, memory: &mut PhysicalMemory, address: u64) {
        debug_assert!(!self.is_full());
        memory.write(
            self.address.add(u64::from(self.index) * 8),
            address & !0xfff,
        );
        self.index = self.index.wrapping_sub(1);
    }

    /// What software reads out of a log whose index is `index`: slots, the oldest entry first.
    pub(crate) fn used_slots(index: u16) -> impl Iterator<Item = u64> {
        // A full log has the index 0xffff; anything else out of range was put there by software.
        let oldest = index.wrapping_add(1).min(PML_ENTRIES);
        (oldest..PML_ENTRIES).rev().map(u64::from)
    }

    /// The entries, the oldest first.
    pub(crate) fn entries(&self, memory: &PhysicalMemory) -> Vec<u64> {
        Self::used_slots(self.index)
            .map(|slot| memory.read(self.address.add(slot * 8)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_counts_down_and_wraps_when_full() {
        let mut memory = PhysicalMemory::new(1 << 20);
        let mut log = Pml::empty(memory.allocate().unwrap());
        assert_eq!(log.entries(&memory), []);
        for i in 0..512 {
            assert!(!log.is_full());
            assert_eq!(log.index, 511 - i);
            log.push(&mut memory, u64::from(i) << 12 | 0x123);
        }
        assert_eq!(log.index, 0xffff);
        assert!(log.is_full());
        let expected: Vec<u64> = (0..512).map(|i| i << 12).collect();
        assert_eq!(log.entries(&memory), expected);
    }
}
