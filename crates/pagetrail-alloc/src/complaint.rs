//! The message for an address that is passed to the heap and is no object: one line, then the end
//! of the program.

use crate::fatal;
use crate::geometry::SLAB;
use crate::sys::core::Core;
use crate::sys::lookup::{At, at};

impl Core {
    /// Says what is wrong with an address, and ends the program.
    #[cold]
    pub(crate) fn complain(&self, address: usize, call: &str) -> ! {
        const INSIDE: &str = ": no object begins there, it is the inside of one or nothing";
        const FOREIGN: &str = ": it is of another heap";
        const TWICE: &str = ": double free, the object was freed before";
        let why = match at(address) {
            At::Nothing => ": not from this heap, or freed before and given back to the system",
            At::Superblock(superblock) => {
                let (_, is_its_alias) = superblock.aliases.offset(address);
                let slab = superblock.slab_at(address);
                match slab.object_at(address % SLAB) {
                    _ if superblock.owner != self.owner() => FOREIGN,
                    Some(_) if is_its_alias => TWICE,
                    Some(_) => ": an object begins there, but was handed out at another address",
                    None if slab.shape().size() == 0 => ": its memory was given back to the system",
                    None => INSIDE,
                }
            }
            At::Arena(arena) => match arena.run_at(address) {
                _ if arena.owner != self.owner() => FOREIGN,
                Some(_) => TWICE,
                None => ": no object begins there, or it was freed before",
            },
            At::Huge(huge) if huge.owner != self.owner() => FOREIGN,
            At::Huge(_) => INSIDE,
        };
        fatal::say(call, Some(address), why);
        std::process::abort()
    }
}
