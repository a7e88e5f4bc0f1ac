//! [`Slab`]: the metadata of 64 KiB of objects of one class. It lies apart from the objects, in
//! private memory.
//!
//! Two facts are kept for each object. A bit says whether it is free in the slab, or out: with the
//! program, or in a thread's cache. A byte says whether the program has it, so that freeing it
//! twice, or freeing what never was allocated, is detected at once. The bits are protected by the
//! lock of the class; a byte belongs to the thread that has the object.

use super::fatal;
use super::superblock::Superblock;
use crate::classes::{ALIGN, SIZES};
use crate::geometry::{self, PAGE, SLAB};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

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

/// What a slab's objects are. It changes only while there are none.
#[derive(Clone, Copy)]
pub(crate) struct Shape(u64);

impl Shape {
    /// No objects: none begins anywhere.
    const NONE: Self = Self(0);

    fn of(class: usize) -> Self {
        let size = SIZES[class];
        let reciprocal = geometry::reciprocal(size.into());
        let steps = u64::from(size) / ALIGN as u64;
        Self(
            steps
                | (class as u64) << 12
                | (capacity(class) as u64) << 19
                | u64::from(reciprocal) << 32,
        )
    }

    #[inline]
    pub(crate) fn size(self) -> usize {
        (self.0 & 0xfff) as usize * ALIGN
    }

    #[inline]
    pub(crate) fn class(self) -> usize {
        (self.0 >> 12 & 0x7f) as usize
    }

    fn capacity(self) -> usize {
        (self.0 >> 19 & 0x1fff) as usize
    }

    #[inline(always)]
    fn object_at(self, offset: usize) -> Option<usize> {
        geometry::object_at(offset, (self.0 >> 32) as u32)
    }
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
    metadata: UnsafeCell<Metadata>,
}

/// The sub-page of a slab's metadata that is protected by the lock of the class, or by that of the
/// superblocks while there is no class.
#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) superblock: *const Superblock,
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
    pub(crate) next: *const Slab,
    pub(crate) previous: *const Slab,
}

/// How many bytes the bits and bytes of a slab's objects take, with a byte for one more: the slab
/// may have room for the beginning of another object after its last one.
pub(crate) fn marks_bytes(class: usize) -> usize {
    capacity(class).div_ceil(64) * 8 + capacity(class) + 1
}

fn capacity(class: usize) -> usize {
    SLAB / usize::from(SIZES[class])
}

impl Slab {
    /// A slab without objects.
    pub(crate) fn empty(superblock: *const Superblock) -> Self {
        Self {
            shape: AtomicU64::new(Shape::NONE.0),
            states: AtomicPtr::new(null_mut()),
            owner: AtomicUsize::new(0),
            metadata: UnsafeCell::new(Metadata {
                superblock,
                seal: 0,
                groups: 0,
                bits: null_mut(),
                used: 0,
                high: 0,
                touched_pages: 0,
                owned: false,
                generation: 0,
                next: null_mut(),
                previous: null_mut(),
            }),
        }
    }

    /// What its objects are.
    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape(self.shape.load(Ordering::Relaxed))
    }

    /// The metadata that a lock protects.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the slab's class, or, while it has none, of the superblocks,
    /// and lets no other reference to them live meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn metadata(&self) -> &mut Metadata {
        // SAFETY: the caller holds the lock that protects the metadata, and has no other reference
        // to it.
        unsafe { &mut *self.metadata.get() }
    }

    /// Makes it a slab of objects of a class; all are in.
    ///
    /// # Safety
    ///
    /// It has no objects, the caller holds the lock of the superblocks, and `marks` has
    /// [`marks_bytes`] of the class and is the slab's from now on.
    pub(crate) unsafe fn begin(&self, class: usize, marks: *mut u8) {
        let capacity = capacity(class);
        let groups = capacity.div_ceil(64);
        // SAFETY: the caller holds the lock, and gives the marks to the slab; `marks_bytes` has
        // room for a word per group and a byte per object, so all writes are within the marks.
        unsafe {
            let metadata = self.metadata();
            metadata.bits = marks.cast();
            let states = marks.add(groups * 8);
            states.write_bytes(FREE, capacity + 1);
            for group in 0..groups {
                let objects = (capacity - group * 64).min(64);
                *metadata.bits.add(group) = u64::MAX >> (64 - objects);
            }
            metadata.groups = u64::MAX >> (64 - groups);
            (metadata.used, metadata.high) = (0, 0);
            metadata.generation += 1;
            self.states.store(states.cast(), Ordering::Relaxed);
            self.shape.store(Shape::of(class).0, Ordering::Relaxed);
            let owner = (*metadata.superblock).owner;
            self.owner.store(owner, Ordering::Release);
            metadata.seal = self.expected_seal(metadata);
        }
    }

    /// Makes it one without objects; its marks, with their length, are the caller's again.
    ///
    /// # Safety
    ///
    /// All objects are in, and the caller holds the lock of the class.
    pub(crate) unsafe fn end(&self) -> (*mut u8, usize) {
        let bytes = marks_bytes(self.shape().class());
        self.owner.store(0, Ordering::Relaxed);
        self.shape.store(Shape::NONE.0, Ordering::Relaxed);
        self.states.store(null_mut(), Ordering::Relaxed);
        // SAFETY: the caller holds the lock of the class, and no other reference is live in this
        // function.
        let metadata = unsafe { self.metadata() };
        let marks = std::mem::replace(&mut metadata.bits, null_mut());
        (metadata.groups, metadata.high) = (0, 0);
        metadata.generation += 1;
        (marks.cast(), bytes)
    }

    fn expected_seal(&self, metadata: &Metadata) -> u64 {
        let what = self.shape.load(Ordering::Relaxed)
            ^ (metadata.bits as u64).rotate_left(20)
            ^ self.states.load(Ordering::Relaxed) as u64;
        (what ^ (&raw const *self) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Ends the program if the program has written over this metadata.
    pub(crate) fn check(&self, metadata: &Metadata, object: usize) {
        if metadata.seal != self.expected_seal(metadata) {
            fatal::abort(
                "the metadata of the objects around ",
                object,
                " is corrupted: something wrote over it",
            );
        }
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

    /// The bytes of its objects, and how many there are.
    pub(crate) fn states(&self) -> (*const AtomicU8, usize) {
        (self.states.load(Ordering::Relaxed), self.shape().capacity())
    }

    /// Takes out up to `wanted` objects, those at low addresses first; `found` gets offset and byte
    /// of each.
    pub(crate) fn take(
        &self,
        metadata: &mut Metadata,
        wanted: usize,
        mut found: impl FnMut(usize, *const AtomicU8),
    ) -> usize {
        let size = self.shape().size();
        let states = self.states.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < wanted && metadata.groups != 0 {
            let group = metadata.groups.trailing_zeros() as usize;
            // SAFETY: a group of this slab.
            let bits = unsafe { &mut *metadata.bits.add(group) };
            while taken < wanted && *bits != 0 {
                let object = group * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                metadata.high = metadata.high.max(object as u32 + 1);
                // SAFETY: there is a byte for each object.
                found(object * size, unsafe { states.add(object) });
                taken += 1;
            }
            if *bits == 0 {
                metadata.groups &= metadata.groups - 1;
            }
        }
        metadata.used += taken as u32;
        taken
    }

    /// Takes in an object, by its number, which is below the slab's capacity.
    #[inline]
    pub(crate) fn put(&self, metadata: &mut Metadata, object: usize, address: usize) {
        let (group, bit) = (object / 64, 1 << (object % 64));
        // SAFETY: a group of this slab.
        let bits = unsafe { &mut *metadata.bits.add(group) };
        if *bits & bit != 0 || metadata.used == 0 {
            fatal::abort("double free of ", address, "");
        }
        *bits |= bit;
        metadata.groups |= 1 << group;
        metadata.used -= 1;
    }

    /// Pages from the slab's beginning on that have had objects out.
    pub(crate) fn high_pages(&self, metadata: &Metadata) -> u32 {
        (metadata.high as usize * self.shape().size()).div_ceil(PAGE) as u32
    }
}

impl Metadata {
    /// Whether objects are in.
    pub(crate) fn has_objects(&self) -> bool {
        self.groups != 0
    }
}
