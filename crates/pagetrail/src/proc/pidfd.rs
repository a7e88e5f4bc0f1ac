//! Descriptors of processes (`pidfd_open(2)`), which keep their process when its PID is reused.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::time::{Duration, Instant};

/// Opens a pidfd, which becomes readable when the process ends; `None` before Linux 5.3, or if
/// there is no such process.
pub(crate) fn open(pid: u32) -> Option<OwnedFd> {
    // The kernel has no PID above that (`PID_MAX_LIMIT`), and rustix asserts it.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// The PID of a pidfd's process (`Pid` in its `/proc/self/fdinfo`).
pub(crate) fn pid_of(pidfd: impl AsFd) -> io::Result<u32> {
    let number = pidfd.as_fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid = pid.map(|pid| pid.trim().parse::<i64>());
    let (kind, problem) = match pid {
        Some(Ok(pid @ 1..)) => return Ok(pid as u32),
        Some(Ok(0)) => (
            io::ErrorKind::NotFound,
            "its process is not in this PID namespace",
        ),
        Some(Ok(_)) => (io::ErrorKind::NotFound, "its process has ended"),
        _ => (
            io::ErrorKind::InvalidInput,
            "it is not a pidfd; open one by pidfd_open(2)",
        ),
    };
    Err(io::Error::new(kind, problem))
}

/// Whether the process of a pidfd ends within `timeout`.
pub(crate) fn ends_within(pidfd: &OwnedFd, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(count) if count > 0 => return true,
            Ok(_) | Err(Errno::INTR) if Instant::now() < deadline => {}
            _ => return false,
        }
    }
}

/// Whether the process of a pidfd has ended.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    ends_within(pidfd, Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_names_its_process_and_other_descriptors_none() {
        let own = open(std::process::id()).unwrap();
        assert_eq!(pid_of(&own).unwrap(), std::process::id());
        assert!(!has_ended(&own));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let error = pid_of(&file).unwrap_err();
        assert!(error.to_string().contains("not a pidfd"), "{error}");
    }
}
