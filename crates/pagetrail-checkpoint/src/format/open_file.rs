//! [`OpenFile`]: an open descriptor, and what it leads to.

use super::listener::Listener;
use super::state::truth;
use super::wire::{Decoded, Decoder, Encoder, Malformed};

/// An open descriptor that can be opened anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Its number.
    pub number: u32,
    /// The flags of `open(2)`, `O_CLOEXEC` among them.
    pub flags: u32,
    /// The position, in bytes.
    pub position: u64,
    /// A lower number that shares its position and flags with this one (`dup(2)`).
    pub same_as: Option<u32>,
    /// What it leads to.
    pub kind: FileKind,
}

impl OpenFile {
    /// Whether it is for writing and not for reading.
    pub fn is_write_only(&self) -> bool {
        // `O_ACCMODE` and `O_WRONLY`.
        self.flags & 3 == 1
    }

    /// Whether it is an end of a pipe of which `files` have the other end as well.
    pub fn is_inner_pipe(&self, files: &[Self]) -> bool {
        let same = |other: &&Self| other.kind == self.kind;
        let is_pipe = matches!(self.kind, FileKind::Pipe { .. });
        is_pipe
            && files
                .iter()
                .filter(same)
                .any(|other| other.is_write_only() != self.is_write_only())
    }
}

/// What a descriptor leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular {
        /// Its path.
        path: String,
        /// How long it was, in bytes.
        bytes: u64,
    },
    /// A directory, or a device that has no state (`/dev/null`), by its path.
    Stateless {
        /// Its path.
        path: String,
    },
    /// A terminal, by its path.
    Terminal {
        /// Its path.
        path: String,
    },
    /// An end of a pipe: of one to another process, or of an empty one within this process, where
    /// descriptors of both ends have this inode.
    Pipe {
        /// The pipe's inode.
        inode: u64,
    },
    /// `eventfd(2)`.
    Counter {
        /// Its value.
        value: u64,
        /// Whether each read takes one from it.
        semaphore: bool,
    },
    /// `timerfd_create(2)`.
    Timer {
        /// The clock's number.
        clock: u32,
        /// The flags with which it was set.
        set_flags: u32,
        /// How often it has expired since it was read.
        ticks: u64,
        /// What is left, seconds and nanoseconds; zeros if it is not set.
        value: (u64, u64),
        /// The interval, seconds and nanoseconds.
        interval: (u64, u64),
    },
    /// `signalfd(2)`.
    Signals {
        /// Which, one bit each, signal 1 the lowest.
        mask: u64,
    },
    /// `epoll_create(2)`.
    Epoll {
        /// What it waits for: descriptor, events, data.
        targets: Vec<(u32, u32, u64)>,
    },
    /// Shared memory, of which [`Objects`](super::objects::Objects) have the rest.
    Memory {
        /// Its place among the shared memory.
        index: u32,
    },
    /// A socket whose peer the process has as well, or nobody any more;
    /// [`Objects`](super::objects::Objects) have the rest.
    Socket {
        /// The socket's inode.
        inode: u64,
    },
    /// A socket at which the process waits for connections.
    Listener(Listener),
}

const REGULAR: u8 = 1;
const STATELESS: u8 = 2;
const TERMINAL: u8 = 3;
const PIPE: u8 = 4;
const COUNTER: u8 = 5;
const TIMER: u8 = 6;
const SIGNALS: u8 = 7;
const EPOLL: u8 = 8;
const MEMORY: u8 = 9;
const SOCKET: u8 = 10;
const LISTENER: u8 = 11;

pub(super) fn file(out: &mut Encoder, file: &OpenFile) {
    out.u32(file.number);
    out.u32(file.flags);
    out.number(file.position);
    out.option(file.same_as.as_ref(), |out, &other| out.u32(other));
    match &file.kind {
        FileKind::Regular { path, bytes } => {
            out.u8(REGULAR);
            out.text(path);
            out.number(*bytes);
        }
        FileKind::Stateless { path } => {
            out.u8(STATELESS);
            out.text(path);
        }
        FileKind::Terminal { path } => {
            out.u8(TERMINAL);
            out.text(path);
        }
        FileKind::Pipe { inode } => {
            out.u8(PIPE);
            out.number(*inode);
        }
        FileKind::Counter { value, semaphore } => {
            out.u8(COUNTER);
            out.number(*value);
            out.u8((*semaphore).into());
        }
        FileKind::Timer {
            clock,
            set_flags,
            ticks,
            value,
            interval,
        } => {
            out.u8(TIMER);
            out.u32(*clock);
            out.u32(*set_flags);
            for part in [*ticks, value.0, value.1, interval.0, interval.1] {
                out.number(part);
            }
        }
        FileKind::Signals { mask } => {
            out.u8(SIGNALS);
            out.u64(*mask);
        }
        FileKind::Memory { index } => {
            out.u8(MEMORY);
            out.u32(*index);
        }
        FileKind::Socket { inode } => {
            out.u8(SOCKET);
            out.number(*inode);
        }
        FileKind::Listener(listener) => {
            out.u8(LISTENER);
            listener.encode(out);
        }
        FileKind::Epoll { targets } => {
            out.u8(EPOLL);
            out.list(targets, |out, &(number, events, data)| {
                out.u32(number);
                out.u32(events);
                out.u64(data);
            });
        }
    }
}

pub(super) fn decode_file(input: &mut Decoder<'_>) -> Decoded<OpenFile> {
    Ok(OpenFile {
        number: input.u32()?,
        flags: input.u32()?,
        position: input.number()?,
        same_as: input.option(Decoder::u32)?,
        kind: match input.u8()? {
            REGULAR => FileKind::Regular {
                path: input.text()?,
                bytes: input.number()?,
            },
            STATELESS => FileKind::Stateless {
                path: input.text()?,
            },
            TERMINAL => FileKind::Terminal {
                path: input.text()?,
            },
            PIPE => FileKind::Pipe {
                inode: input.number()?,
            },
            COUNTER => FileKind::Counter {
                value: input.number()?,
                semaphore: truth(input)?,
            },
            TIMER => FileKind::Timer {
                clock: input.u32()?,
                set_flags: input.u32()?,
                ticks: input.number()?,
                value: (input.number()?, input.number()?),
                interval: (input.number()?, input.number()?),
            },
            SIGNALS => FileKind::Signals { mask: input.u64()? },
            EPOLL => FileKind::Epoll {
                targets: input.list(|input| Ok((input.u32()?, input.u32()?, input.u64()?)))?,
            },
            MEMORY => FileKind::Memory {
                index: input.u32()?,
            },
            SOCKET => FileKind::Socket {
                inode: input.number()?,
            },
            LISTENER => FileKind::Listener(Listener::decode(input)?),
            _ => return Err(Malformed("an open file of an unknown kind")),
        },
    })
}
