//! [`Query`]: which pages a scan selects, and what it does with them.

use crate::categories::Categories;

/// Which pages a scan selects, what it reports of them, and whether it write-protects them.
///
/// A page is selected if it has all categories of `all_of` and, unless that is empty, at least one
/// of `any_of`; a category that is in `inverted` counts as present where it is absent.
///
/// ```
/// use pagemap_scan::{Categories, Query};
/// // Pages in memory or swapped out that are no file's.
/// let owned = Query {
///     inverted: Categories::FILE,
///     all_of: Categories::FILE,
///     any_of: Categories::PRESENT | Categories::SWAPPED,
///     ..Query::ALL
/// };
/// # let _ = owned;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Write-protect the selected pages in the same step; fail with `EPERM` at a mapping that is
    /// not registered for asynchronous write protection (`PM_SCAN_WP_MATCHING`).
    pub write_protect: bool,
    /// Fail with `EPERM` at a mapping that is not registered for asynchronous write protection
    /// (`PM_SCAN_CHECK_WPASYNC`); included in `write_protect`.
    pub only_registered: bool,
    /// Categories that select pages by their absence instead of their presence.
    pub inverted: Categories,
    /// Categories all of which a page must have.
    pub all_of: Categories,
    /// Categories at least one of which a page must have, unless empty.
    pub any_of: Categories,
    /// Categories to report; adjacent pages that agree in them share a range.
    pub report: Categories,
}

impl Query {
    /// Selects every page of every mapping, and reports no category.
    pub const ALL: Self = Self {
        write_protect: false,
        only_registered: false,
        inverted: Categories::NONE,
        all_of: Categories::NONE,
        any_of: Categories::NONE,
        report: Categories::NONE,
    };

    /// Selects the pages written since they were last write-protected, and write-protects them
    /// again. (Selecting and reporting that category alone takes the kernel's short path,
    /// `pagemap_scan_pmd_entry` in `fs/proc/task_mmu.c`.)
    pub const WRITTEN_SINCE_LAST_SCAN: Self = Self {
        write_protect: true,
        only_registered: true,
        all_of: Categories::WRITTEN,
        report: Categories::WRITTEN,
        ..Self::ALL
    };
}
