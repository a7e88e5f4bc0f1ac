//! [`Pace`]: how fast may be moved, shared by the threads that move.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes in a second, and an end.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    deadline: Instant,
    /// When what has been allowed so far will have been moved at the given rate.
    free_at: Mutex<Instant>,
}

impl Pace {
    /// Begins now, and ends when timeout does.
    pub(super) fn new(bytes_per_second: Option<u64>, timeout: Duration, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            deadline: now + timeout,
            free_at: Mutex::new(now),
        }
    }

    /// How long to wait before so many bytes may be moved; `None` when their turn would come after
    /// the end.
    pub(super) fn wait_for(&self, bytes: u64, now: Instant) -> Option<Duration> {
        if now >= self.deadline {
            return None;
        }
        let Some(rate) = self.bytes_per_second else {
            return Some(Duration::ZERO);
        };
        let mut free_at = self
            .free_at
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        let start = (*free_at).max(now);
        if start >= self.deadline {
            return None;
        }
        *free_at = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
        Some(start - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_them() {
        let now = Instant::now();
        let pace = Pace::new(Some(1000), Duration::from_secs(2), now);
        let wait = |bytes| pace.wait_for(bytes, now);
        let waits = [500, 1000, 1000].map(wait);
        assert_eq!(
            waits,
            [0, 500, 1500].map(|ms| Some(Duration::from_millis(ms)))
        );
        assert_eq!(wait(1), None, "it would begin after the end");
        assert_eq!(pace.wait_for(1, now + Duration::from_secs(3)), None);
    }

    #[test]
    fn without_a_limit_nobody_waits_until_the_end() {
        let now = Instant::now();
        let pace = Pace::new(None, Duration::from_secs(1), now);
        assert_eq!(pace.wait_for(u64::MAX, now), Some(Duration::ZERO));
        assert_eq!(pace.wait_for(1, now + Duration::from_secs(2)), None);
    }
}
