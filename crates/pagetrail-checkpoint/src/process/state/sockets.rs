//! Sockets of `socketpair(2)` of which the process has both ends, or of which the other end is
//! closed, and the bytes on their way to them. Which sockets are each other's peers is said by
//! `sock_diag(7)`.

use super::Refused;
use crate::format::objects::PairedSocket;
use crate::sys::sockopt;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, SocketFlags, SocketType,
    recv, recvmsg, sendto, socket_with,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::IoSliceMut;

/// `SOCK_DIAG_BY_FAMILY` and `NLM_F_REQUEST` of `sock_diag(7)`.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
/// `UDIAG_SHOW_NAME`, `UDIAG_SHOW_VFS`, `UDIAG_SHOW_PEER` and `UDIAG_SHOW_RQLEN`, and the
/// attributes that answer.
const SHOW: u32 = 1 | 2 | 4 | 0x10;
const NAME: u16 = 0;
const FILE: u16 = 1;
const PEER: u16 = 2;
const QUEUE: u16 = 4;
const SHUTDOWN: u16 = 6;
/// `TCP_ESTABLISHED`, by which sockets of this family are connected, too.
const CONNECTED: u8 = 1;
/// `SOCK_STREAM` and `SOCK_SEQPACKET`.
const STREAM: u8 = 1;
const PACKETS: u8 = 5;
/// `RCV_SHUTDOWN` and `SEND_SHUTDOWN` of the kernel.
const ALL_SHUT_DOWN: u8 = 3;
/// How long the headers are: of a message, and of what it says of a socket.
const HEADER_BYTES: usize = 16;
const SAID_BYTES: usize = 16;

/// What the kernel says of a socket of the family `AF_UNIX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    kind: u8,
    state: u8,
    peer: Option<u32>,
    queued: u32,
    /// How much may be; of one that listens, how many connections may wait.
    queue: u32,
    /// The inode of the file that it is bound to.
    file: Option<u32>,
    /// By its name others may find it.
    has_name: bool,
    /// Which ways, as bits; both where its peer is closed.
    shut_down: u8,
}

/// Finds out about a socket; `None` where it is no pair's, or cannot be restored. Messages are none
/// that could be sent again: they are an `obstacle` until they have been received.
pub(super) fn of(
    pid: u32,
    number: u32,
    inode: u64,
    obstacle: &mut Option<Refused>,
) -> Result<Option<PairedSocket>, Refused> {
    let Some(said) = ask(inode) else {
        return Ok(None);
    };
    let is_connected = said.state == CONNECTED && matches!(said.kind, STREAM | PACKETS);
    let peer = match (said.peer.unwrap_or(0), said.shut_down) {
        _ if said.has_name => return Ok(None),
        (0, ALL_SHUT_DOWN) if is_connected => 0,
        (peer @ 1.., 0) => peer,
        _ => return Ok(None),
    };
    let mut found = PairedSocket {
        inode,
        peer: peer.into(),
        kind: said.kind.into(),
        unread: Vec::new(),
    };
    // Of messages the length of the first is said, which may be none.
    if said.queued == 0 && said.kind == STREAM {
        return Ok(Some(found));
    }
    let unreadable =
        |error| format!("cannot look into the socket that is descriptor {number}: {error}");
    let socket = taken(pid, number).map_err(unreadable)?;
    // Looking would move the offset.
    if sockopt::peek_offset(&socket).map_err(unreadable)? >= 0 {
        return Err(format!(
            "descriptor {number} is a socket at which it peeks from an offset (SO_PEEK_OFF)"
        ));
    }
    let unread = match said.kind {
        STREAM => unread(&socket, said.queued),
        _ => (!has_messages(&socket, &said)).then(Vec::new),
    };
    match unread {
        Some(unread) => found.unread = unread,
        None => {
            obstacle.get_or_insert_with(|| {
                format!("descriptor {number} is a socket with messages that nobody has received")
            });
        }
    }
    Ok(Some(found))
}

/// How many connections may wait at a socket, and the lower bits of the inode of the file that it
/// is bound to; `None` where the kernel does not say.
pub(super) fn of_listener(inode: u64) -> Option<(u32, Option<u32>)> {
    ask(inode).map(|said| (said.queue, said.file))
}

/// This process's own descriptor of a socket of another.
pub(super) fn taken(pid: u32, number: u32) -> std::io::Result<OwnedFd> {
    let none = || std::io::Error::from(Errno::SRCH);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.ok_or_else(none)?, PidfdFlags::empty())?;
    let number = i32::try_from(number).map_err(|_| none())?;
    Ok(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?)
}

/// Whether there is a message, or an error that waits. After the last message of a peer that has
/// closed its end there is the end, which reads like an empty message.
fn has_messages(socket: &OwnedFd, said: &Said) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let found = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut [0])],
        &mut RecvAncillaryBuffer::default(),
        flags,
    );
    match found {
        Err(Errno::AGAIN) => false,
        Ok(found) => found.bytes != 0 || said.queued != 0 || said.shut_down != ALL_SHUT_DOWN,
        Err(_) => true,
    }
}

/// The bytes that wait in a stream; `None` where they have descriptors with them.
fn unread(socket: &OwnedFd, queued: u32) -> Option<Vec<u8>> {
    // One more, which must stay: what is peeked at ends where a message with descriptors begins.
    let mut bytes = vec![0; queued as usize + 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut vectors = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(
        socket,
        &mut vectors,
        &mut RecvAncillaryBuffer::default(),
        flags,
    )
    .ok()?;
    let is_all = got.bytes == queued as usize && !got.flags.contains(ReturnFlags::CTRUNC);
    bytes.truncate(queued as usize);
    is_all.then_some(bytes)
}

fn ask(inode: u64) -> Option<Said> {
    let inode = u32::try_from(inode).ok()?;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    );
    let socket = socket.ok()?;
    let mut request = Vec::new();
    request.extend(40u32.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    // `struct unix_diag_req`: the family, all states, which one, what of it, no cookie.
    request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(inode.to_ne_bytes());
    request.extend(SHOW.to_ne_bytes());
    request.extend([0xff; 8]);
    sendto(
        &socket,
        &request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )
    .ok()?;
    let mut answer = [0u8; 4096];
    let (_, length) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty()).ok()?;
    parse(answer.get(..length)?, inode)
}

fn parse(answer: &[u8], inode: u32) -> Option<Said> {
    let word = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?));
    let half = |bytes: &[u8]| Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    if half(answer.get(4..)?)? != BY_FAMILY {
        return None;
    }
    let length = word(answer)? as usize;
    let said = answer.get(HEADER_BYTES..length)?;
    if word(said.get(4..)?)? != inode {
        return None;
    }
    let mut found = Said {
        kind: *said.get(1)?,
        state: *said.get(2)?,
        ..Said::default()
    };
    let mut rest = said.get(SAID_BYTES..)?;
    while rest.len() >= 4 {
        let (length, kind) = (half(rest)? as usize, half(&rest[2..])?);
        let value = rest.get(4..length)?;
        match kind {
            NAME => found.has_name = true,
            PEER => found.peer = Some(word(value)?),
            FILE => found.file = Some(word(value)?),
            QUEUE => {
                found.queued = word(value)?;
                found.queue = word(value.get(4..)?)?;
            }
            SHUTDOWN => found.shut_down = *value.first()?,
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{send, socketpair};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    /// What is found out about a socket of this process, and what may be otherwise at another
    /// instant.
    fn look(socket: &impl AsRawFd) -> (Result<Option<PairedSocket>, Refused>, Option<Refused>) {
        let number = socket.as_raw_fd() as u32;
        let mut obstacle = None;
        let found = of(std::process::id(), number, inode(socket), &mut obstacle);
        (found, obstacle)
    }

    fn inode(socket: &impl AsRawFd) -> u64 {
        let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(link).unwrap().ino()
    }

    #[test]
    fn a_pair_is_found_with_what_is_on_its_way() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let Some(found) = look(&other).0.unwrap() else {
            return pagetrail_skips::not_here("the kernel has no sock_diag for AF_UNIX");
        };
        assert_eq!((found.peer, found.kind), (inode(&one), 1));
        assert_eq!(found.unread, b"");
        one.write_all(b"some bytes").unwrap();
        let (found, obstacle) = look(&other);
        assert_eq!(found.unwrap().unwrap().unread, b"some bytes");
        assert_eq!(obstacle, None);
        one.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(look(&other), (Ok(None), None));
        drop(other);
        assert_eq!(look(&one).0.unwrap().map(|found| found.peer), Some(0));
    }

    #[test]
    fn messages_are_an_obstacle_until_they_have_been_received() {
        for kind in [SocketType::DGRAM, SocketType::SEQPACKET] {
            let flags = SocketFlags::CLOEXEC;
            let (one, other) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
            if look(&other).0.unwrap().is_none() {
                return pagetrail_skips::not_here("the kernel has no sock_diag for AF_UNIX");
            }
            assert_eq!(look(&other).1, None);
            // The kernel says the length of the first.
            for message in [b"".as_slice(), b"payload"] {
                send(&one, message, SendFlags::empty()).unwrap();
                let obstacle = look(&other).1.unwrap();
                assert!(obstacle.contains("messages"), "{obstacle}");
            }
            assert_eq!(look(&one).1, None);
            for _ in 0..2 {
                recv(&other, &mut [0u8; 8], RecvFlags::DONTWAIT).unwrap();
            }
            assert_eq!(look(&other).1, None);
        }
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        drop(one);
        assert_eq!(look(&other).1, None);
    }

    #[test]
    fn a_socket_that_peeks_from_an_offset_is_refused_and_keeps_it() {
        let (mut one, other) = UnixStream::pair().unwrap();
        if look(&other).0.unwrap().is_none() {
            return pagetrail_skips::not_here("the kernel has no sock_diag for AF_UNIX");
        }
        sockopt::set_peek_offset(&other, 0).unwrap();
        one.write_all(b"0123456789").unwrap();
        let refused = look(&other).0.unwrap_err();
        assert!(refused.contains("SO_PEEK_OFF"), "{refused}");
        assert_eq!(sockopt::peek_offset(&other).unwrap(), 0);
    }

    #[test]
    fn an_answer_about_another_socket_or_a_short_one_is_none() {
        let mut answer = Vec::new();
        answer.extend(40u32.to_ne_bytes());
        answer.extend(BY_FAMILY.to_ne_bytes());
        answer.extend([0; 10]);
        answer.extend([1, 1, 1, 0]);
        answer.extend(7u32.to_ne_bytes());
        answer.extend([0; 8]);
        answer.extend(8u16.to_ne_bytes());
        answer.extend(PEER.to_ne_bytes());
        answer.extend(9u32.to_ne_bytes());
        assert_eq!(parse(&answer, 7).and_then(|said| said.peer), Some(9));
        assert_eq!(parse(&answer, 8), None);
        for length in 0..answer.len() {
            assert_eq!(parse(&answer[..length], 7), None);
        }
    }
}
