//! [`Objects`]: what of a process lies in the kernel and has contents: shared memory, and bytes on
//! their way through pipes and sockets within it.

use super::wire::{Decoded, Decoder, Encoder, Malformed};
use pagetrail::{PageRange, PageSet};

/// Kernel objects with contents, each of which only this process is known to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Shared memory that descriptors lead to, or several mappings.
    pub memory: Vec<SharedMemory>,
    /// Pipes of which the process has both ends, and that hold bytes or have a size of their own.
    pub pipes: Vec<PipeContents>,
    /// Sockets whose peer the process has as well, or nobody any more.
    pub sockets: Vec<PairedSocket>,
}

/// Shared memory: of `memfd_create(2)`, or anonymous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// Major and minor number of its device, by which mappings name it.
    pub device: (u32, u32),
    /// Its inode.
    pub inode: u64,
    /// Its name, as `/proc/PID/maps` has it.
    pub name: String,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// Its access rights, as of a file.
    pub mode: u32,
    /// Its seals (`F_GET_SEALS` of `fcntl(2)`).
    pub seals: u32,
    /// Where the image has those of its pages that no shared mapping of the image shows: an address
    /// that no process has, [`SharedMemory::FIRST`] at least.
    pub at: u64,
}

impl SharedMemory {
    /// Addresses from here on, up to [`Self::END`], are no process's.
    pub const FIRST: u64 = 1 << 56;
    /// The end of these: the upper half is the kernel's, where `[vsyscall]` is.
    pub const END: u64 = 1 << 63;
    /// How long shared memory may be, in bytes: there are so many addresses for each.
    pub const BYTES_MAX: u64 = 1 << 48;

    /// Whether pages of an image are of such memory.
    pub(crate) fn has(range: PageRange) -> bool {
        (Self::FIRST..Self::END).contains(&range.start())
    }

    /// Where images have pages of such memory.
    pub(crate) fn everywhere() -> PageSet {
        PageRange::new(Self::FIRST, Self::END).into_iter().collect()
    }

    /// The addresses of its pages in the image.
    pub fn range(&self, page_size: u64) -> Option<PageRange> {
        let bytes = self.bytes.checked_next_multiple_of(page_size)?;
        PageRange::new(self.at, self.at.checked_add(bytes)?)
    }
}

/// What a pipe holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipeContents {
    /// The pipe's inode.
    pub inode: u64,
    /// How much it can hold, in bytes.
    pub capacity: u32,
    /// The bytes that nobody has read yet.
    pub unread: Vec<u8>,
}

/// A socket of `socketpair(2)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairedSocket {
    /// Its inode.
    pub inode: u64,
    /// The inode of its peer, 0 where that is closed.
    pub peer: u64,
    /// `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_SEQPACKET`.
    pub kind: u32,
    /// The bytes that nobody has read from it yet.
    pub unread: Vec<u8>,
}

impl Objects {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn encode(&self, out: &mut Encoder) {
        out.list(&self.memory, |out, memory| {
            out.u32(memory.device.0);
            out.u32(memory.device.1);
            out.number(memory.inode);
            out.text(&memory.name);
            out.number(memory.bytes);
            out.u32(memory.mode);
            out.u32(memory.seals);
            out.u64(memory.at);
        });
        out.list(&self.pipes, |out, pipe| {
            out.number(pipe.inode);
            out.u32(pipe.capacity);
            out.bytes(&pipe.unread);
        });
        out.list(&self.sockets, |out, socket| {
            out.number(socket.inode);
            out.number(socket.peer);
            out.u32(socket.kind);
            out.bytes(&socket.unread);
        });
    }

    pub(super) fn decode(input: &mut Decoder<'_>) -> Decoded<Self> {
        let memory = input.list(|input| {
            let memory = SharedMemory {
                device: (input.u32()?, input.u32()?),
                inode: input.number()?,
                name: input.text()?,
                bytes: input.number()?,
                mode: input.u32()?,
                seals: input.u32()?,
                at: input.u64()?,
            };
            let is_possible = memory.bytes <= SharedMemory::BYTES_MAX
                && memory.at >= SharedMemory::FIRST
                && memory.at <= SharedMemory::END - SharedMemory::BYTES_MAX;
            match is_possible {
                true => Ok(memory),
                false => Err(Malformed("impossible shared memory")),
            }
        })?;
        let pipes = input.list(|input| {
            Ok(PipeContents {
                inode: input.number()?,
                capacity: input.u32()?,
                unread: input.bytes()?.to_vec(),
            })
        })?;
        let sockets = input.list(|input| {
            Ok(PairedSocket {
                inode: input.number()?,
                peer: input.number()?,
                kind: input.u32()?,
                unread: input.bytes()?.to_vec(),
            })
        })?;
        Ok(Self {
            memory,
            pipes,
            sockets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Objects {
        Objects {
            memory: vec![SharedMemory {
                device: (0, 1),
                inode: 3583,
                name: "/memfd:x (deleted)".into(),
                bytes: 8192,
                mode: 0o777,
                seals: 1,
                at: SharedMemory::FIRST + (3 << 48),
            }],
            pipes: vec![PipeContents {
                inode: 77,
                capacity: 65536,
                unread: b"some".to_vec(),
            }],
            sockets: vec![PairedSocket {
                inode: 5,
                peer: 6,
                kind: 1,
                unread: b"bytes".to_vec(),
            }],
        }
    }

    fn encoded(objects: &Objects) -> Vec<u8> {
        let mut out = Encoder::default();
        objects.encode(&mut out);
        out.0
    }

    #[test]
    fn objects_come_back() {
        for objects in [example(), Objects::default()] {
            let bytes = encoded(&objects);
            let mut input = Decoder(&bytes);
            assert_eq!(Objects::decode(&mut input), Ok(objects));
            assert_eq!(input.end(), Ok(()));
        }
    }

    #[test]
    fn memory_at_addresses_of_a_process_is_refused() {
        for (at, bytes) in [
            (0x1000, 8192),
            (u64::MAX - 4095, 4096),
            (SharedMemory::FIRST, u64::MAX),
        ] {
            let mut objects = example();
            objects.memory[0].at = at;
            objects.memory[0].bytes = bytes;
            let bytes = encoded(&objects);
            assert!(Objects::decode(&mut Decoder(&bytes)).is_err(), "{at:x}");
        }
    }
}
