//! [`Silent`]: the guests whose agents failed, and when each is asked again. Other targets wait
//! while an agent is asked, so one that fails again and again is asked more and more rarely.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An agent that failed once is asked again after so long.
const AGAIN: Duration = Duration::from_secs(60);
/// One that has failed often is asked again after so long.
const AGAIN_MAX: Duration = Duration::from_secs(3600);

/// Agents that are not asked at the moment, by the PID of the monitor.
#[derive(Debug, Default)]
pub(crate) struct Silent(BTreeMap<u32, Silence>);

#[derive(Debug)]
struct Silence {
    until: Instant,
    /// How long it lasts in all.
    wait: Duration,
}

impl Silent {
    /// Notes that an agent failed, which is then left alone for twice as long as the last time.
    pub(crate) fn note(&mut self, pid: u32, now: Instant) {
        let last = self.0.get(&pid);
        let wait = last.map_or(AGAIN, |last| (last.wait * 2).min(AGAIN_MAX));
        let until = now + wait;
        self.0.insert(pid, Silence { until, wait });
    }

    /// Whether an agent may be asked.
    pub(crate) fn may_ask(&self, pid: u32, now: Instant) -> bool {
        self.0.get(&pid).is_none_or(|silence| now >= silence.until)
    }

    /// Forgets the failures of an agent that has served for a period.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// Forgets monitors that are not among these.
    pub(crate) fn retain(&mut self, found: &[u32]) {
        self.0.retain(|pid, _| found.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_is_asked_more_and_more_rarely() {
        let start = Instant::now();
        let mut silent = Silent::default();
        let (mut now, mut asked) = (start, Vec::new());
        while now < start + 5 * AGAIN_MAX {
            if silent.may_ask(7, now) {
                asked.push((now - start).as_secs() / 60);
                silent.note(7, now);
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert!(silent.may_ask(8, start));
        silent.retain(&[7]);
        assert!(!silent.may_ask(7, now - AGAIN));
        silent.forget(7);
        silent.note(7, now);
        assert!(silent.may_ask(7, now + AGAIN), "it served meanwhile");
        silent.retain(&[8]);
        assert!(silent.may_ask(7, now));
    }
}
