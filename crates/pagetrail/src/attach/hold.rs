//! [`Hold`]: all threads of another process at rest, with their registers, until it is let go.
//!
//! `ptrace(2)` ties a stopped thread to the thread that stopped it, so the agent
//! ([`super::agent`]) does both, by [`keeper`]. If the tracker ends, `kill -9` included, the agent
//! lets the process go; if the agent ends, the kernel does: nothing here can leave it stopped. What
//! the hold is for, reading memory and collecting writes at one instant, is the caller's business,
//! in any thread.

use super::agent::{self, Client, Link};
use super::failure::Failure;
use super::keeper::{self, Board, Found, FoundThread, Order, Task, Wanted, turn};
use super::kernel_state;
use super::target_check;
use crate::error::{Error, Result};
use crate::types::{IfAbandoned, KernelState};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the threads may take to stop. They stand still meanwhile, so it is short.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long they may take where there is no other way.
const LONG_TIMEOUT: Duration = Duration::from_secs(5);

/// `NT_PRSTATUS`: the general registers.
const GENERAL: u32 = 1;

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
pub struct Hold {
    pid: u32,
    threads: Vec<HeldThread>,
    since: Instant,
    client: Arc<Client>,
    board: Arc<Mutex<Board>>,
    keeper: Option<JoinHandle<()>>,
}

/// Lets a process go that another thread holds: see [`Hold::let_go`].
#[derive(Clone, Debug)]
pub struct LetGo(Arc<Client>);

impl LetGo {
    /// Lets the process go, if it is still held. [`Hold::check`] fails from then on.
    pub fn now(&self) {
        self.0.tell(Order::LetGo as u8);
    }
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
        Self::start(Task {
            pid,
            tracker: std::process::id(),
            timeout: TIMEOUT,
            registers: true,
        })
    }

    /// Stops every thread of a process, without finding out more than general registers.
    pub(crate) fn still(pid: u32) -> Result<Self> {
        Self::start(Task {
            pid,
            tracker: std::process::id(),
            timeout: LONG_TIMEOUT,
            registers: false,
        })
    }

    fn start(task: Task) -> Result<Self> {
        let pid = task.pid;
        let (client, link) = agent::connect()?;
        let board = Arc::new(Mutex::new(Board::default()));
        let common = Arc::clone(&board);
        let keeper = std::thread::Builder::new()
            .name("pagetrail-hold".into())
            .spawn(move || keep(task, &link, &common))
            .map_err(Error::io("starting a thread"))?;
        let mut hold = Self {
            pid,
            threads: Vec::new(),
            since: Instant::now(),
            client: Arc::new(client),
            board,
            keeper: Some(keeper),
        };
        hold.answered(hold.client.wait())?;
        let found = turn(&hold.board).found.take();
        let found = found.ok_or(Error::Gone { pid })?;
        hold.since = found.since;
        hold.threads = held(pid, &found);
        Ok(hold)
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

    /// Checks that the process has stood still until now.
    ///
    /// # Errors
    ///
    /// What holds it, a process of its own, was killed, so that it goes on, or has let it go
    /// because this process was stopped (`SIGSTOP`), or by [`LetGo::now`].
    pub fn check(&self) -> Result<()> {
        let ended = self.keeper.as_ref().is_none_or(JoinHandle::is_finished);
        match ended || self.client.is_over() {
            false => Ok(()),
            true => Err(Error::Attach {
                pid: self.pid,
                reason: "it goes on: what held it was killed or let go, or this process \
                         stopped"
                    .into(),
            }),
        }
    }

    /// What lets the process go before [`Self::release`], from another thread, when the holder
    /// waits for something that never comes while the process stands still.
    pub fn let_go(&self) -> LetGo {
        LetGo(Arc::clone(&self.client))
    }

    /// Chooses what becomes of the process if this one ends before it lets go;
    /// [`IfAbandoned::GoOn`] by default.
    ///
    /// # Errors
    ///
    /// The process is not held any more.
    pub fn if_abandoned(&mut self, what: IfAbandoned) -> Result<()> {
        self.order(match what {
            IfAbandoned::Kill => Order::KillIfAbandoned,
            IfAbandoned::GoOn => Order::GoOnIfAbandoned,
        })
    }

    /// Sets the registers and the blocked signals of threads. A system call in which a thread was
    /// stopped begins anew, unless its registers are what they were.
    ///
    /// # Errors
    ///
    /// A thread is none of those held, or the kernel refuses; some threads may have been set by
    /// then.
    pub fn set_registers(&mut self, threads: &[HeldThread]) -> Result<()> {
        let wanted = threads.iter().map(|thread| self.wanted(thread));
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        turn(&self.board).wanted = wanted;
        self.order(Order::SetRegisters)
    }

    fn wanted(&self, thread: &HeldThread) -> Result<Wanted> {
        let mut wanted = Wanted {
            tid: thread.tid,
            blocked: thread.blocked_signals,
            general: None,
            others: Vec::new(),
        };
        for set in &thread.registers {
            if set.note == GENERAL {
                let bytes = set.bytes.as_slice().try_into();
                wanted.general = Some(bytes.map_err(|_| Error::Attach {
                    pid: self.pid,
                    reason: format!("wrong length of the registers of thread {}", thread.tid),
                })?);
            } else {
                wanted.others.push((set.note, set.bytes.clone()));
            }
        }
        Ok(wanted)
    }

    /// Finds out what the kernel keeps for the process besides memory and registers: its threads
    /// are made to ask, and are as they were then. It takes about a millisecond. If what holds the
    /// process, a process of its own, is killed meanwhile, the process is killed with it.
    ///
    /// # Errors
    ///
    /// Its seccomp filters do not allow it, it has 32-bit threads, it has no vDSO, or more than 32
    /// signals wait in a queue. The process is as it was.
    pub fn kernel_state(&mut self) -> Result<KernelState> {
        turn(&self.board).kernel_state = kernel_state::room(self.threads.len());
        self.order(Order::KernelState)?;
        Ok(std::mem::take(&mut turn(&self.board).kernel_state))
    }

    /// Writes at addresses, multiples of 8, what is there: nobody can tell but the page tables.
    /// Returns those where it could.
    pub(crate) fn rewrite(&mut self, addresses: Vec<u64>) -> Result<Vec<u64>> {
        turn(&self.board).addresses = addresses;
        self.order(Order::Rewrite)?;
        Ok(std::mem::take(&mut turn(&self.board).addresses))
    }

    /// Lets the process go; returns for how long it stood still.
    pub fn release(mut self) -> Duration {
        self.release_all();
        let let_go = turn(&self.board).let_go;
        let_go.unwrap_or_else(Instant::now) - self.since
    }

    fn order(&self, order: Order) -> Result<()> {
        self.answered(self.client.ask(order as u8))
    }

    /// What the agent's answer means.
    fn answered(&self, answer: Option<u8>) -> Result<()> {
        match answer {
            Some(keeper::DONE) => Ok(()),
            _ => {
                let failure = turn(&self.board).failure.take();
                Err(failure.unwrap_or(Failure::Gone).explain(self.pid))
            }
        }
    }

    fn release_all(&mut self) {
        self.client.tell(Order::LetGo as u8);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("Hold");
        shown.field("pid", &self.pid).field("since", &self.since);
        shown
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// The thread that starts the agent, and waits for its end.
fn keep(task: Task, link: &Link, board: &Mutex<Board>) {
    let mut has_begun = false;
    let work = || match std::mem::replace(&mut has_begun, true) {
        false => keeper::keep(task, link, board),
        true => Err(Failure::Gone),
    };
    let outcome = link.survive(work, agent::is_refused);
    if let Err(failure) = outcome {
        turn(board).failure = Some(failure);
        link.send(keeper::FAILED, None);
    }
}

/// What was found, as the public interface has it.
fn held(pid: u32, found: &Found) -> Vec<HeldThread> {
    let mut rest: &[u8] = &found.bytes;
    let threads = found.threads.iter().map(|thread: &FoundThread| {
        if let Some(short) = thread.short {
            short.warn(pid);
        }
        let mut registers = vec![RegisterSet {
            note: GENERAL,
            bytes: thread.general.to_vec(),
        }];
        for (note, len) in thread.others.into_iter().flatten() {
            let (bytes, after) = rest.split_at(len);
            rest = after;
            registers.push(RegisterSet {
                note,
                bytes: bytes.to_vec(),
            });
        }
        HeldThread {
            tid: thread.tid,
            registers,
            blocked_signals: thread.blocked,
        }
    });
    threads.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::status::Status;
    use std::process::{Command, Stdio};

    /// The holder may wait for what comes only when the process goes on.
    #[test]
    fn another_thread_lets_a_process_go() {
        let mut held = Command::new("sleep").arg("600").spawn().unwrap();
        let hold = Hold::process(held.id()).unwrap();
        hold.check().unwrap();
        let let_go = hold.let_go();
        let now = let_go.clone();
        std::thread::spawn(move || now.now()).join().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while hold.check().is_ok() || Status::of(held.id()).unwrap().tracer != 0 {
            assert!(Instant::now() < deadline, "it is not let go");
            std::thread::sleep(Duration::from_millis(1));
        }
        hold.release();
        // It is let go already.
        let_go.now();
        held.kill().unwrap();
        held.wait().unwrap();
    }

    /// Nothing stops in no time, so almost each of these holds fails while `dd` is in a
    /// transfer; what it counts are transfers of the whole length, and shorter ones.
    #[test]
    fn a_hold_that_fails_cuts_no_transfer_short() {
        let arguments = ["if=/dev/urandom", "of=/dev/null", "bs=16M", "count=8"];
        let mut dd = Command::new("dd");
        dd.args(arguments).env("LC_ALL", "C").stderr(Stdio::piped());
        let mut dd = dd.spawn().unwrap();
        let task = Task {
            pid: dd.id(),
            tracker: std::process::id(),
            timeout: Duration::ZERO,
            registers: false,
        };
        let mut failed = 0;
        while dd.try_wait().unwrap().is_none() {
            let outcome = Hold::start(task);
            failed += u32::from(matches!(outcome, Err(Error::NotStopping { .. })));
            drop(outcome);
            std::thread::sleep(Duration::from_millis(2));
        }
        let said = dd.wait_with_output().unwrap().stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("8+0 records in"), "{failed}: {said}");
        assert!(failed > 0, "each hold came at once");
    }
}
