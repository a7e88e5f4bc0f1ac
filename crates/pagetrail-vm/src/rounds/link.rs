//! The way of rounds from the process that has become the guest to the one that records it: a pair of sockets.
//!
//! The recorder asks by a byte, and gets a message. The guest sends one without being asked before its memory goes, and waits,
//! when it is the last, until the recorder has looked at it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use pagetrail::{PageRange, PageSet};
use rustix::net::SendFlags;

use super::Collected;
use crate::error::{Error, Result};
use crate::sys::descriptors;

/// No program has that many mappings, or writes that many ranges.
const RANGES_MAX: u64 = 1 << 32;

/// No kernel has that many system calls; a program may try any number.
const CALLS_MAX: u64 = 1 << 32;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// What was asked for.
    Reply,
    /// Sent before `execve(2)`; if that fails, more follows.
    PreExec,
    /// The last one.
    Final,
}

/// The guest's end.
#[derive(Debug)]
pub(crate) struct GuestEnd {
    stream: UnixStream,
    sending: Mutex<()>,
}

impl GuestEnd {
    /// Takes the descriptor that [`pair`] made, by its number in this process.
    pub(crate) fn adopt(number: RawFd) -> io::Result<Self> {
        Ok(Self {
            stream: descriptors::adopt(number)?.into(),
            sending: Mutex::new(()),
        })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Waits until a round is asked for; false when nobody is there to ask any more.
    pub(crate) fn wait(&self) -> bool {
        (&self.stream).read_exact(&mut [0]).is_ok()
    }

    /// Sends a round. That nobody reads it is no concern of the program's.
    pub(crate) fn send(&self, kind: MessageKind, collected: &Collected) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let message = encode(kind, collected);
        let mut rest = &message[..];
        // Not write(2): what SIGPIPE does is the program's choice.
        while !rest.is_empty()
            && let Ok(sent) = rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL)
        {
            rest = &rest[sent..];
        }
    }

    /// Ends the link: to the recorder it is as if the guest had gone.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }

    /// Waits until the recorder has gone, or has seen the last round.
    pub(crate) fn wait_for_ack(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
        // Somebody else may be waiting to be asked, and may take the one byte; the end of the stream comes to both.
        while self.wait() {}
    }
}

/// The recorder's end.
#[derive(Debug)]
pub struct Rounds {
    stream: UnixStream,
}

/// What the recorder is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestRound {
    /// A round; the program runs on.
    Round(Collected),
    /// Its last round; the program waits until [`Rounds`] is dropped, and ends.
    Final(Collected),
    /// It is no guest any more: it has executed another program, or was killed. What it wrote before `execve(2)` is here.
    Gone(Option<Collected>),
}

/// A link: the recorder's end, and the descriptor that the guest is to get, which programs started from now on inherit.
pub fn pair() -> io::Result<(Rounds, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    Ok((Rounds { stream: ours }, theirs.into()))
}

impl Rounds {
    /// Takes a round.
    pub fn collect(&mut self) -> Result<GuestRound> {
        // Where the guest has shut its end, what it sent before is still to be read.
        let _ = self.stream.write_all(&[0]);
        let mut pre_exec: Option<Collected> = None;
        loop {
            let Some((kind, mut round)) = receive(&mut self.stream)? else {
                return Ok(GuestRound::Gone(pre_exec));
            };
            if let Some(before) = pre_exec.take() {
                round.written.union_with(&before.written);
                if let (Some(accessed), Some(before)) = (&mut round.accessed, &before.accessed) {
                    accessed.union_with(before);
                }
                round.ring_entries += before.ring_entries;
                round.unknown_calls.splice(..0, before.unknown_calls);
            }
            match kind {
                MessageKind::Reply => return Ok(GuestRound::Round(round)),
                MessageKind::Final => return Ok(GuestRound::Final(round)),
                MessageKind::PreExec => pre_exec = Some(round),
            }
        }
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

/// The next message; `None` at the end of the stream, also within a message: the guest was killed.
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
        _ => return Err(Error::MalformedRound),
    };
    let ring_entries = word(stream)?;
    let tracks_accesses = word(stream)? != 0;
    let collected = Collected {
        ring_entries,
        heap: named(stream)?,
        stack: named(stream)?,
        unknown_calls: calls(stream)?,
        written: ranges(stream)?,
        areas: ranges(stream)?,
        accessed: match tracks_accesses {
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

/// A range; none begins and ends at 0.
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
        let asked = std::thread::spawn(move || {
            for pages in [0, 10_000] {
                assert!(guest.wait());
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
        asked.join().unwrap();
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
