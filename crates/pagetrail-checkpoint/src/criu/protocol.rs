//! CRIU's page-server protocol as bytes (`criu/page-xfer.c`): requests and answers; pure.
//!
//! A request is four numbers in the order of the machine's bytes: a command, with flags in its
//! upper half; a count of pages; an address; whose pages they are. Up to CRIU 4.1 the count has 32
//! bits, from 4.2 on it has 64 and the command is padded. Nothing says which one a client speaks:
//! its first request gives it away.

use super::space::SpaceId;
use crate::format::wire::{Decoded, Malformed};

/// A request up to CRIU 4.1, in bytes: also what must be read to know the layout.
pub(crate) const SHORT_BYTES: usize = 24;
/// A request from CRIU 4.2 on, in bytes.
const LONG_BYTES: usize = 32;

/// The bits of the command's number; its flags are above.
const COMMAND_BITS: u32 = 16;
const COMMAND_MASK: u32 = (1 << COMMAND_BITS) - 1;

const ADD: u32 = 1;
const HOLE: u32 = 2;
const OPEN: u32 = 3;
const OPEN_ANSWERED: u32 = 4;
const PARENT: u32 = 5;
const ADD_WITH_FLAGS: u32 = 6;
const GET: u32 = 7;
const CLOSE: u32 = 0x1023;
const FORCE_CLOSE: u32 = 0x1024;

/// The flag of pages that the parent has.
pub(crate) const IN_PARENT: u32 = 1;
/// The flag of pages that may be restored when they are first touched.
pub(crate) const LAZY: u32 = 2;
/// The flag of pages whose contents follow.
pub(crate) const PRESENT: u32 = 4;

/// The lowest byte of a space's number says of what kind it is.
const KIND_MASK: u64 = 0xff;
const KIND_BITS: u32 = 8;
const KIND_PROCESS: u64 = 1;
const KIND_SHARED: u64 = 2;

/// The most pages that a client asks for at a time, and a page's least size: with both, a count of
/// pages is never taken for an address.
const ASKED_MAX: u64 = 4096;

/// How the numbers of a request lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Counts of 32 bits.
    Short,
    /// Counts of 64 bits.
    Long,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Pages of a space are to come.
    Open {
        space: SpaceId,
        /// Whether the client waits to hear of a parent.
        answered: bool,
    },
    /// Whether there is a parent of a space.
    HasParent { space: SpaceId },
    /// Pages; their contents follow if they are present.
    Add {
        space: SpaceId,
        address: u64,
        pages: u64,
        flags: u32,
    },
    /// Pages of a process are wanted.
    Get { pid: u32, address: u64, pages: u64 },
    /// That was all.
    Close,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

impl Layout {
    /// The layout of a client whose first bytes these are.
    pub(crate) fn of(first: &[u8; SHORT_BYTES]) -> Self {
        let (second, third) = (u64_at(first, 8), u64_at(first, 16));
        let is_long = match u32_at(first, 0) & COMMAND_MASK {
            // The second number is an address, or a count; there is no page at address 0.
            GET => (1..ASKED_MAX).contains(&second),
            // A request without numbers is as long as it is answered.
            CLOSE | FORCE_CLOSE => false,
            // The third is whose pages they are, which has a kind, or an address.
            _ => third & (ASKED_MAX - 1) == 0,
        };
        if is_long { Self::Long } else { Self::Short }
    }

    /// The length of a request, in bytes.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Short => SHORT_BYTES,
            Self::Long => LONG_BYTES,
        }
    }

    /// What the bytes of one request ask for.
    pub(crate) fn parse(self, bytes: &[u8]) -> Decoded<Request> {
        if bytes.len() != self.bytes() {
            return Err(Malformed("a request of another length"));
        }
        let (pages, rest) = match self {
            Self::Short => (u64::from(u32_at(bytes, 4)), 8),
            Self::Long => (u64_at(bytes, 8), 16),
        };
        let (address, whose) = (u64_at(bytes, rest), u64_at(bytes, rest + 8));
        let command = u32_at(bytes, 0);
        let flags = match command & COMMAND_MASK {
            ADD => PRESENT,
            HOLE => IN_PARENT,
            ADD_WITH_FLAGS => command >> COMMAND_BITS,
            _ => 0,
        };
        Ok(match command & COMMAND_MASK {
            OPEN => Request::Open {
                space: space(whose)?,
                answered: false,
            },
            OPEN_ANSWERED => Request::Open {
                space: space(whose)?,
                answered: true,
            },
            PARENT => Request::HasParent {
                space: space(whose)?,
            },
            ADD | HOLE | ADD_WITH_FLAGS => Request::Add {
                space: space(whose)?,
                address,
                pages,
                flags: known(flags)?,
            },
            GET => Request::Get {
                pid: pid(whose)?,
                address,
                pages,
            },
            CLOSE | FORCE_CLOSE => Request::Close,
            _ => return Err(Malformed("a command that no CRIU has")),
        })
    }

    /// What stands before the contents of pages that were asked for.
    pub(crate) fn found(self, pid: u32, address: u64, pages: u64) -> Vec<u8> {
        self.message(
            PRESENT << COMMAND_BITS | ADD_WITH_FLAGS,
            pages,
            address,
            pid.into(),
        )
    }

    /// The four numbers as bytes.
    fn message(self, command: u32, pages: u64, address: u64, whose: u64) -> Vec<u8> {
        let mut out = command.to_ne_bytes().to_vec();
        match self {
            Self::Short => out.extend((pages as u32).to_ne_bytes()),
            Self::Long => {
                out.extend([0; 4]);
                out.extend(pages.to_ne_bytes());
            }
        }
        out.extend(address.to_ne_bytes());
        out.extend(whose.to_ne_bytes());
        out
    }
}

/// Flags of pages, as far as they belong to a dump.
pub(super) fn known(flags: u32) -> Decoded<u32> {
    match flags & (PRESENT | IN_PARENT) {
        PRESENT | IN_PARENT if flags & !(PRESENT | IN_PARENT | LAZY) == 0 => Ok(flags),
        // A lazy dump keeps its contents to itself.
        0 if flags == LAZY => Err(Malformed("pages that stay where they are (--lazy-pages)")),
        _ => Err(Malformed("flags that no CRIU has")),
    }
}

fn pid(number: u64) -> Decoded<u32> {
    let pid = u32::try_from(number).ok();
    pid.filter(|pid| (1..=i32::MAX as u32).contains(pid))
        .ok_or(Malformed("an impossible process"))
}

fn space(number: u64) -> Decoded<SpaceId> {
    let id = number >> KIND_BITS;
    match number & KIND_MASK {
        KIND_PROCESS => pid(id).map(SpaceId::Process),
        KIND_SHARED => Ok(SpaceId::Shared(id)),
        _ => Err(Malformed("memory of a kind that no CRIU of today has")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a request, as CRIU's own structures lay them out.
    fn request(layout: Layout, command: u32, pages: u64, address: u64, whose: u64) -> Vec<u8> {
        layout.message(command, pages, address, whose)
    }

    fn guessed(bytes: &[u8]) -> Layout {
        Layout::of(bytes[..SHORT_BYTES].try_into().unwrap())
    }

    #[test]
    fn the_layout_shows_in_whatever_comes_first() {
        let process = 4096 << 8 | 1;
        for layout in [Layout::Short, Layout::Long] {
            for bytes in [
                request(layout, OPEN_ANSWERED, 0, 0, process),
                request(layout, PARENT, 0, 0, process),
                request(layout, OPEN, 0, 0, 3 << 8 | 2),
                request(layout, 4 << 16 | ADD_WITH_FLAGS, 1, 0x40_0000, process),
                request(layout, ADD, 1 << 20, 0x7fff_ffff_0000, process),
                request(layout, GET, 1, 0x40_0000, 4096),
                request(layout, GET, 1024, 0x7fff_ffff_f000, 77),
            ] {
                assert_eq!(guessed(&bytes), layout, "{bytes:?}");
                assert!(layout.parse(&bytes).is_ok(), "{bytes:?}");
            }
            let close = request(layout, CLOSE, 0, 0, 0);
            let first = Layout::Short.parse(&close[..SHORT_BYTES]);
            assert_eq!(first, Ok(Request::Close));
        }
    }

    #[test]
    fn requests_are_what_they_say() {
        for layout in [Layout::Short, Layout::Long] {
            let parse = |command, pages, address, whose| {
                layout.parse(&request(layout, command, pages, address, whose))
            };
            let space = SpaceId::Process(77);
            let add = |flags| {
                Ok(Request::Add {
                    space,
                    address: 0x1000,
                    pages: 2,
                    flags,
                })
            };
            assert_eq!(parse(ADD, 2, 0x1000, 77 << 8 | 1), add(PRESENT));
            assert_eq!(parse(HOLE, 2, 0x1000, 77 << 8 | 1), add(IN_PARENT));
            let lazy = (PRESENT | LAZY) << 16 | ADD_WITH_FLAGS;
            assert_eq!(parse(lazy, 2, 0x1000, 77 << 8 | 1), add(PRESENT | LAZY));
            assert_eq!(
                parse(GET, 2, 0x1000, 77),
                Ok(Request::Get {
                    pid: 77,
                    address: 0x1000,
                    pages: 2
                })
            );
            assert_eq!(parse(FORCE_CLOSE, 0, 0, 0), Ok(Request::Close));
            let shared = SpaceId::Shared(u64::MAX >> 8);
            assert_eq!(
                parse(PARENT, 0, 0, u64::MAX - 0xff + 2),
                Ok(Request::HasParent { space: shared })
            );
            for (command, whose) in [
                (0, 0),
                (8, 77),
                (0x1025, 0),
                (OPEN, 77 << 8),
                (OPEN, 1),
                (OPEN, 1 << 48 | 1),
                (GET, 0),
                (GET, 1 << 31),
                (ADD_WITH_FLAGS, 77 << 8 | 1),
                (LAZY << 16 | ADD_WITH_FLAGS, 77 << 8 | 1),
                (8 << 16 | PRESENT << 16 | ADD_WITH_FLAGS, 77 << 8 | 1),
                ((PRESENT | IN_PARENT) << 16 | ADD_WITH_FLAGS, 77 << 8 | 1),
            ] {
                assert!(
                    parse(command, 1, 0x1000, whose).is_err(),
                    "{command:#x} {whose:#x}"
                );
            }
        }
    }

    #[test]
    fn no_bytes_are_too_much_for_it() {
        let seed = 20;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..100_000 {
            let mut bytes = [0; LONG_BYTES];
            random.fill(&mut bytes);
            if random.bool() {
                bytes[0] = random.u8(0..9);
                bytes[1..4].fill(0);
            }
            let layout = guessed(&bytes);
            let _ = layout.parse(&bytes[..layout.bytes()]);
        }
        assert!(Layout::Short.parse(&[0; 23]).is_err());
    }
}
