//! [`Features`] of a userfaultfd, which the handshake asks for.

use linux_raw_sys::general as raw;
use std::ops::BitOr;

/// A set of features of a userfaultfd (`UFFD_FEATURE_*` in `uapi/linux/userfaultfd.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);
    /// Write-protection faults are flagged as such (Linux 5.7).
    pub const PAGEFAULT_FLAG_WP: Self = Self(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64);
    /// Shared memory and hugetlb can be write-protected (Linux 5.19).
    pub const WP_HUGETLBFS_SHMEM: Self = Self(raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64);
    /// Pages that do not exist can be write-protected in anonymous memory, too (Linux 6.4);
    /// [`Self::WP_ASYNC`] implies it.
    pub const WP_UNPOPULATED: Self = Self(1 << 13);
    /// The kernel resolves write-protection faults itself (Linux 6.7).
    pub const WP_ASYNC: Self = Self(raw::UFFD_FEATURE_WP_ASYNC as u64);
    /// Pages can be protected against reads, too (Linux 7.3).
    pub const RWP: Self = Self(1 << 17);
    /// The kernel resolves faults of [`Self::RWP`] itself (Linux 7.3).
    pub const RWP_ASYNC: Self = Self(1 << 18);

    /// The features of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
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

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}
