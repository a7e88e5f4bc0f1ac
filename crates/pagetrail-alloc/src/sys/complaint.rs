//! The message for an address that is passed to the heap and is no object: one line, then the end
//! of the program.

use super::core::Core;
use super::fatal;
use super::huge::Huge;
use super::pages::Arena;
use super::registry::{self, Kind};
use super::superblock::Superblock;
use crate::geometry::SLAB;

impl Core {
    /// Says what is wrong with an address, and ends the program.
    #[cold]
    pub(super) fn complain(&self, address: usize, call: &str) -> ! {
        const INSIDE: &str = ": no object begins there, it is the inside of one or nothing";
        const FOREIGN: &str = ": it is of another heap";
        const TWICE: &str = ": double free, the object was freed before";
        let registry::Found { kind, description } = registry::find(address);
        // SAFETY: the registry says what the description is of, and none is given back before its
        // heap.
        let why = unsafe {
            match kind {
                Kind::None => ": not from this heap, or freed before and given back to the system",
                Kind::Superblock => {
                    let superblock = &*(description as *const Superblock);
                    let (_, is_its_window) = superblock.aliases.offset(address);
                    let slab = superblock.slab_at(address);
                    match slab.object_at(address % SLAB) {
                        _ if superblock.owner != self.common.owner => FOREIGN,
                        Some(_) if is_its_window => TWICE,
                        Some(_) => {
                            ": an object begins there, but was handed out at another address"
                        }
                        None if slab.shape().size() == 0 => {
                            ": its memory was given back to the system"
                        }
                        None => INSIDE,
                    }
                }
                Kind::Arena => {
                    let arena = &*(description as *const Arena);
                    match arena.run_at(address) {
                        _ if arena.owner != self.common.owner => FOREIGN,
                        Some(_) => TWICE,
                        None => ": no object begins there, or it was freed before",
                    }
                }
                Kind::Huge if (*(description as *const Huge)).owner != self.common.owner => FOREIGN,
                Kind::Huge => INSIDE,
            }
        };
        fatal::say(call, Some(address), why);
        std::process::abort()
    }
}
