//! `perf_event_open(2)`: an event that counts and samples page faults of one thread on one
//! processor.
//!
//! # Safety
//!
//! The kernel reads the attributes, whose size they carry, and returns a new descriptor. The one
//! ioctl takes a descriptor by value.
#![allow(unsafe_code, reason = "perf_event_open(2) has no safe wrapper")]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// Bits of `sample_type`, from `linux/perf_event.h`.
pub(crate) const SAMPLE_IP: u64 = 1 << 0;
pub(crate) const SAMPLE_TID: u64 = 1 << 1;
pub(crate) const SAMPLE_TIME: u64 = 1 << 2;
pub(crate) const SAMPLE_ADDR: u64 = 1 << 3;
pub(crate) const SAMPLE_CALLCHAIN: u64 = 1 << 5;
pub(crate) const SAMPLE_REGS_USER: u64 = 1 << 12;
pub(crate) const SAMPLE_STACK_USER: u64 = 1 << 13;

/// Bits of the attributes, in the order of the bit field in `linux/perf_event.h`.
pub(crate) mod flag {
    pub(crate) const INHERIT: u64 = 1 << 1;
    pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(crate) const MMAP: u64 = 1 << 8;
    pub(crate) const COMM: u64 = 1 << 9;
    pub(crate) const WATERMARK: u64 = 1 << 14;
    pub(crate) const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    pub(crate) const COMM_EXEC: u64 = 1 << 24;
    pub(crate) const USE_CLOCKID: u64 = 1 << 25;
    /// Since Linux 5.13: only threads inherit the event, child processes do not.
    pub(crate) const INHERIT_THREAD: u64 = 1 << 35;
}

/// What an event counts: `PERF_COUNT_SW_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Page faults that needed no I/O and no second attempt.
    MinorFaults = 5,
    /// Page faults that did, as those that a userfaultfd resolved.
    MajorFaults = 6,
    /// Nothing: the event only has a ring.
    Nothing = 9,
}

const TYPE_SOFTWARE: u32 = 1;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// `_IO('$', 5)`.
const IOC_SET_OUTPUT: libc::Ioctl = 0x2405;

/// `struct perf_event_attr` up to version 5 (112 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// The settings of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) counted: Counted,
    pub(crate) flags: u64,
    pub(crate) sample_type: u64,
    /// One of so many faults is sampled.
    pub(crate) period: u64,
    /// Bits of the registers that a sample has.
    pub(crate) registers: u64,
    /// Bytes of the stack that a sample has.
    pub(crate) stack_bytes: u32,
    /// Bytes in the ring at which a reader is woken up.
    pub(crate) wakeup_bytes: u32,
}

/// Opens an event for a thread (0: the calling one) on a processor (`None`: on any).
pub(crate) fn open(settings: &Settings, tid: u32, cpu: Option<u32>) -> Result<OwnedFd, Errno> {
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: settings.counted as u64,
        sample_period: settings.period,
        sample_type: settings.sample_type,
        flags: settings.flags | flag::USE_CLOCKID,
        wakeup: settings.wakeup_bytes,
        sample_regs_user: settings.registers,
        sample_stack_user: settings.stack_bytes,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    let cpu = cpu.map_or(-1, |cpu| cpu as libc::c_int);
    // SAFETY: the attributes live through the call, and carry their size, which is all that the
    // kernel reads; it writes to them only where that size is not one it knows.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            tid as libc::pid_t,
            cpu,
            -1 as libc::c_int,
            FLAG_FD_CLOEXEC,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, so nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

/// Directs an event's samples to the ring of another event, of the same processor.
pub(crate) fn set_output(event: BorrowedFd<'_>, ring: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl takes a descriptor by value; both descriptors are open here.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_OUTPUT, ring.as_raw_fd()) };
    match done {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_kernels_layout() {
        assert_eq!(size_of::<Attributes>(), 112);
        assert_eq!(std::mem::offset_of!(Attributes, flags), 40);
        assert_eq!(std::mem::offset_of!(Attributes, sample_regs_user), 80);
        assert_eq!(std::mem::offset_of!(Attributes, clockid), 92);
        assert_eq!(std::mem::offset_of!(Attributes, sample_max_stack), 108);
    }
}
