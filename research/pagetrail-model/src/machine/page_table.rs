//! The entries of guest page tables (and of shadow page tables, which have the same form).
//!
//! Bits as in the Intel manual, volume 3, section 5.5; the two software bits as Linux uses them.
//! Who may use a page (user/supervisor, no-execute) is not modelled.

use super::address::Gpa;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const UFFD_WP: u64 = 1 << 10;
const ZERO_PAGE: u64 = 1 << 11;
const SOFT_DIRTY: u64 = 1 << 58;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// One entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pte(pub(crate) u64);

impl Pte {
    /// A present, read-only entry that points to `to`.
    pub(crate) const fn to(to: Gpa) -> Self {
        Self(to.get() & ADDRESS | PRESENT)
    }

    pub(crate) const fn address(self) -> Gpa {
        Gpa::new(self.0 & ADDRESS)
    }

    pub(crate) const fn present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(crate) const fn writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    pub(crate) const fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    pub(crate) const fn large(self) -> bool {
        self.0 & LARGE != 0
    }

    /// Software: write-protected by userfaultfd.
    pub(crate) const fn uffd_wp(self) -> bool {
        self.0 & UFFD_WP != 0
    }

    /// Software: maps the shared zero page.
    pub(crate) const fn zero_page(self) -> bool {
        self.0 & ZERO_PAGE != 0
    }

    /// Software: written since the last clear_refs (bit 55 of a /proc/PID/pagemap entry).
    pub(crate) const fn soft_dirty(self) -> bool {
        self.0 & SOFT_DIRTY != 0
    }

    pub(crate) const fn with_writable(self, set: bool) -> Self {
        self.with(WRITABLE, set)
    }

    pub(crate) const fn with_accessed(self, set: bool) -> Self {
        self.with(ACCESSED, set)
    }

    pub(crate) const fn with_dirty(self, set: bool) -> Self {
        self.with(DIRTY, set)
    }

    pub(crate) const fn with_large(self, set: bool) -> Self {
        self.with(LARGE, set)
    }

    pub(crate) const fn with_uffd_wp(self, set: bool) -> Self {
        self.with(UFFD_WP, set)
    }

    pub(crate) const fn with_zero_page(self, set: bool) -> Self {
        self.with(ZERO_PAGE, set)
    }

    pub(crate) const fn with_soft_dirty(self, set: bool) -> Self {
        self.with(SOFT_DIRTY, set)
    }

    const fn with(self, bit: u64, set: bool) -> Self {
        if set {
            Self(self.0 | bit)
        } else {
            Self(self.0 & !bit)
        }
    }
}
