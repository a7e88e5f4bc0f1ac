//! [`Overhead`]: what tracking costs a target, held against what is allowed.

#[cfg(doc)]
use crate::watch::{Watch, builder::WatchBuilder};
use std::time::Duration;

/// What a round cost the target, by estimate, where a budget was set
/// ([`WatchBuilder::max_overhead`]).
///
/// The estimate leans to the dear side: a fault counts what a fault of a program at work costs, and
/// the target counts as stopped while a collect holds the processor, although most of it runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Overhead {
    /// The share of the target's time that tracking may cost.
    pub allowed: f64,
    /// The share that this round cost. Where processors are scarce, the time of a collect counts
    /// more in it than in [`Self::stopped`]: for a target that mostly sleeps, up to twenty times.
    pub share: f64,
    /// Page faults that tracking caused in this round.
    pub faults: u64,
    /// What one of them costs, as measured on this machine when the watch started.
    pub fault: Duration,
    /// Time for which the target counts as stopped, by collects and by consumers.
    pub stopped: Duration,
    /// Reported pages for each page that was written; 1 where none is predicted.
    pub reported_per_written: f64,
    /// The time until the next collect is due ([`Watch::next_collect`]).
    pub next: Duration,
    /// Whether the budget is kept. It is not where tracking costs more in several rounds of the
    /// longest interval.
    pub is_kept: bool,
}
