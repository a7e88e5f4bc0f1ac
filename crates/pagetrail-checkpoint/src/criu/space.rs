//! [`SpaceId`]: whose pages they are; and where they lie in the one address space that an image
//! has. Pure arithmetic.
//!
//! A dump is of several address spaces: of the processes of a tree, and of shared memory, which
//! begins at 0. An image has one. So each space of a dump gets a slot, 2^48 bytes of the image's
//! addresses: a page at `address` lies at `slot << 48 | address`. Slot 0 stays empty, since that is
//! where images of other kinds are; two slots are for what is not memory.

use crate::format::wire::{Decoded, Malformed};
use pagetrail::PageRange;
use std::fmt;

/// The address bits within a slot: x86-64 with four levels of page tables uses 47 of them for
/// programs, and CRIU restores no others.
const SLOT_BITS: u32 = 48;

/// The slot of the table of contents.
pub(crate) const CONTENTS_SLOT: u16 = 1;
/// The slot of CRIU's image files.
pub(crate) const FILES_SLOT: u16 = 2;
/// The first slot for memory.
pub(crate) const FIRST_SLOT: u16 = 3;

/// A space of a dump, by CRIU's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpaceId {
    /// The memory of a process, by its PID within its own namespace.
    Process(u32),
    /// Shared memory, by the number that CRIU gives it.
    Shared(u64),
}

impl SpaceId {
    /// The PID of a process, by the name under which [`fmt::Display`] shows it.
    pub(crate) fn parse_process(name: &str) -> Option<u32> {
        name.strip_prefix("process ")?.parse().ok()
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Shared(id) => write!(f, "shared memory {id}"),
        }
    }
}

/// The slot that an address of an image is in.
pub(crate) fn slot_of(address: u64) -> u16 {
    (address >> SLOT_BITS) as u16
}

/// The address of an image at which a slot begins.
pub(crate) fn base_of(slot: u16) -> u64 {
    u64::from(slot) << SLOT_BITS
}

/// All addresses of a slot but its last page, so that two slots never touch.
pub(crate) fn range_of(slot: u16, page_size: u64) -> Option<PageRange> {
    let base = base_of(slot);
    PageRange::new(base, base + ((1 << SLOT_BITS) - page_size))
}

/// Where so many pages at an address of a space lie in an image.
pub(crate) fn place(slot: u16, address: u64, pages: u64, page_size: u64) -> Decoded<PageRange> {
    let end = pages
        .checked_mul(page_size)
        .and_then(|bytes| address.checked_add(bytes))
        .filter(|end| *end <= (1 << SLOT_BITS) - page_size)
        .ok_or(Malformed("pages beyond all addresses"))?;
    if !address.is_multiple_of(page_size) {
        return Err(Malformed("an address within a page"));
    }
    let base = base_of(slot);
    PageRange::new(base + address, base + end).ok_or(Malformed("no pages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_in_their_slot() {
        let page = 4096;
        let placed = place(7, 0x7fff_0000, 2, page).unwrap();
        assert_eq!(placed.start(), 7 << 48 | 0x7fff_0000);
        assert_eq!(placed.bytes(), 2 * page);
        assert_eq!(slot_of(placed.start()), 7);
        let whole = range_of(7, page).unwrap();
        assert_eq!(place(7, 0, whole.bytes() / page, page).unwrap(), whole);
        assert_eq!(slot_of(whole.end()), 7);
        for (address, pages) in [
            (0, whole.bytes() / page + 1),
            (page, whole.bytes() / page),
            (1, 1),
            (0, 0),
            (0, u64::MAX),
            (u64::MAX - page + 1, 1),
            (1 << 48, 1),
        ] {
            assert!(
                place(7, address, pages, page).is_err(),
                "{address:#x} {pages}"
            );
        }
        assert_eq!(
            slot_of(place(u16::MAX, 0, 1, page).unwrap().start()),
            u16::MAX
        );
    }
}
