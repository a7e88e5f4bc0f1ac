//! Undoing what a stop does to a system call that it interrupts.
//!
//! A thread that is stopped inside a system call leaves it with one of four internal codes, which the kernel turns
//! into a restart when the thread goes on from the stop (`handle_signal` and
//! `arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`), or with `EINTR`, which it does not: `signal(7)`, "Interruption
//! of system calls and library functions by stop signals", lists the calls. A program may show such an `EINTR`,
//! so those are restarted here. Their relative timeouts then begin anew: a difference in time only.

use crate::sys::ptrace::Registers;

// include/linux/errno.h; never seen by user space.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
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

/// The registers with which the thread may be let go from a stop between two instructions, such that the program
/// notices nothing. `signal_waits`: a signal is about to be delivered, so `EINTR` may be its doing.
pub(crate) fn unnoticed(mut registers: Registers, signal_waits: bool) -> Registers {
    if let Some(call) = interrupted_call(&registers) {
        let ended = registers.rax as i64 == EINTR && ENDED_BY_STOP.contains(&call);
        if ended && !signal_waits {
            again(&mut registers, call);
        }
    }
    registers
}

/// The registers with which the thread would go on in user space, restarts done by hand: what injected code must
/// leave behind when nobody is there to finish.
pub(crate) fn in_user_space(mut registers: Registers) -> Registers {
    if let Some(call) = interrupted_call(&registers) {
        match registers.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => again(&mut registers, call),
            ERESTART_RESTARTBLOCK => again(&mut registers, libc::SYS_restart_syscall),
            EINTR if ENDED_BY_STOP.contains(&call) => again(&mut registers, call),
            _ => {}
        }
    }
    registers
}

fn again(registers: &mut Registers, call: i64) {
    registers.rax = call as u64;
    registers.rip -= SYSCALL_LEN;
    registers.orig_rax = u64::MAX;
}
