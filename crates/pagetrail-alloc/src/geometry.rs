//! Where things are in a superblock: aliases, slabs, sub-pages. Arithmetic only.
//!
//! A superblock is memory of a power of two of bytes, mapped once per sub-page, one alias after the
//! other. An object at an offset is handed out in the alias of the sub-page in which it begins; all
//! of it is reached there, even where it crosses into other sub-pages or the next page.

use crate::subpage_count::SubpageCount;
use std::ops::Range;

/// The page size that this allocator is made for.
pub(crate) const PAGE: usize = 4096;

/// Memory for objects of one class, in bytes; superblocks are made of them.
pub(crate) const SLAB: usize = 65536;

/// The aliases of one superblock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aliases {
    base: usize,
    alias_shift: u32,
    subpage_shift: u32,
}

impl Aliases {
    /// Aliases of `bytes` each, a power of two, one after the other from `base` on.
    pub(crate) const fn new(base: usize, bytes: usize, subpages: SubpageCount) -> Self {
        Self {
            base,
            alias_shift: bytes.trailing_zeros(),
            subpage_shift: PAGE.trailing_zeros() - subpages.shift(),
        }
    }

    /// The address of the first alias.
    pub(crate) const fn base(&self) -> usize {
        self.base
    }

    /// The length of an alias, in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        1 << self.alias_shift
    }

    /// The sub-page of its page to which an offset belongs.
    #[inline]
    const fn subpage(&self, offset: usize) -> usize {
        (offset % PAGE) >> self.subpage_shift
    }

    /// The address at which an object is handed out that begins at `offset`.
    #[inline]
    pub(crate) const fn address(&self, offset: usize) -> usize {
        self.base + (self.subpage(offset) << self.alias_shift) + offset
    }

    /// The address of an offset in the alias of a sub-page.
    #[inline]
    pub(crate) const fn address_in(&self, subpage: usize, offset: usize) -> usize {
        self.base + (subpage << self.alias_shift) + offset
    }

    /// The bits that an address in the alias of a sub-page has if it is in this sub-page of its
    /// page.
    pub(crate) const fn subpage_bits(&self, subpage: usize) -> SubpageBits {
        let mask = (PAGE - 1) & !((1 << self.subpage_shift) - 1);
        SubpageBits((mask | subpage << self.subpage_shift << 16) as u32)
    }

    /// The alias in which an address is.
    pub(crate) const fn alias(&self, address: usize) -> usize {
        (address - self.base) >> self.alias_shift
    }

    /// The offset of an address, and whether an object that begins there is handed out at this
    /// address.
    #[inline]
    pub(crate) const fn offset(&self, address: usize) -> (usize, bool) {
        let within = address - self.base;
        let offset = within & (self.bytes() - 1);
        (offset, within >> self.alias_shift == self.subpage(offset))
    }
}

/// The bits of an address that give the sub-page of its page, and their value in one sub-page: a
/// mask in the lower 16 bits, the value above it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SubpageBits(pub(crate) u32);

impl SubpageBits {
    /// Whether this is the first sub-page.
    #[inline(always)]
    pub(crate) const fn is_first(self) -> bool {
        self.0 >> 16 == 0
    }

    /// Whether an address is in this sub-page of its page.
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
    // The lower half is what is left over, times the reciprocal, and a little more: Lemire, Kaser
    // and Kurz, "Faster remainder by direct computation" (2019), section 3.2.
    match (product as u32) < reciprocal {
        true => Some((product >> 32) as usize),
        false => None,
    }
}

/// The sub-pages, a bit for each, in which an object begins in at least a third of these pages of a
/// slab of objects of this size. There, entering all pages in the page tables at once is cheaper
/// than a fault for each page that is touched.
pub(crate) fn busy_subpages(size: usize, subpages: usize, pages: Range<usize>) -> u64 {
    let subpage_bytes = PAGE / subpages;
    let all = u64::MAX >> (64 - subpages);
    if size <= subpage_bytes {
        return all;
    }
    let begins_in = |page: usize, subpage: usize| {
        let from = page * PAGE + subpage * subpage_bytes;
        from.next_multiple_of(size) < from + subpage_bytes
    };
    (0..subpages)
        .filter(|&subpage| {
            let begun = pages.clone().filter(|&page| begins_in(page, subpage));
            begun.count() * 3 >= pages.len()
        })
        .fold(0, |busy, subpage| busy | 1 << subpage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::SIZES;

    #[test]
    fn each_offset_has_one_address() {
        for subpages in SubpageCount::ALL {
            let aliases = Aliases::new(0x7000_0000_0000, 1 << 20, subpages);
            let subpage_bytes = PAGE / subpages.count() as usize;
            for offset in (0..1 << 20).step_by(16) {
                let address = aliases.address(offset);
                assert_eq!(aliases.offset(address), (offset, true));
                let subpage = offset % PAGE / subpage_bytes;
                assert_eq!(address, 0x7000_0000_0000 + (subpage << 20) + offset);
                assert_eq!(aliases.alias(address), subpage);
                assert!(aliases.subpage_bits(subpage).has(address));
                for other in (0..subpages.count() as usize).filter(|&other| other != subpage) {
                    let alias = aliases.address_in(other, offset);
                    assert_eq!(aliases.offset(alias), (offset, false));
                    assert!(!aliases.subpage_bits(other).has(alias));
                }
            }
        }
    }

    #[test]
    fn parts_are_busy_where_objects_begin() {
        assert_eq!(busy_subpages(3840, 1, 0..16), 1);
        for size in [16, 112, 512] {
            assert_eq!(busy_subpages(size, 8, 0..16), 0xff);
        }
        assert_eq!(busy_subpages(16, 64, 3..4), u64::MAX);
        // Every second sub-page, in each page.
        assert_eq!(busy_subpages(1024, 8, 4..16), 0b0101_0101);
        // Objects at 0, 3840, 7680, 11520 and 15360: sub-pages 0, 7, 7, 6 and 6 of their pages.
        assert_eq!(busy_subpages(3840, 8, 0..1), 0b1000_0001);
        assert_eq!(busy_subpages(3840, 8, 0..3), 0b1100_0001);
        assert_eq!(busy_subpages(3840, 8, 0..4), 0b1100_0000);
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
