//! [`Slab`]: the books of 64 KiB of objects of one class. They lie apart from the objects, in private memory.
//!
//! Two things are known of each object. A bit says whether it is in the slab, or out: with the program, or in some thread's
//! cache. A byte says whether it is the program's, so that freeing it twice, or freeing what never was allocated, is seen at
//! once. The bits belong to who holds the lock of the class; a byte belongs to who has the object.

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

/// The books of a slab. Zeros are a slab that was never used.
///
/// Of a power of two of bytes, so that finding it takes a shift; what each `free` looks at is in the first line.
#[repr(C, align(128))]
pub(crate) struct Slab {
    shape: AtomicU64,
    /// A byte for each object.
    states: AtomicPtr<AtomicU8>,
    /// The heap, while there are objects; else 0.
    owner: AtomicUsize,
    books: UnsafeCell<Books>,
}

/// What belongs to who holds the lock of the class, or of the superblocks while there is no class.
#[repr(C)]
pub(crate) struct Books {
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
    /// Whether a cache takes its objects from here, and nobody else does.
    pub(crate) owned: bool,
    /// Counts what the slab has been used for.
    pub(crate) generation: u64,
    /// Neighbours in the list of slabs that have objects and no owner, or in that of slabs without a class.
    pub(crate) next: *const Slab,
    pub(crate) previous: *const Slab,
}

/// How many bytes are taken for the bits and bytes of a slab's objects, and for the byte of one that does not exist: behind
/// the last object is room for the beginning of another one.
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
            books: UnsafeCell::new(Books {
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

    /// The books.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the slab's class, or, while it has none, of the superblocks, and lets no other reference
    /// to them live meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn books(&self) -> &mut Books {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.books.get() }
    }

    /// Makes it a slab of objects of a class; all are in.
    ///
    /// # Safety
    ///
    /// It has no objects, the caller holds the lock of the superblocks, and `marks` has [`marks_bytes`] of the class and is
    /// the slab's from now on.
    pub(crate) unsafe fn begin(&self, class: usize, marks: *mut u8) {
        let capacity = capacity(class);
        let groups = capacity.div_ceil(64);
        // SAFETY: as the caller promises; all writes are within the marks.
        unsafe {
            let books = self.books();
            books.bits = marks.cast();
            let states = marks.add(groups * 8);
            states.write_bytes(FREE, capacity + 1);
            for group in 0..groups {
                let objects = (capacity - group * 64).min(64);
                *books.bits.add(group) = u64::MAX >> (64 - objects);
            }
            books.groups = u64::MAX >> (64 - groups);
            (books.used, books.high) = (0, 0);
            books.generation += 1;
            self.states.store(states.cast(), Ordering::Relaxed);
            self.shape.store(Shape::of(class).0, Ordering::Relaxed);
            let owner = (*books.superblock).owner;
            self.owner.store(owner, Ordering::Release);
            books.seal = self.expected_seal(books);
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
        // SAFETY: as the caller promises.
        let books = unsafe { self.books() };
        let marks = std::mem::replace(&mut books.bits, null_mut());
        (books.groups, books.high) = (0, 0);
        books.generation += 1;
        (marks.cast(), bytes)
    }

    fn expected_seal(&self, books: &Books) -> u64 {
        let what = self.shape.load(Ordering::Relaxed)
            ^ (books.bits as u64).rotate_left(20)
            ^ self.states.load(Ordering::Relaxed) as u64;
        (what ^ (&raw const *self) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Ends the program if somebody has written over these books.
    pub(crate) fn check(&self, books: &Books, object: usize) {
        if books.seal != self.expected_seal(books) {
            fatal::abort(
                "the books of the objects around ",
                object,
                " are corrupted: something wrote over them",
            );
        }
    }

    /// The byte of the object that begins at this offset in the slab, and its class; `None` if none begins there.
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

    /// The object of this heap that begins at an offset in the slab: its byte and its class; `None` if there is none.
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

    /// Takes out up to `wanted` objects, those at low addresses first; `found` gets offset and byte of each.
    pub(crate) fn take(
        &self,
        books: &mut Books,
        wanted: usize,
        mut found: impl FnMut(usize, *const AtomicU8),
    ) -> usize {
        let size = self.shape().size();
        let states = self.states.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < wanted && books.groups != 0 {
            let group = books.groups.trailing_zeros() as usize;
            // SAFETY: a group of this slab.
            let bits = unsafe { &mut *books.bits.add(group) };
            while taken < wanted && *bits != 0 {
                let object = group * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                books.high = books.high.max(object as u32 + 1);
                // SAFETY: there is a byte for each object.
                found(object * size, unsafe { states.add(object) });
                taken += 1;
            }
            if *bits == 0 {
                books.groups &= books.groups - 1;
            }
        }
        books.used += taken as u32;
        taken
    }

    /// Takes in an object, by its number, which is below the slab's capacity.
    #[inline]
    pub(crate) fn put(&self, books: &mut Books, object: usize, address: usize) {
        let (group, bit) = (object / 64, 1 << (object % 64));
        // SAFETY: a group of this slab.
        let bits = unsafe { &mut *books.bits.add(group) };
        if *bits & bit != 0 || books.used == 0 {
            fatal::abort("double free of ", address, "");
        }
        *bits |= bit;
        books.groups |= 1 << group;
        books.used -= 1;
    }

    /// Pages from the slab's beginning on that have had objects out.
    pub(crate) fn high_pages(&self, books: &Books) -> u32 {
        (books.high as usize * self.shape().size()).div_ceil(PAGE) as u32
    }
}

impl Books {
    /// Whether objects are in.
    pub(crate) fn has_objects(&self) -> bool {
        self.groups != 0
    }
}
