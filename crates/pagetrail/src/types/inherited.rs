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
    /// The part of `pages` of which both had the same page frame at the same address then, and so
    /// the same content. Mostly neither has written it since the fork; but both may have moved
    /// the same memory there, or discarded it, or the kernel has merged equal pages (KSM). Who
    /// rebuilds the process's memory takes these pages from the parent's, as it was then.
    pub shared: PageSet,
}
