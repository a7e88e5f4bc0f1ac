//! Stopping threads of another process for a moment, and letting them go unharmed. Nothing here
//! allocates: it is the agent that stops threads ([`super::agent`]).

use super::failure::{Attempt, Failure};
use super::interrupted::{GoingOn, Short};
use super::{filter, interrupted, restart, target_check};
use crate::proc::status::{Status, list_threads};
use crate::sys::own_vec::OwnVec;
use crate::sys::ptrace::{self, Change, Registers, Resume, Tracee, option};
use crate::sys::remote_memory;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How long one thread may take to stop before another is asked as well.
const THREAD_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a moment is waited for in which no thread is within a transfer, where the choice is
/// free.
const MOMENT_TIMEOUT: Duration = Duration::from_millis(50);
/// How often in a row tracing a thread must be refused, with no tracker at work, to be forbidden.
const REFUSALS: u32 = 10;
/// How long the whole attempt may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a thread is waited for that was asked to stop and gets no processor, once the others
/// run again.
const STARVED_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked in which state it is.
const LOOK: Duration = Duration::from_millis(20);

/// A thread at rest between two instructions of user space.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) tracee: Tracee,
    /// With which it goes on as if it had never been stopped; it has them already.
    pub(crate) registers: Registers,
    /// The signals that it blocks.
    pub(crate) blocked: u64,
    /// The call that its stop has cut short for good.
    pub(super) short: Option<Short>,
    since: Instant,
}

/// Threads that have been asked to stop, and when.
pub(super) type Waiting = OwnVec<(Tracee, Instant)>;

impl Stopped {
    /// A thread that is stopped in this way already.
    pub(crate) fn adopt(tracee: Tracee, pid: u32, since: Instant) -> Attempt<Self> {
        let failed = Failure::of("read the registers");
        let found = tracee.registers().map_err(&failed)?;
        let mut registers = restart::unnoticed(found);
        if registers.rax != found.rax {
            // At once, before anything that takes longer: if the tracker dies from here on, the
            // thread goes on with these.
            tracee.set_registers(&registers).map_err(&failed)?;
        }
        let unnoticed = registers;
        if restart::needs_restart_call(&registers)
            && !filter::allow(&tracee, pid, &[libc::SYS_restart_syscall], false)
        {
            registers = restart::without_restart_call(registers);
        }
        let read = |at, into: &mut [u8]| remote_memory::read(pid, at, into) == Ok(into.len());
        if let Some(area) = tracee.rseq_area()
            && let Some(abort) = restart::sequence_abort(registers.rip, area, read)
        {
            registers.rip = abort;
        }
        let mut short = None;
        match interrupted::go_on(&tracee, pid, &registers) {
            GoingOn::ByItself => {}
            GoingOn::With(going_on) => registers = going_on,
            GoingOn::Short(call) => short = Some(call),
        }
        if ptrace::to_bytes(&registers) != ptrace::to_bytes(&unnoticed) {
            tracee.set_registers(&registers).map_err(&failed)?;
        }
        let blocked = tracee.blocked_signals().map_err(&failed)?;
        Ok(Self {
            tracee,
            registers,
            blocked,
            short,
            since,
        })
    }

    /// Stops any one thread of the process that is `permitted`, as found once it stands still; some
    /// may be in waits that cannot be interrupted.
    ///
    /// Those are in `waiting` then, for [`see_off`].
    pub(super) fn any_thread(
        pid: u32,
        waiting: &mut Waiting,
        permitted: impl Fn(&Tracee) -> bool,
    ) -> Attempt<Self> {
        let start = Instant::now();
        let (mut asked, mut refused) = (OwnVec::new(), OwnVec::new());
        let stopped = loop {
            let mut found = None;
            let mut threads = untried(pid, &asked)?;
            if threads.len() > 1 {
                for thread in threads.iter_mut() {
                    thread.is_busy = interrupted::is_transferring(pid, thread.tid);
                }
                threads.sort_unstable_by_key(|thread| thread.rank(pid));
            }
            for &thread in threads.iter() {
                asked.push(thread.tid).map_err(OUT_OF_MEMORY)?;
                if thread.is_strict {
                    refused.push(thread.tid).map_err(OUT_OF_MEMORY)?;
                    continue;
                }
                let mut moment = Backoff::until(start + MOMENT_TIMEOUT);
                while interrupted::is_transferring(pid, thread.tid) && moment.wait() {}
                if let Some(tracee) = ask(pid, thread)? {
                    let now = Instant::now();
                    waiting.push((tracee, now)).map_err(OUT_OF_MEMORY)?;
                }
                found = first(pid, waiting, Instant::now() + THREAD_TIMEOUT)?;
                if found.is_some() {
                    break;
                }
            }
            if found.is_none() {
                found = first(pid, waiting, Instant::now() + THREAD_TIMEOUT)?;
            }
            match found {
                Some(stopped) if permitted(&stopped.tracee) => break stopped,
                Some(stopped) => {
                    let tid = stopped.tracee.tid();
                    stopped.release();
                    refused.push(tid).map_err(OUT_OF_MEMORY)?;
                }
                None if start.elapsed() < TIMEOUT
                    && forget_replaced(pid, waiting, &mut asked, &refused) => {}
                None if waiting.is_empty() && untried(pid, &asked)?.is_empty() => {
                    return Err(match refused.is_empty() {
                        true => Failure::NoSuchProcess,
                        false => Failure::Seccomp,
                    });
                }
                None if start.elapsed() < TIMEOUT => {}
                None => return Err(Failure::NotStopping(TIMEOUT)),
            }
        };
        // Others that have stopped by now.
        while let Ok(Some(late)) = first(pid, waiting, Instant::now()) {
            late.release();
        }
        Ok(stopped)
    }

    /// Lets the thread go; returns how long it was stopped.
    pub(crate) fn release(self) -> Duration {
        let _ = self.tracee.detach(0);
        self.since.elapsed()
    }
}

/// What to say when a list cannot grow.
pub(super) const OUT_OF_MEMORY: fn(Errno) -> Failure = |errno| Failure::Call("map memory", errno);

/// A thread to be stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) tid: u32,
    /// It may make hardly any system call (`SECCOMP_MODE_STRICT`).
    is_strict: bool,
    /// A seccomp filter says which system calls it may make.
    is_filtered: bool,
    /// It is in a call that a stop would interrupt.
    is_busy: bool,
}

impl Thread {
    /// The order in which threads are asked: those first that no filter hinders, and among them the
    /// main thread.
    fn rank(self, pid: u32) -> (bool, bool, bool, bool, u32) {
        let Self {
            tid,
            is_strict,
            is_filtered,
            is_busy,
        } = self;
        (is_strict, is_filtered, is_busy, tid != pid, tid)
    }
}

/// The threads not asked yet, in the order in which to ask them.
pub(super) fn untried(pid: u32, asked: &[u32]) -> Attempt<OwnVec<Thread>> {
    let threads = list_threads(pid).map_err(|_| Failure::NoSuchProcess)?;
    let mut found = OwnVec::new();
    for &tid in threads.iter().filter(|tid| !asked.contains(tid)) {
        // A main thread that has ended while others run on stays as a zombie.
        if let Ok(status) = Status::of_thread(pid, tid)
            && !matches!(status.state, 'Z' | 'X')
        {
            let thread = Thread {
                tid,
                is_strict: status.seccomp == 1,
                is_filtered: status.seccomp == 2,
                is_busy: false,
            };
            found.push(thread).map_err(OUT_OF_MEMORY)?;
        }
    }
    if found.is_empty() && asked.is_empty() {
        return Err(Failure::NoSuchProcess);
    }
    found.sort_unstable_by_key(|thread| thread.rank(pid));
    Ok(found)
}

/// Whether this thread of ours traces the thread `tid`; an error where that cannot be found out
/// now, which is not a no.
pub(super) fn is_ours(pid: u32, tid: u32) -> io::Result<bool> {
    let me = rustix::thread::gettid().as_raw_pid() as u32;
    match Status::of_thread(pid, tid) {
        Ok(status) => Ok(status.tracer == me),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Forgets having asked threads whose number belongs to another thread by now, so that it is asked,
/// too; says whether there were any.
///
/// `execve` by a thread other than the main one gives it the main thread's number.
fn forget_replaced(
    pid: u32,
    waiting: &mut Waiting,
    asked: &mut OwnVec<u32>,
    refused: &[u32],
) -> bool {
    waiting.retain(|(tracee, _)| is_ours(pid, tracee.tid()).unwrap_or(true));
    let before = asked.len();
    asked.retain(|tid| {
        let waits = waiting.iter().any(|(tracee, _)| tracee.tid() == *tid);
        let ended = Status::of_thread(pid, *tid).map_or(true, |s| matches!(s.state, 'Z' | 'X'));
        waits || ended || refused.contains(tid)
    });
    asked.len() != before
}

/// Asks a thread to stop; `None` when it has ended.
fn ask(pid: u32, thread: Thread) -> Attempt<Option<Tracee>> {
    Ok(seize(pid, thread)?.filter(|tracee| tracee.interrupt().is_ok()))
}

/// Traces a thread, which runs on; `None` when it has ended.
pub(super) fn seize(pid: u32, thread: Thread) -> Attempt<Option<Tracee>> {
    let mut backoff = Backoff::until(Instant::now() + target_check::TRACKER_TIMEOUT);
    let mut refused = 0;
    let outcome = loop {
        let outcome = Tracee::seize(thread.tid, option::SYSGOOD);
        if !matches!(outcome, Err(Errno::PERM)) || is_ours(pid, thread.tid).unwrap_or(false) {
            break outcome;
        }
        // Another tracker may be at work, or may have been until now. While one begins, the parent
        // shows up in its place (`ptrace_attach` sets `ptrace` before `parent`).
        let tracer = Status::of_thread(pid, thread.tid).map_or(0, |status| status.tracer);
        let by_tracker = tracer != 0 && target_check::is_tracker(tracer);
        refused = if by_tracker { 0 } else { refused + 1 };
        if refused == REFUSALS || !backoff.wait() {
            break outcome;
        }
    };
    let tracee = match outcome {
        Ok(tracee) => tracee,
        Err(Errno::SRCH) => return Ok(None),
        // Asked under another number before its `execve`.
        Err(Errno::PERM) if is_ours(pid, thread.tid).unwrap_or(false) => Tracee::known(thread.tid),
        // It is ending (`exit_state` in `ptrace_attach`, kernel/ptrace.c).
        Err(Errno::PERM) if !is_alive(pid, thread.tid) => return Ok(None),
        Err(errno) => return Err(Failure::Call("trace a thread", errno)),
    };
    Ok(Some(tracee))
}

/// The first of the threads that have been asked to stop to do so, taken out; those that end are
/// dropped.
pub(super) fn first(
    pid: u32,
    waiting: &mut Waiting,
    deadline: Instant,
) -> Attempt<Option<Stopped>> {
    let mut backoff = Backoff::until(deadline);
    loop {
        let mut at = 0;
        while at < waiting.len() {
            match trapped(&waiting[at].0) {
                Ok(None) => at += 1,
                Ok(Some(true)) => {
                    let (tracee, since) = waiting.swap_remove(at);
                    return Stopped::adopt(tracee, pid, since).map(Some);
                }
                Ok(Some(false)) | Err(Errno::CHILD | Errno::SRCH) => drop(waiting.swap_remove(at)),
                Err(errno) => {
                    return Err(Failure::Call("wait for a thread", errno));
                }
            }
        }
        if waiting.is_empty() || !backoff.wait() {
            return Ok(None);
        }
    }
}

/// Lets threads go that were asked to stop, and have not by now, as soon as they do.
///
/// The request alone makes a transfer return early (`signal_pending` stays set after the tracer's
/// end), and that is mended in a thread that stands still. On a machine that has too much to do a
/// thread may not have run at all since it was asked. One that is not runnable, in a wait that
/// cannot be interrupted or frozen, is not waited for as long: it notices when that ends, if ever.
pub(super) fn see_off(pid: u32, waiting: &mut Waiting) {
    let start = Instant::now();
    while !waiting.is_empty() {
        match first(pid, waiting, Instant::now() + LOOK) {
            Ok(Some(late)) => drop(late.release()),
            Ok(None) => {
                let timeout = if waiting.iter().any(|(tracee, _)| is_starved(tracee)) {
                    STARVED_TIMEOUT
                } else {
                    THREAD_TIMEOUT
                };
                if start.elapsed() > timeout {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Waits until the thread traps, passing on signals that come first; false when it ended or time is
/// up.
pub(crate) fn wait_for_trap(tracee: &Tracee, mut backoff: Backoff) -> Result<bool, Errno> {
    loop {
        match trapped(tracee)? {
            Some(trapped) => return Ok(trapped),
            None if backoff.wait_for(tracee) => {}
            None => return Ok(false),
        }
    }
}

/// Whether the thread has trapped (true) or ended (false), or neither yet. Signals that come first
/// are passed on.
fn trapped(tracee: &Tracee) -> Result<Option<bool>, Errno> {
    let signal = match tracee.poll()? {
        None => return Ok(None),
        Some(Change::Trap { .. }) => return Ok(Some(true)),
        Some(Change::Exited(_) | Change::Killed(_)) => return Ok(Some(false)),
        Some(Change::Signal(signal)) => signal,
        Some(Change::Exec | Change::Exit | Change::Syscall | Change::Vfork) => 0,
    };
    // Any stop takes back the request for a trap (`ptrace_stop` in kernel/signal.c).
    tracee.interrupt()?;
    tracee.resume(Resume::Free, signal)?;
    Ok(None)
}

/// Waiting for something that comes within microseconds, mostly.
pub(crate) struct Backoff {
    deadline: Instant,
    began: Instant,
    tries: u32,
    is_patient: bool,
}

/// For how long polling is tried before sleeping. It beats sleeping where what is waited for is
/// under way on another processor. Where it waits for this one, it comes only when this thread
/// sleeps: a yield is not enough for threads of a lower priority.
const POLLED: Duration = Duration::from_micros(20);
/// How long the first sleeps are, and how many of them there are.
const SHORT_SLEEP: (Duration, u32) = (Duration::from_micros(20), 100);
/// How long the others are.
const LONG_SLEEP: Duration = Duration::from_micros(100);

impl Backoff {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            began: Instant::now(),
            tries: 0,
            is_patient: false,
        }
    }

    /// Lets a thread have more time that gets no processor: for what holds up nobody else.
    pub(super) fn patient(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    /// Waits a little; false when time is up.
    pub(crate) fn wait(&mut self) -> bool {
        let now = Instant::now();
        if now > self.deadline {
            return false;
        }
        if now - self.began < POLLED {
            std::thread::yield_now();
            return true;
        }
        self.tries += 1;
        std::thread::sleep(match self.tries > SHORT_SLEEP.1 {
            false => SHORT_SLEEP.0,
            true => LONG_SLEEP,
        });
        true
    }

    /// Waits a little for a thread; false when its time is up.
    pub(super) fn wait_for(&mut self, tracee: &Tracee) -> bool {
        if self.wait() {
            return true;
        }
        let has_time = self.is_patient && self.began.elapsed() < STARVED_TIMEOUT;
        let goes_on = has_time && is_starved(tracee);
        if goes_on {
            std::thread::sleep(LOOK);
        }
        goes_on
    }
}

/// Whether a thread that does not come to a stop is runnable: it gets no processor.
fn is_starved(tracee: &Tracee) -> bool {
    let tid = tracee.tid();
    // The directory of a thread is not listed, and there all the same.
    Status::of_thread(tid, tid).is_ok_and(|status| status.state == 'R')
}

fn is_alive(pid: u32, tid: u32) -> bool {
    Status::of_thread(pid, tid).is_ok_and(|status| !matches!(status.state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;

    /// How often this thread has left its processor to wait for something.
    fn waits() -> u64 {
        let path = format!("/proc/self/task/{}/status", gettid().as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap();
        let waits = text.lines().find_map(|line| {
            let rest = line.strip_prefix("voluntary_ctxt_switches:");
            rest?.trim().parse().ok()
        });
        waits.unwrap()
    }

    /// A thread that is to stop may wait for the processor on which it is polled for.
    #[test]
    fn others_get_the_processor_soon() {
        let mut backoff = Backoff::until(Instant::now() + TIMEOUT);
        while backoff.began.elapsed() < POLLED {}
        let before = waits();
        (0..10).for_each(|_| assert!(backoff.wait()));
        assert!(waits() >= before + 10);
    }
}
