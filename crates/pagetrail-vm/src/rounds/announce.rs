//! Announcements: each process of a program that is followed tells the recorder of itself, and
//! sends it the recorder's end of a link of its own.
//!
//! All processes write to one end of a pair of sockets, which they inherit; the recorder reads the
//! other. A process is known by a number that it has chosen at random, since a PID may be used
//! again and is another one in another PID namespace. Beside the link comes a descriptor of the
//! process itself.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// What a process announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is a guest from its first instruction on: the first of all, or a child.
    Started,
    /// It is a guest again, with another program.
    Executed,
    /// The program that it has executed cannot be a guest, and runs natively.
    Native,
}

/// What a process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    /// The number of the parent of a process that has started; 0 for none.
    pub(crate) parent: u64,
}

/// The time after which a message is sent again that could not be sent.
const RETRY: Duration = Duration::from_millis(1);
/// The length of a message in bytes: three words.
const BYTES: usize = 24;

impl Announcement {
    fn encode(self) -> [u8; BYTES] {
        let kind = match self.kind {
            Kind::Started => 0,
            Kind::Executed => 1,
            Kind::Native => 2,
        };
        let mut bytes = [0; BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip([kind, self.id, self.parent]) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; BYTES]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|bytes| {
            let word = bytes.try_into();
            word.map_or(0, u64::from_le_bytes)
        });
        Some(Self {
            kind: match words.next()? {
                0 => Kind::Started,
                1 => Kind::Executed,
                2 => Kind::Native,
                _ => return None,
            },
            id: words.next()?,
            parent: words.next()?,
        })
    }

    /// Sends this, with descriptors, to the recorder.
    pub(crate) fn send(self, to: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = self.encode();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let sent = sendmsg(
                &to,
                &[IoSlice::new(&bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // As many descriptors of this user are on their way as it may have: until the
                // recorder takes them.
                Err(Errno::TOOMANYREFS) => thread::sleep(RETRY),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The recorder's end, on which processes announce themselves.
#[derive(Debug)]
pub struct Announcements(OwnedFd);

impl Announcements {
    /// Makes this end, and the descriptor for the guest, which programs started from now on
    /// inherit: for [`recorded_guest`](crate::recorded_guest) with
    /// [`Settings::follow`](crate::Settings::follow).
    ///
    /// # Errors
    ///
    /// There are no descriptors left.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
        Ok((Self(ours), theirs))
    }

    /// Receives an announcement, with the descriptors that come with it, if one is there.
    pub(crate) fn receive(&self) -> Option<(Announcement, Vec<OwnedFd>)> {
        loop {
            let mut bytes = [0; BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut into = [IoSliceMut::new(&mut bytes)];
            let received = match recvmsg(&self.0, &mut into, &mut control, flags) {
                Err(Errno::INTR) => continue,
                received => received.ok()?.bytes,
            };
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
            let whole = (received == BYTES).then(|| Announcement::decode(bytes));
            // The end, when all processes are gone.
            let announcement = whole.flatten()?;
            return Some((announcement, descriptors));
        }
    }
}

impl AsFd for Announcements {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_arrive_with_their_descriptors() {
        let (announcements, guest) = Announcements::pair().unwrap();
        assert!(announcements.receive().is_none());
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sent = [
            (Kind::Started, 7, 0),
            (Kind::Executed, 7, 0),
            (Kind::Native, u64::MAX, 7),
        ];
        let sent = sent.map(|(kind, id, parent)| Announcement { kind, id, parent });
        for announcement in sent {
            let descriptors = [one.as_fd(), other.as_fd()];
            let count = if announcement.kind == Kind::Native {
                0
            } else {
                2
            };
            announcement.send(&guest, &descriptors[..count]).unwrap();
        }
        drop(guest);
        for expected in sent {
            let (announcement, descriptors) = announcements.receive().unwrap();
            assert_eq!(announcement, expected);
            let count = if expected.kind == Kind::Native { 0 } else { 2 };
            assert_eq!(descriptors.len(), count);
        }
        assert!(announcements.receive().is_none());
    }
}
