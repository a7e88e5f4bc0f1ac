//! Running `userfaultfd(2)` in another process and fetching the descriptor, x86-64.
//!
//! A userfaultfd belongs to the address space of the thread that creates it, so the target itself
//! must make the call. The code for it ([`code`]) goes into padding after the text of the vDSO or
//! of another executable mapping, never executed by the program. One `PTRACE_SETREGS` makes a
//! thread run it. It starts a helper, which creates the descriptor and ends, then puts back the
//! registers that it used, and jumps to where the thread was, with an interrupted system call
//! restarted. From then on nothing more is needed from us: killed at any instruction, the tracker
//! leaves a helper and a thread that finish the code, with no descriptor left. Alive, we step
//! through the helper's calls, copy the descriptor by `pidfd_getfd(2)` before its end, restore
//! registers and padding exactly, and detach.
//!
//! The helper shares the memory and nothing else: it takes a descriptor table of its own. So no
//! descriptor of the program is closed or gets another number, whatever its other threads, and
//! processes that share the table, open and close meanwhile; a child that one of them forks gets no
//! copy; and there is room where the program's limit on descriptors is used up. The table is empty,
//! but the kernel makes it by copying up to 64 descriptors and closing them at once: a file that
//! the program closes within these microseconds is closed for good only after them. Where a table
//! cannot be had empty (before Linux 5.9) it is a copy until the helper ends. The helper is a
//! thread, which ends without a trace, where the kernel can name a thread's descriptors
//! (`PIDFD_THREAD`, Linux 6.9), else a process.
//!
//! No stack of the target is used: threads run on small ones (Go), alternate ones, and shadowed
//! ones. Signals are blocked meanwhile: a handler that ran in between would not interrupt the call
//! that it should interrupt.

use super::agent;
use super::code::{self, Creation, Helper};
use super::failure::{Attempt, Failure};
use super::filter;
use super::restart;
use super::stop::{Backoff, Stopped, Waiting, see_off, wait_for_trap};
use super::target_check::TRACER_NAME;
use crate::error::{Error, Result};
use crate::proc::text;
use crate::sys::ptrace::{self, Change, Resume, Tracee, option};
use crate::sys::uffd::{Faults, Uffd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::gettid;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the injected code may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The process runs on meanwhile, but for the thread that executes the code.
fn time_for_code() -> Backoff {
    Backoff::until(Instant::now() + TIMEOUT).patient()
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) fd: OwnedFd,
    /// How long a thread of the target was stopped or diverted.
    pub(crate) stopped: Duration,
}

/// Stops one thread of `pid` and fetches a userfaultfd of its address space.
pub(crate) fn fetch(pid: u32, faults: Faults) -> Result<Fetched> {
    let kernel = Kernel::for_process(pid);
    let (client, link) = agent::connect()?;
    let attempt = |late: &mut Waiting| {
        let permitted = |tracee: &Tracee| kernel.helper(tracee, pid, false).is_some();
        let mut stopped = Stopped::any_thread(pid, late, permitted)?;
        let short = stopped.short;
        let outcome = run(&mut stopped, pid, kernel, faults, false);
        let time = stopped.release();
        let fd = outcome?;
        match link.send(0, Some(fd.as_fd())) {
            true => Ok((time, short)),
            false => Err(Failure::Gone),
        }
    };
    // Whatever comes of it, those that were asked and have not stopped are let go once they have.
    let attempt = || {
        let mut late = Waiting::new();
        let outcome = attempt(&mut late);
        see_off(pid, &mut late);
        outcome
    };
    let outcome = in_own_thread(|| link.survive(attempt, agent::is_refused))?;
    let (stopped, short) = outcome.map_err(|failure| failure.explain(pid))?;
    if let Some(short) = short {
        short.warn(pid);
    }
    let fd = client
        .take_fd()
        .map_err(Error::os("receiving the userfaultfd of a process"))?;
    Ok(Fetched { fd, stopped })
}

/// Runs what traces threads: when a thread ends, the kernel lets go of all that it still traces.
fn in_own_thread<T: Send>(attempt: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let traced = std::thread::Builder::new()
            .name(TRACER_NAME.into())
            .spawn_scoped(scope, move || (attempt(), gettid()))
            .map_err(Error::io("starting a thread"))?;
        let (outcome, tracer) = traced
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        wait_until_gone(tracer);
        Ok(outcome)
    })
}

/// A thread can be joined before it lets go of what it traces (`do_exit` in `kernel/exit.c`: first
/// its memory, then its tracees), but it is not listed any more after that.
fn wait_until_gone(thread: Pid) {
    let listed = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let mut backoff = Backoff::until(Instant::now() + TIMEOUT);
    while std::fs::exists(&listed).unwrap_or(false) && backoff.wait() {}
}

/// Fetches a userfaultfd by a stopped thread, which stays so. Allocates nothing.
///
/// `started`: the program was started by this process and may have its filters.
pub(crate) fn run(
    stopped: &mut Stopped,
    pid: u32,
    kernel: Kernel,
    faults: Faults,
    started: bool,
) -> Attempt<OwnedFd> {
    let helper = kernel.helper(&stopped.tracee, pid, started);
    let helper = helper.ok_or(Failure::Seccomp)?;
    execute(stopped, pid, helper, Uffd::flags(faults))
}

/// Which helpers the kernel knows, found out before anything is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel(&'static [Helper]);

impl Kernel {
    /// Finds out which helpers a process may have.
    pub(crate) fn for_process(pid: u32) -> Self {
        // Others do not know the flag.
        let threads = pidfd_open(gettid(), pidfd_thread()).is_ok();
        Self(match (has_close_range(), threads && !has_queues(pid)) {
            (true, true) => &[Helper::Thread, Helper::Process, Helper::ProcessWithCopy],
            (true, false) => &[Helper::Process, Helper::ProcessWithCopy],
            (false, _) => &[Helper::ProcessWithCopy],
        })
    }

    /// The best helper that the thread's filters let run.
    fn helper(self, tracee: &Tracee, pid: u32, started: bool) -> Option<Helper> {
        let allowed = |helper: &&Helper| filter::allow(tracee, pid, helper.calls(), false);
        self.0.iter().find(allowed).copied().or_else(|| {
            // Filters that cannot be read, but are ours: of these calls it is known that they pass.
            // A program that has just been started closes nothing meanwhile.
            let helper = Helper::ProcessWithCopy;
            (started && filter::allow(tracee, pid, helper.calls(), true)).then_some(helper)
        })
    }
}

/// Whether the kernel has `close_range(2)` (Linux 5.9). By its release: making the call would end
/// us under a filter that kills.
fn has_close_range() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse().ok());
    (number(), number()) >= (Some(5_u32), Some(9_u32))
}

/// `PIDFD_THREAD` in `include/uapi/linux/pidfd.h`.
pub(super) fn pidfd_thread() -> PidfdFlags {
    PidfdFlags::from_bits_retain(libc::O_EXCL as u32)
}

/// How many descriptors are looked at.
const DESCRIPTORS_MAX: usize = 1024;
/// `MQUEUE_MAGIC` in `ipc/mqueue.c`.
const MQUEUE_MAGIC: i64 = 0x1980_0202;

/// Whether a process may have POSIX message queues open.
///
/// Whichever thread closes a copy of such a descriptor takes back the process's `mq_notify(3)`
/// (`mqueue_flush_file`).
fn has_queues(pid: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return true;
    };
    entries.enumerate().any(|(index, entry)| {
        index >= DESCRIPTORS_MAX
            || entry.is_ok_and(|entry| {
                // Only where the name may be a queue's: of a file that lies elsewhere this could
                // wait, as on a network.
                let link = std::fs::read_link(entry.path());
                link.is_ok_and(|link| {
                    link.starts_with("/dev/mqueue") || link.parent() == Some(Path::new("/"))
                }) && rustix::fs::statfs(entry.path())
                    .is_ok_and(|system| system.f_type == MQUEUE_MAGIC)
            })
    })
}

/// Has a stopped thread create a userfaultfd; gives a copy of it.
fn execute(stopped: &mut Stopped, pid: u32, helper: Helper, flags: u32) -> Attempt<OwnedFd> {
    if stopped.registers.cs == ptrace::USER32_CS {
        return Err(Failure::ThirtyTwoBit);
    }
    if stopped.tracee.dispatches_calls() {
        return Err(Failure::DispatchesCalls);
    }
    let back = restart::in_user_space(stopped.registers);
    let creation = code::create_userfaultfd(helper, flags, stopped.blocked, &back);
    let at = write(stopped, pid, &creation)?;
    let run = Run {
        helper,
        at,
        creation,
    };
    let copied = run.step_through(&stopped.tracee);
    // Traps before the thread executes anything more; one that still runs must be given its time.
    let trapped = stopped.tracee.interrupt().and_then(|()| {
        match stopped.tracee.resume(Resume::Free, 0) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
        wait_for_trap(&stopped.tracee, time_for_code())
    });
    match trapped {
        Ok(true) => {}
        Ok(false) | Err(Errno::SRCH | Errno::CHILD) => return Err(Failure::Gone),
        Err(errno) => return Err(Failure::Call("stop a thread", errno)),
    }
    remove(stopped, at).map_err(Failure::of("restore the registers"))?;
    copied
}

/// Writes the code and points the thread to it; says where the code is.
fn write(stopped: &Stopped, pid: u32, creation: &Creation) -> Attempt<u64> {
    let (at, _) = code::find(pid, None, 0)?;
    let tracee = &stopped.tracee;
    code::write(tracee, at, &creation.slot).map_err(Failure::of("write code into the padding"))?;
    let mut diverted = stopped.registers;
    diverted.rip = at;
    // Not inside a system call any more: nothing to restart when the thread goes on.
    diverted.orig_rax = u64::MAX;
    // In this order: only the code puts the mask back.
    let outcome = tracee
        .set_registers(&diverted)
        .and_then(|()| tracee.block_signals(u64::MAX))
        .and_then(|()| tracee.set_options(tracee.options() | option::VFORK));
    if let Err(errno) = outcome {
        let _ = remove(stopped, at);
        return Err(Failure::Call("set the registers", errno));
    }
    Ok(at)
}

/// Leaves everything as it was.
fn remove(stopped: &Stopped, at: u64) -> Result<(), Errno> {
    let tracee = &stopped.tracee;
    // In this order: killed in between we leave it in the code, which finishes; the other way round
    // it would go on with all signals blocked.
    tracee.block_signals(stopped.blocked)?;
    tracee.set_registers(&stopped.registers)?;
    tracee.set_options(tracee.options() & !option::VFORK)?;
    code::clear(tracee, at)
}

/// Code that a thread executes, with what is needed to follow it.
struct Run {
    helper: Helper,
    at: u64,
    creation: Creation,
}

impl Run {
    /// Follows the thread until its helper has ended, and the helper until it has the descriptor,
    /// of which this gives a copy.
    fn step_through(&self, tracee: &Tracee) -> Attempt<OwnedFd> {
        let failed = Failure::of("follow the injected call");
        let mut backoff = time_for_code();
        let mut copied = None;
        let mut stops_at_end = 0;
        tracee.resume(Resume::ToSyscall, 0).map_err(&failed)?;
        loop {
            let change = next(tracee, &mut backoff)?;
            let mut signal = 0;
            match change {
                // One that cannot be blocked.
                Change::Signal(number) => signal = number,
                Change::Exited(_) | Change::Killed(_) => {
                    return Err(Failure::Gone);
                }
                Change::Vfork => {
                    let created = tracee.created().map_err(&failed)?;
                    // The thread waits for the helper's end, which we have to see, too.
                    copied = Some(self.follow_helper(&created, &mut backoff));
                    tracee.resume(Resume::ToSyscall, 0).map_err(&failed)?;
                    finish_helper(&created, &mut backoff);
                    continue;
                }
                Change::Syscall => {
                    let registers = tracee.registers().map_err(&failed)?;
                    let result = registers.rax as i64;
                    let place = registers.rip.wrapping_sub(self.at);
                    let entry = result == -i64::from(libc::ENOSYS) && stops_at_end == 0;
                    if !entry && result == restart::ERESTARTNOINTR {
                        // Stopped while it began; it will be made anew.
                        stops_at_end = 0;
                        tracee.resume(Resume::ToSyscall, 0).map_err(&failed)?;
                        continue;
                    }
                    let cloned = place == self.creation.after_clone && !entry;
                    if cloned && result < 0 && copied.is_none() {
                        return Err(Failure::NotCloned(errno_of(result)));
                    }
                    if place == self.creation.after_helper {
                        stops_at_end += 1;
                        if stops_at_end >= 2 {
                            return copied.unwrap_or(Err(Failure::Gone));
                        }
                    }
                }
                Change::Trap { .. } | Change::Exec | Change::Exit => {}
            }
            tracee.resume(Resume::ToSyscall, signal).map_err(&failed)?;
        }
    }

    /// Steps a helper to the end of its second call, which creates the descriptor, and copies that.
    fn follow_helper(&self, created: &Tracee, backoff: &mut Backoff) -> Attempt<OwnedFd> {
        let failed = Failure::of("follow the injected call");
        // Of each call the first stop is the entry.
        let (mut stops_at_table, mut stops_at_create) = (0, 0);
        loop {
            let mut signal = 0;
            match next(created, backoff)? {
                Change::Signal(number) => signal = number,
                Change::Exited(_) | Change::Killed(_) => {
                    return Err(Failure::Gone);
                }
                Change::Syscall => {
                    let registers = created.registers().map_err(&failed)?;
                    let place = registers.rip.wrapping_sub(self.at);
                    let result = registers.rax as i64;
                    stops_at_table += u32::from(place == self.creation.after_table);
                    stops_at_create += u32::from(place == self.creation.after_create);
                    if stops_at_create == 2 {
                        debug_assert!(
                            result < 0 || self.holds_nothing_else(created.tid()),
                            "it keeps files of the program open"
                        );
                        return copy(created.tid(), self.helper, result);
                    }
                    let must_succeed = self.helper != Helper::ProcessWithCopy;
                    if stops_at_table == 2 && stops_at_create == 0 && must_succeed && result < 0 {
                        return Err(Failure::NoTable(errno_of(result)));
                    }
                }
                _ => {}
            }
            created.resume(Resume::ToSyscall, signal).map_err(&failed)?;
        }
    }

    /// Whether the table of a helper has no descriptor but the one that it has created. A helper
    /// that is killed at this moment has none at all, or cannot be looked at any more.
    fn holds_nothing_else(&self, tid: u32) -> bool {
        let mut count = 0;
        let counted = text::numbers(format_args!("/proc/{tid}/fd"), |_| {
            count += 1;
            Ok(())
        });
        self.helper == Helper::ProcessWithCopy || counted.is_err() || count <= 1
    }
}

fn errno_of(result: i64) -> Errno {
    Errno::from_raw_os_error(-result as i32)
}

/// Lets a helper come to its end. Not let go before: in a process that is stopped (`SIGSTOP`) it
/// would stop as well.
fn finish_helper(created: &Tracee, backoff: &mut Backoff) {
    if created.resume(Resume::Free, 0).is_err() {
        return;
    }
    loop {
        match created.take() {
            Ok(Some(Change::Exited(_) | Change::Killed(_))) | Err(_) => return,
            Ok(Some(Change::Signal(signal))) => drop(created.resume(Resume::Free, signal)),
            Ok(Some(_)) => drop(created.resume(Resume::Free, 0)),
            Ok(None) if backoff.wait_for(created) => {}
            Ok(None) => return,
        }
    }
}

/// The next change of state.
pub(super) fn next(tracee: &Tracee, backoff: &mut Backoff) -> Attempt<Change> {
    loop {
        match tracee.poll() {
            Ok(Some(change)) => return Ok(change),
            Ok(None) if backoff.wait_for(tracee) => {}
            Ok(None) => return Err(Failure::NotStopping(TIMEOUT)),
            Err(errno) => return Err(Failure::Call("follow the injected call", errno)),
        }
    }
}

fn copy(tid: u32, helper: Helper, result: i64) -> Attempt<OwnedFd> {
    if result < 0 {
        return Err(Failure::NotCreated(errno_of(result)));
    }
    let failed = Failure::of("copy a descriptor");
    let created = Pid::from_raw(tid as i32).ok_or(Failure::NoSuchProcess)?;
    let flags = match helper {
        Helper::Thread => pidfd_thread(),
        Helper::Process | Helper::ProcessWithCopy => PidfdFlags::empty(),
    };
    let handle = pidfd_open(created, flags).map_err(&failed)?;
    pidfd_getfd(handle, result as i32, PidfdGetfdFlags::empty()).map_err(&failed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::page_set::{PageRange, page_size};
    use crate::sys::uffd::{Features, Mode};

    #[test]
    fn a_descriptor_whose_address_space_is_gone_says_so() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let fetched = fetch(child.id(), Faults::UserMode);
        child.kill().unwrap();
        child.wait().unwrap();
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(error) => return pagetrail_skips::not_here(&error),
        };
        let uffd = match Uffd::handshake(fetched.fd, Features::PAGEFAULT_FLAG_WP) {
            Ok(uffd) => uffd,
            Err(error) => return pagetrail_skips::not_here(format!("userfaultfd: {error}")),
        };
        let range = PageRange::new(1 << 30, (1 << 30) + page_size()).unwrap();
        let outcome = uffd.register(range, Mode::WriteProtect);
        assert_eq!(outcome, Err(Errno::SRCH));
    }
}
