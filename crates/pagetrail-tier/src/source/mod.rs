//! [`Source`]: what tells which pages of a target were touched in a window.

mod damon;
mod idle;
mod replay;
mod watched;

use pagetrail::{Mapped, PageRange, PageSet, page_size};

use crate::error::Result;
use crate::policy::{Sample, Tells};

pub use damon::Damon;
pub use idle::PageIdle;
pub use replay::Replay;
pub use watched::{Watched, WatchedKind};

/// What a source can tell, in one line for people and in bits for the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ability {
    /// Its name.
    pub name: &'static str,
    /// Reads, writes, or both.
    pub tells: Tells,
    /// Whether single pages are told apart, or regions only.
    pub pages: bool,
    /// Whether asking costs its program something that leaving a page alone saves.
    pub spares: bool,
}

/// All addresses that a process can have: the kernel refuses to look behind them.
fn everywhere() -> PageSet {
    PageSet::from_iter(PageRange::new(page_size(), (1 << 47) - page_size()))
}

/// Tells window by window which pages of a target were touched.
pub trait Source: Send {
    /// What it can tell.
    fn ability(&self) -> Ability;

    /// Ends a window, and tells what was touched in it. What it reports is asked about again only if it is
    /// [armed](Self::rearm).
    ///
    /// # Errors
    ///
    /// The target has ended ([`Error::means_end`](crate::Error::means_end)), or cannot be watched any longer.
    fn window(&mut self) -> Result<Sample>;

    /// Has pages told about in the windows to come.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn rearm(&mut self, pages: &PageSet) -> Result<()>;

    /// Has nothing told about until the next window, which tells of everything: a pause costs the target no faults.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    /// The pages that exist now.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn mapped(&mut self) -> Result<Mapped>;

    /// The same for some addresses only.
    ///
    /// # Errors
    ///
    /// As for [`window`](Self::window).
    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped>;
}
