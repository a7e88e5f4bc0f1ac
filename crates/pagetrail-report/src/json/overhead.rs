//! What tracking cost, as parts of the document.

use pagetrail_trail::{Overhead, OverheadCounts};
use serde::Serialize;

/// What tracking cost in a round, of the share that it was allowed to, by estimate.
#[derive(Serialize)]
pub(super) struct OverheadView {
    allowed: f64,
    cost: f64,
    faults: u64,
    is_kept: bool,
}

/// What tracking cost in all rounds.
#[derive(Serialize)]
pub(super) struct OverheadSummary {
    allowed: f64,
    cost: f64,
    faults: u64,
    interval_ms: f64,
    interval_ms_min: f64,
    interval_ms_max: f64,
    reported_per_written: f64,
    rounds: u64,
    rounds_over: u64,
}

impl From<Overhead> for OverheadView {
    fn from(overhead: Overhead) -> Self {
        Self {
            allowed: overhead.allowed_ppm as f64 / 1e6,
            cost: overhead.cost_ppm as f64 / 1e6,
            faults: overhead.faults,
            is_kept: overhead.is_kept,
        }
    }
}

impl From<OverheadCounts> for OverheadSummary {
    fn from(counts: OverheadCounts) -> Self {
        Self {
            allowed: counts.allowed,
            cost: counts.cost,
            faults: counts.faults,
            interval_ms: counts.interval_ns / 1e6,
            interval_ms_min: counts.interval_ns_min as f64 / 1e6,
            interval_ms_max: counts.interval_ns_max as f64 / 1e6,
            reported_per_written: counts.reported_per_written,
            rounds: counts.rounds,
            rounds_over: counts.rounds_over,
        }
    }
}
