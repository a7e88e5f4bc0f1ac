//! [`Round`]: what one collect found, held until the consumer commits it.

use crate::heap::units::Units;
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
#[cfg(doc)]
use crate::technique::adaptive::Precision;
use crate::watch::UntrackedRegion;
use std::time::Duration;

/// Something that happened to the tracked process since the last round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// `execve(2)` replaced its memory; all that exists in the new image counts as written in this round.
    Exec {
        /// The new command line.
        command: Vec<String>,
    },
    /// It has had this many child processes so far (as far as seen between rounds); none is tracked.
    Children {
        /// How many different ones.
        count: u32,
    },
    /// Anything else that the user should know, one line.
    Note(String),
}

/// What a round reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Pages that were written.
    #[default]
    Writes,
    /// Pages that were touched: read, written, or executed.
    Accesses,
}

/// What a round cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundCost {
    /// Time that collect took.
    pub collect: Duration,
    /// Time for which the tracked process was stopped.
    pub stopped: Duration,
    /// Faults that the technique caused, where it can count them.
    pub faults: Option<u64>,
    /// For how long, within collect, nothing was access_kind: zero, except where rounds of writes and of accesses
    /// [alternate](crate::TrackMode::Alternate).
    pub blind: Duration,
}

/// What the technique `adaptive` did in a round, in pages. The estimates rest on what it found when it asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PredictionStats {
    /// Reported because they are predicted dirty ([`Round::predicted`]); no fault told.
    pub predicted: u64,
    /// Of those, armed from this round on, to be told next time whether they still are.
    pub asked: u64,
    /// Asked in the round before, and not written since: predicted no longer.
    pub cooled: u64,
    /// Estimate: predicted, and written. Each would have cost a fault.
    pub faults_avoided: u64,
    /// Estimate: predicted, and not written.
    pub false_positives: u64,
    /// Of those predicted, what lay ahead of a program that writes one page after the other: released before it was written.
    pub ahead: u64,
    /// Calls that re-armed memory beside predicted pages, besides the scan.
    pub calls: u64,
    /// Memory that is used to remember pages.
    pub table_bytes: u64,
    /// Predicted, and not reported, since they hold what they held; only with [`Precision::Exact`].
    pub dropped: u64,
    /// What was read and hashed to find that out, in bytes.
    pub hashed_bytes: u64,
    /// How long that took.
    pub hashing: Duration,
}

/// What the last collect was: what for, when, and at what cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) access_kind: AccessKind,
    pub(crate) began: Duration,
    pub(crate) duration: Duration,
    pub(crate) cost: RoundCost,
    pub(crate) prediction: Option<PredictionStats>,
}

/// What is kept between a collect and its commit.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The last collect, where it succeeded and its round is not committed.
    pub(crate) told: Option<Told>,
    pub(crate) written: PageSet,
    /// The part of `written` that no round since the last commit knows to be written.
    pub(crate) predicted: PageSet,
    pub(crate) fresh: PageSet,
    pub(crate) remapped: PageSet,
    pub(crate) units: Option<Units>,
    pub(crate) events: Vec<Event>,
}

impl Pending {
    /// Adds what another harvest found, and which part of it is predicted.
    pub(crate) fn add(&mut self, harvested: &PageSet, predicted: &PageSet) {
        if !self.predicted.is_empty() || !predicted.is_empty() {
            let known = self.written.difference(&self.predicted);
            let known = known.union(&harvested.difference(predicted));
            self.predicted = self.predicted.union(predicted).difference(&known);
        }
        self.written.union_with(harvested);
    }

    /// Forgets everything, and keeps its memory for the next round: growing it anew each time would cost as much as
    /// filling it.
    pub(crate) fn clear(&mut self) {
        self.told = None;
        self.written.clear();
        self.predicted.clear();
        self.fresh.clear();
        self.remapped.clear();
        self.units = None;
        self.events.clear();
    }
}

/// The pages written (or accessed, see [`noticed`](Self::noticed)) since the last committed round. They are re-armed already.
///
/// [`commit`](Self::commit) ends it. Dropped without, its pages come back in the next round: harvest, persist,
/// then commit, and nothing is lost to a full disk or a panic.
#[derive(Debug)]
#[must_use = "a round that is not committed comes back"]
pub struct Round<'watch> {
    pub(crate) pending: &'watch mut Pending,
    pub(crate) index: &'watch mut u64,
    pub(crate) regions: &'watch [Region],
    pub(crate) untracked: &'watch [UntrackedRegion],
    pub(crate) told: Told,
}

impl Round<'_> {
    /// Whether its pages were written, or touched in any way.
    pub fn access_kind(&self) -> AccessKind {
        self.told.access_kind
    }

    /// How many rounds were committed before.
    pub fn index(&self) -> u64 {
        *self.index
    }

    /// The written pages as ranges of addresses, ascending; the touched ones in a round of accesses.
    pub fn dirty_ranges(&self) -> impl ExactSizeIterator<Item = PageRange> + '_ {
        self.pending.written.ranges().iter().copied()
    }

    /// The written pages as a set.
    pub fn dirty(&self) -> &PageSet {
        &self.pending.written
    }

    /// What was written of sub-page heaps (`pagetrail-alloc`), told apart within pages; `None` if the target has no such
    /// heap.
    ///
    /// In [`dirty`](Self::dirty) such a heap's pages stand once per window in which they were written.
    pub fn units(&self) -> Option<&Units> {
        self.pending.units.as_ref()
    }

    /// The part of the written pages that is reported only because its mapping is new, or is new to the watch:
    /// it may have been written before the watch knew it.
    pub fn newly_mapped(&self) -> &PageSet {
        &self.pending.fresh
    }

    /// The part of the written pages that the technique `adaptive` predicts dirty, without knowing: they were so in each
    /// of the last rounds for which it knows. A consumer that can tell whether a page is as it was drops those that are. Empty with
    /// other techniques.
    pub fn predicted(&self) -> &PageSet {
        &self.pending.predicted
    }

    /// What the last collect predicted; `None` with techniques that do not.
    pub fn prediction(&self) -> Option<PredictionStats> {
        self.told.prediction
    }

    /// All addresses whose mapping is new to the watch, or took another one's place: what was known of their contents is
    /// void, also where nothing was written.
    pub fn remapped(&self) -> &PageSet {
        &self.pending.remapped
    }

    /// The target's mappings as this round found them, those not watched included.
    pub fn regions(&self) -> &[Region] {
        self.regions
    }

    /// Writable regions that the technique cannot watch, and what is done about them.
    pub fn untracked(&self) -> &[UntrackedRegion] {
        self.untracked
    }

    /// What happened to the tracked process meanwhile.
    pub fn events(&self) -> &[Event] {
        &self.pending.events
    }

    /// When the round began, since the watch started.
    pub fn began(&self) -> Duration {
        self.told.began
    }

    /// How long it lasted: from the return of the collect before it to the return of its own.
    pub fn duration(&self) -> Duration {
        self.told.duration
    }

    /// What it cost.
    pub fn cost(&self) -> RoundCost {
        self.told.cost
    }

    /// Ends the round: its pages are the consumer's from now on, and are not reported again until they are
    /// written again.
    pub fn commit(self) {
        *self.index += 1;
        self.pending.clear();
    }
}
