//! [`ProcessCopy`]: a process restored in a PID namespace and a mount namespace of its own, beside
//! the original, if that still runs. [`FirstProcess`] is the other side: the process with which
//! the namespaces, and so the copy, end.
//!
//! The namespaces are made by unshare(1). Files and the network are those of this process. The two
//! sides speak by standard input and output: the first process writes a line when the program runs,
//! and gets a line when the copy is to live longer than the process that wanted it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use pagetrail_checkpoint::Image;
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

use crate::error::{Error, Result};
use crate::restore::Restored;

/// Makes the namespaces, and ends what is in them when it is ended itself.
const NAMESPACES: [&str; 6] = [
    "unshare",
    "--pid",
    "--mount",
    "--fork",
    "--mount-proc",
    "--kill-child",
];
/// What a copy reads that is to live longer than this process.
const LEFT_ALONE: &[u8] = b"\n";
/// Where the kernel has the last PID of a namespace: the next is the one after it.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// How far from the PIDs of the program those are with which CRIU works.
const PIDS_APART: u32 = 1000;
/// How often is looked for processes that have ended.
const POLL: Duration = Duration::from_millis(50);

/// A copy, which ends when this is dropped.
#[derive(Debug)]
pub struct ProcessCopy {
    child: Child,
    tell: Option<ChildStdin>,
    said: Option<BufReader<ChildStdout>>,
    complaints: Option<ChildStderr>,
    first_pid: u32,
    pid: u32,
    running: Duration,
}

impl ProcessCopy {
    /// Makes the namespaces of a copy. `command` becomes their first process: it is a program and
    /// its arguments, and does what [`FirstProcess`] is for.
    pub fn start(command: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        let [unshare, options @ ..] = NAMESPACES;
        let mut unshare = Command::new(unshare);
        unshare.args(options).arg("--").args(command);
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A signal from the keyboard is for this process, which ends the others.
        unshare.stderr(Stdio::piped()).process_group(0);
        let mut child = unshare
            .spawn()
            .map_err(Error::io("cannot run unshare(1)"))?;
        Ok(Self {
            tell: child.stdin.take(),
            said: child.stdout.take().map(BufReader::new),
            complaints: child.stderr.take(),
            child,
            first_pid: 0,
            pid: 0,
            running: Duration::ZERO,
        })
    }

    /// Waits until the program runs.
    pub fn wait_until_it_runs(&mut self) -> Result<()> {
        let mut line = String::new();
        if let Some(said) = &mut self.said {
            said.read_line(&mut line)
                .map_err(Error::io("cannot read what a copy says"))?;
        }
        let Some((inner, running)) = parse(&line) else {
            return Err(Error::CopyEnded(self.complaint()));
        };
        self.running = running;
        self.first_pid = children(self.child.id()).into_iter().next().unwrap_or(0);
        let program = children(self.first_pid)
            .into_iter()
            .find(|pid| inner_pid(*pid) == inner);
        self.pid = program.unwrap_or(0);
        Ok(())
    }

    /// Its program, by its PID here.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process with which it ends, by its PID here.
    pub fn first_pid(&self) -> u32 {
        self.first_pid
    }

    /// The time from the beginning of its restore until the program ran.
    pub fn running(&self) -> Duration {
        self.running
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The first line that its first process has written to standard error.
    pub fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(complaints) = &mut self.complaints {
            // What can be read is said.
            let _ = complaints.read_to_string(&mut text);
        }
        let line = text.lines().next().unwrap_or("it does not say why");
        line.to_owned()
    }

    /// Lets it live longer than this process.
    pub fn leave(mut self) -> Result<()> {
        if let Some(tell) = &mut self.tell {
            let written = tell.write_all(LEFT_ALONE);
            written.map_err(Error::io("a copy has ended"))?;
        }
        self.tell = None;
        Ok(())
    }
}

impl Drop for ProcessCopy {
    fn drop(&mut self) {
        if self.tell.is_some() {
            // The kernel ends what is in its namespaces.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The first process of a copy's namespaces: it starts the program there, and waits for what ends
/// there. When it ends, so does the copy.
#[derive(Debug)]
pub struct FirstProcess {
    /// Says once that the copy is left alone; is disconnected when its owner has gone.
    owner: Receiver<()>,
}

impl FirstProcess {
    /// Listens to standard input, and keeps the processes that work here from taking the PIDs that
    /// the program needs.
    pub fn begin(image: &Image) -> Result<Self> {
        let owner = listen()?;
        if let Some(last) = image.criu_processes().iter().max() {
            // Where it cannot be written, the PIDs are most likely free all the same.
            let _ = fs::write(LAST_PID, (last + PIDS_APART).to_string());
        }
        Ok(Self { owner })
    }

    /// Tells the owner that the program runs.
    pub fn announce(&self, restored: &Restored) -> Result<()> {
        let line = line(restored.pid(), restored.running());
        let mut out = io::stdout();
        let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        written.map_err(Error::io("cannot write to standard output"))
    }

    /// Waits until all has ended here, until the owner has gone without leaving the copy alone, or
    /// until `is_over` says so.
    pub fn wait(self, mut is_over: impl FnMut() -> bool) {
        let mut is_left_alone = false;
        while !is_over() && wait_for_ended() {
            match self.owner.try_recv() {
                _ if is_left_alone => {}
                Ok(()) => is_left_alone = true,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
            thread::sleep(POLL);
        }
    }
}

/// Waits for a byte at standard input, or its end.
fn listen() -> Result<Receiver<()>> {
    let (said, owner) = mpsc::channel();
    let listening = move || {
        let mut byte = [0];
        if io::stdin().read_exact(&mut byte).is_ok() {
            // Nobody waits for it any more when this process ends.
            let _ = said.send(());
        }
    };
    let thread = thread::Builder::new().spawn(listening);
    thread.map_err(Error::io("cannot start a thread"))?;
    Ok(owner)
}

/// Waits for all processes that have ended; tells whether there are others.
fn wait_for_ended() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// What the first process says when the program runs: its PID there, and how long it took.
fn line(pid: u32, running: Duration) -> String {
    format!("{pid} {}\n", running.as_nanos())
}

/// The other way; `None` for anything else.
fn parse(line: &str) -> Option<(u32, Duration)> {
    let (pid, running) = line.strip_suffix('\n')?.split_once(' ')?;
    let running = Duration::from_nanos(running.parse().ok()?);
    Some((pid.parse().ok()?, running))
}

/// The children of a process whose first thread has started them.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().flat_map(str::parse).collect()
}

/// The PID that a process has in the namespace below this one (`NSpid`, `proc_pid_status(5)`).
fn inner_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = pids.and_then(|pids| pids.split_whitespace().nth(1));
    inner.and_then(|pid| pid.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_process_says_is_understood() {
        let running = Duration::new(3, 141_592_653);
        assert_eq!(parse(&line(77, running)), Some((77, running)));
        // Cut short, when it was killed.
        for other in ["", "77 12", "77\n", "x 1\n", "77 x\n"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
