//! A child by `fork(2)`, with a copy of this process's memory.

use std::io;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::process::{Signal, set_parent_process_death_signal};

/// A child that does some work and ends.
#[derive(Debug)]
pub(crate) struct Child(Pid);

impl Child {
    /// Starts one; what `work` returns is its exit code.
    ///
    /// Fails where this process has more than one thread.
    pub(crate) fn start(work: impl FnOnce() -> u8) -> io::Result<Self> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::other("a process with threads is not forked"));
        }
        // SAFETY: there is one thread, as was just seen, and it is here, so that none can hold a
        // lock in the child, and none can have started one since.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self(child)),
            ForkResult::Child => {
                // A child that waits for a parent that was killed would wait for ever. Where this
                // is not to be had, it does.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                let code = work();
                // SAFETY: `_exit` takes any code and does not return; what this process would do
                // at its end is the parent's.
                unsafe { libc::_exit(code.into()) }
            }
        }
    }

    /// Waits for its end; gives its exit code.
    pub(crate) fn wait(self) -> io::Result<u8> {
        match waitpid(self.0, None)? {
            WaitStatus::Exited(_, code) => Ok(code as u8),
            other => Err(io::Error::other(format!("the child ended so: {other:?}"))),
        }
    }
}
