//! `clock_getcpuclockid(3)`: the processor time of a process, and of this thread.
//!
//! The calls only write to the variable that they are given.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time that all threads of a process have used; `None` if it has ended.
///
/// No privilege is needed: every process that sees it in `/proc` may read its clock.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is a valid place for a clock's ID.
    if unsafe { libc::clock_getcpuclockid(i32::try_from(pid).ok()?, &mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for a time; the kernel checks the clock's ID.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return None;
    }
    Some(Duration::new(
        u64::try_from(time.tv_sec).ok()?,
        u32::try_from(time.tv_nsec).ok()?,
    ))
}

/// Processor time that this thread has used. Waiting for a processor is no work of the tracker.
pub(crate) fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
