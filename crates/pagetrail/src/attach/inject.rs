//! Running `userfaultfd(2)` in another process and fetching the descriptor, x86-64.
//!
//! A userfaultfd belongs to the address space of the thread that creates it, so the target itself must make the
//! call. The code for it goes into padding behind the text of the vDSO or of another executable mapping, never
//! executed by the program, and says everything by itself: create the descriptor, close it, put back the four
//! registers it used, and jump to where the thread was, with an interrupted system call restarted. One
//! `PTRACE_SETREGS` makes the thread run it. From then on nothing more is needed from us:
//! killed at any instruction, the tracker leaves a thread that finishes the code and goes on, with no
//! descriptor left. Alive, we step through the two calls, copy the descriptor by `pidfd_getfd(2)` between them,
//! restore registers and padding exactly, and detach.
//!
//! No stack of the target is used: threads run on small ones (Go), alternate ones, and shadowed ones.

use super::restart;
use super::stop::{Stopped, wait_for_trap};
use super::target_check::explain;
use crate::error::{Error, Result};
use crate::page_set::page_size;
use crate::proc::maps::Maps;
use crate::proc::status::Status;
use crate::sys::ptrace::{Change, Registers, Resume, Tracee, option};
use crate::sys::remote_memory;
use crate::sys::uffd::Uffd;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::time::{Duration, Instant};

/// How long the injected code may take; a signal handler of the target may run in between.
const PATIENCE: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) fd: OwnedFd,
    /// How long a thread of the target was stopped or diverted.
    pub(crate) stopped: Duration,
}

/// Options with which a thread is seized for [`fetch_from`].
pub(crate) fn trace_options(pid: u32) -> i32 {
    let filtered = Status::of(pid).is_ok_and(|status| status.seccomp != 0);
    option::SYSGOOD | if filtered { option::SUSPEND_SECCOMP } else { 0 }
}

/// Stops one thread of `pid` and fetches a userfaultfd of its address space.
///
/// Runs in a thread of its own: when that ends, the kernel lets go of every thread that it still traces.
pub(crate) fn fetch(pid: u32, kernel_faults: bool) -> Result<Fetched> {
    let attempt = || {
        let options = trace_options(pid);
        let stopped = Stopped::any_thread(pid, options).map_err(|error| match error {
            Error::Permission { .. } if options & option::SUSPEND_SECCOMP != 0 => {
                Error::Seccomp { pid }
            }
            error => error,
        })?;
        fetch_from(stopped, pid, kernel_faults)
    };
    std::thread::scope(|scope| {
        scope
            .spawn(attempt)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The same with a thread that is stopped already, which is let go.
pub(crate) fn fetch_from(mut stopped: Stopped, pid: u32, kernel_faults: bool) -> Result<Fetched> {
    let fd = run(&mut stopped, pid, kernel_faults);
    let stopped = stopped.release();
    Ok(Fetched { fd: fd?, stopped })
}

/// The same, and the thread stays stopped.
pub(crate) fn run(stopped: &mut Stopped, pid: u32, kernel_faults: bool) -> Result<OwnedFd> {
    // Code segment 0x33 is 64-bit mode, 0x23 compatibility mode (arch/x86/include/asm/segment.h).
    if stopped.registers.cs == 0x23 {
        return Err(Error::ThirtyTwoBit { pid });
    }
    let call = Injected::write(&stopped.tracee, pid, &stopped.registers, kernel_faults)?;
    let outcome = call.step_through(&stopped.tracee, pid);
    // Traps before the thread executes anything more.
    let trapped = stopped
        .tracee
        .interrupt()
        .and_then(|()| stopped.tracee.resume(Resume::Free, 0))
        .and_then(|()| wait_for_trap(&stopped.tracee, Instant::now() + PATIENCE));
    match trapped {
        Ok(true) => {}
        Ok(false) | Err(Errno::SRCH | Errno::CHILD) => return Err(Error::Gone { pid }),
        Err(errno) => return Err(explain(pid, "stop a thread", errno)),
    }
    call.remove(&stopped.tracee, &stopped.registers)
        .map_err(|e| explain(pid, "restore the registers", e))?;
    outcome
}

/// Code in the padding of the target, and what was there before.
struct Injected {
    at: u64,
    before: Vec<u8>,
}

/// Offsets in the code: behind its two `syscall` instructions.
const AFTER_CREATE: u64 = 12;
const AFTER_CLOSE: u64 = 21;
const CODE_LEN: usize = 80;

impl Injected {
    /// Writes the code and points the thread to it.
    fn write(
        tracee: &Tracee,
        pid: u32,
        registers: &Registers,
        kernel_faults: bool,
    ) -> Result<Self> {
        let (at, before) = find_padding(pid)?;
        let code = code(
            Uffd::flags(kernel_faults),
            &restart::in_user_space(*registers),
        );
        let failed = |errno| explain(pid, "write code into the padding", errno);
        let injected = Self { at, before };
        injected.put(tracee, &code).map_err(failed)?;
        let mut diverted = *registers;
        diverted.rip = at;
        // Not inside a system call any more: nothing to restart when the thread goes on.
        diverted.orig_rax = u64::MAX;
        if let Err(errno) = tracee.set_registers(&diverted) {
            let _ = injected.put(tracee, &injected.before);
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
    fn step_through(&self, tracee: &Tracee, pid: u32) -> Result<OwnedFd> {
        let process = Pid::from_raw(pid as i32).ok_or(Error::NoSuchProcess { pid })?;
        let failed = |errno| explain(pid, "follow the injected call", errno);
        let deadline = Instant::now() + PATIENCE;
        let mut fetched = None;
        let mut signal = 0;
        let mut stops_at_close = 0;
        loop {
            tracee
                .resume(Resume::ToSyscall, std::mem::take(&mut signal))
                .map_err(failed)?;
            let change = loop {
                match tracee.wait(false).map_err(failed)? {
                    Some(change) => break change,
                    None if Instant::now() > deadline => {
                        return Err(Error::NotStopping {
                            pid,
                            waited_ms: PATIENCE.as_millis() as u64,
                        });
                    }
                    None => std::thread::yield_now(),
                }
            };
            match change {
                // Its handler may run; then the stops are at other places until it returns.
                Change::Signal(number) => signal = number,
                Change::Exited(_) | Change::Killed(_) => return Err(Error::Gone { pid }),
                Change::Syscall => {
                    let registers = tracee.registers().map_err(failed)?;
                    let entry = registers.rax as i64 == -i64::from(libc::ENOSYS);
                    match registers.rip.wrapping_sub(self.at) {
                        AFTER_CREATE if !entry => {
                            fetched = Some(copy(process, pid, registers.rax as i64))
                        }
                        AFTER_CLOSE => {
                            stops_at_close += 1;
                            if stops_at_close == 2 {
                                let refused = Error::Attach {
                                    pid,
                                    reason: "its kernel has no userfaultfd (CONFIG_USERFAULTFD)"
                                        .into(),
                                };
                                return fetched.unwrap_or(Err(refused));
                            }
                        }
                        _ => {}
                    }
                }
                Change::Trap { .. } | Change::Exec | Change::Exit => {}
            }
        }
    }

    fn remove(&self, tracee: &Tracee, registers: &Registers) -> Result<(), Errno> {
        // A thread that a signal handler has taken elsewhere (`siglongjmp`) stays there.
        let now = tracee.registers()?;
        let inside = now.rip.wrapping_sub(self.at) < CODE_LEN as u64;
        if inside {
            tracee.set_registers(registers)?;
            self.put(tracee, &self.before)?;
        }
        Ok(())
    }
}

fn copy(process: Pid, pid: u32, result: i64) -> Result<OwnedFd> {
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
    let handle = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    pidfd_getfd(handle, result as i32, PidfdGetfdFlags::empty()).map_err(failed)
}

/// `userfaultfd(flags)`, `close` of its result, then the registers and the place of `back`.
fn code(flags: u32, back: &Registers) -> Vec<u8> {
    let mut code = Vec::with_capacity(CODE_LEN);
    code.push(0xb8); // mov eax, imm32
    code.extend((libc::SYS_userfaultfd as u32).to_le_bytes());
    code.push(0xbf); // mov edi, imm32
    code.extend(flags.to_le_bytes());
    code.extend([0x0f, 0x05]); // syscall
    debug_assert_eq!(code.len() as u64, AFTER_CREATE);
    code.extend([0x89, 0xc7]); // mov edi, eax: closing an error code fails, which does no harm
    code.push(0xb8); // mov eax, imm32
    code.extend((libc::SYS_close as u32).to_le_bytes());
    code.extend([0x0f, 0x05]); // syscall
    debug_assert_eq!(code.len() as u64, AFTER_CLOSE);
    // The kernel's entry uses up rcx and r11; none of these instructions changes the flags.
    for (opcode, value) in [
        ([0x48, 0xbf], back.rdi),
        ([0x48, 0xb9], back.rcx),
        ([0x49, 0xbb], back.r11),
        ([0x48, 0xb8], back.rax),
    ] {
        code.extend(opcode); // movabs reg, imm64
        code.extend(value.to_le_bytes());
    }
    code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp [rip + 0]
    code.extend(back.rip.to_le_bytes());
    code.resize(CODE_LEN, 0);
    code
}

/// Room for the code: zeros up to the end of an executable private mapping, the vDSO first.
fn find_padding(pid: u32) -> Result<(u64, Vec<u8>)> {
    let mut maps = Maps::open(Some(pid)).map_err(Error::io("opening maps"))?;
    let mut regions = maps
        .changed()
        .map_err(Error::io("reading maps"))?
        .unwrap_or_default();
    regions.retain(|r| r.permissions.execute && !r.permissions.shared && r.name != "[vsyscall]");
    regions.sort_by_key(|r| (r.name != "[vdso]", r.permissions.write));
    for region in &regions {
        let at = region.range.end() - CODE_LEN as u64;
        debug_assert!(page_size().is_multiple_of(8));
        let mut bytes = vec![0xff; CODE_LEN];
        if remote_memory::read(pid, at, &mut bytes) == Ok(CODE_LEN) && bytes.iter().all(|&b| b == 0)
        {
            return Ok((at, bytes));
        }
    }
    Err(Error::Attach {
        pid,
        reason:
            "no executable mapping of it has padding for a system call; use --technique compare"
                .into(),
    })
}
