//! [`Mover`]: carries out plans, and reports in which tier pages are.

mod ledger;
mod node;
mod pace;
mod swap;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use pagetrail::{Mapped, PageRange};

use crate::error::Result;
use crate::policy::plan::Unit;
use crate::policy::table::{Place, Run};

pub use ledger::Ledger;
pub use node::{Kernel, NodeMover, NodeOptions, System};
pub use swap::SwapMover;

/// The reason why a page was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// No memory where it should go.
    NoRoom,
    /// It was in use, by a device or another migration: `EBUSY`.
    Busy,
    /// Other processes map it as well: `EACCES` of the page.
    Shared,
    /// It is not in memory, or no longer mapped: `ENOENT`, `EFAULT`.
    Absent,
    /// The process has ended: `ESRCH`.
    Ended,
    /// The kernel refuses: `EPERM`, `EINVAL` and similar errors, or `EACCES` of the whole call,
    /// because the target's cpuset does not allow the node.
    Refused,
    /// The time for moving ended, or fast memory was full, before this page was reached.
    NotTried,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::NoRoom,
        Self::Busy,
        Self::Shared,
        Self::Absent,
        Self::Ended,
        Self::Refused,
        Self::NotTried,
    ];

    /// The name used in files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRoom => "no-room",
            Self::Busy => "busy",
            Self::Shared => "shared",
            Self::Absent => "absent",
            Self::Ended => "ended",
            Self::Refused => "refused",
            Self::NotTried => "not-tried",
        }
    }

    /// Whether the page is the cause: retried at once, it would delay other pages.
    pub fn is_the_pages(self) -> bool {
        matches!(self, Self::Busy | Self::Shared | Self::Refused)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The outcome of a list of moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The pages that were moved.
    pub moved: Vec<Unit>,
    /// The pages that were not moved, and the reasons.
    pub failed: Vec<(Unit, Reason)>,
    /// Duration of the moves.
    pub took: Duration,
}

impl Outcome {
    /// Bytes that were moved.
    pub fn moved_bytes(&self) -> u64 {
        self.moved.iter().map(|unit| unit.bytes).sum()
    }

    /// Whether fast memory was found full, or is left alone because it was: more is not to be tried
    /// soon.
    pub(crate) fn has_no_room(&self) -> bool {
        let skipped = self.moved.is_empty()
            && (self.failed.iter()).all(|(_, reason)| *reason == Reason::NotTried);
        let full = |(_, reason): &(Unit, Reason)| *reason == Reason::NoRoom;
        skipped || self.failed.iter().any(full)
    }

    /// Units that were not moved, by reason.
    pub fn failures(&self) -> BTreeMap<Reason, u64> {
        let mut counts = BTreeMap::new();
        for (_, reason) in &self.failed {
            *counts.entry(*reason).or_default() += 1;
        }
        counts
    }
}

/// Moves the pages of one target.
pub trait Mover: Send {
    /// Returns the places of pages in ascending order, without pages that are in no memory.
    ///
    /// # Errors
    ///
    /// The target has ended, or its pages may not be read.
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>>;

    /// Moves units to fast or slow memory, in their order, as far as it gets within `timeout`.
    fn carry_out(&mut self, units: &[Unit], to: Place, timeout: Duration) -> Outcome;

    /// Whether the mover only pretends to move.
    fn is_dry(&self) -> bool {
        false
    }
}

/// A mover that reports where pages are and moves none, for dry runs.
pub struct DryRun<M>(pub M);

impl<M: Mover> Mover for DryRun<M> {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>> {
        self.0.places(mapped)
    }

    fn carry_out(&mut self, units: &[Unit], _: Place, _: Duration) -> Outcome {
        Outcome {
            failed: units.iter().map(|unit| (*unit, Reason::NotTried)).collect(),
            ..Outcome::default()
        }
    }

    fn is_dry(&self) -> bool {
        true
    }
}

/// Joins neighbouring pages that are alike into runs. Pages come in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Runs(Vec<Run>);

impl Runs {
    pub(crate) fn push(&mut self, range: PageRange, place: Place, huge: bool) {
        if let Some(last) = self.0.last_mut()
            && last.range.end() == range.start()
            && (last.place, last.huge) == (place, huge)
            && let Some(longer) = PageRange::new(last.range.start(), range.end())
        {
            last.range = longer;
            return;
        }
        self.0.push(Run {
            range,
            place,
            huge,
            fixed: false,
        });
    }

    pub(crate) fn finish(self) -> Vec<Run> {
        self.0
    }
}
