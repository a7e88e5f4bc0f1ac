//! [`Connector`]: the kernel's notices of processes that begin and end (the process connector,
//! `linux/cn_proc.h` and `drivers/connector/cn_proc.c`).
//!
//! Notices are queued and nobody waits for their reader. They are about all processes of the
//! machine, and come only in the initial PID, user and network namespaces; ordinary users get them
//! since Linux 6.6. No permission to trace is needed, and none is implied.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};
use std::time::Duration;

/// `CN_IDX_PROC` and `CN_VAL_PROC` of `linux/connector.h`.
const PROCESSES: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`.
const LISTEN: u32 = 1;
/// `PROC_EVENT_NONE`: the answer to a request.
const ANSWER: u32 = 0;
const FORK: u32 = 1;
const EXIT: u32 = 0x8000_0000;

/// Lengths of `struct nlmsghdr` and `struct cn_msg`.
const NETLINK_BYTES: usize = 16;
const HEADER_BYTES: usize = 20;
/// Where `struct proc_event` has its kind, its time, and what belongs to the kind.
const KIND: usize = NETLINK_BYTES + HEADER_BYTES;
const WHEN: usize = KIND + 8;
const DETAILS: usize = KIND + 16;

/// Room for some thousand notices.
const QUEUE_BYTES: usize = 4 << 20;

/// How long the kernel may take to answer; it does so within the request.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(10);

/// The namespaces whose numbers notices have (`PID_NS_INIT_INO`, `USER_NS_INIT_INO` of
/// `linux/nsfs.h`).
const INITIAL: [(&str, &str); 2] = [("pid", "pid:[4026531836]"), ("user", "user:[4026531837]")];

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A process came to be.
    Born { pid: u32, parent: u32 },
    /// The main thread of a process ended, and mostly the process with it. The process lives on
    /// where it has other threads, or where one of these executes a program: the kernel ends the
    /// main thread then, and gives its number to the other (`de_thread`, `fs/exec.c`).
    Ended { pid: u32 },
}

/// A queue of notices.
#[derive(Debug)]
pub(crate) struct Connector(OwnedFd);

impl Connector {
    /// Asks for notices; `None` where the kernel gives none.
    pub(crate) fn open() -> Option<Self> {
        // In another PID namespace that shares the network with the initial one, notices can come,
        // of processes that are others here.
        let is_initial = |(name, of): (&str, &str)| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}"));
            link.is_ok_and(|link| link.as_os_str() == of)
        };
        if !INITIAL.into_iter().all(is_initial) {
            return None;
        }
        let connector = Self::ask().ok()?;
        // In another network namespace the kernel takes the request and says nothing.
        connector.is_answered().then_some(connector)
    }

    fn ask() -> Result<Self, Errno> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(CONNECTOR),
        )?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES)?;
        }
        bind(&socket, &SocketAddrNetlink::new(0, PROCESSES))?;
        send(&socket, &request(), SendFlags::NOSIGNAL)?;
        Ok(Self(socket))
    }

    fn is_answered(&self) -> bool {
        let timeout = Timespec::try_from(ANSWER_TIMEOUT).ok();
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let mut buffer = [0; 256];
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(1..) => {}
                Err(Errno::INTR) => continue,
                _ => return false,
            }
            // Notices may come before it.
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok((bytes, _)) if word(&buffer[..bytes], KIND) == Some(ANSWER) => {
                    return word(&buffer[..bytes], DETAILS) == Some(0);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes all notices that wait, each with its time in ns (`CLOCK_MONOTONIC`). Returns false if
    /// others were dropped, because more came than the queue holds.
    pub(crate) fn read(&self, mut take: impl FnMut(Notice, u64)) -> bool {
        let mut buffer = [0; 256];
        let mut is_whole = true;
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok((bytes, _)) => {
                    let message = &buffer[..bytes];
                    if let (Some(notice), Some(when)) = (notice(message), time(message)) {
                        take(notice, when);
                    }
                }
                Err(Errno::NOBUFS) => is_whole = false,
                Err(Errno::INTR) => {}
                Err(_) => return is_whole,
            }
        }
    }
}

/// The request for notices: `struct nlmsghdr`, `struct cn_msg`, and the operation.
fn request() -> [u8; KIND + 4] {
    let mut bytes = [0; KIND + 4];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &((KIND + 4) as u32).to_ne_bytes());
    // `NLMSG_DONE`
    put(4, &3u16.to_ne_bytes());
    put(NETLINK_BYTES, &PROCESSES.to_ne_bytes());
    put(NETLINK_BYTES + 4, &PROCESSES.to_ne_bytes());
    put(NETLINK_BYTES + 16, &4u16.to_ne_bytes());
    put(KIND, &LISTEN.to_ne_bytes());
    bytes
}

/// What a message says, if it is about a process and not about another thread of one.
fn notice(message: &[u8]) -> Option<Notice> {
    let field = |i: usize| word(message, DETAILS + 4 * i);
    match word(message, KIND)? {
        FORK => {
            let (parent, thread, pid) = (field(1)?, field(2)?, field(3)?);
            (thread == pid).then_some(Notice::Born { pid, parent })
        }
        EXIT => {
            let (thread, pid) = (field(0)?, field(1)?);
            (thread == pid).then_some(Notice::Ended { pid })
        }
        _ => None,
    }
}

/// When the kernel made a message (`timestamp_ns`).
fn time(message: &[u8]) -> Option<u64> {
    let bytes = message.get(WHEN..DETAILS)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, details: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; DETAILS];
        bytes[KIND..KIND + 4].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(details.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn messages_about_processes_are_notices() {
        let born = Notice::Born { pid: 9, parent: 5 };
        assert_eq!(notice(&message(FORK, &[6, 5, 9, 9])), Some(born));
        assert_eq!(
            notice(&message(EXIT, &[9, 9, 0, 0])),
            Some(Notice::Ended { pid: 9 })
        );
        // A thread, another kind, and messages that are too short.
        assert_eq!(notice(&message(FORK, &[6, 5, 10, 9])), None);
        assert_eq!(notice(&message(EXIT, &[10, 9])), None);
        assert_eq!(notice(&message(2, &[9, 9])), None);
        assert_eq!(notice(&message(FORK, &[6, 5, 9])), None);
        assert_eq!(notice(&[1, 2]), None);
    }

    #[test]
    fn children_of_this_process_are_noticed() {
        let Some(connector) = Connector::open() else {
            return;
        };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let mut notices = Vec::new();
        connector.read(|notice, when| {
            notices.push(notice);
            assert!(when > 0);
        });
        let (pid, parent) = (child.id(), std::process::id());
        assert!(notices.contains(&Notice::Born { pid, parent }));
        assert!(notices.contains(&Notice::Ended { pid }));
    }
}
