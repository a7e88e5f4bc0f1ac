//! A program in a session of its own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a program begin a session (`setsid(2)`): it leads a process group, and has no terminal that
/// it could open as `/dev/tty`.
pub(crate) fn begin_session(command: &mut Command) {
    let begin = || match rustix::process::setsid() {
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    };
    // SAFETY: between fork and exec the closure makes one system call, and neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(begin) };
}
