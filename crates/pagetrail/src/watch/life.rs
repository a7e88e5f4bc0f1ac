//! Whether a process lives, by a descriptor of it where its number may be another's by now.

use crate::proc::status::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::{Duration, Instant};

/// How long a program may take to get over an `execve` that we have run into.
pub(super) const EXEC_PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at it.
pub(super) const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// What becomes readable when a process ends.
pub(super) fn end_of(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
}

/// Whether a process has a program, still the one whose end that is.
pub(super) fn lives(pid: u32, end: Option<&OwnedFd>) -> bool {
    end.is_some_and(|end| !ended_within(end, Duration::ZERO)) && has_memory(pid)
}

/// Whether a process ends before the time is over.
pub(super) fn ended_within(end: &OwnedFd, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(end, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(count) if count > 0 => return true,
            Ok(_) | Err(Errno::INTR) if Instant::now() < deadline => {}
            _ => return false,
        }
    }
}

/// Whether a process has a program, which can be watched.
pub(super) fn has_memory(pid: u32) -> bool {
    Status::of(pid).is_ok_and(|status| status.has_memory && !matches!(status.state, 'Z' | 'X'))
}
