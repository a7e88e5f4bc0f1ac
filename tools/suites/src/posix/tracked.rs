//! One program of the suite, natively or while it is tracked, and what comes of it.

use std::fmt;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::programs::Program;
use pagetrail::{Ended, State, Target, Watch};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{ProcessCheckpointer, ProcessOptions, Store, Writer, WriterOptions};

/// The pause between one attachment and the next.
const DETACHED: Duration = Duration::from_millis(8);
/// How long an attachment lasts, with a round at its end.
const ATTACHED: Duration = Duration::from_millis(2);
/// The time between two checkpoints.
const EVERY: Duration = Duration::from_millis(50);

/// What is done to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Natively,
    /// Attached to and detached from, over and over.
    Attached,
    /// Checkpoints are made of it, over and over.
    Checkpointed,
    /// Started by a tracker that collects rounds.
    Started,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Natively => "natively",
            Self::Attached => "attached to",
            Self::Checkpointed => "checkpointed",
            Self::Started => "started",
        })
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    /// With the code of a test that failed, or that cannot tell.
    Code(i32),
    Signal(i32),
    TimedOut,
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::Passed,
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            // include/posixtest.h of the suite.
            Self::Code(1) => f.write_str("failed"),
            Self::Code(2) => f.write_str("unresolved"),
            Self::Code(4) => f.write_str("unsupported"),
            Self::Code(5) => f.write_str("untested"),
            Self::Code(code) => write!(f, "code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::TimedOut => f.write_str("no end"),
        }
    }
}

/// What was done to programs.
#[derive(Clone, Debug, Default)]
pub(super) struct Disturbed {
    /// Attachments, checkpoints or rounds.
    pub(super) done: u64,
    /// The number that was refused, and one of the reasons.
    refused: u64,
    reason: Option<String>,
}

impl Disturbed {
    pub(super) fn add(&mut self, other: Self) {
        self.done += other.done;
        self.refused += other.refused;
        self.reason = self.reason.take().or(other.reason);
    }

    fn count(&mut self, result: Result<(), impl fmt::Display>) {
        match result {
            Ok(()) => self.done += 1,
            Err(error) => {
                self.refused += 1;
                self.reason = Some(error.to_string());
            }
        }
    }
}

impl fmt::Display for Disturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times", self.done)?;
        match &self.reason {
            // The last look of most comes too late.
            Some(reason) => write!(f, ", {} not, as in \"{reason}\"", self.refused),
            None => Ok(()),
        }
    }
}

/// What became of a program.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) end: End,
    pub(super) disturbed: Disturbed,
}

/// Runs a program in a directory of its own, in a group of its own that is killed when `limit` is
/// over.
pub(super) fn run(program: &Program, scratch: &Path, way: Way, limit: Duration) -> Result<Ran> {
    let directory = scratch.join(program.name.replace('/', "_"));
    fs::create_dir_all(&directory)?;
    let mut command = Command::new(&program.path);
    command.current_dir(&directory).process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let deadline = Instant::now() + limit;
    let ran = match way {
        Way::Started => started(command, deadline),
        _ => beside(command, way, deadline),
    };
    let ran = ran.with_context(|| format!("cannot run {}", program.name));
    fs::remove_dir_all(&directory)?;
    ran
}

/// A process group; what is left of it is killed when this is dropped.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0 as i32) {
            // Fails where all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// A child process, which is waited for in any case.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program, and does to it what the way says until it has ended.
fn beside(mut command: Command, way: Way, deadline: Instant) -> Result<Ran> {
    let mut child = Reaped(command.spawn()?);
    let pid = child.0.id();
    let _group = Group(pid);
    let mut disturbed = Disturbed::default();
    let mut checkpoints = None;
    let end = loop {
        if let Some(status) = child.0.try_wait()? {
            break End::of(status);
        }
        if Instant::now() > deadline {
            break End::TimedOut;
        }
        match way {
            Way::Natively | Way::Started => sleep(Duration::from_millis(2)),
            Way::Attached => {
                disturbed.count(attach_once(pid));
                sleep(DETACHED);
            }
            Way::Checkpointed => {
                disturbed.count(checkpoint(pid, &mut checkpoints));
                sleep_until_end(&mut child.0, EVERY)?;
            }
        }
    };
    Ok(Ran { end, disturbed })
}

/// Sleeps in pieces, so that short programs follow each other.
fn sleep_until_end(child: &mut Child, time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end && child.try_wait()?.is_none() {
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn attach_once(pid: u32) -> pagetrail::Result<()> {
    let mut watch = Watch::builder().target(Target::process(pid)?).start()?;
    sleep(ATTACHED);
    watch.collect()?.commit();
    Ok(())
}

/// A chain of checkpoints in memory.
struct Checkpoints {
    process: ProcessCheckpointer,
    writer: Writer,
}

fn checkpoint(pid: u32, checkpoints: &mut Option<Checkpoints>) -> pagetrail_checkpoint::Result<()> {
    let checkpoints = match checkpoints {
        Some(checkpoints) => checkpoints,
        None => {
            let process = ProcessCheckpointer::attach(pid, ProcessOptions::default())?;
            let store = Store::create_on(Arc::new(InMemory::new()))?;
            let writer = store.writer(WriterOptions::default())?;
            checkpoints.insert(Checkpoints { process, writer })
        }
    };
    checkpoints.process.checkpoint(&mut checkpoints.writer)?;
    Ok(())
}

/// Has the library start the program, and collects rounds until it has ended.
fn started(command: Command, deadline: Instant) -> Result<Ran> {
    let mut disturbed = Disturbed::default();
    let mut watch = Watch::builder().target(Target::command(command)).start()?;
    // The library waits for the program; what it has started is killed at the end.
    let _group = Group(watch.pid());
    let end = loop {
        match watch.wait(Duration::from_millis(3)) {
            State::Ended(Some(Ended::Exited(0))) => break End::Passed,
            State::Ended(Some(Ended::Exited(code))) => break End::Code(code),
            State::Ended(Some(Ended::Killed(signal))) => break End::Signal(signal),
            State::Ended(_) => break End::Code(-1),
            _ if Instant::now() > deadline => break End::TimedOut,
            _ => disturbed.count(watch.collect().map(pagetrail::Round::commit)),
        }
    };
    Ok(Ran { end, disturbed })
}

/// A directory for what the programs write; it is removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self(path.to_owned()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
