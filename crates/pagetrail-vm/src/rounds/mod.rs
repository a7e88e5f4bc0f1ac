//! Rounds: which pages were written, from the processors' rings, the kernel's writes, and what changed otherwise.
//!
//! [`WriteLog`] gathers; [`link`] carries rounds from the process that has become the guest to the one that records.

pub(crate) mod link;

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagetrail::{PageRange, PageSet};

use crate::error::Result;
use crate::memory::{Memory, pages_around};
use crate::sys::kvm::Vm;
use crate::sys::ring::Ring;

/// So many ranges are kept apart until they are merged.
const LOOSE_MAX: usize = 1 << 16;

/// A round of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// The pages written since the last round.
    pub written: PageSet,
    /// What the program has mapped.
    pub areas: PageSet,
    /// How many entries of the processors' rings it took.
    pub ring_entries: u64,
}

/// What is known of writes since the last round.
#[derive(Debug, Default)]
pub(crate) struct WriteLog(Mutex<Gathered>);

#[derive(Debug, Default)]
struct Gathered {
    rings: Vec<Ring>,
    written: PageSet,
    loose: Vec<PageRange>,
    ring_entries: u64,
}

impl Gathered {
    fn add(&mut self, range: PageRange) {
        // Rings and buffers mostly go upwards.
        if let Some(last) = self.loose.last_mut()
            && last.end() == range.start()
            && let Some(longer) = PageRange::new(last.start(), range.end())
        {
            *last = longer;
            return;
        }
        self.loose.push(range);
        if self.loose.len() >= LOOSE_MAX {
            self.merge();
        }
    }

    fn merge(&mut self) {
        let loose: PageSet = self.loose.drain(..).collect();
        self.written.union_with(&loose);
    }

    fn drain(&mut self, vm: &Vm, memory: &Memory) -> Result<()> {
        let mut rings = mem::take(&mut self.rings);
        let mut taken = 0;
        for ring in &mut rings {
            taken += ring.take(|slot, page| {
                if let Some(address) = memory.address_of(slot, page) {
                    PageRange::new(address, address + crate::memory::PAGE)
                        .into_iter()
                        .for_each(|range| self.add(range));
                }
            });
        }
        self.rings = rings;
        self.ring_entries += taken;
        if taken > 0 {
            // Protects the pages again: what is written from here on is told anew.
            vm.reset_rings()?;
        }
        Ok(())
    }
}

impl WriteLog {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a processor's ring.
    pub(crate) fn add_ring(&self, ring: Ring) {
        self.gathered().rings.push(ring);
    }

    /// The kernel has written here.
    pub(crate) fn note(&self, address: u64, bytes: u64) {
        if let Some(range) = pages_around(address, bytes) {
            self.gathered().add(range);
        }
    }

    /// The kernel has written somewhere.
    pub(crate) fn note_anywhere(&self, memory: &Memory) {
        self.gathered().written.union_with(&memory.writable());
    }

    /// Empties the rings: one of them is full.
    pub(crate) fn drain(&self, vm: &Vm, memory: &Memory) -> Result<()> {
        self.gathered().drain(vm, memory)
    }

    /// Ends a round and begins the next.
    pub(crate) fn collect(&self, vm: &Vm, memory: &mut Memory) -> Result<Collected> {
        let mut gathered = self.gathered();
        gathered.drain(vm, memory)?;
        memory
            .take_changed()
            .into_iter()
            .for_each(|range| gathered.add(range));
        gathered.merge();
        // First what may fail: what was gathered stays for the next round then.
        memory.take_bitmaps(vm, &mut gathered.written)?;
        let written = mem::take(&mut gathered.written);
        let areas = memory.areas.all();
        Ok(Collected {
            written: written.intersection(&areas),
            areas,
            ring_entries: mem::take(&mut gathered.ring_entries),
        })
    }
}
