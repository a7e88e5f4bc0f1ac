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
            missing: Vec::new(),
        }
    }
}
