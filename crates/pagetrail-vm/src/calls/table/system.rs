//! Calls on time, timers, limits, users, and the system.

use super::super::descriptors;
use super::super::reads::Input as In;
use super::super::written::Output as Out;
use super::{Row, writes_nothing};

const TIMESPEC_BYTES: u64 = 16;
const RUSAGE_BYTES: u64 = 144;

pub(super) const CALLS: &[Row] = &[
    Row::forward(libc::SYS_nanosleep)
        .writes(&[Out::Bytes(1, TIMESPEC_BYTES)])
        .reads(&[In::Bytes(0, TIMESPEC_BYTES)])
        .never_restarts(),
    Row::forward(libc::SYS_clock_nanosleep)
        .writes(&[Out::Bytes(3, TIMESPEC_BYTES)])
        .reads(&[In::Bytes(2, TIMESPEC_BYTES)])
        .never_restarts(),
    Row::forward(libc::SYS_clock_gettime).writes(&[Out::Bytes(1, TIMESPEC_BYTES)]),
    Row::forward(libc::SYS_clock_getres).writes(&[Out::Bytes(1, TIMESPEC_BYTES)]),
    Row::forward(libc::SYS_gettimeofday).writes(&[Out::Bytes(0, TIMESPEC_BYTES), Out::Bytes(1, 8)]),
    Row::forward(libc::SYS_time).writes(&[Out::Bytes(0, 8)]),
    Row::forward(libc::SYS_times).writes(&[Out::Bytes(0, 32)]),
    Row::forward(libc::SYS_getitimer).writes(&[Out::Bytes(1, 32)]),
    Row::forward(libc::SYS_setitimer)
        .writes(&[Out::Bytes(2, 32)])
        .reads(&[In::Bytes(1, 32)]),
    Row::forward(libc::SYS_timer_create)
        .writes(&[Out::Bytes(2, 4)])
        .reads(&[In::Bytes(1, 64)]),
    Row::forward(libc::SYS_timer_gettime).writes(&[Out::Bytes(1, 32)]),
    Row::forward(libc::SYS_timer_settime)
        .writes(&[Out::Bytes(3, 32)])
        .reads(&[In::Bytes(2, 32)]),
    Row::forward(libc::SYS_uname).writes(&[Out::Bytes(0, 390)]),
    Row::forward(libc::SYS_sysinfo).writes(&[Out::Bytes(0, 112)]),
    // The machine changes limits for a moment while it makes descriptors.
    Row::perform(libc::SYS_getrlimit, |guest, call| {
        Ok(descriptors::resource_limit(guest, call))
    })
    .writes(&[Out::Bytes(1, 16)]),
    Row::perform(libc::SYS_prlimit64, |guest, call| {
        Ok(descriptors::resource_limit(guest, call))
    })
    .writes(&[Out::Bytes(3, 16)])
    .reads(&[In::Bytes(2, 16)]),
    Row::forward(libc::SYS_getrusage).writes(&[Out::Bytes(1, RUSAGE_BYTES)]),
    Row::forward(libc::SYS_getgroups).writes(&[Out::Filled(1, 0, 4)]),
    Row::forward(libc::SYS_getresuid).writes(&[
        Out::Bytes(0, 4),
        Out::Bytes(1, 4),
        Out::Bytes(2, 4),
    ]),
    Row::forward(libc::SYS_getresgid).writes(&[
        Out::Bytes(0, 4),
        Out::Bytes(1, 4),
        Out::Bytes(2, 4),
    ]),
    Row::forward(libc::SYS_capget).writes(&[Out::Bytes(0, 8), Out::Bytes(1, 24)]),
    writes_nothing(libc::SYS_getuid),
    writes_nothing(libc::SYS_geteuid),
    writes_nothing(libc::SYS_getgid),
    writes_nothing(libc::SYS_getegid),
    writes_nothing(libc::SYS_setuid),
    writes_nothing(libc::SYS_setgid),
    writes_nothing(libc::SYS_setgroups).reads(&[In::Array(1, 0, 4)]),
    writes_nothing(libc::SYS_setresuid),
    writes_nothing(libc::SYS_setresgid),
    Row::perform(libc::SYS_setrlimit, |guest, call| {
        Ok(descriptors::resource_limit(guest, call))
    })
    .writes(&[])
    .reads(&[In::Bytes(1, 16)]),
    writes_nothing(libc::SYS_alarm),
    writes_nothing(libc::SYS_timer_delete),
];
