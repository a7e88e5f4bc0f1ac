//! The parts of a round that are plain values.

#[cfg(doc)]
use crate::round::Round;
#[cfg(doc)]
use crate::technique::adaptive::Precision;
use std::time::Duration;

/// Something that happened to the tracked process since the last round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// `execve(2)` replaced the process's memory; every page of the new image counts as written in
    /// this round.
    Exec {
        /// The new command line.
        command: Vec<String>,
    },
    /// The process has had child processes, which are not tracked; those that ended between two
    /// rounds may be missing from the count.
    Children {
        /// The number of different child processes so far.
        count: u32,
    },
    /// Anything else that the user should know, in one line.
    Note(String),
}

/// The kind of access that a round reports.
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
#[non_exhaustive]
pub struct RoundCost {
    /// Time that collect took.
    pub collect: Duration,
    /// Time for which the tracked process was stopped.
    pub stopped: Duration,
    /// Faults that the technique caused, where it can count them.
    pub faults: Option<u64>,
    /// How long, within collect, no access could be detected: zero, except where rounds of writes
    /// and of accesses [alternate](crate::TrackMode::Alternate).
    pub blind: Duration,
}

/// What the technique `adaptive` did in a round, in pages. The estimates are extrapolated from the
/// predicted pages that it re-protected to check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PredictionStats {
    /// Pages reported without a fault, because they were predicted dirty ([`Round::predicted`]).
    pub predicted: u64,
    /// Predicted pages that are re-protected from this round on, so that the next round shows
    /// whether they are still dirty.
    pub checked: u64,
    /// Pages that were re-protected in the round before and not written since: no longer predicted
    /// dirty.
    pub cooled: u64,
    /// Estimate of the predicted pages that were written; each would have cost a fault.
    pub faults_avoided: u64,
    /// Estimate of the false positives: predicted pages that were not written.
    pub false_positives: u64,
    /// Predicted pages that lay ahead of a sequential writer and were released before it wrote
    /// them.
    pub ahead: u64,
    /// Calls that re-protected memory between predicted pages, in addition to the scan.
    pub calls: u64,
    /// Size of the table that remembers pages, in bytes.
    pub table_bytes: u64,
    /// Predicted pages that were not reported because their contents had not changed; only with
    /// [`Precision::Exact`].
    pub dropped: u64,
    /// Bytes that were read and hashed to find unchanged pages.
    pub hashed_bytes: u64,
    /// Time spent on hashing.
    pub hashing: Duration,
}
