//! The settings of [`WatchBuilder`] for what tracking may cost the target.

use super::WatchBuilder;
#[cfg(doc)]
use crate::types::Choice;
#[cfg(doc)]
use crate::watch::Watch;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The bounds of the interval where the consumer sets none.
pub(super) const INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(10);

impl WatchBuilder {
    /// Sets the largest share of the target's time that tracking may cost: 0.03 for 3 %.
    ///
    /// The watch measures what a fault costs on this machine, counts the faults of the target and
    /// the time of its own collects, and keeps within the budget by two means. It says when the
    /// next collect is due ([`Watch::next_collect`]), within [`Self::intervals`]. And it chooses
    /// how many pages are predicted dirty instead of protected, where the technique predicts;
    /// [`Choice::Auto`] then chooses `adaptive`. Without [`Self::false_positive_cost`] it predicts
    /// no more than the budget needs. Each round says how the budget stands ([`Round::overhead`]).
    ///
    /// A budget that cannot be kept even with the longest interval is exceeded, and the rounds say
    /// so. What is reported is a superset in any case.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// # let pid = 1234;
    /// use pagetrail::{State, Target, Watch};
    /// use std::time::{Duration, Instant};
    /// let mut watch = Watch::builder()
    ///     .target(Target::process(pid)?)
    ///     .max_overhead(0.03)
    ///     .intervals(Duration::from_millis(20)..=Duration::from_secs(1))
    ///     .start()?;
    /// loop {
    ///     // It becomes later while memory is being filled.
    ///     while let Some(due) = watch.next_collect().filter(|due| *due > Instant::now()) {
    ///         let left = due.saturating_duration_since(Instant::now());
    ///         if let State::Ended(_) = watch.wait(left) {
    ///             return Ok(());
    ///         }
    ///     }
    ///     let round = watch.collect()?;
    ///     println!("{} pages, {:?}", round.dirty().page_count(), round.overhead());
    ///     round.commit();
    /// }
    /// # }
    /// ```
    ///
    /// [`Round::overhead`]: crate::Round::overhead
    pub fn max_overhead(mut self, share: f64) -> Self {
        self.config.max_overhead = Some(share);
        self
    }

    /// Sets the bounds within which [`Self::max_overhead`] chooses the time from one collect to the
    /// next; 100 ms to 10 s by default. Without a budget they have no effect.
    pub fn intervals(mut self, intervals: RangeInclusive<Duration>) -> Self {
        self.config.intervals = intervals;
        self
    }
}
