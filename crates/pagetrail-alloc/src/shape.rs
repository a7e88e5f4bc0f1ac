//! [`Shape`]: what the objects of a slab are, in one word. Arithmetic only.

use crate::classes::{ALIGN, SIZES};
use crate::geometry::{self, SLAB};

/// What a slab's objects are. It changes only while there are none.
#[derive(Clone, Copy)]
pub(crate) struct Shape(u64);

impl Shape {
    /// No objects: none begins anywhere.
    pub(crate) const NONE: Self = Self(0);

    /// The shape of a slab of a class.
    pub(crate) fn of(class: usize) -> Self {
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

    /// A shape as [`Self::word`] gave it.
    #[inline]
    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The shape as one word; 0 is that of a slab without objects.
    #[inline]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn size(self) -> usize {
        (self.0 & 0xfff) as usize * ALIGN
    }

    #[inline]
    pub(crate) fn class(self) -> usize {
        (self.0 >> 12 & 0x7f) as usize
    }

    /// How many objects there are.
    #[inline]
    pub(crate) fn capacity(self) -> usize {
        (self.0 >> 19 & 0x1fff) as usize
    }

    /// The number of the object that begins at an offset.
    #[inline(always)]
    pub(crate) fn object_at(self, offset: usize) -> Option<usize> {
        geometry::object_at(offset, (self.0 >> 32) as u32)
    }
}

/// How many objects a slab of a class has.
pub(crate) fn capacity(class: usize) -> usize {
    SLAB / usize::from(SIZES[class])
}

/// How many words the bits of a slab's objects take, one for each.
pub(crate) fn groups(class: usize) -> usize {
    capacity(class).div_ceil(64)
}

/// How many bytes the bits and bytes of a slab's objects take, with a byte for one more: the slab
/// may have room for the beginning of another object after its last one.
pub(crate) fn marks_bytes(class: usize) -> usize {
    groups(class) * 8 + capacity(class) + 1
}
