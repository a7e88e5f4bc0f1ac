//! [`Found`]: what probes have found.

use serde::Serialize;

use crate::programs::slot;

/// A function of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Calls, all of them.
    pub calls: u64,
    /// Calls on this machine, by anybody, that were not seen: the probe itself was interrupted.
    pub missed: u64,
    /// Calls that were timed.
    pub samples: u64,
    /// The mean of their times in nanoseconds, without what taking the time costs; below 0 where
    /// the function takes less than that varies by.
    pub mean_ns: f64,
    /// The standard deviation of their times.
    pub deviation_ns: f64,
    /// The shortest of them, without what taking the time costs, but for 0 at least.
    pub least_ns: f64,
    /// The longest of them, likewise.
    pub most_ns: f64,
}

/// How often something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The name of the exit reason or event.
    pub name: String,
    /// The number of times.
    pub count: u64,
}

/// What probes have found of the threads that they were for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    /// Functions, in the order in which they were named.
    pub functions: Vec<Function>,
    /// Exits of virtual machines by their reasons, the most frequent first.
    pub exits: Vec<Count>,
    /// Tracepoints that were hit, in the order in which they were named.
    pub events: Vec<Count>,
    /// What taking a time costs, in nanoseconds; it is subtracted from the times already.
    pub timer_ns: f64,
}

/// What a function's times come to, before the cost of the timer is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) calls: u64,
    pub(crate) samples: u64,
    sum: u128,
    squares: u128,
    least: Option<u64>,
    most: u64,
}

impl Sums {
    /// Adds up the values of all processors, one after the other.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut sums = Self::default();
        for value in bytes.chunks_exact(slot::BYTES) {
            let number = |at: i16| {
                let at = at as usize;
                let bytes = value[at..at + 8].try_into().unwrap_or_default();
                u64::from_ne_bytes(bytes)
            };
            sums.calls += number(slot::CALLS);
            sums.samples += number(slot::SAMPLES);
            sums.sum += u128::from(number(slot::SUM));
            sums.squares +=
                u128::from(number(slot::SQUARES_HIGH)) << 64 | u128::from(number(slot::SQUARES));
            sums.most = sums.most.max(number(slot::MOST));
            if number(slot::SAMPLES) > 0 {
                let least = u64::MAX - number(slot::LEAST_FROM_ABOVE);
                sums.least = Some(sums.least.map_or(least, |other| other.min(least)));
            }
        }
        sums
    }

    /// The mean of the times.
    pub(crate) fn mean(&self) -> f64 {
        self.sum as f64 / self.samples.max(1) as f64
    }

    fn deviation(&self) -> f64 {
        if self.samples < 2 {
            return 0.0;
        }
        let samples = u128::from(self.samples);
        // n * sum of squares - square of the sum: exact in whole numbers, where it fits.
        let spread = samples
            .checked_mul(self.squares)
            .zip(self.sum.checked_mul(self.sum))
            .map_or_else(
                || samples as f64 * self.squares as f64 - (self.sum as f64).powi(2),
                |(left, right)| left.saturating_sub(right) as f64,
            );
        (spread.max(0.0) / (samples * (samples - 1)) as f64).sqrt()
    }

    pub(crate) fn function(&self, name: &str, missed: u64, timer_ns: f64) -> Function {
        let without = |time: u64| (time as f64 - timer_ns).max(0.0);
        Function {
            name: name.to_owned(),
            calls: self.calls,
            missed,
            samples: self.samples,
            mean_ns: match self.samples {
                0 => 0.0,
                _ => self.mean() - timer_ns,
            },
            deviation_ns: self.deviation(),
            least_ns: self.least.map_or(0.0, without),
            most_ns: without(self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(calls: u64, times: &[u64]) -> Vec<u8> {
        let mut value = vec![0; slot::BYTES];
        let mut set = |at: i16, number: u64| {
            value[at as usize..at as usize + 8].copy_from_slice(&number.to_ne_bytes());
        };
        set(slot::CALLS, calls);
        set(slot::SAMPLES, times.len() as u64);
        set(slot::SUM, times.iter().sum());
        set(slot::SQUARES, times.iter().map(|time| time * time).sum());
        set(slot::MOST, times.iter().copied().max().unwrap_or(0));
        let least = times.iter().copied().min();
        set(
            slot::LEAST_FROM_ABOVE,
            least.map_or(0, |least| u64::MAX - least),
        );
        value
    }

    #[test]
    fn processors_add_up() {
        let bytes = [value(9, &[100, 104]), value(0, &[]), value(3, &[96])].concat();
        let function = Sums::of(&bytes).function("f", 1, 40.0);
        assert_eq!(
            (function.calls, function.samples, function.missed),
            (12, 3, 1)
        );
        assert_eq!((function.mean_ns, function.deviation_ns), (60.0, 4.0));
        assert_eq!((function.least_ns, function.most_ns), (56.0, 64.0));
    }

    #[test]
    fn without_samples_there_are_no_times() {
        let function = Sums::of(&value(9, &[])).function("f", 0, 40.0);
        assert_eq!(
            (function.calls, function.mean_ns, function.least_ns),
            (9, 0.0, 0.0)
        );
    }
}
