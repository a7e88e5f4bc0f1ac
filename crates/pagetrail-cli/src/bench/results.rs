//! What a benchmark found; serialized, it is the document of docs/bench-format.md.

use serde::Serialize;

use super::predicted::Predicted;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) schema: u32,
    pub(crate) kernel: String,
    /// The processor's name.
    pub(crate) machine: String,
    /// When the benchmark began, as RFC 3339 has it.
    pub(crate) date: String,
    /// What was run.
    pub(crate) command: String,
    pub(crate) cpus: usize,
    pub(crate) page_size: u64,
    pub(crate) runs: u32,
    /// Why the writer's memory may have been swapped out, unless it was locked.
    pub(crate) not_locked: Option<String>,
    pub(crate) absent: Vec<Absent>,
    pub(crate) results: Vec<Measured>,
}

/// A technique that was not measured.
#[derive(Debug, Serialize)]
pub(crate) struct Absent {
    pub(crate) technique: &'static str,
    pub(crate) tracked: Tracked,
    pub(crate) reason: String,
}

/// Where the writer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tracked {
    /// In the tracker's process.
    Own,
    /// In another process.
    Other,
}

impl Tracked {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Own, Self::Other];

    /// In words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Own => "own process",
            Self::Other => "another process",
        }
    }
}

/// One technique at one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) technique: &'static str,
    pub(crate) tracked: Tracked,
    pub(crate) size_bytes: u64,
    /// What the writer wrote in each round.
    pub(crate) pages_written: u64,
    /// What was reported of it, the most in any round; never less than was written.
    pub(crate) pages_reported: u64,
    /// What was reported of it although nothing was written, the most in any round.
    pub(crate) pages_reported_clean: u64,
    pub(crate) untracked_pass_ns: Spread,
    pub(crate) tracked_pass_ns: Spread,
    pub(crate) overhead_on_tracked_percent: Spread,
    pub(crate) overhead_on_tracker_percent: Spread,
    pub(crate) steps: Steps,
    /// With techniques that predict.
    pub(crate) prediction: Option<Predicted>,
}

/// Picks one figure.
pub(crate) type Figure = fn(&Measured) -> Spread;

/// The single steps.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Steps {
    pub(crate) arm_ns: Spread,
    pub(crate) attach_stopped_ns: Spread,
    /// `None` for techniques that cause no faults.
    pub(crate) fault: Option<Fault>,
    pub(crate) collect_ns: Spread,
    pub(crate) collect_stopped_ns: Spread,
    pub(crate) clean_collect_ns: Spread,
    pub(crate) disarm_ns: Spread,
}

/// The first write to an armed page, and what follows from it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) handled_in: &'static str,
    pub(crate) ns_per_page: Spread,
    pub(crate) take_and_rearm_ns_per_page: Spread,
}

/// A figure over all runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of what the runs gave; zeros when there were none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self {
            median: median_of_sorted(&values),
            min: values.first().copied().unwrap_or_default(),
            max: values.last().copied().unwrap_or_default(),
        }
    }
}

fn median_of_sorted(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_min_max() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let expected = |median, min, max| Spread { median, min, max };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), expected(2.0, 1.0, 3.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, -3.0]), expected(1.5, -3.0, 4.0));
        assert_eq!(spread(&[]), expected(0.0, 0.0, 0.0));
    }
}
