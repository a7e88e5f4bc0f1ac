//! [`Bin`]: a heap's slabs of one class that have objects and belong to no cache.

use crate::fatal;
use crate::sys::core::Core;
use crate::sys::lasting::Lasting;
use crate::sys::slab::{Key, Slab, SlabGuard, Slot};
use crate::sys::superblock::Superblock;

/// Slabs of one class that have free objects and belong to no cache. A reference to a `Bin` exists
/// only while the lock of its class is held.
pub(crate) struct Bin {
    /// Opens the slabs of the class.
    key: Key,
    first: Option<Lasting<Slab>>,
    /// How many slabs the class has, in this list, in caches or full.
    slabs: u32,
    /// Whether the list has a slab none of whose objects is in use.
    has_empty: bool,
}

impl Bin {
    pub(crate) const fn new(key: Key) -> Self {
        Self {
            key,
            first: None,
            slabs: 0,
            has_empty: false,
        }
    }

    /// Whether a slab of the class has objects.
    pub(crate) fn has_objects(&mut self, slab: Lasting<Slab>) -> bool {
        self.open(slab).has_objects()
    }

    fn open(&mut self, slab: Lasting<Slab>) -> SlabGuard<'_> {
        SlabGuard::open(slab, &mut self.key)
    }

    /// Takes a slab with free objects for a cache, which owns it until it has no free object left.
    pub(crate) fn take_slab(&mut self, core: &Core) -> Option<Lasting<Slab>> {
        let slab = match self.first {
            None => {
                let slab = core.take_slab(&mut self.key)?;
                self.slabs += 1;
                slab
            }
            Some(slab) => {
                self.unlink(slab);
                if self.open(slab).used == 0 {
                    self.has_empty = false;
                }
                slab
            }
        };
        self.open(slab).owned = true;
        Some(slab)
    }

    /// Takes free objects out of a slab and calls `found` for each. The slab is owned by the
    /// caller, which got it from [`Self::take_slab`].
    pub(crate) fn take_objects(
        &mut self,
        slab: Lasting<Slab>,
        wanted: usize,
        mut found: impl FnMut(Slot),
    ) -> usize {
        let slabs = self.slabs;
        let mut guard = self.open(slab);
        let superblock = guard.superblock();
        let start = superblock.offset_of(slab);
        let taken = guard.take(wanted, |offset, state| {
            found(Slot {
                object: superblock.address(slab.get(), start + offset) as *mut u8,
                state,
            });
        });
        if !guard.has_objects() {
            // Full: objects that come back to it put it in the list.
            guard.owned = false;
        }
        superblock.touch(&mut guard, slabs);
        taken
    }

    /// Takes objects back into their slabs.
    pub(crate) fn put_objects(&mut self, slots: &[Slot], core: &Core) {
        // Objects next to each other in a cache are often of one slab.
        let mut slots = slots.iter();
        while let Some(first) = slots.as_slice().first() {
            let address = first.object as usize;
            let corrupted = || fatal::abort("the cache that held ", address, " is corrupted");
            let Some(slab) = Superblock::slab_of(address) else {
                corrupted()
            };
            let mut guard = self.open(slab);
            guard.check(address);
            let was_full = !guard.has_objects();
            if !guard.put(&mut slots) {
                corrupted();
            }
            let (is_owned, is_empty) = (guard.owned, guard.used == 0);
            if is_owned {
                continue;
            }
            if was_full {
                self.link(slab);
            }
            if is_empty {
                self.keep_or_give(slab, core);
            }
        }
    }

    /// Ends a cache's ownership of a slab from [`Self::take_slab`], which has free objects and goes
    /// into the list.
    pub(crate) fn leave_slab(&mut self, slab: Lasting<Slab>, core: &Core) {
        let mut guard = self.open(slab);
        guard.owned = false;
        let is_empty = guard.used == 0;
        self.link(slab);
        if is_empty {
            self.keep_or_give(slab, core);
        }
    }

    /// Keeps the first empty slab of the list for the next cache that needs one, and gives any
    /// other back to the heap.
    fn keep_or_give(&mut self, slab: Lasting<Slab>, core: &Core) {
        if !self.has_empty {
            self.has_empty = true;
            return;
        }
        self.unlink(slab);
        core.give_slab(self.open(slab));
        self.slabs -= 1;
    }

    /// Puts a slab in the list that is in none.
    fn link(&mut self, slab: Lasting<Slab>) {
        let first = self.first.replace(slab);
        let mut guard = self.open(slab);
        (guard.previous, guard.next) = (None, first);
        if let Some(first) = first {
            self.open(first).previous = Some(slab);
        }
    }

    /// Takes a slab out of the list.
    fn unlink(&mut self, slab: Lasting<Slab>) {
        let mut guard = self.open(slab);
        let (next, previous) = (guard.next.take(), guard.previous.take());
        if let Some(next) = next {
            self.open(next).previous = previous;
        }
        match previous {
            None => self.first = next,
            Some(previous) => self.open(previous).next = next,
        }
    }
}
