//! The guest's memory: what the program has mapped, and the page tables that say so to the processor.
//!
//! Guest-physical memory is *this process's address space*: each memslot is a GiB of it ([`slots`]), and the program's
//! mappings are ordinary mappings of this process, at the addresses at which the program has them. So a system call passes
//! its pointers through; a file mapping, copy-on-write, a fork, an untouched terabyte are the kernel's business, as in any
//! process; and a guest-physical address tells the virtual one without a search.
//!
//! [`mapping`] has the calls that change them, [`areas`] what is the program's of the address space (the rest is the machine's own), [`page_table`] the tables, which
//! are filled by faults and only ever say what `areas` allows.

pub(crate) mod accumulator;
pub(crate) mod areas;
pub(crate) mod mapping;
pub(crate) mod page_table;
mod shared;
pub(crate) mod slots;
pub(crate) mod stack;

use std::mem;
use std::ops::Range;

use pagetrail::{PageRange, PageSet};

use crate::error::{Error, Result};
use crate::rounds::bits::add_runs;
use crate::sys::kvm::{Log, Vm};
use crate::sys::system_memory::SystemMemory;
use areas::{Access, Areas};
use page_table::{PageTable, Words};
use slots::{Slot, Slots};

/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes that one leaf table maps.
pub(crate) const BLOCK: u64 = PAGE * 512;
/// The first virtual address that is not the program's.
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;
/// Address space for tables: enough for 500 GiB that are touched.
const SYSTEM_BYTES: usize = 1 << 30;
/// So much of it is made usable at a time: tables for a GiB.
const TABLES_STEP: usize = 2 << 20;
/// Where the machine's own part of guest-physical memory begins in the virtual addresses of ring 0.
pub(crate) const SYSTEM_BASE: u64 = 0xffff_8000_0000_0000;
/// Below are the pages of [`crate::processor`], from here on tables.
pub(crate) const TABLES_FROM: u64 = 4 << 20;

/// What a fault in the guest came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The page tables have it now.
    Mapped,
    /// The program has nothing there.
    NothingThere,
    /// It may not be accessed so.
    Forbidden,
}

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) areas: Areas,
    table: PageTable<SystemMemory>,
    slots: Slots,
    /// Between the end of the program's file and its break.
    heap: Range<u64>,
    /// Where the stack of the thread that began may grow ([`stack`]).
    stack_reservation: Option<PageRange>,
    /// Whether `personality(2)` has made what may be read executable.
    pub(crate) reading_executes: bool,
    /// How much the program may have that it may write to.
    pub(crate) bytes_max: Option<u64>,
    /// The program's auxiliary vector, as bytes.
    pub(crate) auxiliary: Vec<u8>,
    /// Whether there may be memory that a forked child does not get.
    has_uninherited: bool,
    /// What holds something else than before, though nothing was written: discarded, moved, mapped over.
    changed: Vec<PageRange>,
}

impl Words for SystemMemory {
    fn grow(&mut self) -> bool {
        self.extend(TABLES_STEP).is_ok()
    }
}

impl Memory {
    /// No memory but the machine's own.
    pub(crate) fn new(vm: &Vm, physical_bits: u8) -> Result<Self> {
        let usable = TABLES_FROM as usize + TABLES_STEP;
        let system = SystemMemory::reserve(SYSTEM_BYTES, usable)
            .map_err(Error::system("reserve memory for page tables"))?;
        let memory = Self {
            areas: Areas::default(),
            table: PageTable::new(system, TABLES_FROM),
            slots: Slots::new(physical_bits, vm.slots_max()),
            heap: 0..0,
            stack_reservation: None,
            reading_executes: false,
            bytes_max: None,
            auxiliary: Vec::new(),
            has_uninherited: false,
            changed: Vec::new(),
        };
        memory.add_system(vm)?;
        Ok(memory)
    }

    /// What the processor needs lies here.
    pub(crate) fn system(&self) -> &SystemMemory {
        self.table.words()
    }

    /// The guest-physical address of the tables' root.
    pub(crate) fn root(&self) -> u64 {
        self.table.root()
    }

    /// Maps a page of the machine's own for ring 0.
    pub(crate) fn map_system(&mut self, page: u64) -> Result<()> {
        self.table.map_system(SYSTEM_BASE + page, page)
    }

    fn add_system(&self, vm: &Vm) -> Result<()> {
        let system = self.system();
        vm.add_slot(0, 0, system.address(), system.bytes(), false)
    }

    /// In a forked child: gives another machine the memory that this one has. Nobody asks what is touched.
    pub(crate) fn begin_child(&mut self, vm: &Vm) -> Result<()> {
        self.track_accesses(false);
        self.keep_inherited()?;
        self.add_system(vm)?;
        self.slots.iter().try_for_each(|slot| slot.add(vm))
    }

    /// Resolves a page fault: fills the tables around `address`, as far as what is mapped there reaches in its block; where that
    /// is the whole block, for all whole blocks of the mapping in the same GiB, which take an entry each. Or for its page `alone`.
    pub(crate) fn fault(
        &mut self,
        vm: &Vm,
        address: u64,
        access: Access,
        alone: bool,
    ) -> Result<Resolved> {
        if self.areas.at(address).is_none() {
            self.grow_stack(address);
        }
        let Some((range, allowed)) = self.areas.at(address) else {
            return Ok(Resolved::NothingThere);
        };
        if !allowed.allows(access) {
            return Ok(Resolved::Forbidden);
        }
        let slot = match self.slots.of(address) {
            Some(slot) => slot,
            None => {
                let slot = self.slots.add(address)?;
                slot.add(vm)?;
                slot
            }
        };
        let around = if alone { PAGE } else { BLOCK };
        let first = address & !(around - 1);
        let start = first.max(range.start());
        let end = (first + around).min(range.end());
        self.table.fill(start, end, slot.physical(start), allowed)?;
        let fills_block = end - start == BLOCK;
        if fills_block {
            let start = range.start().max(slot.address).next_multiple_of(BLOCK);
            let end = range.end().min(slot.address + slot.bytes()) & !(BLOCK - 1);
            self.table
                .fill_blocks(start, end, slot.physical(start), allowed)?;
        }
        Ok(Resolved::Mapped)
    }

    /// Has accesses told from now on, before anything is mapped; or not any more.
    pub(crate) fn track_accesses(&mut self, tell: bool) {
        self.table.track_accesses(tell);
    }

    /// Takes the pages that the processors have touched since the last call, and has them told anew; `None` where accesses are
    /// not told.
    ///
    /// A processor sets no bit for what it remembers, so all processors must forget. The table by which each of them begins to
    /// look for an address is a page of this process's memory: when that is protected otherwise, KVM takes it from the guest and
    /// makes all processors forget everything, before the call returns. If KVM has not given it to the guest since the last
    /// time, nobody has looked for an address, and nobody remembers one.
    pub(crate) fn take_accessed(&mut self) -> Result<Option<PageSet>> {
        let accessed = self.table.take_accessed();
        if accessed.is_some() {
            let root = self.table.root();
            let remapped = self.system().flush_translations(root, PAGE);
            remapped.map_err(Error::system("have the processors forget addresses"))?;
        }
        Ok(accessed)
    }

    /// Takes addresses out of the tables: the next access asks [`Self::fault`].
    pub(crate) fn forget(&mut self, range: PageRange) {
        self.table.clear(range.start(), range.end());
    }

    /// Takes all of the program's addresses out.
    pub(crate) fn forget_all(&mut self) {
        self.table.clear(0, USER_END);
    }

    /// The memslots that it has, by address.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter()
    }

    /// The machine itself has written here, as the kernel would have.
    pub(crate) fn note_written(&mut self, address: u64, bytes: u64) {
        self.changed.extend(pages_around(address, bytes));
    }

    /// What has changed otherwise than by the guest's writes since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<PageRange> {
        mem::take(&mut self.changed)
    }

    /// Between the end of the program's file and its break.
    pub(crate) fn heap(&self) -> Option<PageRange> {
        PageRange::new(self.heap.start, self.heap.end.next_multiple_of(PAGE))
    }

    /// What the kernel would call some of the mappings.
    pub(crate) fn names(&self) -> Vec<(PageRange, &'static str)> {
        let names = [(self.heap(), "[heap]"), (self.stack(), "[stack]")];
        let known = names.into_iter();
        known
            .filter_map(|(range, name)| Some((range?, name)))
            .collect()
    }

    /// What the program may write to.
    pub(crate) fn writable(&self) -> PageSet {
        self.areas.writable()
    }

    /// Adds what KVM's bitmaps have, and clears them.
    pub(crate) fn take_bitmaps(&self, vm: &Vm, written: &mut PageSet) -> Result<()> {
        if vm.log() != Log::Bitmap {
            return Ok(());
        }
        for slot in self.slots.iter() {
            let bitmap = vm.dirty_bitmap(slot.number, slot.bytes())?;
            written.union_with(&pages_in(&bitmap, slot.address));
        }
        Ok(())
    }
}

/// The pages that have one of so many bytes.
pub(crate) fn pages_around(address: u64, bytes: u64) -> Option<PageRange> {
    let end = address.saturating_add(bytes).min(USER_END);
    PageRange::new(address, end).map(|range| range.align_outwards(PAGE))
}

/// The pages whose bits are set; the first bit's page is at `address`.
fn pages_in(bitmap: &[u64], address: u64) -> PageSet {
    let mut ranges = Vec::new();
    for (index, word) in bitmap.iter().enumerate() {
        add_runs(*word, address + index as u64 * 64 * PAGE, &mut ranges);
    }
    ranges.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_pages() {
        let pages = pages_in(&[0b101, 0, 1 << 63], 0x4000_0000);
        let expected: PageSet = [0u64, 2, 191]
            .iter()
            .filter_map(|n| PageRange::new(0x4000_0000 + n * PAGE, 0x4000_0000 + (n + 1) * PAGE))
            .collect();
        assert_eq!(pages, expected);
    }
}
