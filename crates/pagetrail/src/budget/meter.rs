//! [`Meter`]: what a target did from one collect to the next, as far as its cost needs it: its
//! processor time, its page faults, by how many pages it grew, and whether processors were scarce.
//!
//! All are open to everybody who sees the process: no privilege is needed, and none of them costs
//! the target anything.

use crate::proc::{pressure, status};
use crate::sys::cpu_clock;
use std::time::Duration;

/// What a target has used since it began.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    cpu: Option<Duration>,
    minor_faults: Option<u64>,
    anonymous: Option<u64>,
    /// For how long some process of the machine waited for a processor; it may fall.
    waited_us: Option<i64>,
}

/// Reads a target's counters.
#[derive(Debug)]
pub(super) struct Meter {
    pid: u32,
    of: What,
    last: Reading,
}

/// What is metered.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Process,
    /// Some memory of a process: what it fills elsewhere says nothing.
    Ranges,
    /// A virtual machine's processor: the faults of its guest are none of the process's, and
    /// neither is memory that the guest fills.
    Guest,
}

/// What a target used since the last reading; `None` where that cannot be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) cpu: Option<Duration>,
    pub(super) minor_faults: Option<u64>,
    /// By how many pages of no file it grew.
    pub(super) grown: Option<u64>,
    /// For how long some process of the machine waited for a processor.
    pub(super) waited: Option<Duration>,
}

impl Meter {
    pub(super) fn new(pid: u32, of: What) -> Self {
        Self {
            pid,
            of,
            last: read_all(pid, of),
        }
    }

    /// Whether all of a process is metered.
    pub(super) fn is_of_process(&self) -> bool {
        matches!(self.of, What::Process)
    }

    /// What the target used since the last call.
    pub(super) fn used(&mut self) -> Used {
        let now = read_all(self.pid, self.of);
        now.since(std::mem::replace(&mut self.last, now))
    }

    /// What the target has used since then so far; not whether processors were scarce.
    pub(super) fn so_far(&self) -> Used {
        read(self.pid, self.of).since(self.last)
    }
}

impl Reading {
    fn since(self, before: Self) -> Used {
        let passed = |now: Option<Duration>, before: Option<Duration>| {
            now.zip(before)
                .map(|(now, before)| now.saturating_sub(before))
        };
        let grown = |now: Option<u64>, before: Option<u64>| {
            now.zip(before)
                .map(|(now, before)| now.saturating_sub(before))
        };
        Used {
            cpu: passed(self.cpu, before.cpu),
            minor_faults: grown(self.minor_faults, before.minor_faults),
            grown: grown(self.anonymous, before.anonymous),
            waited: self.waited_us.zip(before.waited_us).map(|(now, before)| {
                let waited = now.saturating_sub(before);
                Duration::from_micros(waited.max(0) as u64)
            }),
        }
    }
}

fn read_all(pid: u32, of: What) -> Reading {
    Reading {
        waited_us: pressure::processors_us(),
        ..read(pid, of)
    }
}

/// Reads what the target has used.
fn read(pid: u32, of: What) -> Reading {
    Reading {
        cpu: cpu_clock::cpu_time(pid),
        minor_faults: match of {
            What::Process | What::Ranges => status::minor_faults(pid),
            What::Guest => None,
        },
        anonymous: match of {
            What::Process => status::anonymous_pages(pid),
            What::Ranges | What::Guest => None,
        },
        waited_us: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_set::page_size;
    use crate::sys::scratch::Scratch;

    #[test]
    fn faults_and_time_of_this_process_are_seen() {
        let mut meter = Meter::new(std::process::id(), What::Process);
        let mut memory = Scratch::new(4096 * page_size()).unwrap();
        (0..4096).for_each(|page| memory.write(page * page_size(), 1));
        let so_far = meter.so_far();
        let used = meter.used();
        for used in [so_far, used] {
            assert!(used.cpu.unwrap() > Duration::ZERO);
            assert!(used.minor_faults.unwrap() >= 1, "{used:?}");
            // Other tests give memory back meanwhile.
            assert!(used.grown.unwrap() >= 1024, "{used:?}");
        }
    }

    #[test]
    fn faults_of_a_guest_are_no_faults_of_its_process() {
        let mut meter = Meter::new(std::process::id(), What::Guest);
        let mut memory = Scratch::new(64 * page_size()).unwrap();
        (0..64).for_each(|page| memory.write(page * page_size(), 1));
        let used = meter.used();
        assert!(used.cpu.unwrap() > Duration::ZERO);
        assert!(
            used.minor_faults.is_none() && used.grown.is_none(),
            "{used:?}"
        );
    }

    #[test]
    fn a_process_that_is_not_there_has_used_nothing_that_is_known() {
        // Above the highest PID that Linux gives (PID_MAX_LIMIT).
        let used = Meter::new(1 << 23, What::Process).used();
        assert!(used.cpu.is_none() && used.minor_faults.is_none());
    }
}
