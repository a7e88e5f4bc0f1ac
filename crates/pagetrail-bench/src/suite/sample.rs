//! [`Sample`]: what one run of one technique gave.

use std::time::Duration;

use pagetrail::Overhead;

use crate::predicted::Tally;

/// Sums over the rounds that were measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Operations per second of the writer's processor time.
    pub(super) throughput: f64,
    /// Processor time of a program that does a fixed amount of work.
    pub(super) cpu_ns: u64,
    /// Faults of the writer.
    pub(super) faults: u64,
    pub(super) rounds: u64,
    pub(super) written: u64,
    pub(super) reported: u64,
    pub(super) collect_ns: Vec<f64>,
    pub(super) tally: Tally,
    /// Of each round, where a budget was set.
    pub(super) costs: Vec<Cost>,
}

/// What a round of a process cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) overhead: Overhead,
    /// How long the round was.
    pub(super) length: Duration,
    /// The processor time that the process took meanwhile.
    pub(super) busy: Duration,
}

impl Sample {
    /// The mean of a figure of what rounds cost, in which a round counts for the processor time of
    /// its process: processes of a tree that do nothing cost nothing, and say nothing.
    pub(super) fn mean_cost(&self, figure: impl Fn(&Overhead) -> f64) -> f64 {
        let of = |cost: &Cost| figure(&cost.overhead) * cost.busy.as_secs_f64();
        let time: f64 = self.costs.iter().map(|cost| cost.busy.as_secs_f64()).sum();
        self.costs.iter().map(of).sum::<f64>() / time.max(1e-9)
    }
}
