//! Rounds: the dirty pages, from the vCPUs' dirty rings, from the kernel's writes for system calls,
//! and from other changes such as discarding; and on request the accessed pages, from the page
//! tables and the kernel's reads.
//!
//! [`WriteLog`] accumulates them. [`link`] carries rounds from the process that has become the
//! guest, where [`server`] answers, to the process that records it, where [`source::GuestSource`]
//! makes them rounds like those of every technique, with the program's own [`mappings`]. A program
//! that is followed is a [`tree::GuestTree`] there, whose processes [`announce`] themselves.

pub(crate) mod announce;
pub(crate) mod bits;
mod collected;
pub(crate) mod control;
mod followed;
pub(crate) mod link;
pub(crate) mod mappings;
mod process;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod strategy;
pub(crate) mod threads;
pub(crate) mod tree;
pub(crate) mod unit_change;

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagetrail::PageSet;

use crate::error::Result;
use crate::memory::accumulator::PageAccumulator;
use crate::memory::{Memory, pages_around};
use crate::sys::kvm::Vm;
use crate::sys::ring::Ring;
use crate::sys::thread::is_gone;
pub use collected::Collected;

use bits::{NEAR, SlotPages};
use unit_change::UnitChange;

/// The writes, and accesses, since the last round.
#[derive(Debug, Default)]
pub(crate) struct WriteLog(Mutex<Accumulated>);

#[derive(Debug, Default)]
struct Accumulated {
    rings: Vec<Ring>,
    /// The pages of the entries being read; empty otherwise.
    new_pages: SlotPages,
    /// The pages of all entries read since the last round.
    collected: SlotPages,
    written: PageAccumulator,
    /// The pages that the kernel has read, and at the end of a round all accessed pages. `None`
    /// where accesses are not tracked.
    accessed: Option<PageAccumulator>,
    ring_entries: u64,
    unknown_calls: UnknownCalls,
    ending: Vec<Ending>,
}

/// Unknown system calls, each noted once.
#[derive(Debug, Default)]
struct UnknownCalls {
    noted: BTreeSet<u64>,
    /// The calls that no round has listed yet.
    unreported: Vec<u64>,
}

/// A thread that is ending, and what the kernel will write for it after its last instruction.
#[derive(Clone, Copy, Debug)]
struct Ending {
    thread: u32,
    address: u64,
    /// Whether the kernel may write anywhere else, too: robust futexes.
    anywhere: bool,
}

impl Accumulated {
    /// Adds what the kernel writes for ending threads, in this round and in the next ones, until
    /// the threads are gone.
    fn note_endings(&mut self, memory: &Memory) {
        for ending in mem::take(&mut self.ending) {
            if !is_gone(std::process::id(), ending.thread) {
                self.ending.push(ending);
            }
            pages_around(ending.address, 4)
                .into_iter()
                .for_each(|range| self.written.add(range));
            if ending.anywhere {
                self.written.union_with(memory.writable());
            }
        }
    }

    /// Takes the entries of all rings, and returns their number. KVM logs these pages again only
    /// after the rings are reset.
    fn take(&mut self) -> u64 {
        let (new_pages, mut last, mut runs) = (&mut self.new_pages, None, 0);
        let mut note = |slot, page| {
            new_pages.set(slot, page);
            let run = Some((slot, page / NEAR));
            runs += u64::from(run != last);
            last = run;
        };
        let rings = self.rings.iter_mut();
        let taken = rings.map(|ring| ring.read(&mut note)).sum();
        self.merge_new(runs > 2 * self.new_pages.runs());
        self.rings.iter_mut().for_each(Ring::give_back);
        self.ring_entries += taken;
        taken
    }

    /// Adds the new pages to the collected ones. Where they arrived `scattered`, they are put into
    /// the entries in address order, so that KVM re-protects pages near each other together;
    /// entries left over keep their pages.
    fn merge_new(&mut self, scattered: bool) {
        let rings = self.rings.iter().filter(|_| scattered);
        let mut entries = rings.flat_map(Ring::entries_read);
        self.new_pages.drain_to(&mut self.collected, |slot, page| {
            if let Some(entry) = entries.next() {
                entry.put(slot, page);
            }
        });
    }

    fn drain(&mut self, vm: &Vm) -> Result<()> {
        if self.take() > 0 {
            // Re-protects the pages, so that writes from here on are logged again.
            vm.reset_rings()?;
        }
        Ok(())
    }

    /// Adds all logged pages to the written ones, by what the aliases that are merged now mean. The
    /// pages must have been re-protected before: a write through an alias that is merged meanwhile
    /// would otherwise be in no log.
    fn absorb(&mut self, vm: &Vm, memory: &Memory) -> Result<()> {
        self.drain(vm)?;
        let mut logged: PageSet = self.collected.drain(memory.slots()).into_iter().collect();
        let taken = memory.take_bitmaps(vm, &mut logged);
        memory.expand(&mut logged);
        self.written.union_with(logged);
        taken
    }
}

impl WriteLog {
    fn accumulated(&self) -> MutexGuard<'_, Accumulated> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a vCPU's dirty ring.
    pub(crate) fn add_ring(&self, ring: Ring) {
        self.accumulated().rings.push(ring);
    }

    /// Notes that the kernel has written here.
    pub(crate) fn note(&self, address: u64, bytes: u64) {
        if let Some(range) = pages_around(address, bytes) {
            self.accumulated().written.add(range);
        }
    }

    /// Starts to track accesses. Must be called before the program is loaded.
    pub(crate) fn track_accesses(&self, memory: &mut Memory) {
        memory.track_accesses(true);
        self.accumulated().accessed = Some(PageAccumulator::default());
    }

    /// Whether accesses are tracked.
    pub(crate) fn tracks_accesses(&self) -> bool {
        self.accumulated().accessed.is_some()
    }

    /// Notes that the kernel has read here.
    pub(crate) fn note_read(&self, address: u64, bytes: u64) {
        if let Some(accessed) = &mut self.accumulated().accessed
            && let Some(range) = pages_around(address, bytes)
        {
            accessed.add(range);
        }
    }

    /// Notes that the kernel has performed an unknown call, which may have written anywhere.
    pub(crate) fn note_unknown(&self, call: u64, memory: &Memory) {
        let mut accumulated = self.accumulated();
        accumulated.written.union_with(memory.writable());
        let unknown = &mut accumulated.unknown_calls;
        if unknown.noted.insert(call) {
            tracing::debug!(call, "may have written anywhere");
            unknown.unreported.push(call);
        }
    }

    /// Notes that the kernel will clear the word at `address` when a thread has ended, and may
    /// write `anywhere`.
    pub(crate) fn note_thread_end(&self, thread: u32, address: u64, anywhere: bool) {
        if address != 0 || anywhere {
            self.accumulated().ending.push(Ending {
                thread,
                address,
                anywhere,
            });
        }
    }

    /// The first half of [`Self::drain`], for measurements.
    #[cfg(feature = "test-equipment")]
    pub(crate) fn take_entries(&self) -> u64 {
        self.accumulated().take()
    }

    /// Empties the rings, one of which is full.
    pub(crate) fn drain(&self, vm: &Vm) -> Result<()> {
        self.accumulated().drain(vm)
    }

    /// Merges and separates aliases of pages. With `is_still`, no processor is in the guest but
    /// those of children of `vfork(2)`, of which `has_apart` says whether there may be any.
    pub(crate) fn change_units(
        &self,
        vm: &Vm,
        memory: &mut Memory,
        changes: &[UnitChange],
        is_still: bool,
        has_apart: impl FnOnce() -> bool,
    ) -> Result<()> {
        let mut accumulated = self.accumulated();
        memory.change_units(vm, changes)?;
        if memory.units().is_unsettled() && is_still {
            memory.flush()?;
            // After the flush: a child that enters the guest from now on finds the new entries.
            let has_apart = has_apart();
            accumulated.absorb(vm, memory)?;
            if !has_apart {
                memory.units().settle();
            }
        }
        Ok(())
    }

    /// Ends a round and starts the next.
    pub(crate) fn collect(&self, vm: &Vm, memory: &mut Memory) -> Result<Collected> {
        let mut accumulated = self.accumulated();
        // Accesses are taken first: a page written after that is added to the accessed pages below.
        if let Some(touched) = memory.take_accessed()? {
            let accessed = accumulated.accessed.get_or_insert_default();
            accessed.union_with(touched);
        }
        // The steps that may fail come first: what was accumulated then stays for the next round.
        accumulated.absorb(vm, memory)?;
        accumulated.note_endings(memory);
        memory
            .take_changed()
            .into_iter()
            .for_each(|range| accumulated.written.add(range));
        let written = accumulated.written.take();
        let areas = memory.areas.all();
        let accessed = accumulated.accessed.as_mut().map(|accessed| {
            let mut accessed = accessed.take();
            accessed.union_with(&written);
            accessed.intersection(&areas)
        });
        Ok(Collected {
            written: written.intersection(&areas),
            accessed,
            areas,
            heap: memory.heap(),
            stack: memory.stack(),
            ring_entries: mem::take(&mut accumulated.ring_entries),
            unknown_calls: mem::take(&mut accumulated.unknown_calls.unreported),
        })
    }
}
