//! Where things are in a superblock: windows, slabs, parts. Arithmetic only.
//!
//! A superblock is memory of a power of two of bytes, mapped once per part, window behind window. An object at an offset
//! is handed out in the window of the part of the page in which it begins; all of it is reached there, also where it
//! crosses into other parts or the next page.

use crate::parts::Parts;

/// The page size that this allocator is made for.
pub(crate) const PAGE: usize = 4096;

/// Memory for objects of one class, in bytes; superblocks are made of them.
pub(crate) const SLAB: usize = 65536;

/// The windows of one superblock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    base: usize,
    window_shift: u32,
    part_shift: u32,
}

impl Windows {
    /// Windows of `bytes` each, a power of two, behind each other from `base` on.
    pub(crate) const fn new(base: usize, bytes: usize, parts: Parts) -> Self {
        Self {
            base,
            window_shift: bytes.trailing_zeros(),
            part_shift: PAGE.trailing_zeros() - parts.shift(),
        }
    }

    /// Address of the first window.
    pub(crate) const fn base(&self) -> usize {
        self.base
    }

    /// Bytes in a window.
    pub(crate) const fn bytes(&self) -> usize {
        1 << self.window_shift
    }

    /// The part of its page to which an offset belongs.
    #[inline]
    const fn part(&self, offset: usize) -> usize {
        (offset % PAGE) >> self.part_shift
    }

    /// The address at which an object is handed out that begins at `offset`.
    #[inline]
    pub(crate) const fn address(&self, offset: usize) -> usize {
        self.base + (self.part(offset) << self.window_shift) + offset
    }

    /// The same offset in the window of a part.
    #[inline]
    pub(crate) const fn address_in(&self, part: usize, offset: usize) -> usize {
        self.base + (part << self.window_shift) + offset
    }

    /// Where the objects of the slab at an offset are handed out.
    pub(crate) const fn slab_place(&self, offset: usize) -> SlabPlace {
        // Slabs begin at multiples of 65536, so that both shifts have room below.
        SlabPlace((self.base + offset) | (self.part_shift << 8 | self.window_shift) as usize)
    }

    /// The offset of an address, and whether an object that begins there is handed out at this address.
    #[inline]
    pub(crate) const fn offset(&self, address: usize) -> (usize, bool) {
        let within = address - self.base;
        let offset = within & (self.bytes() - 1);
        (offset, within >> self.window_shift == self.part(offset))
    }
}

/// Where the objects of a slab are handed out, in a word.
#[derive(Clone, Copy)]
pub(crate) struct SlabPlace(pub(crate) usize);

impl SlabPlace {
    /// The address of the object that begins at an offset in the slab.
    #[inline]
    pub(crate) const fn address(self, offset: usize) -> usize {
        let part = (offset % PAGE) >> (self.0 >> 8 & 0x3f);
        (self.0 & !(SLAB - 1)) + (part << (self.0 & 0x3f)) + offset
    }
}

/// What dividing an offset in a slab by a size is multiplied with instead.
///
/// Exact for all offsets below 2^16 and sizes of classes, since their product stays below 2^32.
#[inline]
pub(crate) const fn reciprocal(size: u32) -> u32 {
    (u32::MAX / size) + 1
}

/// The object in which an offset in a slab lies.
#[inline]
pub(crate) const fn object_at(offset: usize, reciprocal: u32) -> usize {
    ((offset as u64 * reciprocal as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::SIZES;

    #[test]
    fn each_offset_has_one_address() {
        for parts in Parts::ALL {
            let windows = Windows::new(0x7000_0000_0000, 1 << 20, parts);
            let part_bytes = PAGE / parts.count() as usize;
            for offset in (0..1 << 20).step_by(16) {
                let address = windows.address(offset);
                assert_eq!(windows.offset(address), (offset, true));
                let slab = windows.slab_place(offset / SLAB * SLAB);
                assert_eq!(slab.address(offset % SLAB), address);
                let part = offset % PAGE / part_bytes;
                assert_eq!(address, 0x7000_0000_0000 + (part << 20) + offset);
                for other in (0..parts.count() as usize).filter(|&other| other != part) {
                    let alias = windows.address_in(other, offset);
                    assert_eq!(windows.offset(alias), (offset, false));
                }
            }
        }
    }

    #[test]
    fn multiplying_divides() {
        for size in SIZES {
            let by = reciprocal(size.into());
            for offset in 0..SLAB {
                assert_eq!(object_at(offset, by), offset / usize::from(size));
            }
        }
    }
}
