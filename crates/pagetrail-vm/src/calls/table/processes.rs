//! Calls on processes, threads, signals and scheduling.

use super::super::reads::Input as In;
use super::super::written::{Output as Out, options};
use super::super::{process, signals, special, threads};
use super::{Path, Row, WaitMask, writes_nothing};

const TIMESPEC_BYTES: u64 = 16;
const RUSAGE_BYTES: u64 = 144;
const SIGNAL_SET_BYTES: u64 = 8;
const NO_FOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;

pub(super) const CALLS: &[Row] = &[
    Row::control(libc::SYS_clone, process::clone),
    Row::control(libc::SYS_clone3, process::clone3),
    Row::control(libc::SYS_fork, process::fork),
    Row::control(libc::SYS_vfork, process::vfork),
    Row::perform(libc::SYS_execve, process::execute)
        .writes(&[])
        .path(Path::names(0)),
    Row::perform(libc::SYS_execveat, process::execute)
        .writes(&[])
        .path(Path::names(1).below(0).unless(4, NO_FOLLOW)),
    Row::control(libc::SYS_exit, |guest, call| {
        threads::exit(guest, call.arguments[0] as i32)
    }),
    Row::control(libc::SYS_exit_group, |guest, call| {
        match process::exit(guest, call.arguments[0] as i32)? {}
    }),
    Row::forward(libc::SYS_wait4).writes(&[Out::Bytes(1, 4), Out::Bytes(3, RUSAGE_BYTES)]),
    Row::forward(libc::SYS_waitid).writes(&[Out::Bytes(2, 128), Out::Bytes(4, RUSAGE_BYTES)]),
    writes_nothing(libc::SYS_kill),
    writes_nothing(libc::SYS_tgkill),
    writes_nothing(libc::SYS_tkill),
    writes_nothing(libc::SYS_pause).never_restarts(),
    Row::perform(libc::SYS_rt_sigaction, |guest, call| {
        Ok(signals::sigaction(guest, call))
    })
    .writes(&[Out::Bytes(2, 32)])
    .reads(&[In::Bytes(1, 32)]),
    Row::perform(libc::SYS_rt_sigprocmask, |guest, call| {
        Ok(signals::sigprocmask(guest, call))
    })
    .writes(&[Out::Bytes(2, 8)])
    .reads(&[In::Bytes(1, SIGNAL_SET_BYTES)]),
    Row::forward(libc::SYS_rt_sigpending).writes(&[Out::Bytes(0, 8)]),
    Row::forward(libc::SYS_rt_sigtimedwait)
        .writes(&[Out::Bytes(1, 128)])
        .reads(&[In::Bytes(0, SIGNAL_SET_BYTES), In::Bytes(2, TIMESPEC_BYTES)])
        .never_restarts(),
    writes_nothing(libc::SYS_rt_sigsuspend)
        .reads(&[In::Bytes(0, SIGNAL_SET_BYTES)])
        .never_restarts()
        .wait_mask(WaitMask::At(0)),
    writes_nothing(libc::SYS_rt_sigqueueinfo).reads(&[In::Bytes(2, 128)]),
    Row::control(libc::SYS_rt_sigreturn, |guest, _| signals::sigreturn(guest)),
    Row::perform(libc::SYS_sigaltstack, |guest, call| {
        Ok(signals::sigaltstack(guest, call))
    })
    .writes(&[Out::Bytes(1, 24)])
    .reads(&[In::Bytes(0, 24)]),
    Row::absent(libc::SYS_restart_syscall),
    writes_nothing(libc::SYS_getpid),
    writes_nothing(libc::SYS_getppid),
    writes_nothing(libc::SYS_gettid),
    writes_nothing(libc::SYS_getpgid),
    writes_nothing(libc::SYS_getpgrp),
    writes_nothing(libc::SYS_getsid),
    writes_nothing(libc::SYS_setpgid),
    writes_nothing(libc::SYS_setsid),
    writes_nothing(libc::SYS_pidfd_open),
    writes_nothing(libc::SYS_pidfd_send_signal),
    Row::perform(libc::SYS_set_tid_address, |guest, call| {
        Ok(threads::set_tid_address(guest, call))
    })
    .writes(&[]),
    writes_nothing(libc::SYS_set_robust_list),
    Row::forward(libc::SYS_get_robust_list).writes(&[Out::Bytes(1, 8), Out::Bytes(2, 8)]),
    Row::forward(libc::SYS_futex)
        .writes_by(|arguments| options::futex(arguments[1]))
        .reads_by(|arguments| options::futex_reads(arguments[1]))
        .never_restarts_if(has_timeout),
    // The kernel would look at the host's instruction pointer, not at the program's.
    Row::absent(libc::SYS_rseq),
    Row::perform(libc::SYS_arch_prctl, special::arch_prctl).writes(&[Out::Bytes(1, 8)]),
    Row::perform(libc::SYS_prctl, |guest, call| special::prctl(guest, call))
        .writes_by(|arguments| options::prctl(arguments[0])),
    Row::perform(libc::SYS_personality, |guest, call| {
        Ok(special::personality(guest, call))
    })
    .writes(&[]),
    // A filter would see the machine's own calls. A kernel without CONFIG_SECCOMP has none.
    Row::absent(libc::SYS_seccomp),
    Row::perform(libc::SYS_unshare, |guest, call| {
        Ok(process::unshare(guest, call))
    })
    .writes(&[]),
    writes_nothing(libc::SYS_setns),
    writes_nothing(libc::SYS_getpriority),
    writes_nothing(libc::SYS_setpriority),
    writes_nothing(libc::SYS_sched_yield),
    Row::forward(libc::SYS_sched_getaffinity).writes(&[Out::Filled(2, 1, 1)]),
    writes_nothing(libc::SYS_sched_setaffinity).reads(&[In::Sized(2, 1)]),
    Row::forward(libc::SYS_sched_getparam).writes(&[Out::Bytes(1, 8)]),
    Row::forward(libc::SYS_sched_getattr).writes(&[Out::Sized(1, 2)]),
    Row::forward(libc::SYS_sched_rr_get_interval).writes(&[Out::Bytes(1, TIMESPEC_BYTES)]),
    writes_nothing(libc::SYS_sched_getscheduler),
    writes_nothing(libc::SYS_sched_setscheduler).reads(&[In::Bytes(2, 4)]),
    writes_nothing(libc::SYS_sched_get_priority_max),
    writes_nothing(libc::SYS_sched_get_priority_min),
    writes_nothing(libc::SYS_ioprio_get),
    writes_nothing(libc::SYS_ioprio_set),
    Row::forward(libc::SYS_getcpu).writes(&[Out::Bytes(0, 4), Out::Bytes(1, 4)]),
];

/// Whether a futex operation waits with a time limit: how much of it is left is not known when the
/// call is made again.
fn has_timeout(arguments: &[u64; 6]) -> bool {
    const OPERATION: u64 = 0x7f;
    let [_, operation, _, timeout, ..] = *arguments;
    let operation = (operation & OPERATION) as i32;
    timeout != 0 && matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
}
