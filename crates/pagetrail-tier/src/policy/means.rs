//! [`Means`]: in which part of its windows a page was accessed, over a longer time than its history
//! has bits.
//!
//! A history of 8 windows has 8 steps. Pages that are accessed in nearly all windows, and those
//! that are in one of twenty, look alike in it; over a longer time they do not. A mean is
//! exponential, and in the first windows of a phase it is that of all windows so far.

/// The weights of samples in a mean over so many windows.
#[derive(Clone, Debug)]
pub(super) struct Means {
    /// By the windows before the sample in which the page was backed off, in 65536ths.
    weights: [u32; 256],
    /// All bits of a history.
    history: u16,
    /// Whether a history may contradict a mean.
    starts_anew: bool,
}

const ONE: u32 = 1 << 16;

impl Means {
    /// Over so many windows, 0 for none, of pages whose histories have so many windows, and may
    /// contradict them.
    pub(super) fn new(windows: u8, history: u8, starts_anew: bool) -> Self {
        let kept = 1.0 - 1.0 / f64::from(windows.max(1));
        let weight = |slept: usize| ((1.0 - kept.powi(slept as i32 + 1)) * f64::from(ONE)) as u32;
        Self {
            weights: match windows {
                0 => [0; 256],
                _ => std::array::from_fn(weight),
            },
            history: u16::MAX >> (16 - history),
            starts_anew,
        }
    }

    /// What a sample weighs before which a page was backed off for `slept` windows, `seen` windows
    /// after the phase began.
    #[inline]
    pub(super) fn weight(&self, slept: u8, seen: u16) -> u32 {
        let weight = self.weights[usize::from(slept)];
        if weight == 0 {
            return 0;
        }
        let of_all = (u32::from(slept) + 1) * ONE / (u32::from(seen) + 1);
        weight.max(of_all.min(ONE))
    }

    /// A mean, unless a page's history contradicts it: one that is accessed in half of its windows
    /// is in all of eight, or in none, by chance in one of 256 cases. Then it has become another
    /// page, and its mean is that of the history.
    #[inline]
    pub(super) fn believed(&self, mean: u16, history: u16) -> u16 {
        const HALF: u16 = u16::MAX / 2;
        match mean > HALF {
            _ if !self.starts_anew => mean,
            true if history == 0 => 0,
            false if history == self.history && self.weights[0] > 0 => u16::MAX,
            _ => mean,
        }
    }

    /// A mean, in 65535ths, with one sample more.
    #[inline]
    pub(super) fn mix(mean: u16, sample: bool, weight: u32) -> u16 {
        let sample = if sample { u16::MAX } else { 0 };
        let (old, new) = (u64::from(ONE - weight), u64::from(weight));
        let sum = u64::from(mean) * old + u64::from(sample) * new;
        (sum / u64::from(ONE)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean after windows, of which one in `every` is sampled as `sample` says.
    fn after(windows: u16, every: u16, sample: impl Fn(u16) -> bool) -> f64 {
        let means = Means::new(64, 8, true);
        let sampled = (every - 1..windows).step_by(every.into());
        let mean = sampled.fold(0, |mean, window| {
            let weight = means.weight(every as u8 - 1, window);
            Means::mix(mean, sample(window), weight)
        });
        f64::from(mean) / f64::from(u16::MAX)
    }

    #[test]
    fn a_mean_is_the_part_of_the_windows() {
        for every in [1, 2, 8] {
            assert!(after(500, every, |_| true) > 0.99, "{every}");
            assert_eq!(after(500, every, |_| false), 0.0);
            let half = after(500, every, |window| window / every % 2 == 0);
            assert!((half - 0.5).abs() < 0.1, "{every}: {half}");
        }
        let rare = after(600, 1, |window| window % 20 == 0);
        assert!((0.03..0.08).contains(&rare), "{rare}");
        // At first, of all windows so far, whatever comes in the first.
        for first in [0, 1] {
            let early = after(10, 1, |window| window % 2 == first);
            assert!((early - 0.5).abs() < 0.06, "{early}");
        }
    }

    #[test]
    fn a_page_that_is_another_one_by_now_begins_anew() {
        let means = Means::new(64, 8, true);
        assert_eq!(means.believed(40_000, 0), 0);
        assert_eq!(means.believed(40_000, 1 << 7), 40_000);
        assert_eq!(means.believed(20_000, 0xff), u16::MAX);
        assert_eq!(means.believed(20_000, 0x7f), 20_000);
        assert_eq!(Means::new(0, 8, true).believed(0, 0xff), 0);
        let steady = Means::new(64, 8, false);
        assert_eq!(steady.believed(40_000, 0), 40_000);
        assert_eq!(steady.believed(20_000, 0xff), 20_000);
    }

    #[test]
    fn a_phase_begins_anew_and_none_is_none() {
        let means = Means::new(64, 8, true);
        assert_eq!(Means::mix(u16::MAX, false, means.weight(0, 0)), 0);
        assert_eq!(Means::mix(0, true, means.weight(200, 0)), u16::MAX);
        let none = Means::new(0, 8, true);
        assert_eq!(Means::mix(0, true, none.weight(5, 0)), 0);
    }
}
