//! Finding out a [`KernelState`]: what the kernel keeps for a held process and tells nobody but the
//! process: its signal handlers, alternate stacks, timers, the end of its heap.
//!
//! The process has to ask, so its threads are made to: they execute the `syscall` instruction of
//! the vDSO with registers of ours, and get theirs back. No byte of the program is written; the
//! answers lie in a mapping that is there for the time of the questions alone. If the tracker is
//! killed meanwhile, the agent finishes; if the agent is killed, the kernel kills the process
//! with it: its registers are lost then.
//!
//! The agent asks, so nothing in [`ask`] allocates.

use super::failure::{Attempt, Failure};
use super::filter;
use super::inject::next;
use super::stop::{Backoff, Stopped, wait_for_trap};
use crate::proc::text;
use crate::sys::ptrace::{self, Change, Registers, Resume, Tracee, option};
use crate::sys::remote_memory;
use crate::types::{KernelState, PendingSignal, SignalAction, ThreadState};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many signals there are.
const SIGNALS: u32 = 64;
/// `PR_GET_TID_ADDRESS` of `prctl(2)`.
const GET_TID_ADDRESS: u64 = 40;
/// How long a mapping for answers is, in bytes.
const ROOM_BYTES: u64 = 4096;
/// How many signals may wait in each queue.
pub(super) const PENDING_MAX: usize = 32;

/// The calls that a thread is made to make.
const CALLS: [i64; 8] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_rt_sigaction,
    libc::SYS_getitimer,
    libc::SYS_brk,
    libc::SYS_sigaltstack,
    libc::SYS_prctl,
    libc::SYS_restart_syscall,
];

/// Room for the answers, which the tracker makes.
pub(super) fn room(threads: usize) -> KernelState {
    let pending = || Vec::with_capacity(PENDING_MAX);
    let thread = || ThreadState {
        pending: pending(),
        ..ThreadState::default()
    };
    KernelState {
        actions: Vec::with_capacity(SIGNALS as usize),
        threads: (0..threads).map(|_| thread()).collect(),
        pending: pending(),
        ..KernelState::default()
    }
}

/// Fills the room.
pub(super) fn ask(pid: u32, threads: &[Stopped], room: &mut KernelState) -> Attempt<()> {
    let first = threads.first().ok_or(Failure::Gone)?;
    for thread in threads {
        if thread.registers.cs == ptrace::USER32_CS {
            return Err(Failure::ThirtyTwoBit);
        }
        if thread.tracee.dispatches_calls() {
            return Err(Failure::DispatchesCalls);
        }
        if !filter::allow(&thread.tracee, pid, &CALLS, false) {
            return Err(Failure::Seccomp);
        }
    }
    let at = syscall_instruction(pid)?;
    let failed = Failure::of("read the waiting signals");
    peek(&first.tracee, true, &mut room.pending).map_err(&failed)?;
    let answers = diverted(first, |caller| {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let call = [0, ROOM_BYTES, rights as u64, kind as u64, u64::MAX, 0];
        let answers = caller.call(at, libc::SYS_mmap, call)?;
        let outcome = process_wide(caller, at, pid, answers, room);
        match outcome {
            Ok(()) => Ok(answers),
            Err(failure) => {
                unmap(caller, at, answers)?;
                Err(failure)
            }
        }
    })?;
    let mut outcome = Ok(());
    for (thread, state) in threads.iter().zip(&mut room.threads) {
        if outcome.is_ok() {
            outcome = of_thread(thread, at, pid, answers, state);
        }
    }
    let unmapped = diverted(first, |caller| unmap(caller, at, answers));
    outcome.and(unmapped)
}

fn unmap(caller: &Caller<'_>, at: u64, answers: u64) -> Attempt<()> {
    let call = [answers, ROOM_BYTES, 0, 0, 0, 0];
    caller.call(at, libc::SYS_munmap, call).map(drop)
}

fn process_wide(
    caller: &Caller<'_>,
    at: u64,
    pid: u32,
    answers: u64,
    room: &mut KernelState,
) -> Attempt<()> {
    room.heap_end = caller.call(at, libc::SYS_brk, [0; 6])?;
    for (which, timer) in room.timers.iter_mut().enumerate() {
        caller.call(at, libc::SYS_getitimer, [which as u64, answers, 0, 0, 0, 0])?;
        *timer = words(pid, answers)?;
    }
    let handled = handled_signals(pid)?;
    for signal in (1..=SIGNALS).filter(|signal| handled & 1 << (signal - 1) != 0) {
        let call = [signal.into(), 0, answers, 8, 0, 0];
        caller.call(at, libc::SYS_rt_sigaction, call)?;
        let [handler, flags, restorer, blocked] = words(pid, answers)?;
        if [handler, flags, restorer, blocked] != [0; 4] {
            // There is room for all.
            room.actions.push(SignalAction {
                signal,
                handler,
                flags,
                restorer,
                blocked,
            });
        }
    }
    Ok(())
}

fn of_thread(
    thread: &Stopped,
    at: u64,
    pid: u32,
    answers: u64,
    state: &mut ThreadState,
) -> Attempt<()> {
    let tracee = &thread.tracee;
    state.tid = tracee.tid();
    state.rseq = tracee.rseq_configuration();
    state.robust_list = ptrace::robust_list(state.tid).map_err(Failure::of("read a list"))?;
    peek(tracee, false, &mut state.pending).map_err(Failure::of("read the waiting signals"))?;
    diverted(thread, |caller| {
        caller.call(at, libc::SYS_sigaltstack, [0, answers, 0, 0, 0, 0])?;
        state.alternate_stack = words(pid, answers)?;
        // The upper half of the flags is padding.
        state.alternate_stack[1] &= u64::from(u32::MAX);
        let call = [GET_TID_ADDRESS, answers, 0, 0, 0, 0];
        caller.call(at, libc::SYS_prctl, call)?;
        [state.clear_tid] = words(pid, answers)?;
        Ok(())
    })
}

/// The signals whose actions may be others than the default, one bit each: those that are ignored
/// or have handlers, and that of children, whose default action has flags that mean something.
fn handled_signals(pid: u32) -> Attempt<u64> {
    let mut handled = 1 << (libc::SIGCHLD - 1);
    text::lines(format_args!("/proc/{pid}/status"), |line| {
        let mut words = line.split(|&byte| byte == b'\t');
        if let (Some(b"SigIgn:" | b"SigCgt:"), Some(set)) = (words.next(), words.next()) {
            handled |= text::hex(set).unwrap_or(0);
        }
    })
    .map_err(Failure::of("read its signals"))?;
    Ok(handled)
}

/// The signals that wait, as many as there is room for.
fn peek(tracee: &Tracee, shared: bool, into: &mut Vec<PendingSignal>) -> Result<(), Errno> {
    let mut signal = [0; 128];
    for index in 0..PENDING_MAX as u64 {
        if !tracee.peek_signal(shared, index, &mut signal)? {
            return Ok(());
        }
        into.push(signal);
    }
    match tracee.peek_signal(shared, PENDING_MAX as u64, &mut signal)? {
        true => Err(Errno::NOBUFS),
        false => Ok(()),
    }
}

/// Numbers in the memory of a process.
fn words<const N: usize>(pid: u32, address: u64) -> Attempt<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    match remote_memory::read(pid, address, bytes.as_flattened_mut()) {
        Ok(length) if length == 8 * N => Ok(bytes.map(u64::from_ne_bytes)),
        Ok(_) => Err(Failure::Call("read an answer", Errno::FAULT)),
        Err(errno) => Err(Failure::Call("read an answer", errno)),
    }
}

/// The address of a `syscall` instruction in the vDSO.
fn syscall_instruction(pid: u32) -> Attempt<u64> {
    const BYTES_MAX: usize = 1 << 14;
    let mut range = None;
    text::lines(format_args!("/proc/{pid}/maps"), |line| {
        if line.ends_with(b" [vdso]") {
            let mut ends = line.split(|&byte| byte == b' ' || byte == b'-');
            let mut end = || ends.next().and_then(text::hex);
            range = end().zip(end());
        }
    })
    .map_err(Failure::of("read the mappings"))?;
    let (start, end) = range.ok_or(Failure::NoPadding)?;
    let mut bytes = [0; BYTES_MAX];
    let length = ((end - start) as usize).min(BYTES_MAX);
    let read = remote_memory::read(pid, start, &mut bytes[..length]);
    let read = read.map_err(Failure::of("read the vDSO"))?;
    let found = bytes[..read].windows(2).position(|two| two == [0x0f, 0x05]);
    found
        .map(|offset| start + offset as u64)
        .ok_or(Failure::NoPadding)
}

/// A thread whose registers are ours.
struct Caller<'a> {
    tracee: &'a Tracee,
    registers: Registers,
}

/// Lets a thread make calls, and gives it back its registers. Without any instruction of the
/// program executed in between.
fn diverted<T>(thread: &Stopped, work: impl FnOnce(&Caller<'_>) -> Attempt<T>) -> Attempt<T> {
    let tracee = &thread.tracee;
    let failed = Failure::of("divert a thread");
    let options = tracee.options();
    tracee
        .set_options(options | option::SYSGOOD | option::EXITKILL)
        .and_then(|()| tracee.block_signals(u64::MAX))
        .map_err(&failed)?;
    let outcome = work(&Caller {
        tracee,
        registers: thread.registers,
    });
    let back = || {
        // Where a stop shows the interrupted call again, to be restarted by the kernel.
        tracee.interrupt()?;
        match tracee.resume(Resume::Free, 0) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
        if !wait_for_trap(tracee, Backoff::until(Instant::now() + TIMEOUT))? {
            return Err(Errno::SRCH);
        }
        tracee.block_signals(thread.blocked)?;
        tracee.set_registers(&thread.registers)?;
        tracee.set_options(options)
    };
    match back() {
        Ok(()) => outcome,
        Err(Errno::SRCH | Errno::CHILD) => Err(Failure::Gone),
        Err(errno) => Err(failed(errno)),
    }
}

impl Caller<'_> {
    /// Makes a call at a `syscall` instruction; gives what it returns.
    fn call(&self, at: u64, number: i64, arguments: [u64; 6]) -> Attempt<u64> {
        let failed = Failure::of("make a call in the process");
        let mut registers = self.registers;
        registers.rip = at;
        registers.rax = number as u64;
        // Outside any interrupted call, which would be restarted.
        registers.orig_rax = u64::MAX;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = arguments;
        let mut backoff = Backoff::until(Instant::now() + TIMEOUT);
        self.tracee.set_registers(&registers).map_err(&failed)?;
        // At entry, then at exit.
        let mut stops = 0;
        while stops < 2 {
            let signal = 0;
            self.tracee
                .resume(Resume::ToSyscall, signal)
                .map_err(&failed)?;
            match next(self.tracee, &mut backoff)? {
                Change::Syscall => stops += 1,
                Change::Exited(_) | Change::Killed(_) => return Err(Failure::Gone),
                _ => {}
            }
        }
        let result = self.tracee.registers().map_err(&failed)?.rax;
        match result as i64 {
            error @ -4095..0 => Err(failed(Errno::from_raw_os_error(-error as i32))),
            _ => Ok(result),
        }
    }
}
