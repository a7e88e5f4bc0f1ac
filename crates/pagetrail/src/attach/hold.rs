//! [`Hold`]: all threads of another process at rest, with their registers, until it is let go.
//!
//! `ptrace(2)` ties a stopped thread to the thread that stopped it, so a keeper of its own does
//! both. Whatever ends the keeper, `kill -9` included, the kernel lets the process go: nothing here
//! can leave it stopped. What the hold is for, reading memory and collecting writes at one instant,
//! is the caller's business, in any thread.

use super::stop::{Stopped, first, not_stopping, seize, untried};
use super::target_check::{self, explain};
use super::{interrupted, restart};
use crate::error::{Error, Result};
use crate::sys::ptrace::{self, Tracee, option};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the threads may take to stop. They stand still meanwhile, so it is short.
const TIMEOUT: Duration = Duration::from_secs(1);

/// `NT_PRSTATUS`: the general registers.
const GENERAL: u32 = 1;
/// `NT_PRFPREG` and `NT_X86_XSTATE`: floating point, and all extended state. The latter is missing
/// on processors without `xsave`.
const OTHERS: [u32; 2] = [2, 0x202];

/// A set of registers of a thread, as `PTRACE_GETREGSET` and core files have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterSet {
    /// Which: `NT_PRSTATUS` (1, here the general registers alone), `NT_PRFPREG` (2),
    /// `NT_X86_XSTATE` (0x202).
    pub note: u32,
    /// The kernel's layout.
    pub bytes: Vec<u8>,
}

/// A thread that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldThread {
    /// Its thread ID.
    pub tid: u32,
    /// Its registers, the general ones first.
    pub registers: Vec<RegisterSet>,
    /// The signals that it blocks, one bit each, signal 1 the lowest.
    pub blocked_signals: u64,
}

/// A process whose threads all stand still between two instructions, until this is released or
/// dropped.
///
/// The process cannot tell but by the time that has passed. Its memory may still change by what is
/// not its threads: other processes that share it, and devices.
#[derive(Debug)]
pub struct Hold {
    pid: u32,
    threads: Vec<HeldThread>,
    since: Instant,
    orders: Option<Sender<Order>>,
    keeper: Option<JoinHandle<()>>,
}

/// A command to the keeper thread.
enum Order {
    /// Whether the process shall be killed when we end before it is let go.
    KillIfAbandoned(bool, Sender<Result<()>>),
    SetRegisters(Vec<HeldThread>, Sender<Result<()>>),
}

impl Hold {
    /// Stops every thread of a process.
    ///
    /// # Errors
    ///
    /// The process is refused as by [`Target::process`](crate::Target::process), may not be traced,
    /// or one of its threads does not come to a stop within a second; then all go on.
    pub fn process(pid: u32) -> Result<Self> {
        target_check::check(pid)?;
        let (report, reported) = channel();
        let (orders, ordered) = channel();
        let keeper = std::thread::Builder::new()
            .name("pagetrail-hold".into())
            .spawn(move || keep(pid, &report, &ordered))
            .map_err(Error::io("starting a thread"))?;
        match reported.recv() {
            Ok(Ok((threads, since))) => Ok(Self {
                pid,
                threads,
                since,
                orders: Some(orders),
                keeper: Some(keeper),
            }),
            outcome => {
                // It would wait for orders; its end lets go what it still traces.
                drop(orders);
                let _ = keeper.join();
                Err(match outcome {
                    Ok(Err(error)) => error,
                    _ => Error::Gone { pid },
                })
            }
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its threads, the main thread first.
    pub fn threads(&self) -> &[HeldThread] {
        &self.threads
    }

    /// When the first thread was asked to stop.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Chooses what becomes of the process if this one ends before it lets go: by default it goes
    /// on; with `kill` the kernel kills it, for the time in which its memory is neither one thing
    /// nor the other.
    pub fn kill_if_abandoned(&mut self, kill: bool) -> Result<()> {
        self.order(|answer| Order::KillIfAbandoned(kill, answer))
    }

    /// Sets the registers and the blocked signals of threads. A system call in which a thread was
    /// stopped begins anew, unless its registers are what they were.
    ///
    /// # Errors
    ///
    /// A thread is none of those held, or the kernel refuses; some threads may have been set by
    /// then.
    pub fn set_registers(&mut self, threads: &[HeldThread]) -> Result<()> {
        self.order(|answer| Order::SetRegisters(threads.to_vec(), answer))
    }

    /// Lets the process go; returns for how long it stood still.
    pub fn release(mut self) -> Duration {
        self.release_all();
        self.since.elapsed()
    }

    fn order(&self, order: impl FnOnce(Sender<Result<()>>) -> Order) -> Result<()> {
        let (answer, answered) = channel();
        let sent = self
            .orders
            .as_ref()
            .is_some_and(|orders| orders.send(order(answer)).is_ok());
        match sent.then(|| answered.recv()) {
            Some(Ok(outcome)) => outcome,
            _ => Err(Error::Gone { pid: self.pid }),
        }
    }

    fn release_all(&mut self) {
        self.orders = None;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// The keeper: stops, reports, obeys until nobody gives orders any more, and lets go.
fn keep(pid: u32, report: &Sender<Result<(Vec<HeldThread>, Instant)>>, orders: &Receiver<Order>) {
    let mut threads = Vec::new();
    let outcome = stop_all(pid, &mut threads);
    let outcome = outcome.and_then(|since| {
        let registers = threads.iter().map(|thread| held(pid, thread));
        Ok((registers.collect::<Result<_>>()?, since))
    });
    if report.send(outcome).is_ok() {
        for order in orders {
            // Who gave the order waits for the answer.
            let _ = match order {
                Order::KillIfAbandoned(kill, answer) => {
                    answer.send(kill_if_abandoned(pid, &threads, kill))
                }
                Order::SetRegisters(wanted, answer) => {
                    answer.send(set_registers(pid, &threads, &wanted))
                }
            };
        }
    }
    for thread in threads {
        thread.release();
    }
}

/// Stops all threads, those included that appear while others are being stopped; says when it
/// began.
fn stop_all(pid: u32, stopped: &mut Vec<Stopped>) -> Result<Instant> {
    let mut asked = Vec::new();
    let mut tracees: Vec<Tracee> = Vec::new();
    // Seized before any stops: only what comes after counts as pause.
    for thread in untried(pid, &asked)? {
        asked.push(thread.tid);
        tracees.extend(seize(pid, thread)?);
    }
    let since = Instant::now();
    while !tracees.is_empty() {
        tracees.retain(|tracee| tracee.interrupt().is_ok());
        let mut waiting = tracees.drain(..).map(|tracee| (tracee, since)).collect();
        while let Some(thread) = first(pid, &mut waiting, since + TIMEOUT)? {
            stopped.push(thread);
        }
        if !waiting.is_empty() {
            return Err(not_stopping(pid, TIMEOUT));
        }
        // A pass that finds nobody new comes after all known threads were stopped: nobody is left
        // who could make another.
        for thread in untried(pid, &asked)? {
            asked.push(thread.tid);
            tracees.extend(seize(pid, thread)?);
        }
    }
    if stopped.is_empty() {
        return Err(Error::Gone { pid });
    }
    stopped.sort_by_key(|thread| (thread.tracee.tid() != pid, thread.tracee.tid()));
    Ok(since)
}

fn held(pid: u32, thread: &Stopped) -> Result<HeldThread> {
    let mut registers = vec![RegisterSet {
        note: GENERAL,
        bytes: ptrace::to_bytes(&interrupted::of_program(pid, thread.registers)),
    }];
    for note in OTHERS {
        match thread.tracee.register_set(note) {
            Ok(bytes) => registers.push(RegisterSet { note, bytes }),
            Err(Errno::INVAL | Errno::NODEV) => {}
            Err(errno) => return Err(explain(pid, "read the registers", errno)),
        }
    }
    Ok(HeldThread {
        tid: thread.tracee.tid(),
        registers,
        blocked_signals: thread.blocked,
    })
}

fn kill_if_abandoned(pid: u32, threads: &[Stopped], kill: bool) -> Result<()> {
    let options = option::SYSGOOD | if kill { option::EXITKILL } else { 0 };
    threads
        .iter()
        .try_for_each(|thread| thread.tracee.set_options(options))
        .map_err(|errno| explain(pid, "choose what its end does", errno))
}

fn set_registers(pid: u32, threads: &[Stopped], wanted: &[HeldThread]) -> Result<()> {
    let failed = |errno| explain(pid, "set the registers", errno);
    let refused = |what: &str, tid| Error::Attach {
        pid,
        reason: format!("{what} of thread {tid}"),
    };
    for wanted in wanted {
        let thread = threads
            .iter()
            .find(|thread| thread.tracee.tid() == wanted.tid)
            .ok_or_else(|| refused("nothing is held", wanted.tid))?;
        for set in &wanted.registers {
            if set.note == GENERAL {
                let registers = ptrace::from_bytes(&set.bytes)
                    .ok_or_else(|| refused("wrong length of the registers", wanted.tid))?;
                // Left alone, an interrupted call goes on as the kernel would have it, also when a
                // signal is waiting.
                let now = thread.tracee.registers().map_err(failed)?;
                if ptrace::to_bytes(&interrupted::of_program(pid, now)) == set.bytes {
                    continue;
                }
                thread
                    .tracee
                    .set_registers(&restart::anew(registers))
                    .map_err(failed)?;
            } else {
                thread
                    .tracee
                    .put_register_set(set.note, &set.bytes)
                    .map_err(failed)?;
            }
        }
        thread
            .tracee
            .block_signals(wanted.blocked_signals)
            .map_err(failed)?;
    }
    Ok(())
}
