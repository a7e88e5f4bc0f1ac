//! Stopping threads of another process for a moment, and letting them go unharmed.

use super::{restart, target_check};
use crate::error::{Error, Result};
use crate::proc::status::{Status, threads};
use crate::sys::ptrace::{Change, Registers, Resume, Tracee, option};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long one thread may take to stop before another is tried.
const THREAD_PATIENCE: Duration = Duration::from_millis(200);
/// How long the whole attempt may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A thread at rest between two instructions of user space.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) tracee: Tracee,
    /// As the stop found them.
    pub(crate) registers: Registers,
    pid: u32,
    since: Instant,
}

impl Stopped {
    /// A thread that is stopped in this way already.
    pub(crate) fn adopt(tracee: Tracee, pid: u32, since: Instant) -> Result<Self> {
        let registers = tracee
            .registers()
            .map_err(|e| target_check::explain(pid, "read the registers", e))?;
        Ok(Self {
            tracee,
            registers,
            pid,
            since,
        })
    }

    /// Stops any one thread of the process; some may be in waits that cannot be interrupted.
    ///
    /// Those stay seized until the calling thread ends, so call it in a short-lived one.
    pub(crate) fn any_thread(pid: u32, options: i32) -> Result<Self> {
        let start = Instant::now();
        let mut tried = Vec::new();
        while start.elapsed() < PATIENCE {
            let mut tids = threads(pid).map_err(|_| Error::NoSuchProcess { pid })?;
            // A main thread that has ended while others run on stays as a zombie.
            tids.retain(|tid| !tried.contains(tid) && is_alive(pid, *tid));
            for tid in tids {
                tried.push(tid);
                if let Some(stopped) = Self::thread(pid, tid, options)? {
                    return Ok(stopped);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::NotStopping {
            pid,
            waited_ms: PATIENCE.as_millis() as u64,
        })
    }

    /// Stops one thread, or gives `None` when it ended or does not stop in time.
    fn thread(pid: u32, tid: u32, options: i32) -> Result<Option<Self>> {
        let tracee = match Tracee::seize(tid, options) {
            Ok(tracee) => tracee,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(target_check::explain(pid, "trace a thread", errno)),
        };
        let since = Instant::now();
        if tracee.interrupt().is_err() {
            return Ok(None);
        }
        match wait_for_trap(&tracee, since + THREAD_PATIENCE) {
            Ok(true) => Self::adopt(tracee, pid, since).map(Some),
            // It stays seized until this thread of ours ends, and stops by no fault of its own only then.
            Ok(false) | Err(Errno::CHILD | Errno::SRCH) => Ok(None),
            Err(errno) => Err(target_check::explain(pid, "wait for a thread", errno)),
        }
    }

    /// Lets the thread go as if it had never been stopped; returns how long it was.
    pub(crate) fn release(self) -> Duration {
        let waits = Status::of_thread(self.pid, self.tracee.tid())
            .is_ok_and(|s| s.deliverable_signals != 0);
        let registers = restart::unnoticed(self.registers, waits);
        let _ = self.tracee.set_registers(&registers);
        let _ = self.tracee.detach(0);
        self.since.elapsed()
    }
}

/// Waits until the thread traps, passing on signals that come first; false when it ended or time is up.
pub(crate) fn wait_for_trap(tracee: &Tracee, deadline: Instant) -> Result<bool, Errno> {
    // A running thread traps within microseconds: polling beats sleeping at first.
    let mut tries = 0u32;
    loop {
        match tracee.wait(false)? {
            Some(Change::Trap { .. }) => return Ok(true),
            Some(Change::Signal(signal)) => tracee.resume(Resume::Free, signal)?,
            Some(Change::Exited(_) | Change::Killed(_)) => return Ok(false),
            Some(Change::Exec | Change::Exit | Change::Syscall) => {
                tracee.resume(Resume::Free, 0)?
            }
            None if Instant::now() > deadline => return Ok(false),
            None if tries < 200 => {
                tries += 1;
                std::thread::yield_now();
            }
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

fn is_alive(pid: u32, tid: u32) -> bool {
    Status::of_thread(pid, tid).is_ok_and(|status| !matches!(status.state, 'Z' | 'X'))
}

/// All threads of a process at rest.
pub(crate) struct Frozen {
    threads: Vec<Stopped>,
    since: Instant,
}

impl Frozen {
    /// Stops every thread, those included that appear while others are being stopped.
    pub(crate) fn new(pid: u32) -> Result<Self> {
        let mut frozen = Self {
            threads: Vec::new(),
            since: Instant::now(),
        };
        match frozen.stop_all(pid) {
            Ok(()) => Ok(frozen),
            Err(error) => {
                frozen.release();
                Err(error)
            }
        }
    }

    fn stop_all(&mut self, pid: u32) -> Result<()> {
        loop {
            let mut tids = threads(pid).map_err(|_| Error::NoSuchProcess { pid })?;
            tids.retain(|tid| {
                !self.threads.iter().any(|t| t.tracee.tid() == *tid) && is_alive(pid, *tid)
            });
            // A pass that finds nobody new comes after all known threads were stopped: nobody is left who
            // could make another.
            if tids.is_empty() {
                return Ok(());
            }
            for tid in tids {
                match Stopped::thread(pid, tid, option::SYSGOOD)? {
                    Some(stopped) => self.threads.push(stopped),
                    None if is_alive(pid, tid) => {
                        return Err(Error::NotStopping {
                            pid,
                            waited_ms: self.since.elapsed().as_millis() as u64,
                        });
                    }
                    None => {}
                }
            }
        }
    }

    /// Lets all threads go; returns how long the first was stopped.
    pub(crate) fn release(self) -> Duration {
        for thread in self.threads {
            thread.release();
        }
        self.since.elapsed()
    }
}
