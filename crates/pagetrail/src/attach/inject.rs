//! Running `userfaultfd(2)` in another process and fetching the descriptor, x86-64.
//!
//! A userfaultfd belongs to the address space of the thread that creates it, so the target itself must make the
//! call. The code for it goes into padding behind the text of the vDSO or of another executable mapping, never
//! executed by the program, and says everything by itself: create the descriptor, close it, unblock signals, put back
//! the registers it used, and jump to where the thread was, with an interrupted system call restarted. One
//! `PTRACE_SETREGS` makes the thread run it. From then on nothing more is needed from us:
//! killed at any instruction, the tracker leaves a thread that finishes the code and goes on, with no
//! descriptor left. Alive, we step through the calls, copy the descriptor by `pidfd_getfd(2)` between them,
//! restore registers and padding exactly, and detach.
//!
//! No stack of the target is used: threads run on small ones (Go), alternate ones, and shadowed ones. Signals
//! are blocked meanwhile: a handler that ran in between would not interrupt the call that it should interrupt.
//!
//! Another thread may fork between the two calls; then the child has a copy of the descriptor, which would keep the
//! tracking alive. Such children are found and made to close it ([`Copies`]).

use super::restart;
use super::stop::{Patience, Stopped, wait_for_trap};
use super::target_check::explain;
use crate::error::{Error, Result};
use crate::page_set::page_size;
use crate::proc::maps::Maps;
use crate::proc::status::{processes, threads};
use crate::sys::kcmp;
use crate::sys::ptrace::{self, Change, Registers, Resume, Tracee};
use crate::sys::remote_memory;
use crate::sys::uffd::Uffd;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::gettid;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the injected code may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) fd: OwnedFd,
    pub(crate) copies: Option<Copies>,
    /// How long a thread of the target was stopped or diverted.
    pub(crate) stopped: Duration,
}

/// Stops one thread of `pid` and fetches a userfaultfd of its address space.
pub(crate) fn fetch(pid: u32, kernel_faults: bool) -> Result<Fetched> {
    let attempt = || {
        let mut stopped = Stopped::any_thread(pid)?;
        let copied = run(&mut stopped, pid, kernel_faults);
        Ok((copied, stopped.release()))
    };
    let (copied, stopped) = in_own_thread(attempt)?;
    let copied = copied?;
    Ok(Fetched {
        copies: Copies::of(pid, &copied),
        fd: copied.fd,
        stopped,
    })
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

/// A thread can be joined before it lets go of what it traces (`do_exit` in `kernel/exit.c`: first its memory, then its
/// tracees), but it is not listed any more after that.
fn wait_until_gone(thread: Pid) {
    let listed = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let mut patience = Patience::until(Instant::now() + PATIENCE);
    while std::fs::exists(&listed).unwrap_or(false) && patience.wait() {}
}

/// A copy of a descriptor of the target.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) fd: OwnedFd,
    /// Its number in the target, where it is closed by now.
    number: i32,
}

/// Fetches a userfaultfd by a thread that is stopped, and stays so.
pub(crate) fn run(stopped: &mut Stopped, pid: u32, kernel_faults: bool) -> Result<Copied> {
    let job = Job::Userfaultfd {
        flags: Uffd::flags(kernel_faults),
    };
    execute(stopped, pid, job)?.unwrap_or_else(|| {
        Err(Error::Attach {
            pid,
            reason: "its kernel has no userfaultfd (CONFIG_USERFAULTFD)".into(),
        })
    })
}

/// Watches over copies of a descriptor that children got which were forked between its creation and its closing.
///
/// They would keep the tracking alive after its end, so they are made to close it: when this is made, and in the end,
/// by when a fork that was under way at the first look is over.
#[derive(Debug)]
pub(crate) struct Copies {
    copied: Copied,
}

impl Copies {
    /// `None` for a program of one thread: it cannot fork while it runs our code.
    fn of(pid: u32, copied: &Copied) -> Option<Self> {
        if threads(pid).map_or(0, |tids| tids.len()) < 2 {
            return None;
        }
        let fd = copied.fd.try_clone().ok()?;
        let number = copied.number;
        let copies = Self {
            copied: Copied { fd, number },
        };
        copies.close();
        Some(copies)
    }

    fn close(&self) {
        let number = self.copied.number;
        // All processes, not the lists of children: those skip some while others end, and a child may have been
        // adopted by now.
        for pid in processes() {
            let has_copy = || {
                let link = std::fs::read_link(format!("/proc/{pid}/fd/{number}"));
                link.is_ok_and(|link| link == Path::new("anon_inode:[userfaultfd]"))
                    && kcmp::same_file(self.copied.fd.as_raw_fd(), pid, number)
            };
            // Our own copy may have this number as well, and a child that we are just starting has that until it executes
            // its program.
            if !has_copy() || kcmp::same_memory(pid) {
                continue;
            }
            let outcome = in_own_thread(|| {
                let mut stopped = Stopped::any_thread(pid)?;
                // Before it was stopped it may have closed it, and opened something else.
                let outcome = match has_copy() {
                    true => execute(&mut stopped, pid, Job::Close { number }).map(drop),
                    false => Ok(()),
                };
                stopped.release();
                outcome
            });
            match outcome {
                Ok(()) | Err(Error::Gone { .. } | Error::NoSuchProcess { .. }) => {}
                Err(error) => tracing::warn!(pid, %error, "a child keeps a copy of a userfaultfd"),
            }
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the injected code does.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Create a userfaultfd and close it.
    Userfaultfd { flags: u32 },
    /// Close a descriptor.
    Close { number: i32 },
}

/// Runs a job in a stopped thread; gives the descriptor that was copied, if one was created.
fn execute(stopped: &mut Stopped, pid: u32, job: Job) -> Result<Option<Result<Copied>>> {
    // Code segment 0x33 is 64-bit mode, 0x23 compatibility mode (arch/x86/include/asm/segment.h).
    if stopped.registers.cs == 0x23 {
        return Err(Error::ThirtyTwoBit { pid });
    }
    if stopped.tracee.dispatches_calls() {
        return Err(Error::Attach {
            pid,
            reason: "it handles its system calls itself (syscall user dispatch, as Wine does); \
                use --technique compare"
                .into(),
        });
    }
    let call = Injected::write(stopped, pid, job)?;
    let outcome = call.step_through(&stopped.tracee, pid);
    // Traps before the thread executes anything more; one that still runs must be given its time.
    let trapped = stopped.tracee.interrupt().and_then(|()| {
        match stopped.tracee.resume(Resume::Free, 0) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
        wait_for_trap(&stopped.tracee, Instant::now() + PATIENCE)
    });
    match trapped {
        Ok(true) => {}
        Ok(false) | Err(Errno::SRCH | Errno::CHILD) => return Err(Error::Gone { pid }),
        Err(errno) => return Err(explain(pid, "stop a thread", errno)),
    }
    call.remove(stopped)
        .map_err(|e| explain(pid, "restore the registers", e))?;
    outcome
}

/// Code in the padding of the target, and what was there before.
struct Injected {
    at: u64,
    before: Vec<u8>,
}

/// Offsets in the code: behind its first two `syscall` instructions.
const AFTER_CREATE: u64 = 12;
const AFTER_CLOSE: u64 = 21;
const CODE_LEN: usize = 144;

impl Injected {
    /// Writes the code and points the thread to it.
    fn write(stopped: &Stopped, pid: u32, job: Job) -> Result<Self> {
        let (at, before) = find_padding(pid)?;
        let tracee = &stopped.tracee;
        let code = code(
            job,
            stopped.blocked,
            &restart::in_user_space(stopped.registers),
        );
        let failed = |errno| explain(pid, "write code into the padding", errno);
        let injected = Self { at, before };
        injected.put(tracee, &code).map_err(failed)?;
        let mut diverted = stopped.registers;
        diverted.rip = at;
        // Not inside a system call any more: nothing to restart when the thread goes on.
        diverted.orig_rax = u64::MAX;
        // In this order: only the code puts the mask back.
        let outcome = tracee
            .set_registers(&diverted)
            .and_then(|()| tracee.block_signals(u64::MAX));
        if let Err(errno) = outcome {
            let _ = injected.remove(stopped);
            return Err(explain(pid, "set the registers", errno));
        }
        Ok(injected)
    }

    fn put(&self, tracee: &Tracee, bytes: &[u8]) -> Result<(), Errno> {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            tracee.poke(self.at + 8 * i as u64, eight)?;
        }
        Ok(())
    }

    /// Follows the thread through both calls and copies the descriptor between them.
    fn step_through(&self, tracee: &Tracee, pid: u32) -> Result<Option<Result<Copied>>> {
        let process = Pid::from_raw(pid as i32).ok_or(Error::NoSuchProcess { pid })?;
        let failed = |errno| explain(pid, "follow the injected call", errno);
        let mut patience = Patience::until(Instant::now() + PATIENCE);
        let mut copied = None;
        let mut signal = 0;
        let mut stops_at_close = 0;
        loop {
            tracee
                .resume(Resume::ToSyscall, std::mem::take(&mut signal))
                .map_err(failed)?;
            let change = loop {
                match tracee.poll().map_err(failed)? {
                    Some(change) => break change,
                    None if patience.wait() => {}
                    None => {
                        return Err(Error::NotStopping {
                            pid,
                            waited_ms: PATIENCE.as_millis() as u64,
                        });
                    }
                }
            };
            match change {
                // One that cannot be blocked.
                Change::Signal(number) => signal = number,
                Change::Exited(_) | Change::Killed(_) => return Err(Error::Gone { pid }),
                Change::Syscall => {
                    let registers = tracee.registers().map_err(failed)?;
                    let entry = registers.rax as i64 == -i64::from(libc::ENOSYS);
                    match registers.rip.wrapping_sub(self.at) {
                        AFTER_CREATE if !entry => {
                            copied = Some(copy(process, pid, registers.rax as i64))
                        }
                        AFTER_CLOSE => {
                            stops_at_close += 1;
                            if stops_at_close == 2 {
                                return Ok(copied);
                            }
                        }
                        _ => {}
                    }
                }
                Change::Trap { .. } | Change::Exec | Change::Exit => {}
            }
        }
    }

    /// Leaves everything as it was.
    fn remove(&self, stopped: &Stopped) -> Result<(), Errno> {
        let tracee = &stopped.tracee;
        // In this order: killed in between we leave it in the code, which finishes; the other way round it would go on
        // with all signals blocked.
        tracee.block_signals(stopped.blocked)?;
        tracee.set_registers(&stopped.registers)?;
        self.put(tracee, &self.before)
    }
}

fn copy(process: Pid, pid: u32, result: i64) -> Result<Copied> {
    if result < 0 {
        let errno = Errno::from_raw_os_error(-result as i32);
        return Err(match errno {
            Errno::PERM => Error::Permission {
                pid,
                what: "create a userfaultfd on behalf",
                cure:
                    "set vm.unprivileged_userfaultfd=1, or use --technique pagemap-scan or compare"
                        .into(),
            },
            errno => Error::Attach {
                pid,
                reason: format!("userfaultfd(2) in it failed: {errno}"),
            },
        });
    }
    let failed = |errno| explain(pid, "copy a descriptor", errno);
    let number = result as i32;
    let handle = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    let fd = pidfd_getfd(handle, number, PidfdGetfdFlags::empty()).map_err(failed)?;
    Ok(Copied { fd, number })
}

/// The job, then the mask of blocked signals, the registers and the place of `back`.
fn code(job: Job, blocked: u64, back: &Registers) -> Vec<u8> {
    const MOV_EAX: u8 = 0xb8;
    const MOV_EDX: u8 = 0xba;
    const MOV_EDI: u8 = 0xbf;
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut code = Vec::with_capacity(CODE_LEN);
    let load = |code: &mut Vec<u8>, opcode: u8, value: u32| {
        code.push(opcode); // mov r32, imm32
        code.extend(value.to_le_bytes());
    };
    match job {
        Job::Userfaultfd { flags } => {
            load(&mut code, MOV_EAX, libc::SYS_userfaultfd as u32);
            load(&mut code, MOV_EDI, flags);
            code.extend(SYSCALL);
            debug_assert_eq!(code.len() as u64, AFTER_CREATE);
            // mov edi, eax: closing an error code fails, which does no harm.
            code.extend([0x89, 0xc7]);
        }
        Job::Close { number } => {
            code.extend([0x90; 9]); // nop, up to where the other job closes
            load(&mut code, MOV_EDI, number as u32);
        }
    }
    load(&mut code, MOV_EAX, libc::SYS_close as u32);
    code.extend(SYSCALL);
    debug_assert_eq!(code.len() as u64, AFTER_CLOSE);
    load(&mut code, MOV_EAX, libc::SYS_rt_sigprocmask as u32);
    load(&mut code, MOV_EDI, libc::SIG_SETMASK as u32);
    code.extend([0x48, 0x8d, 0x35]); // lea rsi, [rip + the last eight bytes]
    let mask_at = (CODE_LEN - 8 - code.len() - 4) as u32;
    code.extend(mask_at.to_le_bytes());
    load(&mut code, MOV_EDX, 0);
    code.extend([0x41, 0xba]); // mov r10d, imm32
    code.extend(8u32.to_le_bytes());
    code.extend(SYSCALL);
    // The kernel's entry uses up rcx and r11; none of these instructions changes the flags.
    for (opcode, value) in [
        ([0x48, 0xbf], back.rdi),
        ([0x48, 0xbe], back.rsi),
        ([0x48, 0xba], back.rdx),
        ([0x49, 0xba], back.r10),
        ([0x48, 0xb9], back.rcx),
        ([0x49, 0xbb], back.r11),
        ([0x48, 0xb8], back.rax),
    ] {
        code.extend(opcode); // movabs reg, imm64
        code.extend(value.to_le_bytes());
    }
    code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp [rip + 0]
    code.extend(back.rip.to_le_bytes());
    debug_assert!(code.len() <= CODE_LEN - 8);
    code.resize(CODE_LEN - 8, 0);
    code.extend(blocked.to_le_bytes());
    code
}

/// Room for the code: zeros at the end of an executable private mapping, the vDSO first.
fn find_padding(pid: u32) -> Result<(u64, Vec<u8>)> {
    let mut maps = Maps::open(Some(pid)).map_err(Error::io("opening maps"))?;
    let mut regions = maps
        .changed()
        .map_err(Error::io("reading maps"))?
        .unwrap_or_default();
    regions.retain(|r| r.permissions.execute && !r.permissions.shared && r.name != "[vsyscall]");
    regions.sort_by_key(|r| (r.name != "[vdso]", r.permissions.write));
    let page = page_size() as usize;
    let mut bytes = vec![0xff; page];
    for region in &regions {
        let last_page = region.range.end() - page as u64;
        if remote_memory::read(pid, last_page, &mut bytes) != Ok(page) {
            continue;
        }
        let mut end = page;
        while let Some(start) = end.checked_sub(CODE_LEN) {
            let slot = &bytes[start..end];
            if slot.iter().all(|&byte| byte == 0) {
                return Ok((last_page + start as u64, slot.to_vec()));
            }
            // A tracker that was killed has left its code; below it there may be more room.
            if !is_ours(slot) {
                break;
            }
            end = start;
        }
    }
    Err(Error::Attach {
        pid,
        reason:
            "no executable mapping of it has padding for a system call; use --technique compare"
                .into(),
    })
}

/// Whether this is code of [`code`], by what is the same in all of it.
fn is_ours(slot: &[u8]) -> bool {
    let same = AFTER_CLOSE as usize..AFTER_CLOSE as usize + 30;
    slot[same.clone()] == code(Job::Close { number: 0 }, 0, &ptrace::no_registers())[same]
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::page_set::PageRange;
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

    #[test]
    fn code_is_recognised_whatever_its_job() {
        let mut back = ptrace::no_registers();
        back.rip = 0x1234_5678_9abc;
        back.rax = u64::MAX;
        for job in [Job::Userfaultfd { flags: 1 }, Job::Close { number: 7 }] {
            let code = code(job, u64::MAX, &back);
            assert_eq!(code.len(), CODE_LEN);
            assert!(is_ours(&code));
            assert!(code.ends_with(&u64::MAX.to_le_bytes()));
        }
        assert!(!is_ours(&[0; CODE_LEN]));
        assert!(!is_ours(&[0x90; CODE_LEN]));
    }
}
