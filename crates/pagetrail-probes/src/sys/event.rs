//! `perf_event_open(2)`: a tracepoint, to which a program is attached.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

const TYPE_TRACEPOINT: u32 = 2;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// `_IOW('$', 8, u32)`: the program.
const IOC_SET_BPF: libc::Ioctl = 0x4004_2408;
/// `_IO('$', 0)`.
const IOC_ENABLE: libc::Ioctl = 0x2400;
/// Bytes of `struct perf_event_attr` in its first version.
const ATTRIBUTE_BYTES: usize = 64;

/// Runs a program whenever a tracepoint is passed, on every processor, for as long as the
/// descriptor lives.
pub(crate) fn attach(tracepoint: u64, program: i32) -> Result<OwnedFd, Errno> {
    let mut attributes = [0u64; ATTRIBUTE_BYTES / 8];
    attributes[0] = u64::from(TYPE_TRACEPOINT) | (ATTRIBUTE_BYTES as u64) << 32;
    attributes[1] = tracepoint;
    // One event is enough: programs are the tracepoint's, whatever the event's processor.
    let (pid, cpu, group) = (-1, 0, -1);
    // SAFETY: the attributes have the size that they carry.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            pid,
            cpu,
            group,
            FLAG_FD_CLOEXEC,
        )
    };
    let descriptor = match descriptor {
        -1 => return Err(last_error()),
        // SAFETY: the kernel has just returned this descriptor, which nobody else has.
        descriptor => unsafe { OwnedFd::from_raw_fd(descriptor as i32) },
    };
    for (request, argument) in [(IOC_SET_BPF, program), (IOC_ENABLE, 0)] {
        // SAFETY: both requests take a number.
        if unsafe { libc::ioctl(descriptor.as_raw_fd(), request, argument) } == -1 {
            return Err(last_error());
        }
    }
    Ok(descriptor)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
