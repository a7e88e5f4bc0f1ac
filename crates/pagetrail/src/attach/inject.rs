//! Running `userfaultfd(2)` in another process and fetching the descriptor, x86-64.
//!
//! A userfaultfd belongs to the address space of the thread that creates it, so the target itself
//! must make the call. The code for it ([`code`]) goes into padding behind the text of the vDSO or
//! of another executable mapping, never executed by the program. One `PTRACE_SETREGS` makes a
//! thread run it. It starts a helper, which creates the descriptor and ends, then puts back the
//! registers that it used, and jumps to where the thread was, with an interrupted system call
//! restarted. From then on nothing more is needed from us: killed at any instruction, the tracker
//! leaves a helper and a thread that finish the code, with no descriptor left. Alive, we step
//! through the helper's calls, copy the descriptor by `pidfd_getfd(2)` before its end, restore
//! registers and padding exactly, and detach.
//!
//! The helper shares the memory and nothing else: its descriptor table is a copy. So no descriptor
//! of the program is closed or gets another number, whatever its other threads, and processes that
//! share the table, open and close meanwhile; a child that one of them forks gets no copy; and
//! there is room where the program's limit on descriptors is used up. It is a thread, which ends
//! without a trace, where the kernel can name a thread's descriptors (`PIDFD_THREAD`, Linux 6.9),
//! else a process.
//!
//! No stack of the target is used: threads run on small ones (Go), alternate ones, and shadowed
//! ones. Signals are blocked meanwhile: a handler that ran in between would not interrupt the call
//! that it should interrupt.

use super::code::{self, AFTER_CLONE, AFTER_CREATE, AFTER_WAIT, Helper};
use super::filter;
use super::restart;
use super::stop::{Backoff, Stopped, wait_for_trap};
use super::target_check::explain;
use crate::error::{Error, Result};
use crate::sys::ptrace::{Change, Resume, Tracee, option};
use crate::sys::uffd::Uffd;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::gettid;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the injected code may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) fd: OwnedFd,
    /// How long a thread of the target was stopped or diverted.
    pub(crate) stopped: Duration,
}

/// Stops one thread of `pid` and fetches a userfaultfd of its address space.
pub(crate) fn fetch(pid: u32, kernel_faults: bool) -> Result<Fetched> {
    let helper = helper(pid);
    let attempt = || {
        let permitted = |tracee: &Tracee| filter::allow(tracee, pid, code::CALLS, false);
        let mut stopped = Stopped::any_thread(pid, permitted)?;
        let fd = execute(&mut stopped, pid, helper, Uffd::flags(kernel_faults));
        Ok((fd, stopped.release()))
    };
    let (fd, stopped) = in_own_thread(attempt)?;
    Ok(Fetched { fd: fd?, stopped })
}

/// Runs what traces threads: when a thread ends, the kernel lets go of all that it still traces.
fn in_own_thread<T: Send>(attempt: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let traced = scope.spawn(move || (attempt(), gettid()));
        let (outcome, tracer) = traced
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        wait_until_gone(tracer);
        outcome
    })
}

/// A thread can be joined before it lets go of what it traces (`do_exit` in `kernel/exit.c`: first
/// its memory, then its tracees), but it is not listed any more after that.
fn wait_until_gone(thread: Pid) {
    let listed = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let mut backoff = Backoff::until(Instant::now() + TIMEOUT);
    while std::fs::exists(&listed).unwrap_or(false) && backoff.wait() {}
}

/// Fetches a userfaultfd by a thread of a program that we have started; it is stopped, and stays
/// so.
pub(crate) fn run(stopped: &mut Stopped, pid: u32, kernel_faults: bool) -> Result<OwnedFd> {
    if !filter::allow(&stopped.tracee, pid, code::CALLS, true) {
        return Err(Error::Seccomp { pid });
    }
    execute(stopped, pid, helper(pid), Uffd::flags(kernel_faults))
}

/// Which helper fits the kernel and the program.
fn helper(pid: u32) -> Helper {
    // Others do not know the flag.
    let known = pidfd_open(gettid(), pidfd_thread()).is_ok();
    match known && !has_queues(pid) {
        true => Helper::Thread,
        false => Helper::Process,
    }
}

/// `PIDFD_THREAD` in `include/uapi/linux/pidfd.h`.
fn pidfd_thread() -> PidfdFlags {
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
fn execute(stopped: &mut Stopped, pid: u32, helper: Helper, flags: u32) -> Result<OwnedFd> {
    // Code segment 0x33 is 64-bit mode, 0x23 compatibility mode (arch/x86/include/asm/segment.h).
    if stopped.registers.cs == 0x23 {
        return Err(Error::ThirtyTwoBit { pid });
    }
    if stopped.tracee.dispatches_calls() {
        return Err(Error::Attach {
            pid,
            reason: "it handles its system calls itself (syscall user dispatch, as Wine does); \
                the technique compare needs no call"
                .into(),
        });
    }
    let at = write(stopped, pid, helper, flags)?;
    let copied = step_through(&stopped.tracee, pid, helper, at);
    // Traps before the thread executes anything more; one that still runs must be given its time.
    let trapped = stopped.tracee.interrupt().and_then(|()| {
        match stopped.tracee.resume(Resume::Free, 0) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
        wait_for_trap(&stopped.tracee, Instant::now() + TIMEOUT)
    });
    match trapped {
        Ok(true) => {}
        Ok(false) | Err(Errno::SRCH | Errno::CHILD) => return Err(Error::Gone { pid }),
        Err(errno) => return Err(explain(pid, "stop a thread", errno)),
    }
    remove(stopped, at).map_err(|e| explain(pid, "restore the registers", e))?;
    copied
}

/// Writes the code and points the thread to it; says where the code is.
fn write(stopped: &Stopped, pid: u32, helper: Helper, flags: u32) -> Result<u64> {
    let (at, _) = code::find(pid, None)?;
    let tracee = &stopped.tracee;
    let back = restart::in_user_space(stopped.registers);
    let slot = code::create_userfaultfd(helper, flags, stopped.blocked, &back);
    let failed = |errno| explain(pid, "write code into the padding", errno);
    code::write(tracee, at, &slot).map_err(failed)?;
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
        return Err(explain(pid, "set the registers", errno));
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

/// Follows the thread until its helper has ended, and the helper until it has the descriptor, of
/// which this gives a copy.
fn step_through(tracee: &Tracee, pid: u32, helper: Helper, at: u64) -> Result<OwnedFd> {
    let failed = |errno| explain(pid, "follow the injected call", errno);
    let mut backoff = Backoff::until(Instant::now() + TIMEOUT);
    let mut copied = None;
    let end = match helper {
        Helper::Thread => AFTER_CLONE,
        Helper::Process => AFTER_WAIT,
    };
    let mut stops_at_end = 0;
    tracee.resume(Resume::ToSyscall, 0).map_err(failed)?;
    loop {
        let change = next(tracee, pid, &mut backoff)?;
        let mut signal = 0;
        match change {
            // One that cannot be blocked.
            Change::Signal(number) => signal = number,
            Change::Exited(_) | Change::Killed(_) => return Err(Error::Gone { pid }),
            Change::Vfork => {
                let created = tracee.created().map_err(failed)?;
                // The thread waits for the helper's end, which we have to see, too.
                copied = Some(follow_helper(&created, pid, helper, at, &mut backoff));
                tracee.resume(Resume::ToSyscall, 0).map_err(failed)?;
                finish_helper(&created, &mut backoff);
                continue;
            }
            Change::Syscall => {
                let registers = tracee.registers().map_err(failed)?;
                let result = registers.rax as i64;
                let place = registers.rip.wrapping_sub(at);
                let entry = result == -i64::from(libc::ENOSYS) && stops_at_end == 0;
                if !entry && result == restart::ERESTARTNOINTR {
                    // Stopped while it began; it will be made anew.
                    stops_at_end = 0;
                    tracee.resume(Resume::ToSyscall, 0).map_err(failed)?;
                    continue;
                }
                if place == AFTER_CLONE && !entry && result < 0 && copied.is_none() {
                    return Err(not_cloned(pid, Errno::from_raw_os_error(-result as i32)));
                }
                if place == end {
                    stops_at_end += 1;
                    if stops_at_end >= 2 {
                        return copied.unwrap_or(Err(Error::Gone { pid }));
                    }
                }
            }
            Change::Trap { .. } | Change::Exec | Change::Exit => {}
        }
        tracee.resume(Resume::ToSyscall, signal).map_err(failed)?;
    }
}

/// Steps a helper to the end of its second call, which creates the descriptor, and copies that.
fn follow_helper(
    created: &Tracee,
    pid: u32,
    helper: Helper,
    at: u64,
    backoff: &mut Backoff,
) -> Result<OwnedFd> {
    let failed = |errno| explain(pid, "follow the injected call", errno);
    let mut stops = 0;
    loop {
        let mut signal = 0;
        match next(created, pid, backoff)? {
            Change::Signal(number) => signal = number,
            Change::Exited(_) | Change::Killed(_) => return Err(Error::Gone { pid }),
            Change::Syscall => {
                let registers = created.registers().map_err(failed)?;
                stops += u32::from(registers.rip.wrapping_sub(at) == AFTER_CREATE);
                // The first is the entry.
                if stops == 2 {
                    return copy(created.tid(), pid, helper, registers.rax as i64);
                }
            }
            _ => {}
        }
        created.resume(Resume::ToSyscall, signal).map_err(failed)?;
    }
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
            Ok(None) if backoff.wait() => {}
            Ok(None) => return,
        }
    }
}

/// The next change of state.
fn next(tracee: &Tracee, pid: u32, backoff: &mut Backoff) -> Result<Change> {
    loop {
        match tracee.poll() {
            Ok(Some(change)) => return Ok(change),
            Ok(None) if backoff.wait() => {}
            Ok(None) => {
                return Err(Error::NotStopping {
                    pid,
                    waited_ms: TIMEOUT.as_millis() as u64,
                });
            }
            Err(errno) => return Err(explain(pid, "follow the injected call", errno)),
        }
    }
}

/// Why a helper could not be started.
fn not_cloned(pid: u32, errno: Errno) -> Error {
    let hint = match errno {
        Errno::AGAIN => {
            " (its limit on processes, ulimit -u, or that of its cgroup, pids.max, is used up)"
        }
        Errno::INVAL => " (its children are to be in another namespace)",
        _ => "",
    };
    Error::Attach {
        pid,
        reason: format!(
            "clone(2) in it failed: {errno}{hint}; the technique compare needs no call"
        ),
    }
}

fn copy(tid: u32, pid: u32, helper: Helper, result: i64) -> Result<OwnedFd> {
    if result < 0 {
        let errno = Errno::from_raw_os_error(-result as i32);
        return Err(match errno {
            Errno::PERM => Error::Permission {
                pid,
                what: "create a userfaultfd on behalf",
                cure:
                    "set vm.unprivileged_userfaultfd=1, or choose the technique pagemap-scan or compare"
                        .into(),
            },
            Errno::NOSYS => Error::Attach {
                pid,
                reason: "its kernel has no userfaultfd (CONFIG_USERFAULTFD)".into(),
            },
            Errno::MFILE => Error::Attach {
                pid,
                reason: "its limit on descriptors is 0 (ulimit -n); the technique compare needs none".into(),
            },
            errno => Error::Attach {
                pid,
                reason: format!("userfaultfd(2) in it failed: {errno}"),
            },
        });
    }
    let failed = |errno| explain(pid, "copy a descriptor", errno);
    let created = Pid::from_raw(tid as i32).ok_or(Error::NoSuchProcess { pid })?;
    let flags = match helper {
        Helper::Thread => pidfd_thread(),
        Helper::Process => PidfdFlags::empty(),
    };
    let handle = pidfd_open(created, flags).map_err(failed)?;
    pidfd_getfd(handle, result as i32, PidfdGetfdFlags::empty()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::page_set::{PageRange, page_size};
    use crate::sys::uffd::{Mode, feature};

    #[test]
    fn a_descriptor_whose_address_space_is_gone_says_so() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let fetched = fetch(child.id(), false);
        child.kill().unwrap();
        child.wait().unwrap();
        let Ok(fetched) = fetched else {
            return; // The conformance suite says why.
        };
        let Ok(uffd) = Uffd::handshake(fetched.fd, feature::PAGEFAULT_FLAG_WP) else {
            return; // Likewise.
        };
        let range = PageRange::new(1 << 30, (1 << 30) + page_size()).unwrap();
        let outcome = uffd.register(range, Mode::WriteProtect);
        assert_eq!(outcome, Err(Errno::SRCH));
    }
}
