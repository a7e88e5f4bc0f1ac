//! [`Sample`]: what one run of one technique gave.

use pagetrail::Presumption;

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
    pub(super) calls: u64,
    pub(super) presumed: u64,
    pub(super) avoided: u64,
    pub(super) in_vain: u64,
    pub(super) table_bytes: u64,
}

impl Sample {
    /// Adds what a round presumed.
    pub(super) fn add(&mut self, told: Option<Presumption>) {
        let Some(told) = told else { return };
        self.calls += told.calls;
        self.presumed += told.presumed;
        self.avoided += told.faults_avoided;
        self.in_vain += told.in_vain;
        self.table_bytes = self.table_bytes.max(told.table_bytes);
    }
}
