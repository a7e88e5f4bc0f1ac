//! What presuming did over the rounds of a run ([`Tally`]) and of all runs ([`Presumed`]), for techniques that presume.

use pagetrail::Presumption;
use serde::Serialize;

use super::results::Spread;

/// Sums over the rounds of a run that tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    rounds: u64,
    presumed: u64,
    faults_avoided: u64,
    in_vain: u64,
    calls: u64,
    table_bytes: u64,
}

impl Tally {
    /// Adds what a round presumed.
    pub(crate) fn add(&mut self, told: Option<Presumption>) {
        let Some(told) = told else { return };
        self.rounds += 1;
        self.presumed += told.presumed;
        self.faults_avoided += told.faults_avoided;
        self.in_vain += told.in_vain;
        self.calls += told.calls;
        self.table_bytes = self.table_bytes.max(told.table_bytes);
    }
}

/// What presuming did, over all runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Presumed {
    pub(crate) presumed_per_round: Spread,
    pub(crate) faults_avoided_per_round: Spread,
    pub(crate) in_vain_per_round: Spread,
    pub(crate) calls_per_round: Spread,
    /// The most that was used to remember pages.
    pub(crate) table_bytes: u64,
}

impl Presumed {
    /// `None` where no round told anything: the technique does not presume.
    pub(crate) fn of<'a>(runs: impl Iterator<Item = &'a Tally> + Clone) -> Option<Self> {
        runs.clone().find(|tally| tally.rounds > 0)?;
        let per_round = |count: fn(&Tally) -> u64| {
            let means = runs.clone();
            Spread::of(means.map(|tally| count(tally) as f64 / tally.rounds.max(1) as f64))
        };
        Some(Self {
            presumed_per_round: per_round(|tally| tally.presumed),
            faults_avoided_per_round: per_round(|tally| tally.faults_avoided),
            in_vain_per_round: per_round(|tally| tally.in_vain),
            calls_per_round: per_round(|tally| tally.calls),
            table_bytes: runs.map(|tally| tally.table_bytes).max().unwrap_or(0),
        })
    }
}
