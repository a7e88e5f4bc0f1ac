//! The entries of guest page tables (and of shadow page tables, which have the same form).
//!
//! Bits as in the Intel manual, volume 3, section 5.5; the two software bits as Linux uses them. Who may
//! use a page (user/supervisor, no-execute) is not modelled.

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

macro_rules! flags {
    ($($bit:ident $get:ident $with:ident),+ $(,)?) => {
        $(
            pub(crate) const fn $get(self) -> bool {
                self.0 & $bit != 0
            }

            pub(crate) const fn $with(self, set: bool) -> Self {
                if set { Self(self.0 | $bit) } else { Self(self.0 & !$bit) }
            }
        )+
    };
}

impl Pte {
    /// A present, read-only entry that points to `to`.
    pub(crate) const fn to(to: Gpa) -> Self {
        Self(to.get() & ADDRESS | PRESENT)
    }

    pub(crate) const fn address(self) -> Gpa {
        Gpa::new(self.0 & ADDRESS)
    }

    flags!(
        PRESENT present with_present,
        WRITABLE writable with_writable,
        ACCESSED accessed with_accessed,
        DIRTY dirty with_dirty,
        LARGE large with_large,
        // Software: write-protected by userfaultfd.
        UFFD_WP uffd_wp with_uffd_wp,
        // Software: maps the shared zero page.
        ZERO_PAGE zero_page with_zero_page,
        // Software: written since the last clear_refs (bit 55 of a /proc/PID/pagemap entry).
        SOFT_DIRTY soft_dirty with_soft_dirty,
    );
}
