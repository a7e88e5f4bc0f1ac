//! [`Life`]: whether a process has ended, also where another has its number by then.

use std::time::Duration;

use pagetrail_tier::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, by a descriptor that stays its own.
pub(crate) struct Life {
    pid: u32,
    /// `None` where there can be none: of a thread that is no leader, or in a sandbox. Its source
    /// alone says then that it has ended.
    pidfd: Option<OwnedFd>,
}

impl Life {
    /// Refers to the process that has a number now.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(pagetrail::Error::NoSuchProcess { pid })?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Err(Errno::SRCH) => Err(pagetrail::Error::NoSuchProcess { pid }.into()),
            pidfd => Ok(Self {
                pid,
                pidfd: pidfd.ok(),
            }),
        }
    }

    /// Whether it has ended, or does within a time: a pidfd is readable from then on
    /// (`pidfd_open(2)`).
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let Some(pidfd) = &self.pidfd else {
            return false;
        };
        let mut asked = [PollFd::new(pidfd, PollFlags::IN)];
        matches!(poll(&mut asked, timeout.as_ref()), Ok(ready) if ready > 0)
    }

    /// An error that means its end, where it has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.ends_within(Duration::ZERO) {
            true => Err(pagetrail::Error::Gone { pid: self.pid }.into()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_ends_once() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = Life::of(child.id()).unwrap();
        assert!(life.check().is_ok());
        child.kill().unwrap();
        assert!(life.ends_within(Duration::from_secs(60)));
        assert!(life.check().unwrap_err().means_end());
        child.wait().unwrap();
        assert!(life.check().unwrap_err().means_end());
        for nobody in [0, 4_194_305, u32::MAX] {
            let error = Life::of(nobody).err().unwrap();
            assert!(error.means_end(), "{nobody}: {error}");
        }
    }
}
