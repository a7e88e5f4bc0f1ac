//! [`Sample`]: what one run of one technique gave.

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
}
