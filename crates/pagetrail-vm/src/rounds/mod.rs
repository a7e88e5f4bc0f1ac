//! Rounds: which pages were written, from the processors' rings, the kernel's writes, and what changed otherwise; and where
//! that is wanted, which were touched at all, from the page tables and the kernel's reads.
//!
//! [`WriteLog`] gathers; [`link`] carries rounds from the process that has become the guest to the one that records.

pub(crate) mod bits;
pub(crate) mod link;

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagetrail::{PageRange, PageSet};

use crate::error::Result;
use crate::memory::accumulator::PageAccumulator;
use crate::memory::{Memory, pages_around};
use crate::sys::kvm::Vm;
use crate::sys::ring::Ring;
use crate::sys::thread::is_gone;
use bits::{NEAR, SlotPages};

/// A round of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// The pages written since the last round.
    pub written: PageSet,
    /// The pages touched since the last round: read, written, or executed; where that was [asked for](crate::Settings::accesses).
    pub accessed: Option<PageSet>,
    /// What the program has mapped.
    pub areas: PageSet,
    /// What of it lies below the program's break: `[heap]` to the kernel, which takes the machine's own for it.
    pub heap: Option<PageRange>,
    /// The stack of the thread that began: `[stack]` likewise.
    pub stack: Option<PageRange>,
    /// How many entries of the processors' rings it took.
    pub ring_entries: u64,
    /// Numbers of system calls that no earlier round has here: of calls that are not known, for which all that can be written counts
    /// as written.
    pub unknown_calls: Vec<u64>,
}

/// What is known of writes since the last round.
#[derive(Debug, Default)]
pub(crate) struct WriteLog(Mutex<Accumulated>);

#[derive(Debug, Default)]
struct Accumulated {
    rings: Vec<Ring>,
    /// What the rings have now; empty in between.
    fresh: SlotPages,
    /// What the rings had.
    told: SlotPages,
    written: PageAccumulator,
    /// What the kernel has read, and later what was touched at all; where that is wanted.
    accessed: Option<PageAccumulator>,
    ring_entries: u64,
    unknown_calls: UnknownCalls,
    ending: Vec<Ending>,
}

/// Calls that are not known, each noted once.
#[derive(Debug, Default)]
struct UnknownCalls {
    noted: BTreeSet<u64>,
    /// Of those, what no round has told yet.
    unreported: Vec<u64>,
}

/// A thread that ends, and what the kernel writes for it at the very end, which nobody sees.
#[derive(Clone, Copy, Debug)]
struct Ending {
    thread: u32,
    address: u64,
    /// Besides that.
    anywhere: bool,
}

impl Accumulated {
    /// In this round, and in the next ones until it is certain that the kernel is done.
    fn note_endings(&mut self, memory: &Memory) {
        for ending in mem::take(&mut self.ending) {
            if !is_gone(ending.thread) {
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

    /// Takes what the rings have; how many entries that was. Their pages are not told again until the rings are reset.
    fn take(&mut self) -> u64 {
        let (fresh, mut last, mut turns) = (&mut self.fresh, None, 0);
        let mut note = |slot, page| {
            fresh.set(slot, page);
            let run = Some((slot, page / NEAR));
            turns += u64::from(run != last);
            last = run;
        };
        let rings = self.rings.iter_mut();
        let taken = rings.map(|ring| ring.read(&mut note)).sum();
        self.merge_new(turns > 2 * self.fresh.runs());
        self.rings.iter_mut().for_each(Ring::give_back);
        self.ring_entries += taken;
        taken
    }

    /// Adds what is fresh to what was told. Where it came `scattered`, its pages are put into the entries in their order, so that KVM
    /// protects those near each other together; entries that are left keep their pages.
    fn merge_new(&mut self, scattered: bool) {
        let rings = self.rings.iter().filter(|_| scattered);
        let mut entries = rings.flat_map(Ring::entries_read);
        self.fresh.drain_to(&mut self.told, |slot, page| {
            if let Some(entry) = entries.next() {
                entry.put(slot, page);
            }
        });
    }

    fn drain(&mut self, vm: &Vm) -> Result<()> {
        if self.take() > 0 {
            // Protects the pages again: what is written from here on is told anew.
            vm.reset_rings()?;
        }
        Ok(())
    }
}

impl WriteLog {
    fn accumulated(&self) -> MutexGuard<'_, Accumulated> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a processor's ring.
    pub(crate) fn add_ring(&self, ring: Ring) {
        self.accumulated().rings.push(ring);
    }

    /// The kernel has written here.
    pub(crate) fn note(&self, address: u64, bytes: u64) {
        if let Some(range) = pages_around(address, bytes) {
            self.accumulated().written.add(range);
        }
    }

    /// Has accesses told as well, before anything is loaded.
    pub(crate) fn track_accesses(&self, memory: &mut Memory) {
        memory.track_accesses(true);
        self.accumulated().accessed = Some(PageAccumulator::default());
    }

    /// Whether accesses are told.
    pub(crate) fn tracks_accesses(&self) -> bool {
        self.accumulated().accessed.is_some()
    }

    /// The kernel has read here.
    pub(crate) fn note_read(&self, address: u64, bytes: u64) {
        if let Some(accessed) = &mut self.accumulated().accessed
            && let Some(range) = pages_around(address, bytes)
        {
            accessed.add(range);
        }
    }

    /// The kernel has done a call that is not known, and may have written anywhere.
    pub(crate) fn note_unknown(&self, call: u64, memory: &Memory) {
        let mut accumulated = self.accumulated();
        accumulated.written.union_with(memory.writable());
        let unknown = &mut accumulated.unknown_calls;
        if unknown.noted.insert(call) {
            tracing::debug!(call, "may have written anywhere");
            unknown.unreported.push(call);
        }
    }

    /// The kernel writes a word when a thread is gone, and maybe more.
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
    pub(crate) fn take_entries(&self) -> u64 {
        self.accumulated().take()
    }

    /// Empties the rings: one of them is full.
    pub(crate) fn drain(&self, vm: &Vm) -> Result<()> {
        self.accumulated().drain(vm)
    }

    /// Ends a round and begins the next.
    pub(crate) fn collect(&self, vm: &Vm, memory: &mut Memory) -> Result<Collected> {
        let mut accumulated = self.accumulated();
        // Accesses first: a write of which no access is told is one all the same.
        if let Some(touched) = memory.take_accessed()? {
            let accessed = accumulated.accessed.get_or_insert_default();
            accessed.union_with(touched);
        }
        accumulated.drain(vm)?;
        accumulated.note_endings(memory);
        memory
            .take_changed()
            .into_iter()
            .for_each(|range| accumulated.written.add(range));
        let told: PageSet = accumulated.told.drain(memory.slots()).into_iter().collect();
        accumulated.written.union_with(told);
        // First what may fail: what was accumulated stays for the next round then.
        memory.take_bitmaps(vm, accumulated.written.merge())?;
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
