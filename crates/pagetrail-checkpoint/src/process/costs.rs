//! What checkpoints cost the process, and when the next is due.

use crate::error::Result;
use pagetrail::{Overhead, Pace, Watch};
use std::time::{Duration, Instant};

/// What checkpoints may cost a process.
///
/// Counted are the faults that tracking causes from one checkpoint to the next, by what one costs
/// on this machine, and the pauses. The processor time and the memory bandwidth that copying and
/// writing take are not: the process has lost them only where it has no other processor to run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxOverhead {
    /// The largest share of its time, 0.03 for 3 %.
    pub share: f64,
    /// The shortest time from one checkpoint to the next.
    pub shortest: Duration,
    /// The longest. Where that does not suffice they cost more, and [`Overhead::is_kept`] says so.
    pub longest: Duration,
}

/// What was spent since the last checkpoint, if there is a budget.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    pace: Option<Pace>,
    pages: u64,
    stopped: Duration,
    last: Option<Overhead>,
}

impl Costs {
    pub(crate) fn new(watch: &Watch, max: Option<MaxOverhead>) -> Result<Self> {
        let pace = max.map(|max| {
            let intervals = max.shortest..=max.longest;
            Pace::new(watch.pid(), watch.technique(), max.share, intervals)
        });
        Ok(Self {
            pace: pace.transpose()?,
            ..Self::default()
        })
    }

    /// Counts pages that a round has reported.
    pub(crate) fn count_pages(&mut self, pages: u64) {
        self.pages += pages;
    }

    /// Counts a pause.
    pub(crate) fn count_stop(&mut self, time: Duration) {
        self.stopped += time;
    }

    /// A checkpoint was taken.
    pub(crate) fn settle(&mut self) {
        let (pages, stopped) = (self.pages, self.stopped);
        (self.pages, self.stopped) = (0, Duration::ZERO);
        self.last = self.pace.as_mut().map(|pace| pace.spend(pages, stopped));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    pub(crate) fn last(&self) -> Option<Overhead> {
        self.last
    }
}
