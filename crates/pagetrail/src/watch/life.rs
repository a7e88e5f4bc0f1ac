//! Whether a process lives, checked by a pidfd where its PID may have been reused.

use crate::proc::status::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::{Duration, Instant};

/// How long an `execve` of the target, met in the middle, may take to complete.
pub(super) const EXEC_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two attempts while the target executes.
pub(super) const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// A pidfd, which becomes readable when the process ends.
pub(super) fn end_of(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
}

/// Whether the process still lives (by its pidfd `end`) and has an address space.
pub(super) fn lives(pid: u32, end: Option<&OwnedFd>) -> bool {
    end.is_some_and(|end| !ended_within(end, Duration::ZERO)) && has_memory(pid)
}

/// Whether the process ends within `timeout`.
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

/// Whether the process has an address space, which zombies do not.
pub(super) fn has_memory(pid: u32) -> bool {
    Status::of(pid).is_ok_and(|status| status.has_memory && !matches!(status.state, 'Z' | 'X'))
}
