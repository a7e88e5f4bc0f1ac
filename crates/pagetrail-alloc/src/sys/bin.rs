//! [`Bin`]: a heap's slabs of one class that have objects and belong to no cache.

use super::core::Core;
use super::fatal;
use super::slab::{Slab, Slot};
use super::superblock::Superblock;
use std::ptr::null;
use std::sync::atomic::AtomicU8;

/// Slabs of one class. Whoever has a reference to it holds the lock of the class.
pub(crate) struct Bin {
    first: *const Slab,
    /// All slabs of the class, wherever they are.
    slabs: u32,
    /// Whether the list has a slab all of whose objects are in.
    has_empty: bool,
}

// SAFETY: its pointers are to slabs of its heap, and followed under its lock.
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
        // SAFETY: a slab of this class, whose lock is held.
        !slab.is_null() && unsafe { (*slab).books().has_objects() }
    }

    /// A slab with objects for a cache, that has it for itself until it is empty of them.
    pub(crate) fn take_slab(&mut self, core: &Core, class: usize) -> Option<*const Slab> {
        let slab = if self.first.is_null() {
            let slab = core.take_slab(class)?;
            self.slabs += 1;
            slab
        } else {
            let slab = self.first;
            // SAFETY: slabs in the list are of this class.
            unsafe {
                self.unlink(slab);
                if (*slab).books().used == 0 {
                    self.has_empty = false;
                }
            }
            slab
        };
        // SAFETY: a slab of this class.
        unsafe { (*slab).books().owned = true };
        Some(slab)
    }

    /// Takes objects out of a slab; `found` gets each.
    ///
    /// # Safety
    ///
    /// The slab is the caller's, by [`Self::take_slab`].
    pub(crate) unsafe fn take_objects(
        &mut self,
        slab: *const Slab,
        wanted: usize,
        mut found: impl FnMut(Slot),
    ) -> usize {
        // SAFETY: as the caller promises, it is of this class.
        unsafe {
            let slab = &*slab;
            let books = slab.books();
            let superblock = &*books.superblock;
            let start = superblock.offset_of(slab);
            let taken = slab.take(books, wanted, |offset, state| {
                found(Slot {
                    object: superblock.windows.address(start + offset) as *mut u8,
                    state,
                });
            });
            if !books.has_objects() {
                // Full: objects that come back to it put it in the list.
                books.owned = false;
            }
            superblock.touch(slab, books, self.slabs);
            taken
        }
    }

    /// Takes objects in.
    pub(crate) fn put_objects(&mut self, slots: &[Slot], core: &Core) {
        // Neighbours are often of one slab: then their bytes are in one table, and say which objects they are.
        let mut last: *const Slab = null();
        let mut states = (null(), 0);
        for slot in slots {
            let address = slot.object as usize;
            let object_in =
                |states: *const AtomicU8| (slot.state as usize).wrapping_sub(states as usize);
            // SAFETY: the registry says where a superblock is; the object is of this class, as it was when it came to the
            // cache.
            unsafe {
                if object_in(states.0) >= states.1 {
                    let Some(slab) = Superblock::slab_of(address) else {
                        fatal::abort("the cache that held ", address, " is corrupted");
                    };
                    slab.check(slab.books(), address);
                    (last, states) = (slab, slab.states());
                    if object_in(states.0) >= states.1 {
                        fatal::abort("the cache that held ", address, " is corrupted");
                    }
                }
                let (slab, books) = (&*last, (*last).books());
                let was_full = !books.has_objects();
                slab.put(books, object_in(states.0), address);
                if books.owned {
                    continue;
                }
                if was_full {
                    self.link(slab);
                }
                if books.used == 0 {
                    self.keep_or_give(slab, core);
                    states.1 = 0;
                }
            }
        }
    }

    /// Gives up a slab that a cache has.
    ///
    /// # Safety
    ///
    /// The slab is from [`Self::take_slab`], and has objects.
    pub(crate) unsafe fn leave_slab(&mut self, slab: *const Slab, core: &Core) {
        // SAFETY: as the caller promises.
        unsafe {
            let books = (*slab).books();
            books.owned = false;
            self.link(slab);
            if books.used == 0 {
                self.keep_or_give(slab, core);
            }
        }
    }

    /// For a slab in the list all of whose objects are in: one is kept, for the next that is needed.
    ///
    /// # Safety
    ///
    /// It is such a slab.
    unsafe fn keep_or_give(&mut self, slab: *const Slab, core: &Core) {
        if !self.has_empty {
            self.has_empty = true;
            return;
        }
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
        unsafe {
            let books = (*slab).books();
            books.previous = null();
            books.next = self.first;
            if !self.first.is_null() {
                (*self.first).books().previous = slab;
            }
        }
        self.first = slab;
    }

    /// # Safety
    ///
    /// The slab is in the list.
    unsafe fn unlink(&mut self, slab: *const Slab) {
        // SAFETY: as the caller promises; so are its neighbours.
        unsafe {
            let books = (*slab).books();
            let next = std::mem::replace(&mut books.next, null());
            let previous = std::mem::replace(&mut books.previous, null());
            if !next.is_null() {
                (*next).books().previous = previous;
            }
            if previous.is_null() {
                self.first = next;
            } else {
                (*previous).books().next = next;
            }
        }
    }
}
