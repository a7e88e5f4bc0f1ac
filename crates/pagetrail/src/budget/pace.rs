//! [`Pace`]: how often a consumer may do what costs the target time, checkpoints say, which take
//! several rounds and stops each.

use super::{Allowance, Budget, Spent};
use crate::error::{Error, Result};
use crate::technique::price;
use crate::types::{Overhead, Technique};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Keeps what a consumer of rounds costs a target within a share of its time, by the interval from
/// one time to the next.
///
/// [`WatchBuilder::max_overhead`](crate::WatchBuilder::max_overhead) does this for rounds. Where
/// many rounds and stops belong together, they are added up here. What is reported is a superset in
/// any case.
///
/// ```no_run
/// # fn main() -> pagetrail::Result<()> {
/// use pagetrail::{Pace, Technique};
/// use std::time::{Duration, Instant};
/// # let pid = 1234;
/// let bounds = Duration::from_secs(1)..=Duration::from_secs(60);
/// let mut pace = Pace::new(pid, Technique::PagemapScan, 0.03, bounds)?;
/// loop {
///     // It becomes later while memory is being filled.
///     while pace.next() > Instant::now() {
///         std::thread::sleep(pace.next().saturating_duration_since(Instant::now()));
///     }
///     // Here work is done that reports 2,000 pages and stops the target for 3 ms.
///     let overhead = pace.spend(2000, Duration::from_millis(3));
///     println!("{overhead:?}");
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Pace {
    budget: Budget,
    ended: Instant,
}

impl Pace {
    /// Begins an interval of a process whose writes a technique reports. `share` is the largest
    /// share of its time that may be spent, 0.03 for 3 %, and `intervals` are the shortest and the
    /// longest interval.
    ///
    /// # Errors
    ///
    /// [`Error::WrongBudget`]: the share is not more than 0 and at most 1, or there is no such
    /// interval.
    pub fn new(
        pid: u32,
        technique: Technique,
        share: f64,
        intervals: RangeInclusive<Duration>,
    ) -> Result<Self> {
        let allowance = Allowance { share, intervals };
        Self::with(allowance, |allowance| {
            Budget::new(allowance, pid, price::at_work(technique), false)
        })
    }

    /// Begins an interval of a process that runs a guest, whose dirty pages the hypervisor logs.
    /// `write` is what the first write to a page since the last interval costs the guest: an exit,
    /// or next to nothing where the processor itself logs.
    ///
    /// # Errors
    ///
    /// As of [`Self::new`].
    pub fn of_guest(
        pid: u32,
        write: Duration,
        share: f64,
        intervals: RangeInclusive<Duration>,
    ) -> Result<Self> {
        let allowance = Allowance { share, intervals };
        Self::with(allowance, |allowance| {
            Budget::of_guest(allowance, pid, write)
        })
    }

    fn with(allowance: Allowance, budget: impl FnOnce(Allowance) -> Budget) -> Result<Self> {
        if let Some(reason) = allowance.is_wrong() {
            return Err(Error::WrongBudget { reason });
        }
        Ok(Self {
            budget: budget(allowance),
            ended: Instant::now(),
        })
    }

    /// Ends an interval, in which so many pages were reported, each once it had faulted, and the
    /// target was stopped for so long; says what that cost, and when the next ends.
    pub fn spend(&mut self, reported: u64, stopped: Duration) -> Overhead {
        let now = Instant::now();
        self.budget.settle(Spent {
            duration: now - std::mem::replace(&mut self.ended, now),
            stopped,
            reported,
            ..Spent::default()
        })
    }

    /// When the present interval is to end. Once that is over it may become later, because the
    /// target has grown or faulted, so ask again.
    pub fn next(&self) -> Instant {
        self.budget.next_collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_writes_of_a_guest_stretch_the_interval() {
        let bounds = Duration::from_millis(1)..=Duration::from_secs(5);
        let of = |write| {
            let pid = std::process::id();
            let mut pace = Pace::of_guest(pid, write, 0.01, bounds.clone()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            pace.spend(1000, Duration::ZERO)
        };
        let (exits, logged) = (of(Duration::from_millis(1)), of(Duration::ZERO));
        assert_eq!((exits.faults, exits.next), (1000, Duration::from_secs(5)));
        assert_eq!(logged.next, Duration::from_millis(1));
        assert!(Pace::of_guest(1, Duration::ZERO, 0.0, bounds.clone()).is_err());
    }

    #[test]
    fn stops_stretch_the_interval_within_its_bounds() {
        let bounds = Duration::from_millis(1)..=Duration::from_secs(5);
        // Above the highest PID: its counters cannot be read.
        let new = |share| Pace::new(1 << 23, Technique::Compare, share, bounds.clone());
        let mut pace = new(0.01).unwrap();
        assert!(pace.next() <= Instant::now() + Duration::from_millis(1));
        let overhead = pace.spend(0, Duration::from_millis(20));
        assert_eq!(overhead.stopped, Duration::from_millis(20));
        // 20 ms are a hundredth of 2 s, and what was spent too much is saved.
        let next = overhead.next.as_secs_f64();
        assert!((2.0..=5.0).contains(&next), "{overhead:?}");
        assert!(pace.next() > Instant::now() + Duration::from_secs(1));
        // It falls again. What was spent too much is saved as time goes by, of which none does.
        for _ in 0..100 {
            pace.spend(0, Duration::ZERO);
        }
        assert!(pace.next() < Instant::now() + Duration::from_secs(1));
        assert!(new(0.0).is_err() && new(1.5).is_err());
    }
}
