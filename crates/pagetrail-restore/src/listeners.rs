//! Sockets at which the process waits for connections: made anew, at the same addresses.

use crate::error::{Error, Result};
use crate::remote::{Argument, Remote};
use pagetrail_checkpoint::{FileKind, Listener, ListenerAddress, OpenFile};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, chmodat, chownat};
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;

/// The length of a path in `struct sockaddr_un`, its zero byte included.
const PATH_BYTES: usize = 108;
/// By this flag `/proc/net/unix` marks sockets that listen (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 1 << 16;

/// The first socket among files at which somebody waits for connections.
pub(crate) fn first(files: &[OpenFile]) -> Option<(u32, &Listener)> {
    files.iter().find_map(|file| match &file.kind {
        FileKind::Listener(listener) => Some((file.number, listener)),
        _ => None,
    })
}

/// Why a process cannot listen there now, if that is known before it tries.
pub(crate) fn obstacle(listener: &Listener) -> Option<String> {
    let ListenerAddress::Path { path, .. } = &listener.address else {
        return None;
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Some("which is no socket now".to_owned())
        }
        Ok(_) if is_listened_at(path) => Some("where another program listens now".to_owned()),
        Ok(_) => None,
    }
}

/// Whether a socket that listens has this path; true where nobody says.
fn is_listened_at(path: &str) -> bool {
    let listed = fs::read("/proc/net/unix");
    listed.map_or(true, |text| lists(&text, path))
}

/// Looks for a path in the text of `/proc/net/unix`: number, references, protocol, flags, type,
/// state, inode and path.
fn lists(text: &[u8], path: &str) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let Some(rest) = fields.nth(3) else {
            return false;
        };
        let flags = rest
            .get(..8)
            .and_then(|flags| std::str::from_utf8(flags).ok());
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        let is_it = rest.strip_suffix(path.as_bytes());
        flags.is_some_and(|flags| flags & ACCEPTS != 0) && is_it.is_some_and(|l| l.ends_with(b" "))
    })
}

/// Makes the socket of a descriptor; gives its number in the new process.
pub(crate) fn open(remote: &Remote, file: &OpenFile, listener: &Listener) -> Result<u64> {
    let what = format!("listen at {}", listener.address);
    let call = |number: i64, arguments: &[Argument<'_>]| {
        remote.call(remote.main, &what, number, arguments)
    };
    let (family, address) = address_of(listener)?;
    let flags = file.flags as i32 & (libc::O_NONBLOCK | libc::O_CLOEXEC);
    let kind = listener.kind | flags as u32;
    let socket = call(libc::SYS_socket, &[family.into(), kind.into(), 0u64.into()])?;
    let only_v6 = match &listener.address {
        ListenerAddress::Internet { address, only_v6 } if address.is_ipv6() => Some(*only_v6),
        _ => None,
    };
    let options = [
        (
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR,
            Some(listener.reuse_address),
        ),
        (
            libc::SOL_SOCKET,
            libc::SO_REUSEPORT,
            listener.reuse_port.then_some(true),
        ),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only_v6),
    ];
    for (level, option, value) in options {
        let Some(value) = value else { continue };
        let value = i32::from(value).to_ne_bytes();
        let arguments = [
            socket.into(),
            level.into(),
            option.into(),
            value.as_slice().into(),
            4u64.into(),
        ];
        call(libc::SYS_setsockopt, &arguments)?;
    }
    if let ListenerAddress::Path { path, .. } = &listener.address {
        // The one that the process had before, which leads nowhere: what is checked before.
        match obstacle(listener) {
            Some(reason) => return Err(missing(file.number, listener, &reason)),
            None => drop(fs::remove_file(path)),
        }
    }
    let length = address.len() as u64;
    let arguments = [socket.into(), address.as_slice().into(), length.into()];
    call(libc::SYS_bind, &arguments)?;
    if let ListenerAddress::Path { path, mode, owner } = &listener.address {
        let rights = Mode::from_raw_mode(mode & 0o7777);
        // The rights last: a change of the owner may take some away. Who may not give it away
        // keeps it.
        if owner.0 != u32::MAX && owner.1 != u32::MAX {
            let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            let _ = chownat(
                CWD,
                path.as_str(),
                Some(user),
                Some(group),
                AtFlags::SYMLINK_NOFOLLOW,
            );
        }
        let changed = chmodat(CWD, path.as_str(), rights, AtFlags::empty());
        changed.map_err(Error::step(&what))?;
    }
    call(libc::SYS_listen, &[socket.into(), listener.backlog.into()])?;
    Ok(socket)
}

/// What is said where a process cannot listen again.
pub(crate) fn missing(number: u32, listener: &Listener, reason: &str) -> Error {
    Error::Missing(format!(
        "descriptor {number} was a socket that listened at {}, {reason}",
        listener.address
    ))
}

/// The family and the bytes of an address, as `bind(2)` takes it.
fn address_of(listener: &Listener) -> Result<(i32, Vec<u8>)> {
    let family = |family: i32| (family as u16).to_ne_bytes().to_vec();
    let too_long = || Error::refused("the checkpoint has an impossible address of a socket");
    Ok(match &listener.address {
        ListenerAddress::Path { path, .. } => {
            let mut bytes = family(libc::AF_UNIX);
            if path.len() >= PATH_BYTES || !path.starts_with('/') || path.contains('\0') {
                return Err(too_long());
            }
            bytes.extend(path.as_bytes());
            bytes.push(0);
            (libc::AF_UNIX, bytes)
        }
        ListenerAddress::Abstract(name) => {
            let mut bytes = family(libc::AF_UNIX);
            if name.len() >= PATH_BYTES {
                return Err(too_long());
            }
            bytes.push(0);
            bytes.extend(name);
            (libc::AF_UNIX, bytes)
        }
        ListenerAddress::Internet { address, .. } => match address {
            SocketAddr::V4(address) => {
                let mut bytes = family(libc::AF_INET);
                bytes.extend(address.port().to_be_bytes());
                bytes.extend(address.ip().octets());
                bytes.extend([0; 8]);
                (libc::AF_INET, bytes)
            }
            SocketAddr::V6(address) => {
                let mut bytes = family(libc::AF_INET6);
                bytes.extend(address.port().to_be_bytes());
                bytes.extend(address.flowinfo().to_be_bytes());
                bytes.extend(address.ip().octets());
                bytes.extend(address.scope_id().to_ne_bytes());
                (libc::AF_INET6, bytes)
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn who_listens_at_a_path_is_seen_and_who_did_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b");
        let path = path.to_str().unwrap();
        assert!(!is_listened_at(path));
        let listener = UnixListener::bind(path).unwrap();
        assert!(is_listened_at(path) && !is_listened_at(&path[..path.len() - 1]));
        assert!(!is_listened_at(&path[1..]));
        drop(listener);
        assert!(!is_listened_at(path));
    }
}
