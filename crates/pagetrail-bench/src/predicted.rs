//! What predicting did over the rounds of a run ([`Tally`]) and of all runs ([`Predicted`]), for
//! techniques that predict.

use pagetrail::PredictionStats;
use serde::Serialize;

use super::results::Spread;

/// Sums over the rounds of a run that tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    rounds: u64,
    predicted: u64,
    faults_avoided: u64,
    false_positives: u64,
    calls: u64,
    table_bytes: u64,
}

impl Tally {
    /// Adds what a round predicted.
    pub(crate) fn add(&mut self, prediction: Option<PredictionStats>) {
        let Some(prediction) = prediction else { return };
        self.rounds += 1;
        self.predicted += prediction.predicted;
        self.faults_avoided += prediction.faults_avoided;
        self.false_positives += prediction.false_positives;
        self.calls += prediction.calls;
        self.table_bytes = self.table_bytes.max(prediction.table_bytes);
    }
}

/// What predicting did, over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// Pages that were reported without a fault.
    pub predicted_per_round: Spread,
    /// Predicted pages that were written.
    pub faults_avoided_per_round: Spread,
    /// Predicted pages that were not written.
    pub false_positives_per_round: Spread,
    /// System calls that re-armed pages.
    pub calls_per_round: Spread,
    /// The most that was used to remember pages.
    pub table_bytes: u64,
}

impl Predicted {
    /// `None` where no round predicted anything: the technique does not predict.
    pub(crate) fn of<'a>(runs: impl Iterator<Item = &'a Tally> + Clone) -> Option<Self> {
        runs.clone().find(|tally| tally.rounds > 0)?;
        let per_round = |count: fn(&Tally) -> u64| {
            let means = runs.clone();
            Spread::of(means.map(|tally| count(tally) as f64 / tally.rounds.max(1) as f64))
        };
        Some(Self {
            predicted_per_round: per_round(|tally| tally.predicted),
            faults_avoided_per_round: per_round(|tally| tally.faults_avoided),
            false_positives_per_round: per_round(|tally| tally.false_positives),
            calls_per_round: per_round(|tally| tally.calls),
            table_bytes: runs.map(|tally| tally.table_bytes).max().unwrap_or(0),
        })
    }
}
