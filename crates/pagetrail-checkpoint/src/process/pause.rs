//! What a pause consists of: for the log, and for the choice between copying pages in it and
//! keeping them.

use std::time::{Duration, Instant};

/// The steps of a pause, and how long each took. Shown by the log at the level `debug`.
#[derive(Debug)]
pub(crate) struct Steps {
    last: Instant,
    took: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Begins with the first step.
    pub(crate) fn begin() -> Self {
        Self {
            last: Instant::now(),
            took: Vec::with_capacity(16),
        }
    }

    /// Ends a step; returns how long it took.
    pub(crate) fn end(&mut self, step: &'static str) -> Duration {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        self.took.push((step, took));
        took
    }

    /// Writes them to the log. What they do not account for is stopping the threads before them,
    /// and letting them go after.
    pub(crate) fn tell(&self, pause: Duration, pages: u64) {
        let known = self.took.iter().map(|(_, took)| *took).sum();
        let stop = ("stop and let go", pause.saturating_sub(known));
        let in_us = |(step, took): &(&str, Duration)| format!("{step} {} us", took.as_micros());
        let steps: Vec<String> = std::iter::once(&stop)
            .chain(&self.took)
            .map(in_us)
            .collect();
        tracing::debug!(
            ?pause,
            pages,
            steps = steps.join(", "),
            "the process stood still"
        );
    }
}

/// What it takes to keep pages as they are, instead of copying them while the process stands still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Price(Duration);

/// Of the price, as long as nothing was measured, and its bounds: on a busy machine some
/// measurements are of something else.
const FIRST: Duration = Duration::from_micros(250);
const LEAST: Duration = Duration::from_micros(100);
const MOST: Duration = Duration::from_micros(500);

impl Default for Price {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Price {
    /// Whether to keep pages whose copy would take so long. It costs a second stop, and a fault for
    /// each page that is written meanwhile, so it has to gain something.
    pub(crate) fn is_worth(&self, copy: Duration) -> bool {
        copy > self.0 * 2
    }

    /// Keeping pages has taken so long.
    pub(crate) fn observe(&mut self, took: Duration) {
        self.0 = ((self.0 + took) / 2).clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_where_that_is_cheaper_than_to_copy_them() {
        let us = Duration::from_micros;
        let mut price = Price::default();
        assert!(!price.is_worth(us(400)) && price.is_worth(us(600)));
        (0..20).for_each(|_| price.observe(us(20)));
        assert!(!price.is_worth(us(200)) && price.is_worth(us(210)));
        // A machine that was busy for a moment.
        price.observe(us(1_000_000));
        assert!(!price.is_worth(us(1000)) && price.is_worth(us(1010)));
    }

    #[test]
    fn steps_follow_each_other() {
        let mut steps = Steps::begin();
        let began = steps.last;
        let took = steps.end("one") + steps.end("two");
        assert_eq!(took, steps.last - began);
        assert_eq!(steps.took.len(), 2);
    }
}
