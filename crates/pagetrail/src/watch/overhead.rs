//! What tracking costs the target of a [`Watch`], and when its next round is due.

use super::Watch;
use crate::budget::{Budget, Spent};
use crate::round::CollectInfo;
use crate::types::{Event, Overhead};
#[cfg(doc)]
use crate::watch::builder::WatchBuilder;
use std::time::{Duration, Instant};

impl Watch {
    /// Adds up what a round cost the target, and steers what the next one will.
    pub(super) fn settle(
        &mut self,
        info: &CollectInfo,
        collect: Duration,
        reported: u64,
    ) -> Option<Overhead> {
        let budget = self.budget.as_mut()?;
        let prediction = info.prediction.unwrap_or_default();
        let overhead = budget.settle(Spent {
            duration: info.duration,
            collect,
            stopped: info.cost.stopped,
            faults: info.cost.faults,
            reported,
            predicted: prediction.predicted,
            false_positives: prediction.false_positives,
        });
        self.space.weigh_faults(budget.fault_weight());
        if let Some(line) = budget.news() {
            let pending = self.rounds.of(info.access_kind);
            pending.events.push(Event::Note(line));
        }
        Some(overhead)
    }

    /// When the next collect is due, so that tracking costs the target no more than was allowed
    /// ([`WatchBuilder::max_overhead`]); `None` where nothing was set.
    ///
    /// It becomes later while the target fills new memory, or takes more faults than in the rounds
    /// before, so ask again when it is over. The consumer collects when it likes. What earlier
    /// collects cost above the budget is saved later.
    pub fn next_collect(&self) -> Option<Instant> {
        self.budget.as_ref().map(Budget::next_collect)
    }

    /// Counts time for which the consumer has stopped the target against the budget, as part of the
    /// round that is collected next.
    pub fn count_stop(&mut self, time: Duration) {
        if let Some(budget) = &mut self.budget {
            budget.count_stop(time);
        }
    }
}
