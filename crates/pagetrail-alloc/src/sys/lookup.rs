//! [`at`]: what the registry has at an address, as a reference to its description.

use super::huge::Huge;
use super::lasting::Lasting;
use super::pages::Arena;
use super::registry::{self, Found, Kind};
use super::superblock::Superblock;

/// What lies at an address.
pub(crate) enum At {
    /// No memory of a heap.
    Nothing,
    /// Slabs.
    Superblock(Lasting<Superblock>),
    /// Runs of pages.
    Arena(Lasting<Arena>),
    /// An object that is a mapping.
    Huge(Lasting<Huge>),
}

/// Looks an address up.
pub(crate) fn at(address: usize) -> At {
    let Found { kind, description } = registry::find(address);
    // SAFETY: the kind says what the description is of. Superblocks and arenas stay until their
    // heap is destroyed; so does the memory of the description of a huge object, which is of the
    // heap's pool, and its object is in use, or the program misuses the heap.
    unsafe {
        match kind {
            Kind::None => At::Nothing,
            Kind::Superblock => At::Superblock(Lasting::new(description as *const Superblock)),
            Kind::Arena => At::Arena(Lasting::new(description as *const Arena)),
            Kind::Huge => At::Huge(Lasting::new(description as *const Huge)),
        }
    }
}
