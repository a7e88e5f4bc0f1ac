//! Undoing what a stop does to a system call or a restartable sequence that it interrupts.
//!
//! A thread that is stopped inside a system call leaves it with one of four internal codes, which
//! the kernel turns into a restart when the thread goes on from the stop (`handle_signal` and
//! `arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`), or with `EINTR`, which it does not:
//! `signal(7)`, "Interruption of system calls and library functions by stop signals", lists the
//! calls. A program may show such an `EINTR`, so those are restarted here. Their relative timeouts
//! then begin anew; of waits for events that is put right (`super::interrupted`).
//!
//! A thread that is stopped inside a restartable sequence (`rseq(2)`) must start it over. The
//! kernel sees to that when the thread goes on where it was, but not when it is sent elsewhere
//! first.

use crate::sys::ptrace::Registers;

// include/linux/errno.h; never seen by user space.
const ERESTARTSYS: i64 = -512;
pub(super) const ERESTARTNOINTR: i64 = -513;
pub(super) const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -(libc::EINTR as i64);

/// Length of the `syscall` instruction, in bytes.
const SYSCALL_LEN: u64 = 2;

/// `io_pgetevents(2)`, missing from the crate libc.
const SYS_IO_PGETEVENTS: i64 = 333;

/// System calls that end with `EINTR` when a stop interrupts them, although no signal is delivered.
const ENDED_BY_STOP: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_connect,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
];

fn interrupted_call(registers: &Registers) -> Option<i64> {
    let call = registers.orig_rax as i64;
    (call >= 0).then_some(call)
}

/// The registers with which a thread may be let go from a stop between two instructions, such that
/// the program notices nothing.
pub(crate) fn unnoticed(mut registers: Registers) -> Registers {
    if let Some(call) = interrupted_call(&registers)
        && registers.rax as i64 == EINTR
        && ENDED_BY_STOP.contains(&call)
    {
        // The kernel decides when the thread goes on: `EINTR` if a handler is to run, else a
        // restart.
        registers.rax = ERESTARTNOHAND as u64;
    }
    registers
}

/// Whether the thread goes on by `restart_syscall(2)`, which its seccomp filter may not know.
pub(crate) fn needs_restart_call(registers: &Registers) -> bool {
    interrupted_call(registers).is_some() && registers.rax as i64 == ERESTART_RESTARTBLOCK
}

/// The registers with the call itself made anew instead: a relative timeout begins anew, too. If a
/// handler is to run, the call ends with `EINTR` as it would have.
pub(crate) fn without_restart_call(mut registers: Registers) -> Registers {
    registers.rax = ERESTARTNOHAND as u64;
    registers
}

/// Where a thread at `rip` goes on if that is inside a restartable sequence. `area` is the address
/// of its `struct rseq`; `read` copies its memory.
pub(crate) fn sequence_abort(
    rip: u64,
    area: u64,
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> Option<u64> {
    // `struct rseq` and `struct rseq_cs` in include/uapi/linux/rseq.h.
    let mut pointer = [0; 8];
    let descriptor = read(area + 8, &mut pointer).then(|| u64::from_ne_bytes(pointer))?;
    let mut fields = [0; 32];
    if descriptor == 0 || !read(descriptor, &mut fields) {
        return None;
    }
    let field = |at: usize| {
        fields[at..at + 8]
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    };
    let (start, length, abort) = (field(8), field(16), field(24));
    (rip.wrapping_sub(start) < length).then_some(abort)
}

/// The registers with which the thread would go on in user space, restarts done by hand: what
/// injected code must leave behind when nobody is there to finish.
pub(crate) fn in_user_space(registers: Registers) -> Registers {
    let mut registers = unnoticed(registers);
    if let Some(call) = interrupted_call(&registers) {
        match registers.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => again(&mut registers, call),
            ERESTART_RESTARTBLOCK => again(&mut registers, libc::SYS_restart_syscall),
            _ => {}
        }
    }
    registers
}

/// The registers with which a thread goes on that is put back to an earlier instant: a system call
/// that was interrupted then begins anew. What the kernel kept to continue it, the rest of a sleep,
/// belongs to another instant by now.
pub(crate) fn anew(registers: Registers) -> Registers {
    let mut registers = unnoticed(registers);
    if let Some(call) = interrupted_call(&registers)
        && [
            ERESTARTSYS,
            ERESTARTNOINTR,
            ERESTARTNOHAND,
            ERESTART_RESTARTBLOCK,
        ]
        .contains(&(registers.rax as i64))
    {
        again(&mut registers, call);
    }
    registers.orig_rax = u64::MAX;
    registers
}

fn again(registers: &mut Registers, call: i64) {
    registers.rax = call as u64;
    registers.rip -= SYSCALL_LEN;
    registers.orig_rax = u64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_aborted_only_from_inside() {
        let mut area = [0u8; 16];
        area[8..].copy_from_slice(&0x5000u64.to_ne_bytes());
        let mut descriptor = [0u8; 32];
        descriptor[8..16].copy_from_slice(&0x100u64.to_ne_bytes());
        descriptor[16..24].copy_from_slice(&0x20u64.to_ne_bytes());
        descriptor[24..].copy_from_slice(&0x900u64.to_ne_bytes());
        let read = |at: u64, into: &mut [u8]| {
            let (from, bytes): (u64, &[u8]) = match at {
                0x4000..0x5000 => (0x4000, &area),
                _ => (0x5000, &descriptor),
            };
            let from = (at - from) as usize;
            into.copy_from_slice(&bytes[from..from + into.len()]);
            true
        };
        let abort = |rip| sequence_abort(rip, 0x4000, read);
        assert_eq!(abort(0xff), None);
        assert_eq!(abort(0x100), Some(0x900));
        assert_eq!(abort(0x11f), Some(0x900));
        assert_eq!(abort(0x120), None);
        assert_eq!(sequence_abort(0x100, 0x4000, |_, _| false), None);
    }
}
