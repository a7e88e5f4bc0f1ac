//! [`OverheadCounts`]: what tracking cost the program over a recording with a budget.

use pagetrail::AccessKind;

use crate::Round;

/// What tracking cost the process, over all rounds that were held against a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverheadCounts {
    /// The share of the process's time that tracking was allowed to cost.
    pub allowed: f64,
    /// The share that it cost, by estimate.
    pub cost: f64,
    /// Page faults that tracking caused.
    pub faults: u64,
    /// The length of a round, in nanoseconds: the mean, the shortest and the longest.
    pub interval_ns: f64,
    /// The shortest round, in nanoseconds.
    pub interval_ns_min: u64,
    /// The longest round, in nanoseconds.
    pub interval_ns_max: u64,
    /// Reported pages for each page that was written, by estimate.
    pub reported_per_written: f64,
    /// Rounds that were held against a budget.
    pub rounds: u64,
    /// Rounds in which the budget could not be kept, not even with the longest interval.
    pub rounds_over: u64,
}

impl OverheadCounts {
    /// Adds up rounds; `None` if none of them was held against a budget. `page_size`: bytes per
    /// page.
    pub fn of(rounds: &[Round], page_size: u64) -> Option<Self> {
        let mut sum = Self {
            interval_ns_min: u64::MAX,
            ..Self::default()
        };
        let (mut reported, mut false_positives) = (0u64, 0u64);
        let (mut time_ns, mut cost_ns) = (0.0, 0.0);
        for (round, overhead) in rounds
            .iter()
            .filter_map(|round| Some((round, round.overhead?)))
        {
            sum.rounds += 1;
            sum.rounds_over += u64::from(!overhead.is_kept);
            sum.faults = sum.faults.saturating_add(overhead.faults);
            sum.interval_ns_min = sum.interval_ns_min.min(round.duration_ns);
            sum.interval_ns_max = sum.interval_ns_max.max(round.duration_ns);
            sum.allowed = overhead.allowed_ppm as f64 / 1e6;
            time_ns += round.duration_ns as f64;
            cost_ns += round.duration_ns as f64 * overhead.cost_ppm as f64 / 1e6;
            if round.access_kind == AccessKind::Writes {
                let pages = round.written.bytes() / page_size.max(1);
                reported = reported.saturating_add(pages);
                let predicted = round.predicted.unwrap_or_default();
                false_positives = false_positives.saturating_add(predicted.false_positives);
            }
        }
        if sum.rounds == 0 {
            return None;
        }
        sum.interval_ns = time_ns / sum.rounds as f64;
        sum.cost = cost_ns / time_ns.max(1.0);
        let written = reported.saturating_sub(false_positives);
        sum.reported_per_written = match written {
            0 => 1.0,
            written => reported as f64 / written as f64,
        };
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Overhead, Predicted};
    use pagetrail::PageRange;

    fn round(ms: u64, cost_ppm: u64, pages: u64, false_positives: u64) -> Round {
        Round {
            duration_ns: ms * 1_000_000,
            overhead: Some(Overhead {
                allowed_ppm: 30_000,
                cost_ppm,
                faults: 10,
                is_kept: cost_ppm < 50_000,
            }),
            predicted: Some(Predicted {
                false_positives,
                ..Predicted::default()
            }),
            written: PageRange::new(0, pages * 4096).into_iter().collect(),
            ..Round::default()
        }
    }

    #[test]
    fn shares_are_weighed_by_time() {
        assert_eq!(OverheadCounts::of(&[Round::default()], 4096), None);
        let rounds = [
            round(100, 60_000, 30, 0),
            round(300, 20_000, 130, 60),
            // Without a budget.
            Round::default(),
        ];
        let counts = OverheadCounts::of(&rounds, 4096).unwrap();
        assert!((counts.cost - 0.03).abs() < 1e-9, "{counts:?}");
        assert_eq!((counts.allowed, counts.faults), (0.03, 20));
        assert_eq!(counts.interval_ns, 200e6);
        let bounds = (counts.interval_ns_min, counts.interval_ns_max);
        assert_eq!(bounds, (100_000_000, 300_000_000));
        assert!((counts.reported_per_written - 1.6).abs() < 1e-9);
        assert_eq!((counts.rounds, counts.rounds_over), (2, 1));
    }
}
