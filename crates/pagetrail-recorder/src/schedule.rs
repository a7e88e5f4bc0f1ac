//! [`Schedule`]: when the next round is due: multiples of the interval since the start, without
//! drift, or what a budget allows.

use std::time::{Duration, Instant};

/// The shortest time from round to round where a budget says when the next is due.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// The deadlines of rounds.
#[derive(Debug)]
pub struct Schedule {
    start: Instant,
    interval: Duration,
    next: Instant,
    end: Option<Instant>,
}

impl Schedule {
    /// Begins at `start`; there is no deadline after `duration`.
    pub fn new(start: Instant, interval: Duration, duration: Option<Duration>) -> Self {
        Self {
            start,
            interval,
            next: start + interval,
            end: duration.map(|duration| start + duration),
        }
    }

    /// When the next round is due.
    pub fn deadline(&self) -> Instant {
        self.end.map_or(self.next, |end| end.min(self.next))
    }

    /// Computes the next deadline after `now`. Missed deadlines are skipped.
    pub fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.start).as_nanos();
        let rounds = passed / self.interval.as_nanos() + 1;
        // The product exceeds `passed` by at most one interval.
        let nanos = self.interval.as_nanos() * rounds;
        self.next = self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    }

    /// Makes the next round due at `next`, but at most `interval` after `now`: processes that came
    /// meanwhile are looked for then. A time that is over is no reason not to rest at all: it may
    /// be of a process that is just ending.
    pub fn set_next_within(&mut self, next: Instant, now: Instant, interval: Duration) {
        let soonest = now + SHORTEST_REST.min(interval);
        self.next = next.max(soonest).min(now + interval);
    }

    /// Whether no round is due after `now`.
    pub fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| end <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_stay_on_the_grid_and_skip_missed_ones() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let interval = Duration::from_millis(100);
        let mut schedule = Schedule::new(start, interval, Some(Duration::from_millis(750)));
        assert_eq!(schedule.deadline(), at(100));
        for (now, next) in [(103, 200), (200, 300), (299, 300), (520, 600), (601, 700)] {
            schedule.advance(at(now));
            assert_eq!(schedule.deadline(), at(next), "after {now} ms");
        }
        assert!(!schedule.is_over(at(701)));
        schedule.advance(at(701));
        assert_eq!(schedule.deadline(), at(750), "not after the end");
        assert!(schedule.is_over(at(750)));
    }

    #[test]
    fn a_budget_chooses_the_next_round_within_an_interval() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let interval = Duration::from_millis(100);
        let mut schedule = Schedule::new(start, interval, Some(Duration::from_millis(750)));
        for (next, due) in [(50, 50), (100, 100), (900, 100), (0, 1)] {
            schedule.set_next_within(at(next), start, interval);
            assert_eq!(schedule.deadline(), at(due), "{next} ms");
        }
        schedule.set_next_within(at(900), at(700), interval);
        assert_eq!(schedule.deadline(), at(750), "not after the end");
        schedule.set_next_within(start, at(10), Duration::from_micros(10));
        assert_eq!(schedule.deadline(), at(10) + Duration::from_micros(10));
    }
}
