//! What the first process of a guest does to its machine, and a process that ends with this one.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel kill a child when the thread that starts it ends.
pub(crate) fn ends_with_us(command: &mut Command) {
    let parent = std::process::id();
    let bind = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // It may have ended before.
        let is_here = rustix::process::getppid();
        match is_here.is_some_and(|pid| pid.as_raw_pid() as u32 == parent) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls, and neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(bind) };
}

/// Mounts a file system of the kernel's own.
///
/// # Errors
///
/// Those of mount(2).
pub(crate) fn mount(kind: &CStr, place: &CStr) -> io::Result<()> {
    // SAFETY: three strings that end with a zero, and no data.
    let failed = unsafe {
        libc::mount(
            kind.as_ptr(),
            place.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    result(failed)
}

/// Has a terminal pass on every byte as it is.
///
/// # Errors
///
/// Those of termios(3): it is no terminal.
pub(crate) fn make_raw(terminal: impl AsFd) -> io::Result<()> {
    let descriptor = terminal.as_fd().as_raw_fd();
    let mut settings = std::mem::MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: the C library writes one `termios` to this address, which has room for it.
    result(unsafe { libc::tcgetattr(descriptor, settings.as_mut_ptr()) })?;
    // SAFETY: it was written just now, and is numbers.
    let mut settings = unsafe { settings.assume_init() };
    // SAFETY: it reads and writes the `termios` that it is given.
    unsafe { libc::cfmakeraw(&raw mut settings) };
    // SAFETY: it reads the `termios` that it is given.
    result(unsafe { libc::tcsetattr(descriptor, libc::TCSANOW, &raw const settings) })
}

/// Switches the loopback device on.
///
/// # Errors
///
/// Those of netdevice(7).
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: all of it is numbers, and a union of numbers, addresses and a pointer that nobody
    // follows; zeros are valid for all.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads an `ifreq` at this address.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    result(failed)
}

/// Switches the machine off, without writing anything to a disk first.
///
/// # Errors
///
/// Those of reboot(2): this process may not.
pub(crate) fn switch_off() -> io::Result<()> {
    // SAFETY: the call takes a number and no address.
    result(unsafe { libc::reboot(libc::RB_POWER_OFF) })
}

fn result(code: libc::c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
