//! [`Estimate`]: the median of some runs, with its confidence interval.
//!
//! The interval is that of order statistics: the k-th value from below to the k-th from above. It
//! assumes no distribution, and its confidence is exact: the median of what the runs are drawn from
//! lies outside only if fewer than k of n runs are on one of its sides, which are fair coin tosses
//! (David, Nagaraja: Order Statistics, 7.1).

use serde::Serialize;

/// The confidence that intervals have at least, where there are runs enough (6).
const CONFIDENCE: f64 = 0.95;

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The estimate of these values; zeros where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (Some(last), rank) = (values.len().checked_sub(1), rank(values.len())) else {
            return Self {
                median: 0.0,
                low: 0.0,
                high: 0.0,
            };
        };
        Self {
            median: (values[last / 2] + values[last.div_ceil(2)]) / 2.0,
            low: values[rank],
            high: values[last - rank],
        }
    }

    /// Whether two intervals have a value in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// Whether so many runs are too few for an interval of 95 % confidence: two intervals that have
/// nothing in common may then be so by chance.
pub fn are_too_few(runs: usize) -> bool {
    confidence(runs) < CONFIDENCE
}

/// How confident the intervals of so many runs are, as a share.
pub fn confidence(runs: usize) -> f64 {
    coverage(runs, rank(runs))
}

/// How many values lie outside of the interval on each side.
fn rank(runs: usize) -> usize {
    let ranks = (0..runs.div_ceil(2)).rev();
    let mut enough = ranks.filter(|rank| coverage(runs, *rank) >= CONFIDENCE);
    enough.next().unwrap_or(0)
}

/// The probability that more than `outside` of `runs` coins show heads, and as many tails.
fn coverage(runs: usize, outside: usize) -> f64 {
    let mut probability = 0.5_f64.powi(i32::try_from(runs).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for heads in 0..=outside.min(runs) {
        tail += probability;
        probability *= (runs - heads) as f64 / (heads + 1) as f64;
    }
    (1.0 - 2.0 * tail).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_medians_interval_is_that_of_the_tables() {
        // Hahn, Meeker: Statistical Intervals, table A.15a for the median: n, k, confidence.
        for (runs, outside, percent) in [
            (1, 0, 0.0),
            (5, 0, 93.75),
            (6, 0, 96.875),
            (7, 0, 98.4375),
            (9, 1, 96.09375),
            (10, 1, 97.8515625),
            (20, 5, 95.861),
        ] {
            assert_eq!(rank(runs), outside, "{runs} runs");
            let found = confidence(runs) * 100.0;
            assert!((found - percent).abs() < 1e-3, "{runs} runs: {found}");
        }
        assert!(confidence(1000) >= CONFIDENCE);
        assert!(are_too_few(0) && are_too_few(5) && !are_too_few(6) && !are_too_few(7));
    }

    #[test]
    fn medians_and_ends() {
        let of = |values: &[f64]| Estimate::of(values.iter().copied());
        let estimate = |median, low, high| Estimate { median, low, high };
        assert_eq!(of(&[]), estimate(0.0, 0.0, 0.0));
        assert_eq!(of(&[3.0]), estimate(3.0, 3.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), estimate(2.5, 1.0, 4.0));
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(of(&nine), estimate(5.0, 2.0, 8.0));
        assert!(of(&nine).overlaps(&of(&[8.0])) && !of(&nine).overlaps(&of(&[8.1])));
    }

    /// The confidence is what it says: of 2,000 intervals as many hold the true median.
    #[test]
    fn intervals_hold_the_median_as_often_as_they_say() {
        let mut random = Random::new(24);
        for runs in [5, 7, 12] {
            let hits = (0..2000).filter(|_| {
                // A skewed distribution, as times are: the median of 1 + u^4 is 1 + 1/16.
                let values = (0..runs).map(|_| 1.0 + random.share().powi(4));
                let found = Estimate::of(values.collect::<Vec<_>>());
                (found.low..=found.high).contains(&1.0625)
            });
            let share = hits.count() as f64 / 2000.0;
            assert!(
                (share - confidence(runs)).abs() < 0.02,
                "{runs} runs: {share}"
            );
        }
    }
}
