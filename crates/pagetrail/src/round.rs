//! [`Round`]: what one collect found, held until the consumer commits it.

use crate::heap::units::Units;
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
#[cfg(doc)]
use crate::technique::adaptive::Precision;
use crate::watch::GivenUp;
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
pub enum Noticed {
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
    /// For how long, within collect, nothing was noticed: zero, except where rounds of writes and of accesses
    /// [alternate](crate::Notice::Alternate).
    pub blind: Duration,
}

/// What the technique `adaptive` did in a round, in pages. The estimates rest on what it found when it asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presumption {
    /// Reported because they are presumed written ([`Round::presumed`]); no fault told.
    pub presumed: u64,
    /// Of those, armed from this round on, to be told next time whether they still are.
    pub asked: u64,
    /// Asked in the round before, and not written since: presumed no longer.
    pub cooled: u64,
    /// Estimate: presumed, and written. Each would have cost a fault.
    pub faults_avoided: u64,
    /// Estimate: presumed, and not written.
    pub in_vain: u64,
    /// Of those presumed, what lay ahead of a program that writes one page after the other: released before it was written.
    pub ahead: u64,
    /// Calls that re-armed memory beside presumed pages, besides the scan.
    pub calls: u64,
    /// Memory that is used to remember pages.
    pub table_bytes: u64,
    /// Presumed, and not reported, since they hold what they held; only with [`Precision::Exact`].
    pub dropped: u64,
    /// What was read and hashed to find that out, in bytes.
    pub hashed_bytes: u64,
    /// How long that took.
    pub hashing: Duration,
}

/// What the last collect was: what for, when, and at what cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) noticed: Noticed,
    pub(crate) began: Duration,
    pub(crate) duration: Duration,
    pub(crate) cost: RoundCost,
    pub(crate) presumption: Option<Presumption>,
}

/// What is kept between a collect and its commit.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The last collect, where it succeeded and its round is not committed.
    pub(crate) told: Option<Told>,
    pub(crate) written: PageSet,
    /// The part of `written` that no round since the last commit knows to be written.
    pub(crate) presumed: PageSet,
    pub(crate) fresh: PageSet,
    pub(crate) renewed: PageSet,
    pub(crate) units: Option<Units>,
    pub(crate) events: Vec<Event>,
}

impl Pending {
    /// Adds what another harvest found, and which part of it is presumed.
    pub(crate) fn add(&mut self, harvested: &PageSet, presumed: &PageSet) {
        if !self.presumed.is_empty() || !presumed.is_empty() {
            let known = self.written.difference(&self.presumed);
            let known = known.union(&harvested.difference(presumed));
            self.presumed = self.presumed.union(presumed).difference(&known);
        }
        self.written.union_with(harvested);
    }

    /// Forgets everything, and keeps its memory for the next round: growing it anew each time would cost as much as
    /// filling it.
    pub(crate) fn clear(&mut self) {
        self.told = None;
        self.written.clear();
        self.presumed.clear();
        self.fresh.clear();
        self.renewed.clear();
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
    pub(crate) given_up: &'watch [GivenUp],
    pub(crate) told: Told,
}

impl Round<'_> {
    /// Whether its pages were written, or touched in any way.
    pub fn noticed(&self) -> Noticed {
        self.told.noticed
    }

    /// How many rounds were committed before.
    pub fn index(&self) -> u64 {
        *self.index
    }

    /// The written pages as ranges of addresses, ascending; the touched ones in a round of accesses.
    pub fn written(&self) -> impl ExactSizeIterator<Item = PageRange> + '_ {
        self.pending.written.ranges().iter().copied()
    }

    /// The written pages as a set.
    pub fn pages(&self) -> &PageSet {
        &self.pending.written
    }

    /// What was written of sub-page heaps (`pagetrail-alloc`), told apart within pages; `None` if the target has no such
    /// heap.
    ///
    /// In [`pages`](Self::pages) such a heap's pages stand once per window in which they were written.
    pub fn units(&self) -> Option<&Units> {
        self.pending.units.as_ref()
    }

    /// The part of the written pages that is reported only because its mapping is new, or is new to the watch:
    /// it may have been written before the watch knew it.
    pub fn fresh(&self) -> &PageSet {
        &self.pending.fresh
    }

    /// The part of the written pages that the technique `adaptive` presumes written, without knowing: they were so in each
    /// of the last rounds for which it knows. A consumer that can tell whether a page is as it was drops those that are. Empty with
    /// other techniques.
    pub fn presumed(&self) -> &PageSet {
        &self.pending.presumed
    }

    /// What the last collect presumed; `None` with techniques that do not.
    pub fn presumption(&self) -> Option<Presumption> {
        self.told.presumption
    }

    /// All addresses whose mapping is new to the watch, or took another one's place: what was known of their contents is
    /// void, also where nothing was written.
    pub fn renewed(&self) -> &PageSet {
        &self.pending.renewed
    }

    /// The target's mappings as this round found them, those not watched included.
    pub fn regions(&self) -> &[Region] {
        self.regions
    }

    /// Writable regions that the technique cannot watch, and what is done about them.
    pub fn given_up(&self) -> &[GivenUp] {
        self.given_up
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
