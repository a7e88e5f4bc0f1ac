//! Lists of buffers in the program's memory: `struct iovec` and `struct msghdr`. Reads them, and
//! follows no address beyond them.
//!
//! Addresses and lengths are whatever the program has passed, so all sums wrap; an address that
//! cannot be read yields no buffer.

use crate::sys::program_memory::read_word;

/// The length of a `struct iovec`.
pub(super) const IOVEC_BYTES: u64 = 16;
/// The length of a `struct msghdr`.
pub(super) const MSGHDR_BYTES: u64 = 56;
/// The most buffers that a call may name (`IOV_MAX`).
const BUFFERS_MAX: u64 = 1024;

/// A list of buffers: the address of the first `struct iovec`, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vector {
    pub(super) address: u64,
    pub(super) count: u64,
}

impl Vector {
    /// The length of the list itself, without the buffers.
    pub(super) fn bytes(self) -> u64 {
        self.count.min(BUFFERS_MAX) * IOVEC_BYTES
    }

    /// Yields each buffer as address and length.
    pub(super) fn buffers(self) -> impl Iterator<Item = (u64, u64)> {
        let entries = (0..self.count.min(BUFFERS_MAX)).map(move |n| {
            let at = self.address.wrapping_add(n * IOVEC_BYTES);
            Some((read_word(at).ok()?, read_word(at.wrapping_add(8)).ok()?))
        });
        entries.flatten()
    }
}

/// What a `struct msghdr` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The peer's address, and its length.
    pub(super) name: (u64, u64),
    pub(super) vector: Vector,
    /// The control data, and its length.
    pub(super) control: (u64, u64),
}

impl Message {
    /// Reads a `struct msghdr`: name, its length (32 bits), buffers, their count, control data, its
    /// length, flags.
    pub(super) fn read(at: u64) -> Self {
        let word = |n: u64| read_word(at.wrapping_add(n * 8)).unwrap_or(0);
        Self {
            name: (word(0), word(1) & 0xffff_ffff),
            vector: Vector {
                address: word(2),
                count: word(3),
            },
            control: (word(4), word(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_at_the_end_of_the_address_space_has_no_buffers() {
        for address in [u64::MAX, u64::MAX - 7, u64::MAX - 8, u64::MAX - 15] {
            for count in [1, 2, u64::MAX] {
                assert_eq!(Vector { address, count }.buffers().count(), 0);
            }
            let empty = Vector {
                address: 0,
                count: 0,
            };
            let message = Message::read(address);
            assert_eq!((message.name, message.control), ((0, 0), (0, 0)));
            assert_eq!(message.vector, empty);
        }
    }

    #[test]
    fn buffers_are_those_that_the_list_names() {
        let list: [u64; 4] = [0x1000, 10, 0x5000, 20];
        let vector = Vector {
            address: list.as_ptr() as u64,
            count: 2,
        };
        let buffers: Vec<(u64, u64)> = vector.buffers().collect();
        assert_eq!(buffers, [(0x1000, 10), (0x5000, 20)]);
        let message: [u64; 7] = [0x9000, 16 | 1 << 40, vector.address, 2, 0x7000, 24, 0];
        let read = Message::read(message.as_ptr() as u64);
        assert_eq!((read.name, read.control), ((0x9000, 16), (0x7000, 24)));
        assert_eq!(read.vector, vector);
    }
}
