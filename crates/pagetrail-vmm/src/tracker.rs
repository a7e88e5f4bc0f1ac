//! [`Tracker`], [`Consumer`] and [`Round`]: the logs are drained once for all who want it, and
//! rounds that are transactions.
//!
//! A log can be drained once: what it gave it has forgotten. So the tracker adds what it drains to
//! a set per consumer, and a consumer takes its own. What a round holds is in no set until the
//! round is committed, and then forgotten, or dropped, and then back in the set.

use crate::error::{Error, Result};
use crate::log::DirtyLog;
use crate::pages::{DirtyPages, DirtyRange};
use crate::regions::Regions;
use crate::sys::memory::Region;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a consumer's first round holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// All pages: the consumer has no copy of the memory yet.
    Everything,
    /// Pages written from now on: the consumer has a copy of the memory as it is. Unless no one
    /// writes meanwhile, that cannot be.
    Now,
}

struct State {
    regions: Arc<Regions>,
    logs: Vec<Box<dyn DirtyLog>>,
    /// What the logs gave that no consumer has yet.
    drained: DirtyPages,
    consumers: BTreeMap<u64, Pending>,
    next_consumer: u64,
}

/// A consumer's side of the tracker.
struct Pending {
    dirty: DirtyPages,
    enabled: bool,
    rounds_committed: u64,
}

impl State {
    /// Moves what the logs have to the consumers.
    fn drain(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for log in &mut self.logs {
            // One log that fails keeps no other from giving what it has.
            outcome = outcome.and(log.drain(&self.regions, &mut self.drained));
        }
        for consumer in self.consumers.values_mut().filter(|other| other.enabled) {
            consumer.dirty.union_with(&self.drained);
        }
        self.drained.clear();
        outcome
    }
}

/// Tracks the dirty pages of one guest. Its copies are one tracker, for many threads.
#[derive(Clone)]
pub struct Tracker {
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Tracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Tracker")
            .field("regions", &state.regions)
            .field("logs", &state.logs.len())
            .field("consumers", &state.consumers.len())
            .finish()
    }
}

impl Tracker {
    /// Tracks these regions by these logs: every way by which the guest's memory is written needs
    /// one.
    ///
    /// # Errors
    ///
    /// A log cannot have these regions; there is no log.
    pub fn new(regions: Regions, logs: Vec<Box<dyn DirtyLog>>) -> Result<Self> {
        if logs.is_empty() {
            let reason = "a tracker needs a log: without one it would report nothing";
            return Err(Error::Refused(reason.into()));
        }
        let mut state = State {
            drained: DirtyPages::none_of(&regions),
            regions: Arc::new(regions),
            logs,
            consumers: BTreeMap::new(),
            next_consumer: 0,
        };
        for log in &mut state.logs {
            log.regions_changed(&state.regions)?;
        }
        let state = Arc::new(Mutex::new(state));
        Ok(Self { state })
    }

    /// The state. Where a thread has panicked with it, it is whole: what was drained stays until
    /// it has been handed out.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a consumer. A guest that is given its own log (by a device, say) is one, a snapshot
    /// another; neither takes pages from the other.
    ///
    /// # Errors
    ///
    /// With [`Start::Now`]: the logs cannot be drained.
    pub fn consumer(&self, start: Start) -> Result<Consumer> {
        let mut state = self.state();
        if start == Start::Now {
            state.drain()?;
        }
        let id = state.next_consumer;
        state.next_consumer += 1;
        let pending = Pending {
            dirty: first(&state.regions, start),
            enabled: true,
            rounds_committed: 0,
        };
        state.consumers.insert(id, pending);
        Ok(Consumer {
            tracker: self.clone(),
            id,
        })
    }

    /// Drains the logs into the sets of all consumers, and reports nothing. A thread that runs a
    /// vCPU calls it when the vCPU's dirty ring is full (`KVM_EXIT_DIRTY_RING_FULL`).
    ///
    /// # Errors
    ///
    /// A log fails; what it and the others found is in the next rounds all the same.
    pub fn drain(&self) -> Result<()> {
        self.state().drain()
    }

    /// Whether any consumer wants pages. Where none does, the monitor may switch the logs off, and
    /// must switch them on before the next [`Consumer::enable`].
    pub fn is_wanted(&self) -> bool {
        self.state().consumers.values().any(|other| other.enabled)
    }

    /// The regions that are tracked.
    pub fn regions(&self) -> Arc<Regions> {
        self.state().regions.clone()
    }

    /// Adds a region: memory that was plugged in. Its pages are dirty for every consumer.
    ///
    /// # Errors
    ///
    /// The region does not fit the others, or a log cannot have it; then nothing has changed.
    pub fn add_region(&self, region: Region) -> Result<()> {
        let mut state = self.state();
        let mut regions: Vec<Region> = state.regions.iter().cloned().collect();
        regions.push(region);
        state.change_regions(Regions::new(regions)?)
    }

    /// Removes the region of a memslot: memory that is being unplugged. Call it before the memory
    /// goes.
    ///
    /// # Errors
    ///
    /// There is none, or a log cannot do without it.
    pub fn remove_region(&self, slot: u32) -> Result<()> {
        let mut state = self.state();
        if state.regions.of_slot(slot).is_none() {
            return Err(Error::region(slot, "it is not tracked"));
        }
        let others = state.regions.iter().filter(|region| region.slot() != slot);
        let regions = Regions::new(others.cloned())?;
        state.change_regions(regions)
    }
}

impl State {
    fn change_regions(&mut self, regions: Regions) -> Result<()> {
        self.drain()?;
        for at in 0..self.logs.len() {
            if let Err(error) = self.logs[at].regions_changed(&regions) {
                self.back_to_old_regions(at)?;
                return Err(error);
            }
        }
        let kept = |region: &Region| self.regions.iter().any(|old| old == region);
        let (kept, new): (Vec<_>, Vec<_>) = regions.iter().cloned().partition(kept);
        let new = DirtyPages::all_of(&Regions::new(new)?);
        let kept = DirtyPages::none_of(&Regions::new(kept)?);
        for consumer in self.consumers.values_mut() {
            let mut dirty = DirtyPages::none_of(&regions);
            // Of a region that was replaced under its number, only the new one's pages count.
            let mut old = kept.clone();
            old.union_with(&consumer.dirty);
            dirty.union_with(&old);
            dirty.union_with(&new);
            consumer.dirty = dirty;
        }
        self.drained = DirtyPages::none_of(&regions);
        self.regions = Arc::new(regions);
        Ok(())
    }

    /// Gives the first `count` logs the old regions again. What they knew of a region that they did
    /// without meanwhile is gone, so all pages are dirty.
    fn back_to_old_regions(&mut self, count: usize) -> Result<()> {
        let all = DirtyPages::all_of(&self.regions);
        for consumer in self.consumers.values_mut().filter(|other| other.enabled) {
            consumer.dirty.union_with(&all);
        }
        let regions = &self.regions;
        let mut logs = self.logs[..count].iter_mut();
        logs.try_for_each(|log| log.regions_changed(regions))
    }
}

fn first(regions: &Regions, start: Start) -> DirtyPages {
    match start {
        Start::Everything => DirtyPages::all_of(regions),
        Start::Now => DirtyPages::none_of(regions),
    }
}

/// One who wants to know of dirty pages, at times of its own. When it is dropped, the tracker goes
/// on without it.
#[derive(Debug)]
pub struct Consumer {
    tracker: Tracker,
    id: u64,
}

impl Consumer {
    /// Collects the pages that were written since the consumer's last round.
    ///
    /// A write that completes before this returns is in this round or in the next, no matter who
    /// made it. The contents of the round's pages are to be read after that. What is written while
    /// vCPUs run may be in the next round only; a round that has everything needs them stopped:
    /// outside `KVM_RUN`, since some processors log pages of their own until then.
    ///
    /// # Errors
    ///
    /// A log fails, or the consumer is disabled. What was found is in the next round.
    pub fn collect(&self) -> Result<Round> {
        let mut state = self.tracker.state();
        let regions = state.regions.clone();
        if state.consumers.get(&self.id).is_none_or(|own| !own.enabled) {
            return Err(Error::Refused("the consumer is disabled".into()));
        }
        state.drain()?;
        let none = DirtyPages::none_of(&regions);
        let own = state.consumers.get_mut(&self.id);
        let own = own.ok_or_else(|| Error::Refused("the consumer is disabled".into()))?;
        Ok(Round {
            dirty: std::mem::replace(&mut own.dirty, none),
            index: own.rounds_committed,
            tracker: self.tracker.clone(),
            consumer: self.id,
            regions,
        })
    }

    /// Says that this consumer has itself written these pages, which no log sees: they are dirty
    /// for every other consumer.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn wrote(&self, pages: &DirtyPages) {
        let mut state = self.tracker.state();
        let others = state.consumers.iter_mut();
        for (_, other) in others.filter(|(id, other)| **id != self.id && other.enabled) {
            other.dirty.union_with(pages);
        }
    }

    /// Wants no pages for a while: costs nothing, and knows nothing of what is written.
    pub fn disable(&self) {
        if let Some(own) = self.tracker.state().consumers.get_mut(&self.id) {
            own.enabled = false;
            own.dirty.clear();
        }
    }

    /// Wants pages again. `start` says what its copy of the memory is worth by now.
    ///
    /// # Errors
    ///
    /// With [`Start::Now`]: the logs cannot be drained; the consumer is as it was.
    pub fn enable(&self, start: Start) -> Result<()> {
        let mut state = self.tracker.state();
        if start == Start::Now {
            state.drain()?;
        }
        // Under the same lock: what is drained from here on is this consumer's, too.
        let dirty = first(&state.regions, start);
        if let Some(own) = state.consumers.get_mut(&self.id) {
            own.enabled = true;
            own.dirty = dirty;
        }
        Ok(())
    }

    /// The tracker.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.tracker.state().consumers.remove(&self.id);
    }
}

/// The dirty pages of one consumer since its last round.
///
/// [`commit`](Self::commit) ends the round. If it is dropped instead, because a disk is full, say,
/// its pages are in the consumer's next round. Several rounds may be open at a time: a snapshot
/// that copies ahead keeps them until it has been published.
#[must_use = "a round that is not committed comes back"]
#[derive(Debug)]
pub struct Round {
    tracker: Tracker,
    consumer: u64,
    regions: Arc<Regions>,
    dirty: DirtyPages,
    index: u64,
}

impl Round {
    /// The number of rounds that the consumer had committed before this one was collected.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The regions as they were when the round was collected.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The dirty pages as bitmaps.
    pub fn dirty(&self) -> &DirtyPages {
        &self.dirty
    }

    /// The dirty pages as ranges, by ascending guest address; none spans two regions.
    pub fn ranges(&self) -> impl Iterator<Item = DirtyRange> + '_ {
        self.regions.iter().flat_map(|region| {
            let bitmap = self.dirty.of_slot(region.slot());
            let pages = bitmap.into_iter().flat_map(|bitmap| bitmap.ranges());
            pages.map(|pages| DirtyRange::new(region, pages))
        })
    }

    /// Ends the round: its pages are the consumer's affair from now on.
    pub fn commit(mut self) {
        let mut state = self.tracker.state();
        if let Some(own) = state.consumers.get_mut(&self.consumer) {
            own.rounds_committed += 1;
        }
        drop(state);
        self.dirty.clear();
    }

    /// Gives the pages back, as dropping the round does.
    pub fn abort(self) {}
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        if let Some(own) = self.tracker.state().consumers.get_mut(&self.consumer) {
            own.dirty.union_with(&self.dirty);
        }
    }
}
