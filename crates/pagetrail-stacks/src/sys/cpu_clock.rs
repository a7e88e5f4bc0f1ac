//! `clock_getcpuclockid(3)`: the processor time of a process.
//!
//! # Safety
//!
//! Both calls only write to the variable that they are given.
#![allow(unsafe_code, reason = "rustix has no clocks of other processes")]

/// Processor time that all threads of a process have used, in nanoseconds; `None` if it has ended.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
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
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
