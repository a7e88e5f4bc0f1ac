//! The guest's memory: what the program has mapped, and the page tables that map it for the
//! processor.
//!
//! Guest-physical memory is *this process's address space*: each memslot is a GiB of it
//! ([`slots`]), and the program's mappings are ordinary mappings of this process, at the addresses
//! at which the program has them. A system call can therefore pass the program's pointers to the
//! kernel. File mappings, copy-on-write, forks, and untouched terabytes work as in any process. The
//! virtual address of a guest-physical address is found without a search.
//!
//! [`mapping`] has the calls that change mappings. [`areas`] records which addresses are the
//! program's (the rest is the machine's own). [`page_table`] has the tables, which page faults
//! fill, and which never permit more than `areas`.

pub(crate) mod accumulator;
pub(crate) mod areas;
pub(crate) mod mapping;
mod merged;
mod mremap;
pub(crate) mod own;
pub(crate) mod page_table;
mod shared;
pub(crate) mod slots;
pub(crate) mod stack;
pub(crate) mod units;
pub(crate) mod vdso;

use std::mem;
use std::ops::Range;

use pagetrail::{PageRange, PageSet};

use crate::error::{Error, Result};
use crate::rounds::bits::add_runs;
use crate::sys::kvm::{Log, Vm};
use crate::sys::system_memory::SystemMemory;
use areas::{Access, Areas};
use own::{Own, Protection};
use page_table::{PageTable, Words};
use slots::{Slot, Slots};
use units::Units;
use vdso::Vdso;

/// The length of a page in bytes.
pub(crate) const PAGE: u64 = 4096;
/// The bytes that one table of the lowest level maps: 2 MiB.
pub(crate) const BLOCK: u64 = PAGE * 512;
/// The first virtual address that the program cannot use.
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;
/// The address space for page tables in bytes: enough for 500 GiB that are touched.
const SYSTEM_BYTES: usize = 1 << 30;
/// The step in which it is made accessible, in bytes: tables for a GiB.
const TABLES_STEP: usize = 2 << 20;
/// From how many notes of changed pages on these are joined.
const CHANGED_MAX: usize = 4096;
/// The virtual address in ring 0 of the machine's own guest-physical memory.
pub(crate) const SYSTEM_BASE: u64 = 0xffff_8000_0000_0000;
/// The guest-physical address of the page tables, above the pages of [`crate::processor`].
pub(crate) const TABLES_FROM: u64 = 4 << 20;

/// The outcome of a page fault in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The page tables map the address now.
    Mapped,
    /// The program has no mapping there.
    NothingThere,
    /// The mapping does not permit the access.
    Forbidden,
    /// The program has protected the page against this write, and has it recorded: the page is
    /// open now, and the write must be recorded.
    Recorded,
}

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) areas: Areas,
    table: PageTable<SystemMemory>,
    slots: Slots,
    units: Units,
    /// The program's heap: from the end of its file to its break.
    heap: Range<u64>,
    /// The reservation of the first thread's stack ([`stack`]).
    stack_reservation: Option<PageRange>,
    /// Whether `personality(2)` has made readable memory executable.
    pub(crate) reading_executes: bool,
    /// The limit on writable memory in bytes.
    pub(crate) bytes_max: Option<u64>,
    /// The program's auxiliary vector, as bytes.
    pub(crate) auxiliary: Vec<u8>,
    /// Whether there may be memory that a forked child does not inherit.
    has_uninherited: bool,
    /// Whether there may be memory that a forked child has as zeros (`MADV_WIPEONFORK`).
    has_wiped: bool,
    /// Pages whose contents changed although the guest did not write: discarded, moved, or mapped
    /// over.
    changed: Vec<PageRange>,
    /// How many of these there may be before those that touch or repeat are joined.
    changed_max: usize,
    /// Present where the program uses its own write set.
    own: Option<Own>,
    /// Present where the program can use the kernel's.
    pub(crate) vdso: Option<Vdso>,
}

impl Words for SystemMemory {
    fn grow(&mut self) -> bool {
        self.extend(TABLES_STEP).is_ok()
    }
}

impl Memory {
    /// Starts with only the machine's own memory.
    pub(crate) fn new(vm: &Vm, physical_bits: u8) -> Result<Self> {
        let usable = TABLES_FROM as usize + TABLES_STEP;
        let system = SystemMemory::reserve(SYSTEM_BYTES, usable)
            .map_err(Error::system("reserve memory for page tables"))?;
        let memory = Self {
            areas: Areas::default(),
            table: PageTable::new(system, TABLES_FROM),
            slots: Slots::new(physical_bits, vm.slots_max()),
            units: Units::default(),
            heap: 0..0,
            stack_reservation: None,
            reading_executes: false,
            bytes_max: None,
            auxiliary: Vec::new(),
            has_uninherited: false,
            has_wiped: false,
            changed: Vec::new(),
            changed_max: CHANGED_MAX,
            own: None,
            vdso: None,
        };
        memory.add_system(vm)?;
        Ok(memory)
    }

    /// The memory with the page tables and the processors' structures.
    pub(crate) fn system(&self) -> &SystemMemory {
        self.table.words()
    }

    /// The guest-physical address of the tables' root.
    pub(crate) fn root(&self) -> u64 {
        self.table.root()
    }

    /// Maps a page of the machine's own memory for ring 0.
    pub(crate) fn map_system(&mut self, page: u64) -> Result<()> {
        self.table.map_system(SYSTEM_BASE + page, page)
    }

    fn add_system(&self, vm: &Vm) -> Result<()> {
        let system = self.system();
        vm.add_slot(0, 0, system.address(), system.bytes(), false)
    }

    /// Adds this memory to the virtual machine of a forked child. What its parent has written, or
    /// accessed, is the parent's.
    pub(crate) fn begin_child(&mut self, vm: &Vm, accesses: bool) -> Result<()> {
        self.take_changed();
        if accesses {
            self.take_accessed()?;
        }
        self.track_accesses(accesses);
        self.keep_inherited()?;
        self.mark_wiped()?;
        self.add_system(vm)?;
        self.slots.iter().try_for_each(|slot| slot.add(vm))
    }

    /// Resolves a page fault: fills the tables for the part of the mapping within the 2 MiB block
    /// of `address`. Where the mapping has the whole block, also fills one entry each for all of
    /// its whole blocks in the same GiB. With `alone`, fills the entry of one page.
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
            let is_own =
                self.fill_tables(address, access)? || self.fill_vdso(vm, address, access)?;
            return Ok(match is_own {
                true => Resolved::Mapped,
                false => Resolved::NothingThere,
            });
        };
        if !allowed.allows(access) {
            return Ok(Resolved::Forbidden);
        }
        let violated = self.violated(address, access);
        if violated == Protection::Handled {
            return Ok(Resolved::Forbidden);
        }
        let slot = self.slot_of(vm, address)?;
        let around = if alone { PAGE } else { BLOCK };
        let first = address & !(around - 1);
        let start = first.max(range.start());
        let end = (first + around).min(range.end());
        if self.keeps_own() || self.units.concern(start, end) {
            self.fill_merged(vm, start, end, allowed)?;
        } else {
            self.table.fill(start, end, slot.physical(start), allowed)?;
        }
        let fills_block = end - start == BLOCK;
        if fills_block {
            let start = range.start().max(slot.address).next_multiple_of(BLOCK);
            let end = range.end().min(slot.address + slot.bytes()) & !(BLOCK - 1);
            self.table
                .fill_blocks(start, end, slot.physical(start), allowed)?;
        }
        Ok(match violated {
            Protection::Recorded => Resolved::Recorded,
            _ => Resolved::Mapped,
        })
    }

    /// The memslot of an address, which is added where there is none.
    fn slot_of(&mut self, vm: &Vm, address: u64) -> Result<Slot> {
        if let Some(slot) = self.slots.of(address) {
            return Ok(slot);
        }
        let slot = self.slots.add(address)?;
        slot.add(vm)?;
        Ok(slot)
    }

    /// Starts to track accesses, before anything is mapped; or stops it.
    pub(crate) fn track_accesses(&mut self, track: bool) {
        self.table.track_accesses(track);
    }

    /// Takes the pages that the vCPUs have accessed since the last call, and makes their next
    /// accesses visible. Returns `None` where accesses are not tracked.
    ///
    /// A processor sets no accessed bit for a translation in its TLB, so all vCPUs must flush
    /// theirs. The root table is a page of this process's memory: when its protection changes, KVM
    /// unmaps it from the guest and makes all vCPUs flush their TLBs before the call returns. If
    /// KVM has not mapped it for the guest since the last time, no vCPU has walked the tables, and
    /// no TLB has an entry.
    pub(crate) fn take_accessed(&mut self) -> Result<Option<PageSet>> {
        let accessed = self.table.take_accessed();
        if accessed.is_some() {
            self.flush()?;
        }
        Ok(accessed)
    }

    /// Removes addresses from the tables, before what they map changes: the next access causes a
    /// page fault, which [`Self::fault`] resolves. Aliases that are merged there are separated.
    pub(crate) fn clear_entries(&mut self, range: PageRange) -> Result<()> {
        self.table.clear(range.start(), range.end());
        self.dissolve(range)
    }

    /// Removes all of the program's addresses from the tables.
    pub(crate) fn clear_all_entries(&mut self) {
        self.table.clear(0, USER_END);
    }

    /// Whether all of these bytes are the program's.
    pub(crate) fn is_of_program(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes).filter(|end| *end <= USER_END);
        let range = end.and_then(|end| PageRange::new(address, end));
        range.is_some_and(|range| self.areas.cover(range.align_outwards(PAGE)))
    }

    /// The memslots, by address.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter()
    }

    /// Notes that the machine itself has written here, in place of the kernel.
    pub(crate) fn note_written(&mut self, address: u64, bytes: u64) -> Result<()> {
        pages_around(address, bytes).map_or(Ok(()), |pages| self.note_changed(pages))
    }

    /// Notes that the contents of pages have changed although the guest did not write.
    pub(super) fn note_changed(&mut self, pages: PageRange) -> Result<()> {
        self.changed.push(pages);
        // Where nobody records, nobody takes them. A program discards the same memory again and
        // again.
        if self.changed.len() >= self.changed_max {
            let all: PageSet = self.changed.iter().copied().collect();
            self.changed = all.ranges().to_vec();
            self.changed_max = CHANGED_MAX.max(2 * self.changed.len());
        }
        self.mark_changed(pages)
    }

    /// Takes the pages that have changed since the last call otherwise than by the guest's writes.
    pub(crate) fn take_changed(&mut self) -> Vec<PageRange> {
        mem::take(&mut self.changed)
    }

    /// The program's heap: from the end of its file to its break.
    pub(crate) fn heap(&self) -> Option<PageRange> {
        PageRange::new(self.heap.start, self.heap.end.next_multiple_of(PAGE))
    }

    /// Ranges to which the kernel would give a name, with the name.
    pub(crate) fn names(&self) -> Vec<(PageRange, &'static str)> {
        let names = [(self.heap(), "[heap]"), (self.stack(), "[stack]")];
        let known = names.into_iter();
        known
            .filter_map(|(range, name)| Some((range?, name)))
            .collect()
    }

    /// The pages that the program may write to.
    pub(crate) fn writable(&self) -> PageSet {
        self.areas.writable()
    }

    /// Adds the dirty pages of KVM's bitmaps, and clears the bitmaps.
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

/// The pages that contain any of these bytes.
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
