//! [`Pace`]: how fast may be moved, shared by the threads that move.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes in a second, over all calls.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    /// When what has been allowed so far will have been moved at the given rate.
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            free_at: Mutex::new(None),
        }
    }

    /// How long to wait before so many bytes may be moved; `None` when their turn would come after
    /// the deadline.
    pub(super) fn wait_for(&self, bytes: u64, now: Instant, deadline: Instant) -> Option<Duration> {
        if now >= deadline {
            return None;
        }
        let Some(rate) = self.bytes_per_second else {
            return Some(Duration::ZERO);
        };
        let mut free_at = self
            .free_at
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        let start = free_at.map_or(now, |free_at| free_at.max(now));
        if start >= deadline {
            return None;
        }
        *free_at = Some(start + Duration::from_secs_f64(bytes as f64 / rate as f64));
        Some(start - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_them() {
        let now = Instant::now();
        let pace = Pace::new(Some(1000));
        let end = now + Duration::from_secs(2);
        let wait = |bytes| pace.wait_for(bytes, now, end);
        let waits = [500, 1000, 1000].map(wait);
        assert_eq!(
            waits,
            [0, 500, 1500].map(|ms| Some(Duration::from_millis(ms)))
        );
        assert_eq!(wait(1), None, "it would begin after the end");
        let later = now + Duration::from_secs(3);
        assert_eq!(pace.wait_for(1, later, end), None);
    }

    #[test]
    fn the_next_call_waits_for_the_bytes_of_the_last_one() {
        let now = Instant::now();
        let pace = Pace::new(Some(1000));
        let call = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(pace.wait_for(5000, now, call(1)), Some(Duration::ZERO));
        assert_eq!(pace.wait_for(1, call(3), call(4)), None);
        let waits = pace.wait_for(1, call(4), call(6));
        assert_eq!(waits, Some(Duration::from_secs(1)));
    }

    #[test]
    fn without_a_limit_nobody_waits_until_the_end() {
        let now = Instant::now();
        let (pace, end) = (Pace::new(None), now + Duration::from_secs(1));
        assert_eq!(pace.wait_for(u64::MAX, now, end), Some(Duration::ZERO));
        assert_eq!(pace.wait_for(1, now + Duration::from_secs(2), end), None);
    }
}
