//! Where things are in a superblock: windows, slabs, parts. Arithmetic only.
//!
//! A superblock is memory of a power of two of bytes, mapped once per part, window behind window. An object at an offset
//! is handed out in the window of the part of the page in which it begins; all of it is reached there, also where it
//! crosses into other parts or the next page.

use crate::parts::Parts;
use std::ops::Range;

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

    /// How an address in the window of a part is seen to be in this part of its page.
    pub(crate) const fn part_bits(&self, part: usize) -> PartBits {
        let mask = (PAGE - 1) & !((1 << self.part_shift) - 1);
        PartBits((mask | part << self.part_shift << 16) as u32)
    }

    /// The window in which an address is.
    pub(crate) const fn window(&self, address: usize) -> usize {
        (address - self.base) >> self.window_shift
    }

    /// The offset of an address, and whether an object that begins there is handed out at this address.
    #[inline]
    pub(crate) const fn offset(&self, address: usize) -> (usize, bool) {
        let within = address - self.base;
        let offset = within & (self.bytes() - 1);
        (offset, within >> self.window_shift == self.part(offset))
    }
}

/// Which bits of an address say the part of its page, and what they are in one part: a mask, and above it a value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartBits(pub(crate) u32);

impl PartBits {
    /// Whether an address is in this part of its page.
    #[inline(always)]
    pub(crate) const fn has(self, address: usize) -> bool {
        address as u32 & (self.0 & 0xffff) == self.0 >> 16
    }
}

/// What dividing an offset in a slab by a size is multiplied with instead: 2^32 / size, rounded up.
///
/// Exact for all offsets below 2^16 and sizes of classes, since their product stays below 2^32.
#[inline]
pub(crate) const fn reciprocal(size: u32) -> u32 {
    (u32::MAX / size) + 1
}

/// The object that begins at an offset in a slab, if one does.
#[inline(always)]
pub(crate) const fn object_at(offset: usize, reciprocal: u32) -> Option<usize> {
    let product = offset as u64 * reciprocal as u64;
    // The lower half is what is left over, times the reciprocal, and a little more: Lemire, Kaser and Kurz, "Faster remainder
    // by direct computation" (2019), section 3.2.
    match (product as u32) < reciprocal {
        true => Some((product >> 32) as usize),
        false => None,
    }
}

/// The parts, a bit for each, in which an object begins in at least a third of these pages of a slab of objects of a size: where
/// entering all pages in the page tables at once is cheaper than a fault for each that is touched.
pub(crate) fn busy_parts(size: usize, parts: usize, pages: Range<usize>) -> u64 {
    let part_bytes = PAGE / parts;
    let all = u64::MAX >> (64 - parts);
    if size <= part_bytes {
        return all;
    }
    let begins_in = |page: usize, part: usize| {
        let from = page * PAGE + part * part_bytes;
        from.next_multiple_of(size) < from + part_bytes
    };
    (0..parts)
        .filter(|&part| {
            let begun = pages.clone().filter(|&page| begins_in(page, part));
            begun.count() * 3 >= pages.len()
        })
        .fold(0, |busy, part| busy | 1 << part)
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
                let part = offset % PAGE / part_bytes;
                assert_eq!(address, 0x7000_0000_0000 + (part << 20) + offset);
                assert_eq!(windows.window(address), part);
                assert!(windows.part_bits(part).has(address));
                for other in (0..parts.count() as usize).filter(|&other| other != part) {
                    let alias = windows.address_in(other, offset);
                    assert_eq!(windows.offset(alias), (offset, false));
                    assert!(!windows.part_bits(other).has(alias));
                }
            }
        }
    }

    #[test]
    fn parts_are_busy_where_objects_begin() {
        assert_eq!(busy_parts(3840, 1, 0..16), 1);
        for size in [16, 112, 512] {
            assert_eq!(busy_parts(size, 8, 0..16), 0xff);
        }
        assert_eq!(busy_parts(16, 64, 3..4), u64::MAX);
        // Every second part, in each page.
        assert_eq!(busy_parts(1024, 8, 4..16), 0b0101_0101);
        // Objects at 0, 3840, 7680, 11520 and 15360: parts 0, 7, 7, 6 and 6 of their pages.
        assert_eq!(busy_parts(3840, 8, 0..1), 0b1000_0001);
        assert_eq!(busy_parts(3840, 8, 0..3), 0b1100_0001);
        assert_eq!(busy_parts(3840, 8, 0..4), 0b1100_0000);
    }

    #[test]
    fn multiplying_divides() {
        for size in SIZES {
            let by = reciprocal(size.into());
            for offset in 0..SLAB {
                let (object, rest) = (offset / usize::from(size), offset % usize::from(size));
                assert_eq!(object_at(offset, by), (rest == 0).then_some(object));
            }
        }
    }
}
