//! Whether a process lives and has an address space.

use crate::proc::pidfd;
use crate::proc::status::Status;
use rustix::fd::OwnedFd;
use std::time::Duration;

/// How long an `execve` of the target, met in the middle, may take to complete.
pub(super) const EXEC_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two attempts while the target executes.
pub(super) const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// Whether the process still lives, by its pidfd, and has an address space.
pub(super) fn lives(pid: u32, pidfd: Option<&OwnedFd>) -> bool {
    pidfd.is_some_and(|pidfd| !pidfd::has_ended(pidfd)) && has_memory(pid)
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
