//! [`Limits`]: how long a run may take and how much it may write, and what ends it then.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail_report::size::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::memory::available_bytes;
use crate::capture::{Capture, Written};
use crate::sys::session::begin_session;

/// Between two looks for signals.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// The most that a program may write, or half of the available memory, where that is less: it is
/// kept in memory.
const OUTPUT_MAX: u64 = 1 << 30;

/// What ends a run before its program does.
pub struct Limits {
    /// Whether the run is to be ended, and all that would follow.
    stop: Box<dyn FnMut() -> bool>,
    deadline: Option<Instant>,
    /// The output of the program that runs.
    output: Option<Written>,
    /// How much that may be, in bytes.
    most: u64,
}

/// Why a run was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It has taken too long.
    Time,
}

impl Limits {
    /// No run yet. `stop` is asked again and again while one goes on: whether it is to be ended.
    pub fn new(stop: impl FnMut() -> bool + 'static) -> Self {
        Self {
            stop: Box::new(stop),
            deadline: None,
            output: None,
            most: OUTPUT_MAX,
        }
    }

    /// A run begins that may take so long.
    pub fn begin(&mut self, time: Duration) {
        self.deadline = Instant::now().checked_add(time);
        self.output = None;
        // Whole MiB, as people read them.
        self.most = OUTPUT_MAX.min(available_bytes() / 2) >> 20 << 20;
    }

    /// The run's output goes there.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub fn watch(&mut self, capture: &Capture) -> Result<()> {
        let written = capture.written().context("cannot duplicate a descriptor")?;
        self.output = Some(written);
        Ok(())
    }

    /// Whether the run is over.
    ///
    /// # Errors
    ///
    /// It was asked to stop, or the program writes without end.
    pub fn check(&mut self) -> Result<Option<Over>> {
        if (self.stop)() {
            bail!("interrupted");
        }
        if let Some(written) = &self.output
            && written.bytes() > self.most
        {
            bail!(
                "the program writes more than {}, which is kept in memory; have it write to a file",
                Size::shown(self.most)
            );
        }
        let is_over = self.deadline.is_some_and(|end| end <= Instant::now());
        Ok(is_over.then_some(Over::Time))
    }

    /// Waits for the end of a child; one that is not waited for any more is killed.
    ///
    /// # Errors
    ///
    /// It cannot be waited for, or [`check`](Self::check) ends the run.
    pub fn wait_for(&mut self, child: &mut Child) -> Result<Result<ExitStatus, Over>> {
        let pidfd = Pid::from_raw(child.id() as i32).and_then(|pid| {
            // Before Linux 5.3 there are none.
            pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        let ended = loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ok(status));
            }
            match self.check() {
                Ok(None) => {}
                Ok(Some(over)) => break Ok(Err(over)),
                Err(error) => break Err(error),
            }
            match &pidfd {
                Some(pidfd) => poll_once(pidfd, LOOK)?,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        kill(child.id());
        child.wait()?;
        ended
    }
}

fn poll_once(descriptor: &impl AsFd, timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    match poll(&mut ready, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has a program lead a process group, so that it can be killed with the processes that it starts.
/// It is that of a session, without a terminal: a program that asks its terminal something would
/// be stopped there, since another group is in the foreground.
pub fn set_apart(command: &mut Command) {
    begin_session(command);
}

/// Kills a program that was started here after [`set_apart`], and what it has started: all but
/// what has left its process group.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // They may have ended just now. The group is there for as long as any of them is.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = kill_process(pid, Signal::KILL);
    }
}
