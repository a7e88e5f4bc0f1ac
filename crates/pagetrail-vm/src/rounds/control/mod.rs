//! How another process than the recorder holds a guest, and sets its registers: to rewind it.
//!
//! The guest keeps both ends of a pair of sockets; who may trace the process takes one of them
//! (`pidfd_getfd(2)`). So nothing is opened in the guest's process, whose program would see other
//! numbers of descriptors for that time. A file of memory says which end that is, and its lock
//! (`flock(2)`) who uses it: the guest itself has the other process's end open, and knows by the
//! lock alone that that process is gone.

pub(crate) mod client;
#[cfg(target_arch = "x86_64")]
pub(crate) mod server;

use std::io::Read;
use std::os::fd::AsFd;

use pagetrail::{HeldThread, PageRange};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::threads;
use crate::error::{Error, Result};

/// The name of the file of memory.
pub(crate) const NAME: &str = "pagetrail-guest";
/// The most ranges in a message.
pub(crate) const RANGES_MAX: usize = 1024;
/// The most bytes in a message: a thread's registers are a few KiB.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// What the other process wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nobody runs from now on.
    Hold,
    /// System calls end, and the guest's process is killed if the other process ends.
    EndCalls,
    /// The guest goes on if the other process ends.
    GoOnIfAbandoned,
    /// The other process is about to write here.
    Writes(Vec<PageRange>),
    /// A thread is to get these registers.
    Set(HeldThread),
    /// All threads that were [`Self::Set`] get them.
    Apply,
    /// The guest goes on.
    Release,
}

/// What the guest answers: to each order but [`Order::Set`] several, the last of which is
/// [`Self::Done`] or [`Self::Refused`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Thread(HeldThread),
    /// Some of the program's memory.
    Memory(Vec<PageRange>),
    /// A descriptor of the machine.
    Descriptor(u32),
    Done,
    Refused,
}

fn put(message: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    message.extend(words.into_iter().flat_map(u64::to_le_bytes));
}

fn put_ranges(message: &mut Vec<u8>, ranges: &[PageRange]) {
    put(message, [ranges.len() as u64]);
    put(
        message,
        ranges.iter().flat_map(|range| [range.start(), range.end()]),
    );
}

fn word(message: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    let read = message.read_exact(&mut bytes);
    read.map_err(Error::system("read a message"))?;
    Ok(u64::from_le_bytes(bytes))
}

fn ranges(message: &mut impl Read) -> Result<Vec<PageRange>> {
    let count = word(message)?;
    if count > RANGES_MAX as u64 {
        return Err(Error::MalformedRound);
    }
    let range = |_| {
        let (start, end) = (word(message)?, word(message)?);
        PageRange::new(start, end).ok_or(Error::MalformedRound)
    };
    (0..count).map(range).collect()
}

fn thread(message: &mut impl Read) -> Result<HeldThread> {
    let mut threads = threads::decode(message)?;
    threads.pop().ok_or(Error::MalformedRound)
}

impl Order {
    /// As a message of this session.
    pub(crate) fn encode(&self, session: u64) -> Vec<u8> {
        let mut message = Vec::new();
        let kind = match self {
            Self::Hold => 0,
            Self::EndCalls => 1,
            Self::GoOnIfAbandoned => 2,
            Self::Writes(_) => 3,
            Self::Set(_) => 4,
            Self::Apply => 5,
            Self::Release => 6,
        };
        put(&mut message, [session, kind]);
        match self {
            Self::Writes(ranges) => put_ranges(&mut message, ranges),
            Self::Set(thread) => threads::encode(std::slice::from_ref(thread), &mut message),
            _ => {}
        }
        message
    }

    pub(crate) fn decode(mut message: &[u8]) -> Result<(u64, Self)> {
        let message = &mut message;
        let session = word(message)?;
        let order = match word(message)? {
            0 => Self::Hold,
            1 => Self::EndCalls,
            2 => Self::GoOnIfAbandoned,
            3 => Self::Writes(ranges(message)?),
            4 => Self::Set(thread(message)?),
            5 => Self::Apply,
            6 => Self::Release,
            _ => return Err(Error::MalformedRound),
        };
        Ok((session, order))
    }
}

impl Answer {
    pub(crate) fn encode(&self, session: u64) -> Vec<u8> {
        let mut message = Vec::new();
        let kind = match self {
            Self::Thread(_) => 0,
            Self::Memory(_) => 1,
            Self::Descriptor(_) => 2,
            Self::Done => 3,
            Self::Refused => 4,
        };
        put(&mut message, [session, kind]);
        match self {
            Self::Thread(thread) => threads::encode(std::slice::from_ref(thread), &mut message),
            Self::Memory(ranges) => put_ranges(&mut message, ranges),
            Self::Descriptor(number) => put(&mut message, [u64::from(*number)]),
            Self::Done | Self::Refused => {}
        }
        message
    }

    pub(crate) fn decode(mut message: &[u8]) -> Result<(u64, Self)> {
        let message = &mut message;
        let session = word(message)?;
        let answer = match word(message)? {
            0 => Self::Thread(thread(message)?),
            1 => Self::Memory(ranges(message)?),
            2 => Self::Descriptor(word(message)? as u32),
            3 => Self::Done,
            4 => Self::Refused,
            _ => return Err(Error::MalformedRound),
        };
        Ok((session, answer))
    }
}

/// Receives a message that is there; `None` where there is none. Fails where the other end is
/// closed or shut down, since no message is empty.
pub(crate) fn receive(end: impl AsFd) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    loop {
        return match recv(&end, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok((received, _)) => {
                bytes.truncate(received);
                Ok(Some(bytes))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_thread() -> HeldThread {
        HeldThread {
            tid: 5,
            registers: vec![pagetrail::RegisterSet {
                note: 1,
                bytes: vec![9; 216],
            }],
            blocked_signals: 3,
        }
    }

    #[test]
    fn orders_and_answers_arrive_as_they_were_sent() {
        let ranges = vec![PageRange::new(0x1000, 0x3000).unwrap()];
        for order in [
            Order::Hold,
            Order::EndCalls,
            Order::GoOnIfAbandoned,
            Order::Writes(ranges.clone()),
            Order::Set(a_thread()),
            Order::Apply,
            Order::Release,
        ] {
            assert_eq!(Order::decode(&order.encode(8)).unwrap(), (8, order));
        }
        for answer in [
            Answer::Thread(a_thread()),
            Answer::Memory(ranges),
            Answer::Descriptor(70_000),
            Answer::Done,
            Answer::Refused,
        ] {
            assert_eq!(Answer::decode(&answer.encode(8)).unwrap(), (8, answer));
        }
        assert!(Order::decode(&[1; 16]).is_err());
        assert!(Order::decode(&[]).is_err());
    }
}
