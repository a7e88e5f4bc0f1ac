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
    /// Fails in another thread than the first.
    pub(crate) fn start(work: impl FnOnce() -> u8) -> io::Result<Self> {
        super::check_is_first_thread()?;
        // SAFETY: this is the first thread, and tests start no other before. Were there one that
        // the command has started, the child would share two locks with it: that of the allocator,
        // which libc makes usable in the child, and that of standard error, where no test writes.
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
