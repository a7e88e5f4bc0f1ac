//! Processes that do not outlive us.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A command that dies when we die, even by `kill -9`, and leaves the processor to others.
pub(super) fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(BOUND).arg(program);
    command
}

const BOUND: [&str; 5] = ["-n", "5", "setpriv", "--pdeathsig", "KILL"];

/// A bound command without a network, where we may take it away; else with it.
pub(super) fn bound_offline(program: impl AsRef<OsStr>) -> Command {
    for options in [&["--net"][..], &["--map-current-user", "--net"]] {
        let mut attempt = Command::new("unshare");
        attempt.args(options).arg("true").stderr(Stdio::null());
        if attempt.status().is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            // In this order: entering a user namespace would undo --pdeathsig.
            command.args(options).arg("nice").args(BOUND).arg(program);
            return command;
        }
    }
    bound(program)
}

/// A running process; dropped, it is gone.
#[derive(Debug)]
pub(super) struct Running(pub(super) Child);

impl Running {
    /// Starts it, without standard input.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        let program = || format!("cannot run {}", command.get_program().display());
        Ok(Self(child.with_context(program)?))
    }

    /// True if it has ended by itself before the deadline.
    pub(super) fn ends_by(&mut self, deadline: Instant) -> Result<bool> {
        loop {
            if self.0.try_wait()?.is_some() {
                return Ok(true);
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only where there is nothing left to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_dropped_is_gone() {
        let mut sleep = Running::start(bound("sleep").arg("1000")).unwrap();
        let proc = format!("/proc/{}", sleep.0.id());
        assert!(!sleep.ends_by(Instant::now()).unwrap());
        drop(sleep);
        assert!(!std::path::Path::new(&proc).exists());
    }

    #[test]
    fn a_process_that_ends_is_seen_to_end() {
        let mut quick = Running::start(&mut bound("true")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(quick.ends_by(deadline).unwrap());
    }
}
