//! What a benchmark found; serialized, it is the document of docs/bench-format.md.

use serde::Serialize;

use super::predicted::Predicted;

/// All that a benchmark found.
#[derive(Debug, Serialize)]
pub struct Results {
    /// The number of the document's schema.
    pub schema: u32,
    /// The kernel's version.
    pub kernel: String,
    /// The processor's name.
    pub machine: String,
    /// When the benchmark began, as RFC 3339 has it.
    pub date: String,
    /// What was run.
    pub command: String,
    /// Processors that the benchmark may use.
    pub cpus: usize,
    /// Bytes of a page.
    pub page_size: u64,
    /// How often each was measured.
    pub runs: u32,
    /// Why the writer's memory may have been swapped out, unless it was locked.
    pub not_locked: Option<String>,
    /// What was not measured.
    pub absent: Vec<Absent>,
    /// What was measured.
    pub results: Vec<Measured>,
}

/// A technique that was not measured.
#[derive(Debug, Serialize)]
pub struct Absent {
    /// The name of the technique.
    pub technique: &'static str,
    /// Where the writer was.
    pub tracked: Tracked,
    /// Why it was not measured.
    pub reason: String,
}

/// Where the writer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracked {
    /// In the tracker's process.
    Own,
    /// In another process.
    Other,
}

impl Tracked {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::Own, Self::Other];

    /// The place in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Own => "own process",
            Self::Other => "another process",
        }
    }
}

/// One technique at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The name of the technique.
    pub technique: &'static str,
    /// Where the writer was.
    pub tracked: Tracked,
    /// How much memory the writer has.
    pub size_bytes: u64,
    /// What the writer wrote in each round.
    pub pages_written: u64,
    /// What was reported of it, the most in any round; never less than was written.
    pub pages_reported: u64,
    /// What was reported of it although nothing was written, the most in any round.
    pub pages_reported_clean: u64,
    /// A pass over the memory that is not tracked.
    pub untracked_pass_ns: Spread,
    /// A pass over the memory that is tracked.
    pub tracked_pass_ns: Spread,
    /// Overhead on tracked, as [`definitions`](crate::definitions) has it.
    pub overhead_on_tracked_percent: Spread,
    /// Overhead on tracker, as [`definitions`](crate::definitions) has it.
    pub overhead_on_tracker_percent: Spread,
    /// The single steps.
    pub steps: Steps,
    /// With techniques that predict.
    pub prediction: Option<Predicted>,
}

/// Picks one figure.
pub(crate) type Figure = fn(&Measured) -> Spread;

/// The single steps.
#[derive(Clone, Debug, Serialize)]
pub struct Steps {
    /// Starting to track the memory.
    pub arm_ns: Spread,
    /// How long the writer stood still for that.
    pub attach_stopped_ns: Spread,
    /// `None` for techniques that cause no faults.
    pub fault: Option<Fault>,
    /// A collect after a pass.
    pub collect_ns: Spread,
    /// How long the writer stood still for it.
    pub collect_stopped_ns: Spread,
    /// A collect when nothing was written.
    pub clean_collect_ns: Spread,
    /// Ending the watch.
    pub disarm_ns: Spread,
}

/// The first write to an armed page, and what follows from it.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Who handles the fault: the kernel or user space.
    pub handled_in: &'static str,
    /// What a tracked pass takes longer, per page.
    pub ns_per_page: Spread,
    /// Collect less clean collect, per page.
    pub take_and_rearm_ns_per_page: Spread,
}

/// A figure over all runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of what the runs gave; zeros when there were none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
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
