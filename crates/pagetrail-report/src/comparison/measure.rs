//! [`Measure`]: a mean, and the spread of what it is the mean of.

/// A figure of a recording with its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measure {
    /// The mean over the recording.
    pub mean: f64,
    /// A quarter of the rounds (or windows) have no more.
    pub lower_quartile: f64,
    /// A quarter of the rounds (or windows) have no less.
    pub upper_quartile: f64,
}

impl Measure {
    /// The quartiles of values of which some may be left out because they are 0; `count` is their
    /// number with those.
    pub(super) fn of(mean: f64, mut values: Vec<f64>, count: usize) -> Self {
        values.resize(count.max(values.len()), 0.0);
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let last = values.len().saturating_sub(1);
            let place = (share * last as f64).round() as usize;
            values.get(place).copied().unwrap_or(0.0)
        };
        Self {
            mean,
            lower_quartile: at(0.25),
            upper_quartile: at(0.75),
        }
    }

    /// Whether the middle halves of two measures have a value in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.lower_quartile <= other.upper_quartile && other.lower_quartile <= self.upper_quartile
    }
}

/// How many times as much there is after; 1 where there was and is nothing.
pub(super) fn ratio(before: f64, after: f64) -> f64 {
    match before > 0.0 {
        true => after / before,
        false if after > 0.0 => f64::INFINITY,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_count_what_is_left_out() {
        let all = Measure::of(3.0, vec![1.0, 5.0, 2.0, 4.0, 3.0], 5);
        assert_eq!((all.lower_quartile, all.upper_quartile), (2.0, 4.0));
        let rare = Measure::of(1.0, vec![100.0], 100);
        assert_eq!((rare.lower_quartile, rare.upper_quartile), (0.0, 0.0));
        assert_eq!(Measure::of(0.0, Vec::new(), 0), Measure::default());
        assert!(all.overlaps(&all) && !all.overlaps(&rare));
        assert_eq!(ratio(0.0, 0.0), 1.0);
        assert_eq!(ratio(0.0, 1.0), f64::INFINITY);
        assert_eq!(ratio(2.0, 1.0), 0.5);
    }
}
