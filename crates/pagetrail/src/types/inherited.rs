//! [`Inherited`]: what a process still had of its parent's memory when it was attached to.

use crate::page_set::PageSet;

/// The memory that a process has had since its `fork(2)`, as it was when it was attached to.
///
/// After a fork both processes map the same page frames, and a page is copied at the first write to
/// it, by either of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inherited {
    /// Pages of private memory that the process and its parent had at the same address.
    pub pages: PageSet,
    /// The part of `pages` of which both had the same page frame: neither had written it since the
    /// fork.
    pub shared: PageSet,
}
