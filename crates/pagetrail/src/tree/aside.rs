//! [`Aside`]: a process of a tree that could not be attached to, and when to try again.

use crate::proc::pidfd;
use crate::watch::has_memory;
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The pause until a process is tried again, doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A process that could not be attached to.
#[derive(Debug)]
pub(super) struct Aside {
    pid: u32,
    pidfd: Option<OwnedFd>,
    due: Instant,
    pause: Duration,
}

impl Aside {
    /// Puts a process aside for a while.
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            pidfd: pidfd::open(pid),
            due: Instant::now() + PAUSE_MIN,
            pause: PAUSE_MIN,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it does not keep the process with this PID from being attached to now.
    pub(super) fn may_join(&self, pid: u32) -> bool {
        self.pid != pid || Instant::now() >= self.due
    }

    /// Notes that it could not be attached to again.
    pub(super) fn wait_longer(&mut self) {
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        self.due = Instant::now() + self.pause;
    }

    /// Whether it has ended, so that its PID may come to mean another process.
    pub(super) fn has_ended(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => pidfd::has_ended(pidfd),
            None => !has_memory(self.pid),
        }
    }
}
