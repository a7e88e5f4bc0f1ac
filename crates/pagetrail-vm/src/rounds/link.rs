//! Carries rounds from the process that has become the guest to the process that records it, over a
//! pair of sockets.
//!
//! The recorder sends a [`Request`] of one byte, and receives a message. The guest sends a round
//! without a request before its memory goes away. After the final one it waits until the recorder
//! has processed it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use pagetrail::{HeldThread, PageRange, PageSet};
use rustix::net::SendFlags;

use super::Collected;
use super::threads;
use super::unit_change::UnitChange;
use crate::error::{Error, Result};
use crate::sys::descriptors;

/// The most ranges in a message: no program has as many mappings, or dirties as many ranges.
const RANGES_MAX: u64 = 1 << 32;

/// The most call numbers in a message. No kernel has as many system calls, but a program may try
/// any number.
const CALLS_MAX: u64 = 1 << 32;

/// The most changes of units in a request.
const CHANGES_MAX: u64 = 1 << 22;

/// What the recorder wants of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A round.
    Round,
    /// A round, with all vCPUs kept out of the guest from then on.
    Hold,
    /// The end of that; there is no reply.
    Release,
    /// Aliases of pages are merged, or separated; there is no reply.
    Units(Vec<UnitChange>),
    /// The threads, with their registers, of a guest that is held.
    Threads,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Round => vec![0],
            Self::Hold => vec![1],
            Self::Release => vec![2],
            Self::Threads => vec![4],
            Self::Units(changes) => {
                let count = changes.len() as u64;
                let words = changes.iter().flat_map(UnitChange::words);
                let words = std::iter::once(count).chain(words);
                std::iter::once(3)
                    .chain(words.flat_map(u64::to_le_bytes))
                    .collect()
            }
        }
    }

    fn decode(stream: &mut impl Read) -> Result<Self> {
        let mut byte = [0];
        let read = stream.read_exact(&mut byte);
        read.map_err(Error::system("read a request"))?;
        Ok(match byte {
            [1] => Self::Hold,
            [2] => Self::Release,
            [3] => Self::Units(changes(stream)?),
            [4] => Self::Threads,
            _ => Self::Round,
        })
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A round that was requested.
    Reply,
    /// A round sent before `execve(2)`. If that call fails, more rounds follow.
    PreExec,
    /// Like [`Self::PreExec`], of a program that becomes a guest.
    PreFollowed,
    /// The final round.
    Final,
}

/// The guest's end of the link.
#[derive(Debug)]
pub(crate) struct GuestEnd {
    stream: UnixStream,
    sending: Mutex<()>,
}

impl GuestEnd {
    /// Takes ownership of the descriptor that [`pair`] made, by its number in this process.
    pub(crate) fn adopt(number: RawFd) -> io::Result<Self> {
        Ok(Self::of(descriptors::adopt(number)?))
    }

    /// The guest's end, as a descriptor with a high number.
    pub(crate) fn of(end: OwnedFd) -> Self {
        Self {
            stream: end.into(),
            sending: Mutex::new(()),
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Waits for the next request. Returns `None` when the recorder has closed its end.
    pub(crate) fn wait(&self) -> Option<Request> {
        Request::decode(&mut &self.stream).ok()
    }

    /// Sends a round. Failures are ignored, since the program must continue without a recorder.
    pub(crate) fn send(&self, kind: MessageKind, collected: &Collected) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.send_bytes(&encode(kind, collected));
    }

    /// Sends the threads of a guest that is held. No round is sent meanwhile.
    pub(crate) fn send_threads(&self, held: &[HeldThread]) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = Vec::new();
        threads::encode(held, &mut message);
        self.send_bytes(&message);
    }

    pub(super) fn send_bytes(&self, message: &[u8]) {
        let mut rest = message;
        // Not write(2), which would send the program SIGPIPE.
        while !rest.is_empty()
            && let Ok(sent) = rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL)
        {
            rest = &rest[sent..];
        }
    }

    /// Closes the link. To the recorder the guest is gone.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }

    /// Waits until the recorder has processed the final round, or is gone. The recorder
    /// acknowledges by closing its end.
    pub(crate) fn wait_for_ack(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
        // The thread that serves requests may be waiting, too, and may read a part. The end of the
        // stream reaches both.
        let mut unread = [0; 4096];
        while (&self.stream).read(&mut unread).is_ok_and(|read| read > 0) {}
    }
}

/// The recorder's end of the link.
#[derive(Debug)]
pub struct Rounds {
    stream: UnixStream,
    /// A round that was sent before `execve(2)`, and is in no other round yet.
    pre_exec: Option<Collected>,
    /// Whether the program of that round is a guest, too.
    is_followed: bool,
}

/// What the recorder receives when it collects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestRound {
    /// A round; the program continues.
    Round(Collected),
    /// The final round. The program waits until [`Rounds`] is dropped, and then ends.
    Final(Collected),
    /// The process is no longer a guest: it has executed another program, or was killed. Contains
    /// what it wrote before `execve(2)`.
    Gone(Option<Collected>),
}

/// Makes a link: the recorder's end, and the descriptor for the guest, which programs started from
/// now on inherit.
pub fn pair() -> io::Result<(Rounds, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    Ok((Rounds::of(ours.into()), theirs.into()))
}

impl Rounds {
    /// The recorder's end of a link, which a guest has made.
    pub(crate) fn of(end: OwnedFd) -> Self {
        Self {
            stream: end.into(),
            pre_exec: None,
            is_followed: false,
        }
    }

    /// Whether the guest has executed a program that becomes a guest, too.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Takes the round that was sent before `execve(2)`.
    pub(crate) fn take_pre_exec(&mut self) -> Option<Collected> {
        self.pre_exec.take()
    }

    /// Requests and receives a round.
    ///
    /// # Errors
    ///
    /// The link cannot be read, or a message is not a round.
    pub fn collect(&mut self) -> Result<GuestRound> {
        self.request(&Request::Round)
    }

    /// Sends a request, and receives its round.
    pub(crate) fn request(&mut self, request: &Request) -> Result<GuestRound> {
        self.send(request);
        loop {
            if let Some(round) = self.receive()? {
                return Ok(round);
            }
        }
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: &Request) {
        // A guest that has closed its end may have sent rounds before, which are still to be read.
        let _ = self.stream.write_all(&request.encode());
    }

    /// Receives the next message. Returns `None` for a round that was sent before `execve(2)`,
    /// which the next round will contain.
    pub(crate) fn receive(&mut self) -> Result<Option<GuestRound>> {
        let Some((kind, mut round)) = receive(&mut self.stream)? else {
            return Ok(Some(GuestRound::Gone(self.pre_exec.take())));
        };
        if let Some(before) = self.pre_exec.take() {
            round.written.union_with(&before.written);
            if let (Some(accessed), Some(before)) = (&mut round.accessed, &before.accessed) {
                accessed.union_with(before);
            }
            round.ring_entries += before.ring_entries;
            round.unknown_calls.splice(..0, before.unknown_calls);
        }
        Ok(match kind {
            MessageKind::Reply => Some(GuestRound::Round(round)),
            MessageKind::Final => Some(GuestRound::Final(round)),
            MessageKind::PreExec | MessageKind::PreFollowed => {
                self.is_followed = kind == MessageKind::PreFollowed;
                self.pre_exec = Some(round);
                None
            }
        })
    }

    /// Requests and receives the threads of a guest that is held.
    pub(crate) fn threads(&mut self) -> Result<Vec<HeldThread>> {
        self.send(&Request::Threads);
        threads::decode(&mut self.stream)
    }

    /// Another descriptor of this end, by which a held guest can be released.
    pub(crate) fn releaser(&self) -> io::Result<Releaser> {
        Ok(Releaser(self.stream.try_clone()?))
    }
}

/// Releases a guest that is held when this is dropped.
#[derive(Debug)]
pub(crate) struct Releaser(UnixStream);

impl Drop for Releaser {
    fn drop(&mut self) {
        // A guest that has closed its end is not held.
        let _ = self.0.write_all(&Request::Release.encode());
    }
}

impl AsFd for Rounds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn encode(kind: MessageKind, collected: &Collected) -> Vec<u8> {
    let kind = match kind {
        MessageKind::Reply => 0,
        MessageKind::PreExec => 1,
        MessageKind::Final => 2,
        MessageKind::PreFollowed => 3,
    };
    let accessed = collected.accessed.as_ref();
    let mut words = vec![kind, collected.ring_entries, accessed.is_some().into()];
    for named in [collected.heap, collected.stack] {
        words.extend(named.map_or([0, 0], |range| [range.start(), range.end()]));
    }
    words.push(collected.unknown_calls.len() as u64);
    words.extend(&collected.unknown_calls);
    let sets = [&collected.written, &collected.areas];
    for set in sets.into_iter().chain(accessed) {
        words.push(set.ranges().len() as u64);
        words.extend(
            set.ranges()
                .iter()
                .flat_map(|range| [range.start(), range.end()]),
        );
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Receives the next message. Returns `None` at the end of the stream, also in the middle of a
/// message, since the guest was then killed.
fn receive(stream: &mut impl Read) -> Result<Option<(MessageKind, Collected)>> {
    match decode(stream) {
        Err(Error::System { source, .. }) if source.kind() != io::ErrorKind::Interrupted => {
            Ok(None)
        }
        message => message.map(Some),
    }
}

fn decode(stream: &mut impl Read) -> Result<(MessageKind, Collected)> {
    let kind = match word(stream)? {
        0 => MessageKind::Reply,
        1 => MessageKind::PreExec,
        2 => MessageKind::Final,
        3 => MessageKind::PreFollowed,
        _ => return Err(Error::MalformedRound),
    };
    let ring_entries = word(stream)?;
    let has_accessed = word(stream)? != 0;
    let collected = Collected {
        ring_entries,
        heap: named(stream)?,
        stack: named(stream)?,
        unknown_calls: calls(stream)?,
        written: ranges(stream)?,
        areas: ranges(stream)?,
        accessed: match has_accessed {
            true => Some(ranges(stream)?),
            false => None,
        },
    };
    Ok((kind, collected))
}

fn word(stream: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    stream
        .read_exact(&mut bytes)
        .map_err(Error::system("read a round"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Decodes an optional range; 0 to 0 stands for none.
fn named(stream: &mut impl Read) -> Result<Option<PageRange>> {
    let (start, end) = (word(stream)?, word(stream)?);
    match (start, end) {
        (0, 0) => Ok(None),
        _ => PageRange::new(start, end)
            .map(Some)
            .ok_or(Error::MalformedRound),
    }
}

fn calls(stream: &mut impl Read) -> Result<Vec<u64>> {
    let count = word(stream)?;
    if count > CALLS_MAX {
        return Err(Error::MalformedRound);
    }
    (0..count).map(|_| word(stream)).collect()
}

fn changes(stream: &mut impl Read) -> Result<Vec<UnitChange>> {
    let count = word(stream)?;
    if count > CHANGES_MAX {
        return Err(Error::MalformedRound);
    }
    let change = |_| {
        let mut words = [0; UnitChange::WORDS];
        for into in &mut words {
            *into = word(stream)?;
        }
        Ok(UnitChange::of_words(words))
    };
    (0..count).map(change).collect()
}

fn ranges(stream: &mut impl Read) -> Result<PageSet> {
    let count = word(stream)?;
    if count > RANGES_MAX {
        return Err(Error::MalformedRound);
    }
    let mut ranges = Vec::new();
    let mut chunk = vec![0; 16 * 4096];
    let mut left = count as usize;
    while left > 0 {
        let take = left.min(4096);
        let bytes = &mut chunk[..take * 16];
        stream
            .read_exact(bytes)
            .map_err(Error::system("read a round"))?;
        for pair in bytes.chunks_exact(16) {
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            let range = PageRange::new(number(&pair[..8]), number(&pair[8..]));
            ranges.push(range.ok_or(Error::MalformedRound)?);
        }
        left -= take;
    }
    Ok(ranges.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;
    use crate::rounds::unit_change::Aliased;

    fn collected(pages: u64) -> Collected {
        let set = |step: u64| {
            let pages = (0..pages).filter_map(|n| PageRange::new(n * step, n * step + 4096));
            pages.collect::<PageSet>()
        };
        Collected {
            written: set(16384),
            areas: set(65536),
            heap: PageRange::new(1 << 20, (1 << 20) + pages * 4096),
            stack: PageRange::new(1 << 40, (1 << 40) + 8192),
            accessed: (pages != 3).then(|| set(8192)),
            ring_entries: pages,
            unknown_calls: (0..pages % 7).collect(),
        }
    }

    #[test]
    fn rounds_arrive_as_they_were_sent() {
        let (mut rounds, fd) = pair().unwrap();
        let guest = GuestEnd::adopt(fd.into_raw_fd()).unwrap();
        let guest = std::thread::spawn(move || {
            for pages in [0, 10_000] {
                assert_eq!(guest.wait(), Some(Request::Round));
                guest.send(MessageKind::Reply, &collected(pages));
            }
            guest.send(MessageKind::PreExec, &collected(3));
            guest.send(MessageKind::Final, &collected(0));
            guest.wait_for_ack();
        });
        assert_eq!(rounds.collect().unwrap(), GuestRound::Round(collected(0)));
        assert_eq!(
            rounds.collect().unwrap(),
            GuestRound::Round(collected(10_000))
        );
        let GuestRound::Final(last) = rounds.collect().unwrap() else {
            panic!("not the last");
        };
        assert_eq!(last.written, collected(3).written);
        drop(rounds);
        guest.join().unwrap();
    }

    #[test]
    fn changes_of_units_arrive_as_they_were_sent() {
        let (mut rounds, fd) = pair().unwrap();
        let guest = GuestEnd::adopt(fd.into_raw_fd()).unwrap();
        let change = |n: u64| UnitChange {
            of: Aliased {
                base: n << 40,
                alias_bytes: n << 20,
                aliases: 8,
            },
            first: n + 1,
            pages: n + 2,
            merged: n + 3,
        };
        for count in [0, 3] {
            let request = Request::Units((0..count).map(change).collect());
            rounds.send(&request);
            assert_eq!(guest.wait(), Some(request));
        }
        rounds.send(&Request::Hold);
        assert_eq!(guest.wait(), Some(Request::Hold));
        drop(rounds);
        assert_eq!(guest.wait(), None);
    }

    #[test]
    fn a_guest_that_hangs_up_is_gone() {
        let (mut rounds, fd) = pair().unwrap();
        let guest = GuestEnd::adopt(fd.into_raw_fd()).unwrap();
        guest.hang_up();
        assert_eq!(rounds.collect().unwrap(), GuestRound::Gone(None));
    }

    #[test]
    fn a_guest_that_is_killed_is_gone() {
        let (mut rounds, fd) = pair().unwrap();
        let guest = GuestEnd::adopt(fd.into_raw_fd()).unwrap();
        let message = encode(MessageKind::Reply, &collected(5));
        (&guest.stream)
            .write_all(&message[..message.len() - 1])
            .unwrap();
        drop(guest);
        assert_eq!(rounds.collect().unwrap(), GuestRound::Gone(None));
        assert!(matches!(
            decode(&mut &[9u8; 64][..]),
            Err(Error::MalformedRound)
        ));
    }
}
