//! [`Ept`]: extended page tables in memory, from guest-physical to host-physical addresses.
//!
//! This file has the form of the tables and the edits that a hypervisor makes; what the processor
//! does with them (flags, logging, violations) is in [`walk`](super::walk).

use super::address::{Gpa, HUGE_PAGES, Hpa, PAGE_BYTES};
use super::memory::PhysicalMemory;
use crate::Error;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// One entry (Intel manual, volume 3, section 29.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EptEntry(pub(crate) u64);

impl EptEntry {
    fn to(to: Hpa, large: bool) -> Self {
        Self(to.get() & ADDRESS | READ | WRITE | EXECUTE | if large { LARGE } else { 0 })
    }

    pub(crate) const fn present(self) -> bool {
        self.0 & (READ | WRITE | EXECUTE) != 0
    }

    pub(crate) const fn writable(self) -> bool {
        self.0 & WRITE != 0
    }

    pub(crate) const fn large(self) -> bool {
        self.0 & LARGE != 0
    }

    pub(crate) const fn accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    pub(crate) const fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    pub(crate) const fn address(self) -> Hpa {
        Hpa::new(self.0 & ADDRESS)
    }

    pub(crate) const fn with_accessed(self) -> Self {
        Self(self.0 | ACCESSED)
    }

    pub(crate) const fn with_dirty(self, dirty: bool) -> Self {
        if dirty {
            Self(self.0 | DIRTY)
        } else {
            Self(self.0 & !DIRTY)
        }
    }

    pub(crate) const fn with_writable(self, writable: bool) -> Self {
        if writable {
            Self(self.0 | WRITE)
        } else {
            Self(self.0 & !WRITE)
        }
    }
}

/// The entry that maps a page, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EptLeaf {
    pub(crate) slot: Hpa,
    pub(crate) entry: EptEntry,
}

impl EptLeaf {
    /// The host-physical address of `gpa`, which this entry maps.
    pub(crate) fn translate(&self, gpa: Gpa) -> Hpa {
        let page_bytes = if self.entry.large() {
            PAGE_BYTES * HUGE_PAGES
        } else {
            PAGE_BYTES
        };
        self.entry.address().add(gpa.get() % page_bytes)
    }
}

/// Extended page tables of one virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ept {
    pub(crate) root: Hpa,
    /// Whether the processor maintains accessed and dirty flags (EPTP bit 6).
    pub(crate) accessed_dirty: bool,
}

impl Ept {
    pub(crate) fn new(memory: &mut PhysicalMemory, accessed_dirty: bool) -> Result<Self, Error> {
        Ok(Self {
            root: memory.allocate()?,
            accessed_dirty,
        })
    }

    /// The entry that maps `gpa`, if one does.
    pub(crate) fn leaf(&self, memory: &PhysicalMemory, gpa: Gpa) -> Option<EptLeaf> {
        let mut table = self.root;
        for level in (1..=4).rev() {
            let slot = table.add(gpa.table_index(level) * 8);
            let entry = EptEntry(memory.read(slot));
            if !entry.present() {
                return None;
            }
            if level == 1 || entry.large() {
                return Some(EptLeaf { slot, entry });
            }
            table = entry.address();
        }
        None
    }

    /// Maps the page of `gpa` to `frame`, readable and writable, with its flags clear.
    pub(crate) fn map(
        &self,
        memory: &mut PhysicalMemory,
        gpa: Gpa,
        frame: Hpa,
        large: bool,
    ) -> Result<(), Error> {
        let leaf_level = if large { 2 } else { 1 };
        let mut table = self.root;
        for level in (leaf_level + 1..=4).rev() {
            let slot = table.add(gpa.table_index(level) * 8);
            let mut entry = EptEntry(memory.read(slot));
            if !entry.present() {
                entry = EptEntry::to(memory.allocate()?, false);
                memory.write(slot, entry.0);
            }
            debug_assert!(
                !entry.large(),
                "mapping inside a large page: split it first"
            );
            table = entry.address();
        }
        let slot = table.add(gpa.table_index(leaf_level) * 8);
        memory.write(slot, EptEntry::to(frame, large).0);
        Ok(())
    }

    /// Replaces the large page that maps `gpa`, if one does, by 512 small ones with the same rights
    /// and flags. Says whether it did.
    pub(crate) fn split(&self, memory: &mut PhysicalMemory, gpa: Gpa) -> Result<bool, Error> {
        let Some(leaf) = self.leaf(memory, gpa).filter(|leaf| leaf.entry.large()) else {
            return Ok(false);
        };
        let table = memory.allocate()?;
        for i in 0..HUGE_PAGES {
            let small = EptEntry(leaf.entry.0 & !LARGE).0 + i * PAGE_BYTES;
            memory.write(table.add(i * 8), small);
        }
        memory.write(leaf.slot, EptEntry::to(table, false).with_accessed().0);
        Ok(true)
    }

    /// Calls `change` on each entry that maps a page, and stores what it returns.
    pub(crate) fn for_each_leaf(
        &self,
        memory: &mut PhysicalMemory,
        change: &mut impl FnMut(Gpa, EptEntry) -> EptEntry,
    ) {
        for_each_leaf(memory, self.root, 4, 0, change);
    }
}

fn for_each_leaf(
    memory: &mut PhysicalMemory,
    table: Hpa,
    level: u32,
    base: u64,
    change: &mut impl FnMut(Gpa, EptEntry) -> EptEntry,
) {
    for i in 0..HUGE_PAGES {
        let slot = table.add(i * 8);
        let entry = EptEntry(memory.read(slot));
        if !entry.present() {
            continue;
        }
        let base = base | i << (12 + 9 * (level - 1));
        if level == 1 || entry.large() {
            let changed = change(Gpa::new(base), entry);
            if changed != entry {
                memory.write(slot, changed.0);
            }
        } else {
            for_each_leaf(memory, entry.address(), level - 1, base, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_keeps_every_address_and_flag() {
        let mut memory = PhysicalMemory::new(64 << 20);
        let ept = Ept::new(&mut memory, true).unwrap();
        let frame = memory.allocate_huge().unwrap();
        let gpa = Gpa::new(5 << 21);
        ept.map(&mut memory, gpa, frame, true).unwrap();
        let leaf = ept.leaf(&memory, gpa).unwrap();
        memory.write(leaf.slot, leaf.entry.with_accessed().with_dirty(true).0);

        let probes = [0, 4096, 0x12_3456, (2 << 20) - 1].map(|offset| gpa.add(offset));
        let translate = |memory: &PhysicalMemory| {
            probes.map(|gpa| {
                let leaf = ept.leaf(memory, gpa).unwrap();
                (
                    leaf.translate(gpa),
                    leaf.entry.dirty(),
                    leaf.entry.accessed(),
                )
            })
        };
        let before = translate(&memory);
        assert!(ept.split(&mut memory, gpa).unwrap());
        assert!(!ept.split(&mut memory, gpa).unwrap());
        assert_eq!(translate(&memory), before);
        let mut leaves = 0;
        ept.for_each_leaf(&mut memory, &mut |at, entry| {
            assert_eq!(at, gpa.add_pages(leaves));
            leaves += 1;
            entry.with_dirty(false)
        });
        assert_eq!(leaves, 512);
        assert!(!ept.leaf(&memory, gpa).unwrap().entry.dirty());
    }
}
