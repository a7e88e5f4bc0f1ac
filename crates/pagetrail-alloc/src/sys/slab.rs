//! [`Slab`]: the metadata of 64 KiB of objects of one class. It lies apart from the objects, in
//! private memory.
//!
//! Two facts are kept for each object. A bit says whether it is free in the slab, or out: with the
//! program, or in a thread's cache. A byte says whether the program has it, so that freeing it
//! twice, or freeing what never was allocated, is detected at once. The bits are protected by the
//! lock of the class; a byte belongs to the thread that has the object.
//!
//! What a lock protects is reached by a [`SlabGuard`], which borrows the [`Key`] that lies behind
//! that lock: there is one at a time, and only the thread that holds the lock has it.

use super::lasting::Lasting;
use super::superblock::{Backing, Superblock};
use crate::classes::CLASSES;
use crate::fatal;
use crate::geometry::PAGE;
use crate::shape::{self, Shape};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// In an object's byte: it is not the program's.
pub(crate) const FREE: u8 = 0;
/// In an object's byte: the program has it.
pub(crate) const ALLOCATED: u8 = 1;

/// An object on its way between a slab and the program.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) object: *mut u8,
    pub(crate) state: *const AtomicU8,
}

/// The metadata of a slab. Zeros are a slab that was never used.
///
/// Its size is a power of two, so that finding it takes a shift; the fields that each `free` reads
/// are in the first cache line.
#[repr(C, align(128))]
pub(crate) struct Slab {
    shape: AtomicU64,
    /// A byte for each object.
    states: AtomicPtr<AtomicU8>,
    /// The heap, while there are objects; else 0.
    owner: AtomicUsize,
    /// Which lock protects the metadata; 0 in a slab that was never used.
    lock: AtomicUsize,
    superblock: Option<Lasting<Superblock>>,
    /// Whether all objects are handed out in the first alias; changes only while there are none.
    merged: AtomicBool,
    metadata: UnsafeCell<Metadata>,
}

// SAFETY: fields outside of `metadata` are atomic or never change; `metadata` is reached by a
// `SlabGuard`, of which there is one at a time, or with all locks held.
unsafe impl Sync for Slab {}

/// The part of a slab's metadata that is protected by the lock of the class, or by that of the
/// superblocks while there is no class.
#[repr(C)]
pub(crate) struct Metadata {
    seal: u64,
    /// A bit for each 64 objects: some of them are in.
    groups: u64,
    /// A bit for each object: it is in.
    bits: *mut u64,
    /// Objects that are out.
    pub(crate) used: u32,
    /// Objects from here on were never out.
    high: u32,
    /// Pages that are in the page tables, and in the shared table.
    pub(crate) touched_pages: u32,
    /// Whether a cache owns the slab, and alone takes objects from it.
    pub(crate) owned: bool,
    /// Counts what the slab has been used for.
    pub(crate) generation: u64,
    /// Neighbours in the list of slabs that have objects and no owner, or in that of slabs without
    /// a class.
    pub(crate) next: Option<Lasting<Slab>>,
    pub(crate) previous: Option<Lasting<Slab>>,
}

/// Opens the metadata of the slabs that one lock protects. It lies behind that lock, so that only
/// the thread that holds the lock can borrow it.
pub(crate) struct Key {
    /// The heap, which begins at a page, and which of its locks this is.
    lock: usize,
}

impl Key {
    /// The key of a heap's slabs of a class.
    ///
    /// # Safety
    ///
    /// There is no other for the class in this heap, which `owner` is the address of.
    pub(crate) unsafe fn of_class(owner: usize, class: usize) -> Self {
        const { assert!(CLASSES < UNUSED) };
        let lock = owner + class;
        Self { lock }
    }

    /// The key of a heap's slabs that have no class, in superblocks of a kind.
    ///
    /// # Safety
    ///
    /// There is no other for the kind in this heap, which `owner` is the address of.
    pub(crate) unsafe fn of_unused(owner: usize, backing: Backing) -> Self {
        let lock = owner + UNUSED + backing as usize;
        Self { lock }
    }

    /// The class whose slabs it opens; `None` for slabs without a class.
    pub(crate) const fn class(&self) -> Option<usize> {
        let number = self.lock % PAGE;
        if number < UNUSED { Some(number) } else { None }
    }

    /// Whether this is the key of a slab. It stays so while the key is borrowed: a slab gets a
    /// class, and loses it, only where both keys are at hand.
    #[inline]
    fn fits(&self, slab: &Slab) -> bool {
        slab.lock.load(Ordering::Relaxed) == self.lock
    }
}

/// The numbers of a heap's locks begin with those of the classes; those of slabs without a class
/// follow from here on.
const UNUSED: usize = 128;

impl Slab {
    /// A slab without objects.
    pub(crate) fn empty(superblock: Lasting<Superblock>, unused: &Key) -> Self {
        Self {
            shape: AtomicU64::new(Shape::NONE.word()),
            states: AtomicPtr::new(null_mut()),
            owner: AtomicUsize::new(0),
            lock: AtomicUsize::new(unused.lock),
            superblock: Some(superblock),
            merged: AtomicBool::new(false),
            metadata: UnsafeCell::new(Metadata {
                seal: 0,
                groups: 0,
                bits: null_mut(),
                used: 0,
                high: 0,
                touched_pages: 0,
                owned: false,
                generation: 0,
                next: None,
                previous: None,
            }),
        }
    }

    /// Whether all of its objects are handed out in the first alias, so that a tracker sees whole
    /// pages.
    #[inline]
    pub(crate) fn is_merged(&self) -> bool {
        self.merged.load(Ordering::Relaxed)
    }

    /// What its objects are.
    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape::from_word(self.shape.load(Ordering::Relaxed))
    }

    /// The byte of the object that begins at this offset in the slab, and its class; `None` if none
    /// begins there.
    #[inline]
    pub(crate) fn object_at(&self, offset: usize) -> Option<(&AtomicU8, usize)> {
        let shape = self.shape();
        let states = self.states.load(Ordering::Relaxed);
        if states.is_null() {
            return None;
        }
        let object = shape.object_at(offset)?;
        // SAFETY: there is a byte for each object that begins in the slab.
        Some((unsafe { &*states.add(object) }, shape.class()))
    }

    /// The object of this heap that begins at an offset in the slab: its byte and its class; `None`
    /// if there is none.
    #[inline(always)]
    pub(crate) fn find(&self, offset: usize, owner: usize) -> Option<(&AtomicU8, usize)> {
        if self.owner.load(Ordering::Relaxed) != owner {
            return None;
        }
        let shape = self.shape();
        let object = shape.object_at(offset)?;
        // SAFETY: a slab with an owner has a byte for each object that begins in it.
        let state = unsafe { &*self.states.load(Ordering::Relaxed).add(object) };
        Some((state, shape.class()))
    }

    /// Pages from the slab's beginning on that have had objects out, without a key.
    ///
    /// # Safety
    ///
    /// The caller holds all locks of the heap.
    pub(crate) unsafe fn high_pages_with_all_locks(&self) -> u32 {
        // SAFETY: a guard is in the hands of a thread with a lock, and the caller holds them all.
        unsafe { (*self.metadata.get()).high_pages(self.shape()) }
    }
}

/// The metadata of a slab, borrowed from the key behind the lock that protects it.
pub(crate) struct SlabGuard<'key> {
    slab: Lasting<Slab>,
    metadata: &'key mut Metadata,
}

impl<'key> SlabGuard<'key> {
    /// Opens a slab's metadata; ends the program where the key is another's, which then would be
    /// written without its lock.
    #[inline]
    pub(crate) fn open(slab: Lasting<Slab>, key: &'key mut Key) -> Self {
        if !key.fits(slab.get()) {
            wrong_key(slab);
        }
        // SAFETY: the key fits, so the lock behind which it lies protects this slab; it is borrowed
        // exclusively while the guard lives, and there is one key of a class or kind.
        let metadata = unsafe { &mut *slab.get().metadata.get() };
        Self { slab, metadata }
    }

    /// Makes a slab without a class one of objects of the class of `key`; all are in. Its pages are
    /// `merged`, or distinguished by sub-pages.
    ///
    /// # Safety
    ///
    /// `marks` has [`shape::marks_bytes`] of the class and is the
    /// slab's from now on.
    pub(crate) unsafe fn begin(
        slab: Lasting<Slab>,
        unused: &mut Key,
        key: &'key mut Key,
        marks: *mut u8,
        merged: bool,
    ) -> Self {
        let Some(class) = key.class() else {
            wrong_key(slab);
        };
        let metadata = SlabGuard::open(slab, unused).metadata;
        let capacity = shape::capacity(class);
        let groups = shape::groups(class);
        // SAFETY: the caller gives the marks to the slab; `marks_bytes` has room for a word per
        // group and a byte per object, so all writes are within the marks.
        unsafe {
            metadata.bits = marks.cast();
            let states = marks.add(groups * 8);
            states.write_bytes(FREE, capacity + 1);
            for group in 0..groups {
                let objects = (capacity - group * 64).min(64);
                *metadata.bits.add(group) = u64::MAX >> (64 - objects);
            }
            slab.states.store(states.cast(), Ordering::Relaxed);
        }
        metadata.groups = u64::MAX >> (64 - groups);
        (metadata.used, metadata.high) = (0, 0);
        metadata.generation += 1;
        slab.merged.store(merged, Ordering::Relaxed);
        slab.shape.store(Shape::of(class).word(), Ordering::Relaxed);
        slab.lock.store(key.lock, Ordering::Relaxed);
        slab.owner.store(key.lock - class, Ordering::Release);
        let guard = Self::open(slab, key);
        guard.metadata.seal = guard.expected_seal();
        guard
    }

    /// Makes a slab all of whose objects are in one without objects; its marks, with their length,
    /// are the caller's again.
    pub(crate) fn end(self, unused: &mut Key) -> (SlabGuard<'_>, *mut u8, usize) {
        let slab = self.slab;
        if self.metadata.used > 0 {
            fatal::abort(
                "the metadata at ",
                slab.as_ptr() as usize,
                " is corrupted: its objects are in use",
            );
        }
        let bytes = shape::marks_bytes(slab.shape().class());
        slab.owner.store(0, Ordering::Relaxed);
        slab.shape.store(Shape::NONE.word(), Ordering::Relaxed);
        slab.merged.store(false, Ordering::Relaxed);
        slab.states.store(null_mut(), Ordering::Relaxed);
        let marks = std::mem::replace(&mut self.metadata.bits, null_mut());
        (self.metadata.groups, self.metadata.high) = (0, 0);
        self.metadata.generation += 1;
        slab.lock.store(unused.lock, Ordering::Relaxed);
        (SlabGuard::open(slab, unused), marks.cast(), bytes)
    }

    /// The slab.
    #[inline]
    pub(crate) fn slab(&self) -> Lasting<Slab> {
        self.slab
    }

    /// The superblock with the slab.
    #[inline]
    pub(crate) fn superblock(&self) -> Lasting<Superblock> {
        match self.slab.superblock {
            Some(superblock) => superblock,
            // A slab that was never used has no key.
            None => wrong_key(self.slab),
        }
    }

    fn expected_seal(&self) -> u64 {
        let superblock = self.slab.superblock.map_or(0, |it| it.as_ptr() as u64);
        let what = self.slab.shape().word()
            ^ superblock.rotate_left(40)
            ^ (self.metadata.bits as u64).rotate_left(20)
            ^ self.slab.states.load(Ordering::Relaxed) as u64;
        (what ^ self.slab.as_ptr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Ends the program if the program has written over this metadata.
    #[inline]
    pub(crate) fn check(&self, object: usize) {
        if self.metadata.seal != self.expected_seal() {
            fatal::abort(
                "the metadata of the objects around ",
                object,
                " is corrupted: something wrote over it",
            );
        }
    }

    /// Takes out up to `wanted` objects, those at low addresses first; `found` gets offset and byte
    /// of each.
    pub(crate) fn take(
        &mut self,
        wanted: usize,
        mut found: impl FnMut(usize, *const AtomicU8),
    ) -> usize {
        let size = self.slab.shape().size();
        let states = self.slab.states.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < wanted && self.metadata.groups != 0 {
            let group = self.metadata.groups.trailing_zeros() as usize;
            // SAFETY: a group whose bit is set has a word; the guard makes this reference the only
            // one.
            let bits = unsafe { &mut *self.metadata.bits.add(group) };
            let mut end = 0;
            while taken < wanted && *bits != 0 {
                let object = group * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                end = object as u32 + 1;
                // SAFETY: there is a byte for each object.
                found(object * size, unsafe { states.add(object) });
                taken += 1;
            }
            self.metadata.high = self.metadata.high.max(end);
            if *bits == 0 {
                self.metadata.groups &= self.metadata.groups - 1;
            }
        }
        self.metadata.used += taken as u32;
        taken
    }

    /// Takes in the next of `slots`, as many as are objects of this slab; returns false if the
    /// first is none. An object that is in already ends the program.
    #[inline(always)]
    pub(crate) fn put(&mut self, slots: &mut std::slice::Iter<'_, Slot>) -> bool {
        let states = self.slab.states.load(Ordering::Relaxed) as usize;
        let capacity = self.slab.shape().capacity();
        let metadata = &mut *self.metadata;
        let mut is_any = false;
        while let Some(slot) = slots.as_slice().first() {
            // Its byte is in the slab's table, and the distance from the start is its number.
            let object = (slot.state as usize).wrapping_sub(states);
            if object >= capacity {
                break;
            }
            let (group, bit) = (object / 64, 1 << (object % 64));
            // SAFETY: a slab with objects has a word for each 64 of them; the guard makes this
            // reference the only one.
            let bits = unsafe { &mut *metadata.bits.add(group) };
            if *bits & bit != 0 || metadata.used == 0 {
                fatal::abort("double free of ", slot.object as usize, "");
            }
            *bits |= bit;
            metadata.groups |= 1 << group;
            metadata.used -= 1;
            slots.next();
            is_any = true;
        }
        is_any
    }

    /// Pages from the slab's beginning on that have had objects out.
    pub(crate) fn high_pages(&self) -> u32 {
        self.metadata.high_pages(self.slab.shape())
    }
}

impl Deref for SlabGuard<'_> {
    type Target = Metadata;

    #[inline]
    fn deref(&self) -> &Metadata {
        self.metadata
    }
}

impl DerefMut for SlabGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Metadata {
        self.metadata
    }
}

impl Metadata {
    /// Whether objects are in.
    #[inline]
    pub(crate) fn has_objects(&self) -> bool {
        self.groups != 0
    }

    fn high_pages(&self, shape: Shape) -> u32 {
        (self.high as usize * shape.size()).div_ceil(PAGE) as u32
    }
}

#[cold]
fn wrong_key(slab: Lasting<Slab>) -> ! {
    fatal::abort(
        "the metadata at ",
        slab.as_ptr() as usize,
        " is corrupted: it is protected by another lock",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subpage_count::SubpageCount;
    use crate::sys::core::Core;

    /// Whether a key of `owner` for a class, or for slabs without one, opens `slab`.
    fn opens(owner: usize, class: Option<usize>, slab: Lasting<Slab>) -> bool {
        // SAFETY: the second key of its kind opens nothing, it is only asked whether it fits.
        let key = unsafe {
            match class {
                Some(class) => Key::of_class(owner, class),
                None => Key::of_unused(owner, Backing::Aliased),
            }
        };
        key.fits(slab.get())
    }

    #[test]
    fn one_key_fits_a_slab() {
        let made = Core::make(SubpageCount::DEFAULT).unwrap();
        // SAFETY: made above, and destroyed below, where nothing uses it any more.
        let core = unsafe { &*made };
        let (class, other) = (3, 4);
        let slab = core.bin(class).lock().take_slab(core).unwrap();
        let owner = core.owner();
        assert!(opens(owner, Some(class), slab));
        assert!(!opens(owner, Some(other), slab));
        assert!(!opens(owner, None, slab));
        assert!(!opens(owner + 1, Some(class), slab));

        // Of two empty slabs the bin keeps one and gives the other back: that has no class then.
        let second = core.bin(class).lock().take_slab(core).unwrap();
        core.bin(class).lock().leave_slab(slab, core);
        core.bin(class).lock().leave_slab(second, core);
        assert!(opens(owner, Some(class), slab));
        assert!(!opens(owner, Some(class), second));
        assert!(opens(owner, None, second));
        assert!(!opens(owner + 1, None, second));
        // SAFETY: the heap and its slabs are not used after this.
        unsafe { Core::destroy(made) };
    }
}
