//! [`Process`]: the process that is a guest, as its recorder knows it: how it ends.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use pagetrail::Ended;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A process that is a guest.
#[derive(Debug)]
pub(crate) enum Process {
    /// It was started by the recorder.
    Child(Child),
    /// It came of another one.
    Other { pid: u32, descriptor: OwnedFd },
}

impl Process {
    /// A process by a descriptor of it. `None` if it has ended and was waited for.
    pub(crate) fn other(descriptor: OwnedFd) -> Option<Self> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        let mut lines = text.lines();
        let pid = lines.find_map(|line| line.strip_prefix("Pid:"))?;
        // It is -1 when the process is gone, and 0 in another PID namespace.
        let pid = pid.trim().parse().ok().filter(|pid| *pid > 0)?;
        Some(Self::Other { pid, descriptor })
    }

    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Other { pid, .. } => *pid,
        }
    }

    /// How the process has ended, once it has; the inner value is known of a child only.
    pub(crate) fn ended(&mut self) -> Option<Option<Ended>> {
        match self {
            Self::Child(child) => match child.try_wait() {
                Ok(status) => status.map(ended),
                Err(_) => Some(None),
            },
            Self::Other { descriptor, .. } => {
                let mut fds = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
                let ready = poll(&mut fds, Some(&Timespec::default()));
                (ready == Ok(1)).then_some(None)
            }
        }
    }
}

pub(crate) fn ended(status: ExitStatus) -> Option<Ended> {
    match (status.code(), status.signal()) {
        (Some(code), _) => Some(Ended::Exited(code)),
        (None, Some(signal)) => Some(Ended::Killed(signal)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_known_by_its_descriptor() {
        let mut cat = Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&cat);
        let open = || rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let (descriptor, later) = (open().unwrap(), open().unwrap());
        let mut process = Process::other(descriptor).unwrap();
        assert_eq!(process.pid(), cat.id());
        assert_eq!(process.ended(), None);
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert_eq!(process.ended(), Some(None));
        assert!(Process::other(later).is_none());
    }
}
