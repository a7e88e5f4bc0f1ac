//! [`Meter`]: what a target did from one collect to the next, as far as its cost needs it: its
//! processor time, its page faults, by how many pages it grew, and whether processors were scarce.
//!
//! All are open to everybody who sees the process: no privilege is needed, and none of them costs
//! the target anything.

use crate::proc::{pressure, status};
use crate::sys::cpu_clock;
use std::time::Duration;

/// Field 10 of `proc_pid_stat(5)`, `minflt`, counted from the state, which is field 3.
const MINOR_FAULTS: usize = 10 - 3;

/// What a target has used since it began.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    cpu: Option<Duration>,
    minor_faults: Option<u64>,
    anonymous: Option<u64>,
    /// For how long some process of the machine waited for a processor.
    waited: Option<Duration>,
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
            last: read(pid, of),
        }
    }

    /// Whether all of a process is metered.
    pub(super) fn is_of_process(&self) -> bool {
        matches!(self.of, What::Process)
    }

    /// What the target used since the last call.
    pub(super) fn used(&mut self) -> Used {
        let now = read(self.pid, self.of);
        now.since(std::mem::replace(&mut self.last, now))
    }

    /// What the target has used since then so far.
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
            waited: passed(self.waited, before.waited),
        }
    }
}

fn read(pid: u32, of: What) -> Reading {
    let fields = match of {
        What::Process | What::Ranges => status::stat_fields(pid),
        What::Guest => Vec::new(),
    };
    let number = |field: usize| fields.get(field).and_then(|field| field.parse().ok());
    Reading {
        cpu: cpu_clock::cpu_time(pid),
        minor_faults: number(MINOR_FAULTS),
        anonymous: match of {
            What::Process => status::anonymous_pages(pid),
            What::Ranges | What::Guest => None,
        },
        waited: pressure::processors(),
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
