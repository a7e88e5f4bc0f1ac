//! [`Round`]: what one collect found, kept until the consumer commits it.

use crate::heap::subpages::Subpages;
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::types::{AccessKind, Event, PredictionStats, RoundCost, UntrackedRegion};
use std::time::Duration;

/// Describes the last collect: what it reports, when it ran, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectInfo {
    pub(crate) access_kind: AccessKind,
    pub(crate) began: Duration,
    pub(crate) duration: Duration,
    pub(crate) cost: RoundCost,
    pub(crate) prediction: Option<PredictionStats>,
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
    }
}

/// The pages written since the last committed round, or accessed (see
/// [`access_kind`](Self::access_kind)). They are already re-armed.
///
/// [`commit`](Self::commit) ends the round. If it is dropped instead, its pages come back in the
/// next round: collect, persist, then commit, and a full disk or a panic loses nothing.
#[derive(Debug)]
#[must_use = "a round that is not committed comes back"]
pub struct Round<'watch> {
    pub(crate) pending: &'watch mut Pending,
    pub(crate) index: &'watch mut u64,
    pub(crate) regions: &'watch [Region],
    pub(crate) untracked: &'watch [UntrackedRegion],
    pub(crate) info: CollectInfo,
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
