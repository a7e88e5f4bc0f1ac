//! [`Collected`]: a round of the guest, as the recorder gets it.

use pagetrail::{PageRange, PageSet};

/// A round of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// The pages dirtied since the last round.
    pub written: PageSet,
    /// The pages accessed since the last round (read, written, or executed), if that was
    /// [requested](crate::Settings::accesses).
    pub accessed: Option<PageSet>,
    /// The pages that the program has mapped.
    pub areas: PageSet,
    /// The mapped range below the program's break, which is the program's `[heap]`; the kernel
    /// gives that name to the machine's own heap.
    pub heap: Option<PageRange>,
    /// The stack of the program's first thread, which is the program's `[stack]`.
    pub stack: Option<PageRange>,
    /// The number of dirty-ring entries in this round.
    pub ring_entries: u64,
    /// Numbers of system calls that [`crate`] does not know, and that no earlier round has listed.
    /// For each such call all writable memory counts as written.
    pub unknown_calls: Vec<u64>,
}
