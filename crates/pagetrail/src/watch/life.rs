//! Whether a process lives and has an address space.

use crate::proc::pidfd;
use crate::proc::status::Status;
use rustix::fd::OwnedFd;
use std::time::Duration;

/// How long an `execve` of the target, met in the middle, may take to complete.
pub(crate) const EXEC_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two attempts while the target executes.
pub(crate) const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// Whether the process is known to live, by its pidfd. While a thread other than the leader
/// executes, `/proc` says for a moment that it does not (`de_thread` in `fs/exec.c`).
pub(crate) fn lives(pidfd: Option<&OwnedFd>) -> bool {
    pidfd.is_some_and(|pidfd| !pidfd::has_ended(pidfd))
}

/// Whether the process has an address space, which zombies do not. One whose state cannot be read,
/// because this process has no descriptor left, is not taken for one that has ended.
pub(crate) fn has_memory(pid: u32) -> bool {
    match Status::of(pid) {
        Ok(status) => status.has_memory && !matches!(status.state, 'Z' | 'X'),
        Err(error) => !matches!(
            error.raw_os_error(),
            None | Some(libc::ENOENT | libc::ESRCH)
        ),
    }
}
