//! [`Gaps`]: how long a program takes from one fault to the next; pure.
//!
//! Who gives it pages must not begin with a block that nobody waits for when the next fault is
//! about to come. On a busy machine the program takes longer to run into it.

use std::time::Duration;

/// How long the next fault is waited for at least: about as long as a program takes to run into it.
const LEAST: Duration = Duration::from_micros(30);
/// How long at most, after which other pages are brought.
const MOST: Duration = Duration::from_millis(1);
/// The share of the last gap in what is usual, as a divisor.
const SHARE: u32 = 8;
/// How much longer than usual is waited.
const FACTOR: u32 = 3;

/// What is usual of the time from a page that is given to the next fault.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    usual: Duration,
}

impl Gaps {
    /// Notes the time from a page that was given to the next fault.
    pub(crate) fn note(&mut self, gap: Duration) {
        let gap = gap.min(MOST);
        self.usual = self.usual - self.usual / SHARE + gap / SHARE;
    }

    /// How long the next fault is waited for, in nanoseconds.
    pub(crate) fn wait_ns(&self) -> i64 {
        (self.usual * FACTOR).clamp(LEAST, MOST).as_nanos() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_follows_the_program_within_bounds() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.wait_ns(), 30_000);
        (0..100).for_each(|_| gaps.note(Duration::from_micros(5)));
        assert_eq!(gaps.wait_ns(), 30_000);
        (0..100).for_each(|_| gaps.note(Duration::from_micros(60)));
        assert!((150_000..=180_000).contains(&gaps.wait_ns()), "{gaps:?}");
        (0..100).for_each(|_| gaps.note(Duration::from_secs(60)));
        assert_eq!(gaps.wait_ns(), 1_000_000);
        (0..100).for_each(|_| gaps.note(Duration::from_micros(5)));
        assert_eq!(gaps.wait_ns(), 30_000);
    }
}
