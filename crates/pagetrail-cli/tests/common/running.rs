//! [`Running`]: a process that ends with its test.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A child process, which is killed when this is dropped; a stopped one as well.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// A shell that writes a little memory again and again.
    pub(crate) fn busy() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while :; do i=$((i+1)); sleep 0.01; done"]);
        Self(command.stdin(Stdio::null()).spawn().expect("sh starts"))
    }

    /// Its PID, as an argument of a command.
    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
