//! [`Source`]: reports the pages of a target that were accessed in a window.

mod damon;
mod frames;
mod idle;
mod replay;
mod rounds;
mod watched;

use pagetrail::{Mapped, PageRange, PageSet, page_size};

use crate::error::Result;
use crate::policy::{Sample, SourceCaps};

pub use damon::Damon;
pub use frames::Frames;
pub use idle::PageIdle;
pub use replay::Replay;
pub use rounds::Rounds;
pub use watched::{Watched, WatchedKind};

/// Name and capabilities of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Name of the source.
    pub name: &'static str,
    /// The kinds of access that the source reports.
    pub caps: SourceCaps,
    /// Whether the source reports single pages; `false` if it reports regions.
    pub pages: bool,
    /// Whether a page that is not sampled saves its program the cost of a fault.
    pub saves_faults: bool,
}

/// All user addresses of a process (47 bits).
fn everywhere() -> PageSet {
    PageSet::from_iter(PageRange::new(page_size(), (1 << 47) - page_size()))
}

/// Reports, window by window, which pages of a target were touched.
pub trait Source: Send {
    /// Describes the source.
    fn info(&self) -> SourceInfo;

    /// Ends a window and returns the pages accessed in it. A page that was reported is sampled
    /// again only after [`rearm`](Self::rearm).
    ///
    /// # Errors
    ///
    /// The target has ended ([`Error::means_end`](crate::Error::means_end)), or can no longer be
    /// tracked.
    fn window(&mut self) -> Result<Sample>;

    /// Arms pages, so that their next access is reported.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn rearm(&mut self, pages: &PageSet) -> Result<()>;

    /// Suspends sampling until the next window, so that it causes no faults meanwhile. The next
    /// window reports all pages.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the pages that exist now.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn mapped(&mut self) -> Result<Mapped>;

    /// Returns the pages that exist now at some addresses.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped>;
}
