//! [`Round`]: what one collect found, and [`RoundBuffer`], which keeps it until the consumer
//! commits it: the one place in which rounds of any source are transactions.

use crate::heap::heaps::Heaps;
use crate::heap::subpages::Subpages;
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::types::{AccessKind, Event, Overhead, PredictionStats, RoundCost, UntrackedRegion};
use std::time::{Duration, Instant};

/// Describes the last collect: what it reports, when it ran, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectInfo {
    pub(crate) access_kind: AccessKind,
    pub(crate) began: Duration,
    pub(crate) duration: Duration,
    pub(crate) cost: RoundCost,
    pub(crate) prediction: Option<PredictionStats>,
    pub(crate) overhead: Option<Overhead>,
}

/// The state that is kept between a collect and its commit.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Describes the last collect, if it succeeded and its round is not committed.
    pub(crate) info: Option<CollectInfo>,
    pub(crate) written: PageSet,
    /// The part of `written` that is only predicted: no round since the last commit saw a write to
    /// it.
    pub(crate) predicted: PageSet,
    pub(crate) fresh: PageSet,
    pub(crate) remapped: PageSet,
    pub(crate) subpages: Option<Subpages>,
    pub(crate) events: Vec<Event>,
    /// Whether pages of a round that was not committed are among those of the last collect.
    carried: bool,
}

impl Pending {
    /// Adds what another collect found, and which part of it is predicted.
    pub(crate) fn add(&mut self, collected: &PageSet, predicted: &PageSet) {
        if !self.predicted.is_empty() || !predicted.is_empty() {
            let known = self.written.difference(&self.predicted);
            let known = known.union(&collected.difference(predicted));
            self.predicted = self.predicted.union(predicted).difference(&known);
        }
        self.written.union_with(collected);
    }

    /// Takes out pages that turn out not to have been written.
    pub(crate) fn remove(&mut self, pages: &PageSet) {
        for set in [&mut self.written, &mut self.fresh] {
            *set = set.difference(pages);
        }
    }

    /// Empties everything but keeps the allocated memory for the next round: to grow it anew each
    /// time would cost as much as to fill it.
    pub(crate) fn clear(&mut self) {
        self.info = None;
        self.written.clear();
        self.predicted.clear();
        self.fresh.clear();
        self.remapped.clear();
        self.subpages = None;
        self.events.clear();
        self.carried = false;
    }

    fn is_empty(&self) -> bool {
        let sets = [&self.written, &self.fresh, &self.remapped];
        self.info.is_none() && self.events.is_empty() && sets.iter().all(|set| set.is_empty())
    }
}

/// What one collect of a source found: see [`RoundBuffer::add`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Found {
    /// The dirty pages; of a round of accesses, the accessed pages.
    pub dirty: PageSet,
    /// The part of `dirty` that is reported only because its mapping is new
    /// ([`Round::newly_mapped`]).
    pub newly_mapped: PageSet,
    /// Where mappings are new, or replaced others ([`Round::remapped`]).
    pub remapped: PageSet,
    /// What happened to the target since the last collect.
    pub events: Vec<Event>,
}

/// Keeps what a source has collected until the consumer commits it, and makes [`Round`]s of it.
///
/// A source of rounds that is not a [`Watch`](crate::Watch) has one, so that its rounds are
/// transactions: what a dropped round held is in the next round of its kind.
///
/// ```
/// use pagetrail::{AccessKind, Found, PageRange, RoundBuffer, RoundCost};
/// let mut buffer = RoundBuffer::new();
/// let mut found = Found::default();
/// found.dirty.extend(PageRange::new(0x1000, 0x3000));
/// buffer.add(AccessKind::Writes, found);
/// buffer.end_collect(&[AccessKind::Writes], RoundCost::default());
/// let round = buffer.round(AccessKind::Writes, &[], &[]).unwrap();
/// assert_eq!(round.dirty().page_count(), 2);
/// drop(round);
/// let round = buffer.round(AccessKind::Writes, &[], &[]).unwrap();
/// assert_eq!(round.dirty().page_count(), 2);
/// round.commit();
/// assert!(buffer.is_empty());
/// ```
#[derive(Debug)]
pub struct RoundBuffer {
    /// Rounds that wait for their commit, indexed by [`AccessKind`]: writes and accesses.
    pending: [Pending; 2],
    /// The number of rounds that were committed.
    index: u64,
    started: Instant,
    /// When the next round begins.
    began: Duration,
}

impl Default for RoundBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl RoundBuffer {
    /// Makes an empty buffer; the first round begins now.
    pub fn new() -> Self {
        Self {
            pending: Default::default(),
            index: 0,
            started: Instant::now(),
            began: Duration::ZERO,
        }
    }

    /// Adds what a collect found to the next round of its kind.
    pub fn add(&mut self, access_kind: AccessKind, found: Found) {
        let pending = self.of(access_kind);
        pending.carried = !pending.written.is_empty();
        pending.add(&found.dirty, &PageSet::default());
        pending.fresh.union_with(&found.newly_mapped);
        pending.remapped.union_with(&found.remapped);
        pending.events.extend(found.events);
    }

    /// Resolves the dirty pages of sub-page heaps to sub-pages, after a collect was added. Rounds
    /// of different kinds that cover the same interval need [`Heaps`] of their own each.
    pub fn resolve_subpages(
        &mut self,
        access_kind: AccessKind,
        heaps: &mut Heaps,
        regions: &[Region],
    ) {
        let carried = self.of(access_kind).carried;
        self.resolve(access_kind, heaps, regions, None, carried);
    }

    /// Ends a collect that found these kinds of access in the same interval.
    pub fn end_collect(&mut self, kinds: &[AccessKind], cost: RoundCost) {
        self.forget_info();
        let (began, duration) = self.end_interval();
        for access_kind in kinds {
            self.of(*access_kind).info = Some(CollectInfo {
                access_kind: *access_kind,
                began,
                duration,
                cost,
                prediction: None,
                overhead: None,
            });
        }
    }

    /// Says what the last collect cost the target ([`Pace::spend`](crate::Pace::spend)), for its
    /// rounds.
    pub fn set_overhead(&mut self, overhead: Overhead) {
        let infos = self.pending.iter_mut();
        for info in infos.filter_map(|pending| pending.info.as_mut()) {
            info.overhead = Some(overhead);
        }
    }

    /// The round of the last collect of this kind; `None` if it was committed, or there was none.
    pub fn round<'buffer>(
        &'buffer mut self,
        access_kind: AccessKind,
        regions: &'buffer [Region],
        untracked: &'buffer [UntrackedRegion],
    ) -> Option<Round<'buffer>> {
        let info = self.of(access_kind).info?;
        Some(self.with_info(info, regions, untracked))
    }

    /// Whether no round waits for its commit.
    pub fn is_empty(&self) -> bool {
        self.pending.iter().all(Pending::is_empty)
    }

    /// The number of rounds that were committed.
    pub fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn of(&mut self, access_kind: AccessKind) -> &mut Pending {
        &mut self.pending[access_kind as usize]
    }

    pub(crate) fn all(&mut self) -> &mut [Pending; 2] {
        &mut self.pending
    }

    /// Forgets when the last collect was, so that a failed one has no round.
    pub(crate) fn forget_info(&mut self) {
        for pending in &mut self.pending {
            pending.info = None;
        }
    }

    /// Ends the interval of a round; returns when it began, and how long it was.
    pub(crate) fn end_interval(&mut self) -> (Duration, Duration) {
        let now = self.started.elapsed();
        let began = std::mem::replace(&mut self.began, now);
        (began, now - began)
    }

    pub(crate) fn last_info(&self) -> Option<CollectInfo> {
        self.pending.iter().find_map(|pending| pending.info)
    }

    pub(crate) fn resolve(
        &mut self,
        access_kind: AccessKind,
        heaps: &mut Heaps,
        regions: &[Region],
        within: Option<&PageSet>,
        carried: bool,
    ) {
        let pending = self.of(access_kind);
        pending.subpages = heaps.resolve(
            regions,
            within,
            carried,
            &mut pending.written,
            &mut pending.fresh,
        );
    }

    pub(crate) fn with_info<'buffer>(
        &'buffer mut self,
        info: CollectInfo,
        regions: &'buffer [Region],
        untracked: &'buffer [UntrackedRegion],
    ) -> Round<'buffer> {
        Round {
            pending: &mut self.pending[info.access_kind as usize],
            index: &mut self.index,
            regions,
            untracked,
            info,
        }
    }
}

/// The pages written since the last committed round, or accessed (see
/// [`access_kind`](Self::access_kind)). They are already re-armed.
///
/// [`commit`](Self::commit) ends the round. If it is dropped instead, its pages come back in the
/// next round: collect, persist, then commit, and a full disk or a panic loses nothing.
#[derive(Debug)]
#[must_use = "a round that is not committed comes back"]
pub struct Round<'source> {
    pending: &'source mut Pending,
    index: &'source mut u64,
    regions: &'source [Region],
    untracked: &'source [UntrackedRegion],
    info: CollectInfo,
}

impl Round<'_> {
    /// Whether the round reports writes, or accesses of any kind.
    pub fn access_kind(&self) -> AccessKind {
        self.info.access_kind
    }

    /// The number of rounds that were committed before this one.
    pub fn index(&self) -> u64 {
        *self.index
    }

    /// The dirty pages as ranges of addresses, ascending; in a round of accesses, the accessed
    /// pages.
    pub fn dirty_ranges(&self) -> impl ExactSizeIterator<Item = PageRange> + '_ {
        self.pending.written.ranges().iter().copied()
    }

    /// The dirty pages as a set; in a round of accesses, the accessed pages.
    pub fn dirty(&self) -> &PageSet {
        &self.pending.written
    }

    /// What was written in sub-page heaps (`pagetrail-alloc`), with a resolution finer than a page;
    /// `None` if the target has no such heap.
    ///
    /// In [`dirty`](Self::dirty) a page of such a heap appears once per alias through which it was
    /// written.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// # let mut watch = pagetrail::Watch::builder().start()?;
    /// let round = watch.collect()?;
    /// if let Some(subpages) = round.subpages() {
    ///     println!("{} bytes may have changed", subpages.bytes().bytes());
    /// }
    /// round.commit();
    /// # Ok(())
    /// # }
    /// ```
    pub fn subpages(&self) -> Option<&Subpages> {
        self.pending.subpages.as_ref()
    }

    /// The dirty pages that are reported only because their mapping is new, or was not tracked
    /// before: they may have been written before tracking began.
    pub fn newly_mapped(&self) -> &PageSet {
        &self.pending.fresh
    }

    /// The dirty pages that the technique `adaptive` only predicts: they were dirty in each of the
    /// last rounds in which they were write-protected. A consumer that can compare a page with its
    /// previous contents may drop those that are unchanged. Empty with other techniques.
    pub fn predicted(&self) -> &PageSet {
        &self.pending.predicted
    }

    /// Statistics of the prediction in the last collect; `None` with techniques that do not
    /// predict.
    pub fn prediction(&self) -> Option<PredictionStats> {
        self.info.prediction
    }

    /// What the round cost the target, held against the budget; `None` where none was set
    /// ([`WatchBuilder::max_overhead`](crate::WatchBuilder::max_overhead)).
    pub fn overhead(&self) -> Option<Overhead> {
        self.info.overhead
    }

    /// All addresses whose mapping is new to the watch or replaced another one, written or not:
    /// what a consumer knew of their contents no longer holds.
    pub fn remapped(&self) -> &PageSet {
        &self.pending.remapped
    }

    /// The target's mappings as of this round, including those that are not tracked.
    pub fn regions(&self) -> &[Region] {
        self.regions
    }

    /// Writable regions that the technique cannot track, with the reason and whether `compare`
    /// tracks them instead.
    pub fn untracked(&self) -> &[UntrackedRegion] {
        self.untracked
    }

    /// What happened to the tracked process since the last round.
    pub fn events(&self) -> &[Event] {
        &self.pending.events
    }

    /// When the round began, as time since the watch started.
    pub fn began(&self) -> Duration {
        self.info.began
    }

    /// How long the round lasted: from the end of the previous collect to the end of this one.
    pub fn duration(&self) -> Duration {
        self.info.duration
    }

    /// What the round cost.
    pub fn cost(&self) -> RoundCost {
        self.info.cost
    }

    /// Ends the round: its pages are now the consumer's, and are not reported again until they are
    /// written again.
    pub fn commit(self) {
        *self.index += 1;
        self.pending.clear();
    }
}
