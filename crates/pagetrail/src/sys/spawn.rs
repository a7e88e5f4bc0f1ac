//! Starts a program that waits, just before `execve(2)`, until a tracer has attached.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The tracer's ends of the two pipes to the future program.
pub(crate) struct Gate {
    pid_from: OwnedFd,
    go_to: OwnedFd,
}

impl Gate {
    /// Makes `command` announce its PID and wait before `execve`.
    pub(crate) fn hold(command: &mut Command) -> io::Result<Self> {
        let (pid_from, pid_to) = pipe_with(PipeFlags::CLOEXEC)?;
        let (go_from, go_to) = pipe_with(PipeFlags::CLOEXEC)?;
        let (tracer_pid_end, tracer_go_end) = (pid_from.as_raw_fd(), go_to.as_raw_fd());
        let announce = move || {
            // SAFETY: both are the child's copies of the tracer's ends, which no object in the
            // child owns. The child must not keep them open, or it would wait for itself for ever
            // if the tracer died.
            unsafe {
                libc::close(tracer_pid_end);
                libc::close(tracer_go_end);
            }
            let pid = std::process::id().to_ne_bytes();
            rustix::io::write(&pid_to, &pid)?;
            let mut go = [0];
            while rustix::io::read(&go_from, &mut go) == Err(rustix::io::Errno::INTR) {}
            Ok(())
        };
        // SAFETY: after fork(2), `pre_exec` allows only async-signal-safe calls: the closure makes
        // system calls on existing descriptors and memory.
        unsafe { command.pre_exec(announce) };
        Ok(Self { pid_from, go_to })
    }

    /// The PID of the waiting child; fails if the child could not be created.
    pub(crate) fn pid(&self) -> io::Result<u32> {
        let mut pid = [0; 4];
        let read = rustix::io::read(self.pid_from.as_fd(), &mut pid)?;
        if read == pid.len() {
            Ok(u32::from_ne_bytes(pid))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Lets the child execute the program.
    pub(crate) fn open(self) -> io::Result<()> {
        rustix::io::write(&self.go_to, &[1])?;
        Ok(())
    }
}
