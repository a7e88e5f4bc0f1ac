//! The agent's side of a hold: stopping all threads of a process, and obeying until the order comes
//! to let go, or nobody gives orders any more.
//!
//! Nothing here allocates; what it has found out lies in lists of its own.

use super::agent::Link;
use super::failure::{Attempt, Failure};
use super::interrupted::Short;
use super::kernel_state;
use super::stop::{OUT_OF_MEMORY, Stopped, Waiting, first, see_off, seize, untried};
use super::{interrupted, restart};
use crate::sys::own_vec::OwnVec;
use crate::sys::ptrace::{self, REGISTER_SET_BYTES_MAX, RegisterBytes, Tracee, option};
use crate::sys::remote_memory;
use crate::types::KernelState;
use rustix::io::Errno;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `NT_PRFPREG` and `NT_X86_XSTATE`: floating point, and all extended state. The latter is missing
/// on processors without `xsave`.
const OTHERS: [u32; 2] = [2, 0x202];

/// What the agent says: that all threads stand still, or that it has obeyed.
pub(super) const DONE: u8 = 1;
/// What it says when it could not.
pub(super) const FAILED: u8 = 0;

/// An order to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Order {
    LetGo,
    /// What shall become of the process if the agent ends without the order to let go.
    GoOnIfAbandoned,
    KillIfAbandoned,
    /// To set what is wanted.
    SetRegisters,
    /// To write to the addresses what is there.
    Rewrite,
    /// To find out what the kernel keeps.
    KernelState,
}

impl Order {
    fn of(word: u8) -> Self {
        let orders = [
            Self::GoOnIfAbandoned,
            Self::KillIfAbandoned,
            Self::SetRegisters,
            Self::Rewrite,
            Self::KernelState,
        ];
        let known = orders.into_iter().find(|&order| order as u8 == word);
        known.unwrap_or(Self::LetGo)
    }
}

/// What to stop, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) pid: u32,
    /// The process that wants it.
    pub(super) tracker: u32,
    /// How long the threads may take to stop.
    pub(super) timeout: Duration,
    /// Whether all registers are to be found out.
    pub(super) registers: bool,
}

/// What tracker and agent have in common. Each uses it while the other waits, so that nobody is
/// killed with the lock who might have kept the other waiting.
#[derive(Default)]
pub(super) struct Board {
    pub(super) found: Option<Found>,
    pub(super) failure: Option<Failure>,
    pub(super) wanted: Vec<Wanted>,
    pub(super) addresses: Vec<u64>,
    /// Room for what the kernel keeps.
    pub(super) kernel_state: KernelState,
    /// When the last thread was let go.
    pub(super) let_go: Option<Instant>,
}

/// The board, for who has its turn.
pub(super) fn turn(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All threads at rest.
pub(super) struct Found {
    pub(super) since: Instant,
    pub(super) threads: OwnVec<FoundThread>,
    /// Their register sets, one after the other.
    pub(super) bytes: OwnVec<u8>,
}

/// A thread at rest.
pub(super) struct FoundThread {
    pub(super) tid: u32,
    pub(super) blocked: u64,
    pub(super) short: Option<Short>,
    pub(super) general: RegisterBytes,
    /// The other register sets: which, and how many bytes of all it has.
    pub(super) others: [Option<(u32, usize)>; OTHERS.len()],
}

/// What a thread is to have.
pub(super) struct Wanted {
    pub(super) tid: u32,
    pub(super) blocked: u64,
    pub(super) general: Option<RegisterBytes>,
    pub(super) others: Vec<(u32, Vec<u8>)>,
}

/// Stops, reports, obeys, and lets go.
///
/// Where this is a process of its own it ends right after that, and leaves it to the kernel to let
/// the threads go, which does so with all at once (`exit_ptrace` in `kernel/ptrace.c`, within
/// `exit_notify`). One after the other, the first to run take the processor from this process, and
/// the rest stand still until it has its turn again: milliseconds on a busy machine, whatever its
/// priority (`entity_eligible` in `kernel/sched/fair.c`).
pub(super) fn keep(task: Task, link: &Link, board: &Mutex<Board>) -> Attempt<()> {
    let (mut threads, mut waiting) = (OwnVec::new(), Waiting::new());
    let outcome = stop_all(task, &mut threads, &mut waiting)
        .and_then(|since| report(task, since, &threads, board))
        .map(|()| match link.send(DONE, None) {
            true => obey(task.pid, &threads, link, board),
            false => End::AtOnce,
        });
    link.is_letting_go();
    let ends_with_this = match outcome {
        // The kernel kills them when this process ends.
        Ok(End::Kill) => true,
        Ok(End::AtOnce) => std::process::id() != task.tracker,
        Ok(End::OneByOne) | Err(_) => false,
    };
    while !ends_with_this && let Some(thread) = threads.pop() {
        thread.release();
    }
    see_off(task.pid, &mut waiting);
    // Takes some microseconds, so before the time is taken.
    drop(threads);
    // No wait for the lock: the tracker may have been killed with it.
    if let Ok(mut board) = board.try_lock() {
        board.let_go = Some(Instant::now());
    }
    outcome.map(drop)
}

fn report(task: Task, since: Instant, threads: &[Stopped], board: &Mutex<Board>) -> Attempt<()> {
    let mut found = Found {
        since,
        threads: OwnVec::new(),
        bytes: OwnVec::new(),
    };
    for thread in threads {
        let held = held(task, thread, &mut found.bytes)?;
        found.threads.push(held).map_err(OUT_OF_MEMORY)?;
    }
    turn(board).found = Some(found);
    Ok(())
}

/// What becomes of the process in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All its threads are let go, by the end of this process: they are where their stop left them.
    AtOnce,
    /// Its threads are let go one after the other, since they were made to do something meanwhile:
    /// at the end of this process they might get a signal, or be killed.
    OneByOne,
    Kill,
}

fn obey(pid: u32, threads: &[Stopped], link: &Link, board: &Mutex<Board>) -> End {
    let (mut if_abandoned, mut let_go) = (End::AtOnce, End::AtOnce);
    // With memory that is neither one thing nor the other it must not go on.
    while let Some(order) = link.order(if_abandoned == End::Kill) {
        let order = Order::of(order);
        match order {
            Order::LetGo => return let_go,
            Order::KillIfAbandoned => if_abandoned = End::Kill,
            _ => {}
        }
        if order != Order::Rewrite {
            let_go = End::OneByOne;
        }
        let mut board = turn(board);
        let outcome = match order {
            Order::LetGo | Order::GoOnIfAbandoned => kill_if_abandoned(threads, false),
            Order::KillIfAbandoned => kill_if_abandoned(threads, true),
            Order::SetRegisters => set_registers(pid, threads, &board.wanted),
            Order::KernelState => kernel_state::ask(pid, threads, &mut board.kernel_state),
            Order::Rewrite => {
                rewrite(pid, threads, &mut board.addresses);
                Ok(())
            }
        };
        if if_abandoned != End::Kill || order == Order::GoOnIfAbandoned && outcome.is_ok() {
            if_abandoned = let_go;
        }
        board.failure = outcome.err();
        let word = if outcome.is_ok() { DONE } else { FAILED };
        drop(board);
        if !link.send(word, None) {
            break;
        }
    }
    if_abandoned
}

/// Stops all threads, those included that appear while others are being stopped; says when it
/// began. Where that fails, `waiting` has threads that were asked to stop.
fn stop_all(task: Task, stopped: &mut OwnVec<Stopped>, waiting: &mut Waiting) -> Attempt<Instant> {
    let Task { pid, timeout, .. } = task;
    let mut asked = OwnVec::new();
    let mut tracees: OwnVec<Tracee> = OwnVec::new();
    // Seized before any stops: only what comes after counts as pause.
    seize_new(pid, &mut asked, &mut tracees)?;
    let since = Instant::now();
    while !tracees.is_empty() {
        while let Some(tracee) = tracees.pop() {
            if tracee.interrupt().is_ok() {
                waiting.push((tracee, since)).map_err(OUT_OF_MEMORY)?;
            }
        }
        while let Some(thread) = first(pid, waiting, since + timeout)? {
            stopped.push(thread).map_err(OUT_OF_MEMORY)?;
        }
        if !waiting.is_empty() {
            return Err(Failure::NotStopping(timeout));
        }
        // A pass that finds nobody new comes after all known threads were stopped: nobody is left
        // who could make another.
        seize_new(pid, &mut asked, &mut tracees)?;
    }
    if stopped.is_empty() {
        return Err(Failure::Gone);
    }
    stopped.sort_unstable_by_key(|thread| (thread.tracee.tid() != pid, thread.tracee.tid()));
    Ok(since)
}

/// Traces the threads that have not been asked yet.
fn seize_new(pid: u32, asked: &mut OwnVec<u32>, tracees: &mut OwnVec<Tracee>) -> Attempt<()> {
    for &thread in untried(pid, asked)?.iter() {
        asked.push(thread.tid).map_err(OUT_OF_MEMORY)?;
        if let Some(tracee) = seize(pid, thread)? {
            tracees.push(tracee).map_err(OUT_OF_MEMORY)?;
        }
    }
    Ok(())
}

fn held(task: Task, thread: &Stopped, bytes: &mut OwnVec<u8>) -> Attempt<FoundThread> {
    let mut found = FoundThread {
        tid: thread.tracee.tid(),
        blocked: thread.blocked,
        short: thread.short,
        general: ptrace::to_bytes(&interrupted::of_program(task.pid, thread.registers)),
        others: [None; OTHERS.len()],
    };
    if task.registers {
        let mut room = [0; REGISTER_SET_BYTES_MAX];
        for (note, other) in OTHERS.into_iter().zip(&mut found.others) {
            match thread.tracee.register_set(note, &mut room) {
                Ok(len) => {
                    bytes.extend(&room[..len]).map_err(OUT_OF_MEMORY)?;
                    *other = Some((note, len));
                }
                Err(Errno::INVAL | Errno::NODEV) => {}
                Err(errno) => return Err(Failure::Call("read the registers", errno)),
            }
        }
    }
    Ok(found)
}

fn kill_if_abandoned(threads: &[Stopped], kill: bool) -> Attempt<()> {
    let options = option::SYSGOOD | if kill { option::EXITKILL } else { 0 };
    threads
        .iter()
        .try_for_each(|thread| thread.tracee.set_options(options))
        .map_err(Failure::of("choose what its end does"))
}

fn set_registers(pid: u32, threads: &[Stopped], wanted: &[Wanted]) -> Attempt<()> {
    let failed = Failure::of("set the registers");
    for wanted in wanted {
        let mut threads = threads.iter();
        let thread = threads
            .find(|thread| thread.tracee.tid() == wanted.tid)
            .ok_or(Failure::NotHeld(wanted.tid))?;
        let tracee = &thread.tracee;
        if let Some(general) = &wanted.general {
            // Left alone, an interrupted call goes on as the kernel would have it, also when a
            // signal is waiting.
            let now = tracee.registers().map_err(&failed)?;
            if ptrace::to_bytes(&interrupted::of_program(pid, now)) != *general {
                let registers = restart::anew(ptrace::from_bytes(general));
                tracee.set_registers(&registers).map_err(&failed)?;
            }
        }
        for (note, bytes) in &wanted.others {
            tracee.put_register_set(*note, bytes).map_err(&failed)?;
        }
        tracee.block_signals(wanted.blocked).map_err(&failed)?;
    }
    Ok(())
}

/// Writes at each address, a multiple of 8, what is there: nobody can tell but the page tables.
/// Keeps the addresses where it could.
fn rewrite(pid: u32, threads: &[Stopped], addresses: &mut Vec<u64>) {
    addresses.retain(|&address| {
        let mut word = [0; 8];
        let whole = remote_memory::read(pid, address, &mut word) == Ok(word.len());
        let thread = threads.first().filter(|_| whole);
        thread.is_some_and(|thread| thread.tracee.poke(address, word).is_ok())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::agent;

    /// What becomes of a process (here one without threads) after these orders, and then the one to
    /// let go, or the tracker's end.
    fn end_after(orders: &[Order], lets_go: bool) -> End {
        let (client, link) = agent::connect().unwrap();
        let board = Mutex::default();
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| obey(std::process::id(), &[], &link, &board));
            for &order in orders {
                assert_eq!(client.ask(order as u8), Some(DONE), "{order:?}");
            }
            if lets_go {
                client.tell(Order::LetGo as u8);
            } else {
                drop(client);
            }
            agent.join().unwrap()
        })
    }

    #[test]
    fn threads_that_were_left_as_they_are_are_let_go_at_once() {
        use Order::{GoOnIfAbandoned, KillIfAbandoned, Rewrite, SetRegisters};
        for (orders, let_go, abandoned) in [
            (&[][..], End::AtOnce, End::AtOnce),
            (&[Rewrite, Rewrite], End::AtOnce, End::AtOnce),
            (&[SetRegisters], End::OneByOne, End::OneByOne),
            (&[SetRegisters, Rewrite], End::OneByOne, End::OneByOne),
            (&[KillIfAbandoned], End::OneByOne, End::Kill),
            (&[KillIfAbandoned, SetRegisters], End::OneByOne, End::Kill),
            (
                &[KillIfAbandoned, GoOnIfAbandoned],
                End::OneByOne,
                End::OneByOne,
            ),
        ] {
            assert_eq!(end_after(orders, true), let_go, "{orders:?}");
            assert_eq!(end_after(orders, false), abandoned, "{orders:?}");
        }
    }
}
