//! [`Categories`] of pages, by which a scan selects and which it reports.

use linux_raw_sys::general as raw;
use std::ops::BitOr;

/// A set of categories of pages (`PAGE_IS_*` in `uapi/linux/fs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Categories(u64);

impl Categories {
    /// No category.
    pub const NONE: Self = Self(0);
    /// The page is in a mapping that is registered for asynchronous write protection.
    pub const WRITE_PROTECTION_ALLOWED: Self = Self(raw::PAGE_IS_WPALLOWED as u64);
    /// The page was written since it was write-protected, or never was protected.
    pub const WRITTEN: Self = Self(raw::PAGE_IS_WRITTEN as u64);
    /// The page belongs to a file, or is shared.
    pub const FILE: Self = Self(raw::PAGE_IS_FILE as u64);
    /// The page is in memory.
    pub const PRESENT: Self = Self(raw::PAGE_IS_PRESENT as u64);
    /// The page is swapped out; write-protected entries without a page read so, too.
    pub const SWAPPED: Self = Self(raw::PAGE_IS_SWAPPED as u64);
    /// The page is the kernel's page of zeros.
    pub const ZERO: Self = Self(raw::PAGE_IS_PFNZERO as u64);
    /// The page is part of a huge page that one entry maps.
    pub const HUGE: Self = Self(raw::PAGE_IS_HUGE as u64);
    /// The page has the soft-dirty bit.
    pub const SOFT_DIRTY: Self = Self(raw::PAGE_IS_SOFT_DIRTY as u64);
    /// The page was accessed since it was protected against all access (`PAGE_IS_ACCESSED`, Linux
    /// 7.3).
    pub const ACCESSED: Self = Self(1 << 9);

    /// The categories of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all categories of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits as the kernel has them.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set with the kernel's bits `bits`, also those that this crate does not know.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl BitOr for Categories {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}
