//! `vsock(7)`: sockets between virtual machines and their host.
#![allow(unsafe_code, reason = "AF_VSOCK has no safe wrapper in rustix")]

use std::io;
use std::mem::size_of;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with};

/// Any machine, for [`bound`].
pub(crate) const ANY: u32 = libc::VMADDR_CID_ANY;
/// The host, as its guests call it.
pub(crate) const HOST: u32 = libc::VMADDR_CID_HOST;

fn address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: a sockaddr_vm is numbers, for all of which zero is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::VSOCK,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// A system call that takes a socket and an address.
type Call =
    unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int;

fn with_address(call: Call, socket: &OwnedFd, address: &libc::sockaddr_vm) -> io::Result<()> {
    let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the address is of this length, and lives through the call, which only reads it.
    let result = unsafe { call(socket.as_raw_fd(), (&raw const *address).cast(), length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects to a port of a machine. The kernel gives up after two seconds.
pub(crate) fn connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    with_address(libc::connect, &socket, &address(cid, port))?;
    Ok(socket)
}

/// A socket that listens at a port of this machine.
pub(crate) fn bound(port: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    with_address(libc::bind, &socket, &address(ANY, port))?;
    listen(&socket, 1)?;
    Ok(socket)
}

/// The machine at the other end of a connection.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<u32> {
    let mut found = address(0, 0);
    let mut length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes, which is what the address has.
    let result = unsafe { libc::getpeername(fd, (&raw mut found).cast(), &raw mut length) };
    match result {
        0 => Ok(found.svm_cid),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_not_there_is_an_error() {
        // No machine has this number; a kernel without vsock says so.
        assert!(connect(0x7fff_0001, 9000).is_err());
    }
}
