//! [`Progress`]: how far long work on a store is, for who shows it meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How far the work on a [`Store`](crate::Store) is. Another thread may look at it at any time.
///
/// All that comes of one opened store has the same: its images, and its writer.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
    step: Mutex<Option<Step>>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    /// 0 where nobody knows.
    total_bytes: u64,
    began: Instant,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advance {
    /// What is being done, as "checking pages".
    pub step: &'static str,
    /// So much of it is done, in bytes of memory.
    pub done_bytes: u64,
    /// What there is to do, as far as it is known; more may come.
    pub total_bytes: Option<u64>,
    /// The time since the step began.
    pub elapsed: Duration,
}

impl Advance {
    /// How fast it has been since the step began; `None` before anything is done.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        (self.done_bytes > 0 && seconds > 0.0).then(|| self.done_bytes as f64 / seconds)
    }

    /// How long the rest takes if it goes on like this.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.total_bytes?.saturating_sub(self.done_bytes);
        // A rate of next to nothing makes more than a Duration can have.
        Duration::try_from_secs_f64(left as f64 / self.bytes_per_second()?).ok()
    }
}

impl Progress {
    /// Begins a step, of which so much is known; that before has ended.
    pub fn begin(&self, name: &'static str, total_bytes: u64) {
        let mut step = self.step();
        self.done_bytes.store(0, Ordering::Relaxed);
        *step = Some(Step {
            name,
            total_bytes,
            began: Instant::now(),
        });
    }

    /// All of the step is done, also what needed no work.
    pub fn end(&self) {
        if let Some(step) = *self.step() {
            let total = step.total_bytes;
            self.done_bytes.fetch_max(total, Ordering::Relaxed);
        }
    }

    /// There is so much more to do in this step.
    pub(crate) fn expect(&self, bytes: u64) {
        if let Some(step) = &mut *self.step() {
            step.total_bytes += bytes;
        }
    }

    /// So much more is done.
    pub(crate) fn add(&self, bytes: usize) {
        self.done_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How far the step is; `None` before the first.
    pub fn look(&self) -> Option<Advance> {
        let step = (*self.step())?;
        let done_bytes = self.done_bytes.load(Ordering::Relaxed);
        Some(Advance {
            step: step.name,
            done_bytes,
            // What was not foreseen is done as well.
            total_bytes: (step.total_bytes > 0).then(|| step.total_bytes.max(done_bytes)),
            elapsed: step.began.elapsed(),
        })
    }

    fn step(&self) -> MutexGuard<'_, Option<Step>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_done_says() {
        let advance = Advance {
            step: "checking pages",
            done_bytes: 300,
            total_bytes: Some(900),
            elapsed: Duration::from_secs(3),
        };
        assert_eq!(advance.bytes_per_second(), Some(100.0));
        assert_eq!(advance.time_left(), Some(Duration::from_secs(6)));
        let unknown = Advance {
            total_bytes: None,
            ..advance
        };
        assert_eq!(unknown.time_left(), None);
        let nothing = Advance {
            done_bytes: 0,
            ..advance
        };
        assert_eq!(nothing.time_left(), None);
    }

    #[test]
    fn a_step_begins_anew_and_grows() {
        let progress = Progress::default();
        assert_eq!(progress.look(), None);
        progress.begin("one", 0);
        progress.add(5);
        let seen = progress.look().unwrap();
        assert_eq!((seen.done_bytes, seen.total_bytes), (5, None));
        progress.begin("two", 10);
        progress.expect(5);
        progress.add(7);
        let seen = progress.look().unwrap();
        assert_eq!(
            (seen.step, seen.done_bytes, seen.total_bytes),
            ("two", 7, Some(15))
        );
        progress.add(20);
        assert_eq!(progress.look().unwrap().total_bytes, Some(27));
    }
}
