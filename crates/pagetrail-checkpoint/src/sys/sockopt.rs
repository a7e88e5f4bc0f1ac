//! `getsockopt(2)`: options of sockets that rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// From which offset `MSG_PEEK` reads (`SO_PEEK_OFF` of `socket(7)`); negative where it always
/// reads from the beginning.
pub(crate) fn peek_offset(socket: impl AsFd) -> io::Result<i32> {
    let mut offset: libc::c_int = -1;
    let mut length = size_of_val(&offset) as libc::socklen_t;
    // SAFETY: both pointers are to locals that live through the call, and `length` says how much
    // the kernel may write to the first.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw mut offset).cast(),
            &raw mut length,
        )
    };
    match outcome {
        0 => Ok(offset),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many connections may wait at a socket of TCP that listens (`TCP_INFO` of `tcp(7)`).
pub(crate) fn backlog(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: all members are integers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: both pointers are to locals that live through the call, and `length` says how much
    // the kernel may write to the first.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match outcome {
        // Of one that listens this is said there (`tcp_get_info` in `net/ipv4/tcp.c`).
        0 => Ok(info.tcpi_sacked),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has a socket peek from an offset.
#[cfg(test)]
pub(crate) fn set_peek_offset(socket: impl AsFd, offset: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a local that lives through the call, and its length is given.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            size_of_val(&offset) as libc::socklen_t,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
