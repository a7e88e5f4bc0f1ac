//! [`Interval`]: how many calls pass from one timed call to the next, drawn anew each time.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The largest bound of an interval.
const CALLS_MAX: u32 = 1 << 30;

/// One call of so many is timed; the number is drawn between the bounds, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Interval {
    low: u32,
    high: u32,
}

/// Why text is no interval; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no interval; write two numbers of calls, as 20-40, or 1 for every call")]
pub struct BadInterval(String);

impl Interval {
    /// Every call is timed.
    pub const EVERY: Self = Self { low: 1, high: 1 };
    /// Enough samples of short runs. The study, whose runs are long, has 2,500 to 5,000.
    pub const SHORT_RUNS: Self = Self { low: 20, high: 40 };

    /// An interval of these bounds, unless the lower is 0 or beyond the higher.
    pub fn new(low: u32, high: u32) -> Option<Self> {
        (1 <= low && low <= high && high <= CALLS_MAX).then_some(Self { low, high })
    }

    /// The lower bound.
    pub fn low(self) -> u32 {
        self.low
    }

    /// The higher bound.
    pub fn high(self) -> u32 {
        self.high
    }

    /// How many numbers there are to draw from.
    pub(crate) fn span(self) -> u32 {
        self.high - self.low + 1
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low == self.high {
            true => write!(f, "{}", self.low),
            false => write!(f, "{}-{}", self.low, self.high),
        }
    }
}

impl FromStr for Interval {
    type Err = BadInterval;

    fn from_str(text: &str) -> Result<Self, BadInterval> {
        let number = |text: &str| text.parse::<u32>().ok();
        let interval = match text.split_once('-') {
            Some((low, high)) => number(low).zip(number(high)),
            None => number(text).map(|only| (only, only)),
        };
        interval
            .and_then(|(low, high)| Self::new(low, high))
            .ok_or_else(|| BadInterval(text.to_owned()))
    }
}

/// The constants of the generator (Knuth, MMIX), which the programs in the kernel have, too.
pub(crate) const FACTOR: u64 = 6_364_136_223_846_793_005;
pub(crate) const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// The state of the generator of a function on a processor, from the seed of all.
pub(crate) fn first_state(seed: u64, function: u64, cpu: u64) -> u64 {
    // Neighbouring seeds begin far apart (the finalizer of SplitMix64).
    let mut state = seed ^ function.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ cpu.rotate_left(32);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

/// Draws as the programs in the kernel do: the next state, and the calls to the next sample.
pub(crate) fn draw(interval: Interval, state: u64) -> (u64, u64) {
    let next = state.wrapping_mul(FACTOR).wrapping_add(INCREMENT);
    let drawn = ((next >> 33) * u64::from(interval.span())) >> 31;
    (next, u64::from(interval.low) + drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_intervals() {
        for word in ["1", "20-40", "2500-5000"] {
            assert_eq!(word.parse::<Interval>().expect(word).to_string(), word);
        }
        for wrong in ["", "0", "0-4", "5-4", "-", "a-b", "1-2-3", "1-2000000000"] {
            let error = wrong.parse::<Interval>().expect_err(wrong).to_string();
            assert!(error.contains("is no interval"), "{error}");
        }
    }

    #[test]
    fn all_numbers_are_drawn_about_equally_often() {
        let interval = Interval::new(20, 40).expect("it is one");
        let mut state = first_state(7, 0, 0);
        let mut drawn = [0u32; 41];
        for _ in 0..21_000 {
            let (next, calls) = draw(interval, state);
            state = next;
            drawn[calls as usize] += 1;
        }
        assert!(drawn[..20].iter().all(|times| *times == 0));
        // 1,000 each; six standard deviations of 31.
        assert!(
            drawn[20..].iter().all(|times| times.abs_diff(1000) < 190),
            "{drawn:?}"
        );
    }
}
