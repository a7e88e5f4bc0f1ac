//! Sockets at which the process waits for connections, while none waits there.

use super::Refused;
use super::sockets::{of_listener, taken};
use crate::format::listener::{Listener, ListenerAddress};
use crate::sys::sockopt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketAddrV4, SocketAddrV6, SocketType, ipproto,
    sockopt as options,
};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// As many connections may wait where the kernel does not say how many: the default of
/// `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// Finds out about a descriptor; `None` where it is no such socket, or cannot be restored.
/// Connections that wait are an `obstacle` until they have been accepted.
pub(super) fn of(
    pid: u32,
    number: u32,
    obstacle: &mut Option<Refused>,
) -> Result<Option<Listener>, Refused> {
    let unreadable = |error: io::Error| {
        format!("cannot look into the socket that is descriptor {number}: {error}")
    };
    let Ok(socket) = taken(pid, number) else {
        // What it is says who can look otherwise.
        return Ok(None);
    };
    let found = look(&socket).map_err(unreadable)?;
    let Some(found) = found else {
        return Ok(None);
    };
    let is_gone = match &found.address {
        ListenerAddress::Path { path, .. } if !path.starts_with('/') => {
            return Err(format!(
                "descriptor {number} is a socket with a relative path: {path}"
            ));
        }
        ListenerAddress::Path { mode, .. } => *mode == 0,
        _ => false,
    };
    if is_gone {
        return Err(format!(
            "descriptor {number} is a socket whose path is not there any more: {}",
            found.address
        ));
    }
    if is_awaited(&socket).map_err(unreadable)? {
        obstacle.get_or_insert_with(|| {
            format!("descriptor {number} is a socket with connections that nobody has accepted")
        });
    }
    Ok(Some(found))
}

/// Whether a connection waits to be accepted.
fn is_awaited(socket: &OwnedFd) -> io::Result<bool> {
    let mut look = [PollFd::new(socket, PollFlags::IN)];
    Ok(poll(&mut look, Some(&Timespec::default()))? != 0)
}

fn look(socket: &OwnedFd) -> io::Result<Option<Listener>> {
    if !options::socket_acceptconn(socket)? {
        return Ok(None);
    }
    let kind = options::socket_type(socket)?;
    let is_of_order = matches!(kind, SocketType::STREAM | SocketType::SEQPACKET);
    let protocol = options::socket_protocol(socket)?;
    let address = rustix::net::getsockname(socket)?;
    let said = of_listener(rustix::fs::fstat(socket)?.st_ino);
    let file = said.and_then(|(_, file)| file);
    let address = match options::socket_domain(socket)? {
        AddressFamily::UNIX => unix(address, file),
        AddressFamily::INET | AddressFamily::INET6 if protocol == Some(ipproto::TCP) => {
            internet(socket, address)?
        }
        _ => None,
    };
    let Some(address) = address.filter(|_| is_of_order) else {
        return Ok(None);
    };
    let backlog = match address {
        ListenerAddress::Internet { .. } => sockopt::backlog(socket)?,
        _ => said.map_or(BACKLOG, |(backlog, _)| backlog),
    };
    Ok(Some(Listener {
        address,
        kind: kind.as_raw(),
        backlog,
        reuse_address: options::socket_reuseaddr(socket)?,
        reuse_port: options::socket_reuseport(socket)?,
    }))
}

/// The address of a socket that is bound to a file of this inode. Where the path is another file's
/// by now, or none's, it has no rights at all.
fn unix(address: SocketAddrAny, file: Option<u32>) -> Option<ListenerAddress> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    if let Some(name) = address.abstract_name() {
        return Some(ListenerAddress::Abstract(name.to_vec()));
    }
    let path = address.path()?.to_str().ok()?.to_owned();
    let metadata = fs::symlink_metadata(&path).ok();
    let is_it = |metadata: &fs::Metadata| {
        let is_same = file.is_none_or(|inode| inode == metadata.ino() as u32);
        metadata.file_type().is_socket() && is_same
    };
    let metadata = metadata.filter(is_it);
    let (mode, owner) = metadata.map_or((0, (0, 0)), |metadata| {
        (metadata.mode(), (metadata.uid(), metadata.gid()))
    });
    Some(ListenerAddress::Path { path, mode, owner })
}

fn internet(socket: &OwnedFd, address: SocketAddrAny) -> io::Result<Option<ListenerAddress>> {
    let is_v6 = address.address_family() == AddressFamily::INET6;
    let found = match is_v6 {
        false => SocketAddrV4::try_from(address).map(SocketAddr::V4),
        true => SocketAddrV6::try_from(address).map(SocketAddr::V6),
    };
    let only_v6 = is_v6 && options::ipv6_v6only(socket)?;
    let at = |address| ListenerAddress::Internet { address, only_v6 };
    Ok(found.ok().map(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::{UnixListener, UnixStream};

    fn looked_at(socket: &impl AsFd) -> (Result<Option<Listener>, Refused>, Option<Refused>) {
        let number = socket.as_fd().as_raw_fd() as u32;
        let mut obstacle = None;
        let found = of(std::process::id(), number, &mut obstacle);
        (found, obstacle)
    }

    #[test]
    fn who_listens_is_found_and_connections_wait() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (found, obstacle) = looked_at(&socket);
        let found = found.unwrap().unwrap();
        let address = socket.local_addr().unwrap();
        let only_v6 = false;
        assert_eq!(
            found.address,
            ListenerAddress::Internet { address, only_v6 }
        );
        assert_eq!((found.kind, obstacle), (1, None));
        assert!(found.reuse_address && found.backlog > 0, "{found:?}");
        let client = TcpStream::connect(address).unwrap();
        let obstacle = looked_at(&socket).1.unwrap();
        assert!(obstacle.contains("nobody has accepted"), "{obstacle}");
        // Connected ones are none that listen.
        assert_eq!(looked_at(&client), (Ok(None), None));
        let (_connected, _) = socket.accept().unwrap();
        assert_eq!(looked_at(&socket).1, None);
    }

    #[test]
    fn a_path_is_found_while_it_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let socket = UnixListener::bind(&path).unwrap();
        let found = looked_at(&socket).0.unwrap().unwrap();
        let ListenerAddress::Path { path: at, mode, .. } = &found.address else {
            panic!("{found:?}");
        };
        assert_eq!(at, path.to_str().unwrap());
        assert_ne!(mode & 0o777, 0);
        let _client = UnixStream::connect(&path).unwrap();
        assert!(looked_at(&socket).1.is_some());
        // Neither one that has gone nor another's is its own.
        fs::rename(&path, directory.path().join("other")).unwrap();
        for is_another in [false, true] {
            let _other = is_another.then(|| UnixListener::bind(&path).unwrap());
            let refused = looked_at(&socket).0.unwrap_err();
            assert!(refused.contains("not there any more"), "{refused}");
        }
    }
}
