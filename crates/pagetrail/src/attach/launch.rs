//! Starting a program under watch: held before its first instruction, then let go, and waited for.
//!
//! One thread of ours, the keeper, traces the program's main thread while the watch is armed. Then
//! it detaches, since a program can tell that it is traced: LeakSanitizer gives up,
//! `PTRACE_TRACEME` fails, set-user-ID is ignored (`execve(2)`), and each signal waits for the
//! tracer. Only a watch that wants the last round ([`Hold::UntilItsEnd`]) has the program traced
//! for as long as it lives: followed over `execve`, its signals passed on, and held once more at
//! its end. The watch talks to the keeper by messages. If the tracker dies the kernel detaches, and
//! the program goes on.

use super::inject;
use super::privilege;
use super::stop::{Backoff, Stopped, is_ours, wait_for_trap};
use super::target_check;
use crate::error::{Error, Result};
use crate::proc::status;
use crate::sys::ptrace::{Change, Resume, Tracee, option};
use crate::sys::spawn::Gate;
use crate::sys::uffd::Faults;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a program may take from `execve` to its first instruction.
const EXEC_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the keeper waits where it cannot find out whether it still traces the program.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(10);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// What the technique needs from the program's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Userfaultfd {
        faults: Faults,
    },
    /// To trace it itself: the keeper lets go after the start.
    Tracing,
}

/// How long the program is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Until the watch is armed.
    AtItsStart,
    /// Until it ends, with a stop there for the last round.
    UntilItsEnd,
}

/// A new address space of the program.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) stopped: Duration,
}

enum Message {
    Image(Result<Image>),
    Exiting,
    Ended(Ended),
    Failed(Error),
}

/// A program started under watch.
pub(crate) struct Launched {
    pub(crate) pid: u32,
    messages: Receiver<Message>,
    go: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    image: Option<Result<Image>>,
    exiting: bool,
    ended: Option<Ended>,
    hold: Hold,
}

impl Launched {
    /// Starts `command` and holds it before its first instruction, until [`Self::go`].
    pub(crate) fn start(command: Command, need: Need, hold: Hold) -> Result<Self> {
        // A technique that traces by itself cannot share the program with the keeper.
        let hold = match need {
            Need::Tracing => Hold::AtItsStart,
            _ => hold,
        };
        let name = command.get_program().to_string_lossy().into_owned();
        if hold == Hold::AtItsStart && privilege::is_lost_by_tracing(&command) {
            return Err(Error::Privileged { command: name });
        }
        let (to_watch, messages) = channel();
        let (go, from_watch) = channel();
        let (pid_to, pid_from) = channel();
        let keeper = std::thread::Builder::new()
            .name("pagetrail-keeper".into())
            .spawn(move || {
                let keeper = Keeper {
                    need,
                    hold,
                    to_watch,
                    from_watch,
                };
                if let Err(error) = keeper.run(command, &name, &pid_to) {
                    let _ = keeper.to_watch.send(Message::Failed(error));
                }
            })
            .map_err(Error::io("starting the keeper thread"))?;
        let mut launched = Self {
            pid: 0,
            messages,
            go: Some(go),
            keeper: Some(keeper),
            image: None,
            exiting: false,
            ended: None,
            hold,
        };
        match pid_from.recv() {
            Ok(pid) => launched.pid = pid,
            // The keeper has said why before it ended.
            Err(_) => return Err(launched.failure()),
        }
        match launched.messages.recv() {
            Ok(Message::Image(image)) => launched.image = Some(image),
            Ok(Message::Failed(error)) => return Err(error),
            _ => return Err(Error::Gone { pid: launched.pid }),
        }
        Ok(launched)
    }

    fn failure(&self) -> Error {
        match self.messages.try_recv() {
            Ok(Message::Failed(error)) => error,
            _ => Error::Gone { pid: self.pid },
        }
    }

    /// The newest address space, if there is one that was not taken yet; waits a moment for it
    /// where the keeper still traces the program.
    pub(crate) fn take_image(&mut self, timeout: Duration) -> Option<Result<Image>> {
        let timeout = match self.hold {
            Hold::AtItsStart => Duration::ZERO,
            Hold::UntilItsEnd => timeout,
        };
        let deadline = Instant::now() + timeout;
        while self.image.is_none() && self.ended.is_none() && Instant::now() < deadline {
            self.poll(deadline.saturating_duration_since(Instant::now()));
        }
        self.image.take()
    }

    /// Lets the program run: from its start, or from its end.
    pub(crate) fn go(&mut self) {
        self.exiting = false;
        if let Some(go) = &self.go {
            let _ = go.send(());
        }
    }

    /// Whether the program is held at its end: its memory is complete and still there.
    pub(crate) fn is_exiting(&mut self) -> bool {
        self.poll(Duration::ZERO);
        self.exiting
    }

    /// How it ended, once it has.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        self.poll(Duration::ZERO);
        self.ended
    }

    /// Waits until something happens to the program, or time is up.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while !self.exiting && self.ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.poll(left);
        }
    }

    fn poll(&mut self, timeout: Duration) {
        let mut next = match timeout {
            Duration::ZERO => self
                .messages
                .try_recv()
                .map_err(|e| e == TryRecvError::Disconnected),
            _ => self
                .messages
                .recv_timeout(timeout)
                .map_err(|e| e == RecvTimeoutError::Disconnected),
        };
        loop {
            match next {
                Ok(Message::Image(image)) => self.image = Some(image),
                Ok(Message::Exiting) => self.exiting = true,
                Ok(Message::Ended(ended)) => self.ended = Some(ended),
                Ok(Message::Failed(error)) => self.image = Some(Err(error)),
                // A keeper that is gone without a word: the program was reaped by somebody else.
                Err(true) => {
                    self.ended.get_or_insert(Ended::Exited(0));
                    return;
                }
                Err(false) => return,
            }
            next = self
                .messages
                .try_recv()
                .map_err(|e| e == TryRecvError::Disconnected);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // A keeper that waits for us goes on when the channel closes; then it waits for the
        // program's end, which may be far away, so it is left to itself.
        self.go = None;
        if self.ended.is_some()
            && let Some(keeper) = self.keeper.take()
        {
            let _ = keeper.join();
        }
    }
}

/// The keeper's side.
struct Keeper {
    need: Need,
    hold: Hold,
    to_watch: Sender<Message>,
    from_watch: Receiver<()>,
}

impl Keeper {
    fn run(&self, mut command: Command, name: &str, pid_to: &Sender<u32>) -> Result<()> {
        let not_started = |source| Error::Spawn {
            command: name.into(),
            source,
        };
        let gate = Gate::hold(&mut command).map_err(not_started)?;
        let tracee = std::thread::scope(|scope| {
            // `spawn` returns when `execve` has happened or failed, so it must not be this thread
            // that waits in it. The command moves there: dropping it ends a wait for a PID that
            // will not come.
            let spawner = scope.spawn(move || command.spawn());
            let started = gate
                .pid()
                .map_err(not_started)
                .and_then(|pid| self.trace(pid, gate));
            let spawned = spawner
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            spawned.map_err(not_started)?;
            started
        })?;
        let pid = tracee.tid();
        let _ = pid_to.send(pid);
        let _ = self
            .to_watch
            .send(Message::Image(self.new_image(&tracee, pid)));
        // Held until the watch is armed; a watch that is gone lets it run, too.
        let _ = self.from_watch.recv();
        let failed = |errno| target_check::explain(pid, "trace it", errno);
        match self.hold {
            Hold::AtItsStart => tracee.detach(0).map_err(failed)?,
            Hold::UntilItsEnd => tracee.resume(Resume::Free, 0).map_err(failed)?,
        }
        let ended = self.follow(&tracee, pid);
        let _ = self.to_watch.send(Message::Ended(ended));
        Ok(())
    }

    /// Traces the waiting child and brings it to its first `execve`.
    fn trace(&self, pid: u32, gate: Gate) -> Result<Tracee> {
        let failed = |errno| target_check::explain(pid, "trace it", errno);
        // No stop at its exit before `execve` has succeeded: `Command` waits for a child that fails
        // there, and would take the stop for its end.
        let options = option::SYSGOOD | option::EXEC;
        let seized = Tracee::seize(pid, options).map_err(failed);
        // Also when it could not be seized: the child must not wait for ever.
        gate.open().map_err(Error::io("letting the child start"))?;
        let tracee = seized?;
        loop {
            // When `execve` fails, `Command` waits for the child's end: not to be reaped here.
            match tracee.wait().map_err(failed)? {
                Change::Exec => {
                    tracee.set_options(options | option::EXIT).map_err(failed)?;
                    return Ok(tracee);
                }
                Change::Exited(_) | Change::Killed(_) => return Err(Error::Gone { pid }),
                Change::Signal(signal) => tracee.resume(Resume::Free, signal).map_err(failed)?,
                _ => tracee.resume(Resume::Free, 0).map_err(failed)?,
            }
        }
    }

    /// Prepares the address space of a thread that is stopped in `execve`; it stays stopped.
    fn new_image(&self, tracee: &Tracee, pid: u32) -> Result<Image> {
        let since = Instant::now();
        let failed =
            |errno| target_check::explain(pid, "stop it before its first instruction", errno);
        tracee.interrupt().map_err(failed)?;
        tracee.resume(Resume::Free, 0).map_err(failed)?;
        if !wait_for_trap(tracee, Backoff::until(since + EXEC_TIMEOUT)).map_err(failed)? {
            return Err(Error::Gone { pid });
        }
        let Need::Userfaultfd { faults } = self.need else {
            return Ok(Image {
                fd: None,
                stopped: since.elapsed(),
            });
        };
        let kernel = inject::Kernel::for_process(pid);
        let fd = Stopped::adopt(tracee.again(), pid, since)
            .and_then(|mut stopped| inject::run(&mut stopped, pid, kernel, faults, true))
            .map_err(|failure| failure.explain(pid))?;
        Ok(Image {
            fd: Some(fd),
            stopped: since.elapsed(),
        })
    }

    /// Passes everything on until the program ends.
    fn follow(&self, tracee: &Tracee, pid: u32) -> Ended {
        loop {
            let change = next(tracee, pid);
            let change = match change {
                Ok(Some(change)) => change,
                Ok(None) => continue,
                // Reaped by another wait of this process, or replaced by a thread that is not
                // traced.
                Err(_) => return Ended::Exited(0),
            };
            let (how, signal) = match change {
                Change::Exited(code) => return Ended::Exited(code),
                Change::Killed(signal) => return Ended::Killed(signal),
                Change::Signal(signal) => (Resume::Free, signal),
                Change::Trap { group_stop: true } => (Resume::Listen, 0),
                Change::Trap { group_stop: false } | Change::Syscall | Change::Vfork => {
                    (Resume::Free, 0)
                }
                Change::Exec => {
                    // Not held: all that exists when the watch looks again counts as written.
                    let _ = self
                        .to_watch
                        .send(Message::Image(self.new_image(tracee, pid)));
                    (Resume::Free, 0)
                }
                // Another thread replaces the program and takes the main thread's place: no end,
                // and it waits for us.
                Change::Exit if status::is_in_execve(pid) => (Resume::Free, 0),
                Change::Exit => {
                    if self.to_watch.send(Message::Exiting).is_ok() {
                        let _ = self.from_watch.recv();
                    }
                    (Resume::Free, 0)
                }
            };
            match tracee.resume(how, signal) {
                // Killed while stopped: the next wait tells.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => tracing::warn!(pid, %errno, "cannot resume the tracked program"),
            }
        }
    }
}

/// The next change of state of the program. While the keeper traces it that may be anything;
/// otherwise only its end, for its stops belong to its tracer, another thread of this process
/// included.
fn next(tracee: &Tracee, pid: u32) -> Result<Option<Change>, Errno> {
    let Ok(ours) = is_ours(pid, pid) else {
        // No descriptors, no memory: neither wait may be chosen blindly, for the wrong one may last
        // for ever.
        std::thread::sleep(UNKNOWN_PAUSE);
        return Ok(None);
    };
    if ours {
        match tracee.await_change() {
            // Somebody else's by now, perhaps.
            Ok(()) if !is_ours(pid, pid).unwrap_or(false) => Ok(None),
            Ok(()) => tracee.take(),
            Err(Errno::CHILD) => Ok(None),
            Err(errno) => Err(errno),
        }
    } else {
        // A wait would take stops, too; the descriptor knows the end alone.
        let process = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        let end = pidfd_open(process, PidfdFlags::empty())?;
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], None) {
            Ok(_) => tracee.take(),
            Err(Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}
