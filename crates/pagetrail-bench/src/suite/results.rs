//! What a suite found; serialized, it is a document of docs/bench-format.md.

use pagetrail::{Capabilities, page_size};
use serde::Serialize;

use super::definition::Definition;
use crate::measure::kernel;
use crate::predicted::Predicted;
use crate::results::Spread;

/// All of it.
#[derive(Debug, Serialize)]
pub struct Suite {
    pub(crate) schema: u32,
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    pub(crate) page_size: u64,
    pub(crate) false_positive_ns: u64,
    pub(crate) block_pages: u32,
    /// Techniques that do not work here, and why.
    pub(crate) absent: Vec<(String, String)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) programs: Vec<ProgramRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) turns: Vec<TurnsRow>,
    /// Programs that are not here.
    pub(crate) missing: Vec<String>,
}

/// A workload at a length of rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) round_ms: u64,
    pub(crate) runs: u32,
    /// Operations per second of the writer's processor time.
    pub(crate) untracked_per_cpu_second: Spread,
    pub(crate) techniques: Vec<Measured>,
}

/// A technique on a workload.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) technique: &'static str,
    /// How much more processor time an operation takes than untracked.
    pub(crate) overhead_percent: Spread,
    /// All of the writer's faults.
    pub(crate) faults_per_round: Spread,
    pub(crate) written_per_round: Spread,
    pub(crate) reported_per_round: Spread,
    pub(crate) reported_per_written: Spread,
    pub(crate) collect_us: Spread,
    pub(crate) prediction: Option<Predicted>,
}

/// A program at a length of rounds.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramRow {
    pub(crate) name: String,
    pub(crate) round_ms: u64,
    pub(crate) runs: u32,
    /// Processor time of a run, untracked.
    pub(crate) untracked_cpu_ms: Spread,
    pub(crate) techniques: Vec<ProgramMeasured>,
}

/// A technique on a program.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramMeasured {
    pub(crate) technique: &'static str,
    /// How much more processor time a run takes than untracked.
    pub(crate) overhead_percent: Spread,
    /// All of the program's faults.
    pub(crate) faults: Spread,
    pub(crate) rounds: Spread,
    pub(crate) reported_per_round: Spread,
    pub(crate) collect_us: Spread,
    pub(crate) prediction: Option<Predicted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<Budget>,
}

/// What tracking within a budget came to.
#[derive(Debug, Serialize)]
pub(crate) struct Budget {
    pub(crate) allowed_percent: f64,
    /// What it cost by its own estimate, in the mean over the time of a run.
    pub(crate) cost_percent: Spread,
    /// Median lengths of rounds.
    pub(crate) interval_ms: Spread,
    pub(crate) reported_per_written: Spread,
    /// Rounds that cost more, at the longest interval.
    pub(crate) rounds_over: Spread,
}

/// A program in turns.
#[derive(Debug, Serialize)]
pub(crate) struct TurnsRow {
    pub(crate) name: String,
    /// The shortest round.
    pub(crate) round_ms: u64,
    pub(crate) pairs: u32,
    pub(crate) turn_seconds: Spread,
    /// Units of its work per second, untracked.
    pub(crate) untracked_per_second: Spread,
    pub(crate) techniques: Vec<TurnsMeasured>,
}

/// A technique on a program in turns.
#[derive(Debug, Serialize)]
pub(crate) struct TurnsMeasured {
    pub(crate) technique: &'static str,
    pub(crate) overhead_percent: Paired,
    /// Faults that tracking caused in the rounds that were collected, for each second of the turn.
    /// Those after the last round are not known.
    pub(crate) faults_per_second: Spread,
    /// Processor time of the tracker, in percent of the time.
    pub(crate) tracker_percent: Spread,
    pub(crate) rounds: Spread,
    pub(crate) reported_per_round: Spread,
    pub(crate) collect_us: Spread,
    pub(crate) prediction: Option<Predicted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<Budget>,
}

/// How much longer work takes tracked than untracked, by pairs of neighbouring turns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Paired {
    /// The mean over the pairs.
    pub(crate) mean: f64,
    /// Of the mean.
    pub(crate) standard_error: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Paired {
    /// Of what each pair says, in percent.
    pub(crate) fn of(pairs: &[f64]) -> Self {
        let count = pairs.len().max(1) as f64;
        let mean = pairs.iter().sum::<f64>() / count;
        let squares: f64 = pairs.iter().map(|pair| (pair - mean).powi(2)).sum();
        Self {
            mean,
            // One pair says nothing of the others.
            standard_error: match pairs.len() {
                0 | 1 => f64::INFINITY,
                _ => (squares / (count - 1.0) / count).sqrt(),
            },
            min: pairs.iter().copied().fold(f64::INFINITY, f64::min),
            max: pairs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

impl Suite {
    pub(crate) fn begin(definition: &Definition) -> Self {
        let capabilities = Capabilities::probe();
        Self {
            schema: 2,
            kernel: kernel(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            page_size: page_size(),
            false_positive_ns: definition.false_positive_ns,
            block_pages: definition.block_pages,
            absent: definition
                .techniques
                .iter()
                .filter_map(|technique| {
                    let reason = capabilities.status(*technique).reason()?;
                    Some((technique.name().to_owned(), reason.to_owned()))
                })
                .collect(),
            rows: Vec::new(),
            programs: Vec::new(),
            turns: Vec::new(),
            missing: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_error_of_its_pairs() {
        let of = Paired::of(&[1.0, 3.0, 5.0, 7.0]);
        assert_eq!((of.mean, of.min, of.max), (4.0, 1.0, 7.0));
        // The variance is 20 / 3.
        assert!((of.standard_error - (20.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert_eq!(Paired::of(&[2.0]).standard_error, f64::INFINITY);
    }
}
