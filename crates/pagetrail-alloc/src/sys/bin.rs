//! [`Bin`]: a heap's slabs of one class that have objects and belong to no cache.

use super::core::Core;
use super::fatal;
use super::slab::{Slab, Slot};
use super::superblock::Superblock;
use std::ptr::null;
use std::sync::atomic::AtomicU8;

/// Slabs of one class that have free objects and belong to no cache. A reference to a `Bin` exists
/// only while the lock of its class is held.
pub(crate) struct Bin {
    first: *const Slab,
    /// How many slabs the class has, in this list, in caches or full.
    slabs: u32,
    /// Whether the list has a slab none of whose objects is in use.
    has_empty: bool,
}

// SAFETY: its pointers are to slabs of its heap, which live as long as the heap, and they are
// followed only under the lock of the class.
unsafe impl Send for Bin {}

impl Bin {
    pub(crate) const fn new() -> Self {
        Self {
            first: null(),
            slabs: 0,
            has_empty: false,
        }
    }

    /// Whether the slab, which may be null, has objects.
    pub(crate) fn has_objects(&self, slab: *const Slab) -> bool {
        // SAFETY: the slab is of this class, whose lock is held: a `Bin` is reached only through
        // it.
        !slab.is_null() && unsafe { (*slab).metadata().has_objects() }
    }

    /// Takes a slab with free objects for a cache, which owns it until it has no free object left.
    pub(crate) fn take_slab(&mut self, core: &Core, class: usize) -> Option<*const Slab> {
        let slab = if self.first.is_null() {
            let slab = core.take_slab(class)?;
            self.slabs += 1;
            slab
        } else {
            let slab = self.first;
            // SAFETY: slabs in the list are of this class, whose lock is held, so this is the only
            // reference to their metadata.
            unsafe {
                self.unlink(slab);
                if (*slab).metadata().used == 0 {
                    self.has_empty = false;
                }
            }
            slab
        };
        // SAFETY: the slab is of this class, whose lock is held, so no other reference to its
        // metadata exists.
        unsafe { (*slab).metadata().owned = true };
        Some(slab)
    }

    /// Takes free objects out of a slab and calls `found` for each.
    ///
    /// # Safety
    ///
    /// The slab is owned by the caller, which got it from [`Self::take_slab`].
    pub(crate) unsafe fn take_objects(
        &mut self,
        slab: *const Slab,
        wanted: usize,
        mut found: impl FnMut(Slot),
    ) -> usize {
        // SAFETY: the slab is of this class, because `take_slab` returned it; the lock of the class
        // is held. Its superblock lives as long as the heap.
        unsafe {
            let slab = &*slab;
            let metadata = slab.metadata();
            let superblock = &*metadata.superblock;
            let start = superblock.offset_of(slab);
            let taken = slab.take(metadata, wanted, |offset, state| {
                found(Slot {
                    object: superblock.aliases.address(start + offset) as *mut u8,
                    state,
                });
            });
            if !metadata.has_objects() {
                // Full: objects that come back to it put it in the list.
                metadata.owned = false;
            }
            superblock.touch(slab, metadata, self.slabs);
            taken
        }
    }

    /// Takes objects back into their slabs.
    pub(crate) fn put_objects(&mut self, slots: &[Slot], core: &Core) {
        // Objects next to each other in a cache are often of one slab. Then their bytes are in one
        // table, and the distance from its start gives the object's number.
        let mut last: *const Slab = null();
        let mut states = (null(), 0);
        for slot in slots {
            let address = slot.object as usize;
            let object_in =
                |states: *const AtomicU8| (slot.state as usize).wrapping_sub(states as usize);
            // SAFETY: the registry says where a superblock is; the object is of this class, as it
            // was when it came to the cache.
            unsafe {
                if object_in(states.0) >= states.1 {
                    let Some(slab) = Superblock::slab_of(address) else {
                        fatal::abort("the cache that held ", address, " is corrupted");
                    };
                    slab.check(slab.metadata(), address);
                    (last, states) = (slab, slab.states());
                    if object_in(states.0) >= states.1 {
                        fatal::abort("the cache that held ", address, " is corrupted");
                    }
                }
                let (slab, metadata) = (&*last, (*last).metadata());
                let was_full = !metadata.has_objects();
                slab.put(metadata, object_in(states.0), address);
                if metadata.owned {
                    continue;
                }
                if was_full {
                    self.link(slab);
                }
                if metadata.used == 0 {
                    self.keep_or_give(slab, core);
                    states.1 = 0;
                }
            }
        }
    }

    /// Ends a cache's ownership of a slab, which goes into the list.
    ///
    /// # Safety
    ///
    /// The slab is from [`Self::take_slab`], and has free objects.
    pub(crate) unsafe fn leave_slab(&mut self, slab: *const Slab, core: &Core) {
        // SAFETY: a slab from `take_slab` is of this class, whose lock is held, and an owned slab
        // is in no list.
        unsafe {
            let metadata = (*slab).metadata();
            metadata.owned = false;
            self.link(slab);
            if metadata.used == 0 {
                self.keep_or_give(slab, core);
            }
        }
    }

    /// Keeps the first empty slab of the list for the next cache that needs one, and gives any
    /// other back to the heap.
    ///
    /// # Safety
    ///
    /// The slab is in the list, and none of its objects is in use.
    unsafe fn keep_or_give(&mut self, slab: *const Slab, core: &Core) {
        if !self.has_empty {
            self.has_empty = true;
            return;
        }
        // SAFETY: the caller's slab is of this class, is in the list and is empty, so it may leave
        // both the list and the class.
        unsafe {
            self.unlink(slab);
            core.give_slab(slab);
        }
        self.slabs -= 1;
    }

    /// # Safety
    ///
    /// The slab is of this class, and in no list.
    unsafe fn link(&mut self, slab: *const Slab) {
        // SAFETY: the caller's slab is of this class, and so is the first slab of the list; the
        // lock of the class is held.
        unsafe {
            let metadata = (*slab).metadata();
            metadata.previous = null();
            metadata.next = self.first;
            if !self.first.is_null() {
                (*self.first).metadata().previous = slab;
            }
        }
        self.first = slab;
    }

    /// # Safety
    ///
    /// The slab is in the list.
    unsafe fn unlink(&mut self, slab: *const Slab) {
        // SAFETY: the caller's slab is in the list, and so are its neighbours; all are of this
        // class, whose lock is held.
        unsafe {
            let metadata = (*slab).metadata();
            let next = std::mem::replace(&mut metadata.next, null());
            let previous = std::mem::replace(&mut metadata.previous, null());
            if !next.is_null() {
                (*next).metadata().previous = previous;
            }
            if previous.is_null() {
                self.first = next;
            } else {
                (*previous).metadata().next = next;
            }
        }
    }
}
