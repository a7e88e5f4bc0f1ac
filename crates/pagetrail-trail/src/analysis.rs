//! Numbers computed from a trail: rates, working sets, reuse, shares of mappings, costs.
//!
//! The functions are pure: they take a [`Trail`] and return numbers, without clock, files or
//! rendering. A *page* is [`Header::page_size`](crate::Header::page_size) bytes, whatever machine
//! this runs on; a range that touches a part of a page counts that page. A *page-write* is one page
//! in the write set of one round.
//!
//! Pages of new mappings ([`Round::newly_mapped`](crate::Round::newly_mapped)) are part of the
//! write set and so of every count. They are also counted separately.

use crate::history::History;
use crate::pages::{Cover, Covers, Pages};
use crate::{Predicted, Round, Trail};

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

/// The pages that one round wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundCounts {
    /// Pages in the write set.
    pub written_pages: u64,
    /// Pages of the write set that are reported only because their mapping is new.
    pub newly_mapped_pages: u64,
    /// Pages of the write set that the previous round wrote too; 0 in the first round.
    pub reused_pages: u64,
    /// Pages in the write set per second of the round; 0 when the round has no length.
    pub pages_per_second: f64,
}

/// The writes to one mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MappingCounts {
    /// Page-writes: a page written in five rounds counts five times.
    pub page_writes: u64,
    /// Page-writes reported only because the mapping was new in that round.
    pub newly_mapped_page_writes: u64,
    /// Number of different pages written.
    pub distinct_pages: u64,
    /// Rounds in which at least one page was written.
    pub rounds_written: u32,
    /// The mapping's share of all page-writes of the trail, 0 to 1.
    pub share: f64,
    /// Page-writes per second of the whole recording, so that mappings add up to the total.
    pub pages_per_second: f64,
}

/// The number of different pages written within a window of consecutive rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkingSet {
    /// Length of the window in rounds, one of [`WINDOWS`].
    pub window: u32,
    /// Number of windows in the trail, one ending at each round from the `window`-th on. It is 0 if
    /// the trail has fewer rounds; `mean_pages` and `max_pages` are then those of all its rounds
    /// together.
    pub windows: u32,
    /// Mean over the windows, in pages.
    pub mean_pages: f64,
    /// Largest over the windows, in pages.
    pub max_pages: u64,
}

/// The costs of the technique.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Time that collect took, in nanoseconds per round.
    pub collect_ns: Summary,
    /// Time of all collects together, in nanoseconds.
    pub collect_ns_sum: u64,
    /// Time for which the tracked process was stopped, in nanoseconds per round, without attaching.
    pub stopped_ns: Summary,
    /// Time for which the tracked process was stopped in all rounds together, in nanoseconds.
    pub stopped_ns_sum: u64,
    /// Time in which this kind of access was not tracked ([`Round::blind_ns`]), summed, in
    /// nanoseconds.
    pub blind_ns_sum: u64,
    /// Page faults that the technique caused, summed over the rounds that counted them; `None` if
    /// none did.
    pub faults: Option<u64>,
    /// Pages predicted dirty, summed over the rounds that have predictions; `memory_bytes` is the
    /// largest of any round. `None` if no round has predictions.
    pub predicted: Option<Predicted>,
}

/// The numbers of a whole trail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analysis {
    /// Counts for each round of the trail, in its order.
    pub rounds: Vec<RoundCounts>,
    /// Counts for each mapping of the trail, in its order. A page-write belongs to the mapping that
    /// covers the page in that round; if two do, to the one that appeared later.
    pub mappings: Vec<MappingCounts>,
    /// Writes outside all mappings that are known in that round.
    pub unmapped: MappingCounts,
    /// Length of all rounds together, in seconds.
    pub seconds: f64,
    /// Number of page-writes in all rounds.
    pub page_writes: u64,
    /// Page-writes reported only because their mapping was new in that round.
    pub newly_mapped_page_writes: u64,
    /// Number of different pages written, by address.
    pub distinct_pages: u64,
    /// Pages written per round.
    pub pages_per_round: Summary,
    /// Pages written per second: `mean` is all page-writes over all seconds, `median` and `max` are
    /// over rounds.
    pub pages_per_second: Summary,
    /// Working sets, one for each of [`WINDOWS`].
    pub working_sets: [WorkingSet; WINDOWS.len()],
    /// Share of the page-writes from the second round on whose page the previous round wrote too, 0
    /// to 1.
    pub reuse: f64,
    /// Number of pages by the number of rounds that wrote them: entry `i` counts pages written in
    /// at least 2^i and fewer than 2^(i+1) rounds (1, 2-3, 4-7, ..). The last entry is not 0.
    pub rounds_per_page: Vec<u64>,
    /// The costs of the technique.
    pub costs: Costs,
}

impl Analysis {
    /// Computes all numbers. Time and memory grow with the number of ranges in the trail, not with
    /// the number of pages in the ranges.
    pub fn of(trail: &Trail) -> Self {
        let mut analysis = Self {
            mappings: vec![MappingCounts::default(); trail.mappings.len()],
            seconds: trail.rounds.iter().map(|r| seconds(r.duration_ns)).sum(),
            costs: Costs::of(&trail.rounds),
            ..Self::default()
        };
        let pages = Pages::of(trail);
        let mut covers = Covers::of(trail);
        for round in &trail.rounds {
            analysis.count_round(pages, round, covers.advance(round.index));
        }
        analysis.add_history(History::of(trail, WINDOWS));
        analysis.add_rates();
        analysis
    }

    /// Counts everything that depends on this round only.
    fn count_round(&mut self, pages: Pages, round: &Round, cover: &Cover) {
        let mut counts = RoundCounts::default();
        let mut writers: Vec<Option<usize>> = Vec::new();
        cover.split(pages.runs(&round.written), |run, mapping| {
            let written = run.end - run.start;
            counts.written_pages += written;
            let of = self.mapping(mapping);
            of.page_writes = of.page_writes.saturating_add(written);
            if writers.last() != Some(&mapping) {
                writers.push(mapping);
            }
        });
        // A mapping occurs twice if another mapping lies inside it.
        writers.sort_unstable();
        writers.dedup();
        for mapping in writers {
            self.mapping(mapping).rounds_written += 1;
        }
        cover.split(pages.runs(&round.newly_mapped), |run, mapping| {
            let newly_mapped = run.end - run.start;
            counts.newly_mapped_pages += newly_mapped;
            let of = self.mapping(mapping);
            of.newly_mapped_page_writes = of.newly_mapped_page_writes.saturating_add(newly_mapped);
        });
        counts.pages_per_second = per_second(counts.written_pages, seconds(round.duration_ns));
        self.page_writes = self.page_writes.saturating_add(counts.written_pages);
        self.newly_mapped_page_writes = self
            .newly_mapped_page_writes
            .saturating_add(counts.newly_mapped_pages);
        self.rounds.push(counts);
    }

    /// Adds the counts that need the history of every page.
    fn add_history(&mut self, history: History<{ WINDOWS.len() }>) {
        for (round, reused_pages) in self.rounds.iter_mut().zip(history.reused_pages) {
            round.reused_pages = reused_pages;
        }
        let unmapped = std::iter::once(&mut self.unmapped);
        let counts = self.mappings.iter_mut().chain(unmapped);
        for (counts, distinct_pages) in counts.zip(history.distinct_pages) {
            counts.distinct_pages = distinct_pages;
        }
        self.distinct_pages = history.rounds_per_page.iter().sum();
        self.rounds_per_page = history.rounds_per_page;
        for (i, (window, pages)) in WINDOWS.into_iter().zip(history.window_pages).enumerate() {
            self.working_sets[i] = WorkingSet::of(window, &pages);
        }
    }

    /// Computes rates and shares from the counts.
    fn add_rates(&mut self) {
        let summary =
            |of: fn(&RoundCounts) -> f64| Summary::of(self.rounds.iter().map(of).collect());
        self.pages_per_round = summary(|round| round.written_pages as f64);
        self.pages_per_second = Summary {
            mean: per_second(self.page_writes, self.seconds),
            ..summary(|round| round.pages_per_second)
        };
        let later = self.rounds.iter().skip(1);
        let reused: f64 = later.clone().map(|round| round.reused_pages as f64).sum();
        self.reuse = ratio(reused, later.map(|round| round.written_pages as f64).sum());
        let unmapped = std::iter::once(&mut self.unmapped);
        for mapping in self.mappings.iter_mut().chain(unmapped) {
            mapping.share = ratio(mapping.page_writes as f64, self.page_writes as f64);
            mapping.pages_per_second = per_second(mapping.page_writes, self.seconds);
        }
    }

    fn mapping(&mut self, index: Option<usize>) -> &mut MappingCounts {
        match index {
            Some(index) => &mut self.mappings[index],
            None => &mut self.unmapped,
        }
    }
}

impl WorkingSet {
    /// Summarizes the number of pages in the window that ends at each round.
    fn of(window: u32, pages: &[u64]) -> Self {
        let full = pages.get(window as usize - 1..).unwrap_or_default();
        let counted = if full.is_empty() {
            &pages[pages.len().saturating_sub(1)..]
        } else {
            full
        };
        let sum: f64 = counted.iter().map(|pages| *pages as f64).sum();
        Self {
            window,
            windows: full.len() as u32,
            mean_pages: ratio(sum, counted.len() as f64),
            max_pages: counted.iter().copied().max().unwrap_or(0),
        }
    }
}

impl Costs {
    fn of(rounds: &[Round]) -> Self {
        let summary = |of: fn(&Round) -> u64| {
            let sum = rounds.iter().map(of).fold(0, u64::saturating_add);
            let values = rounds.iter().map(|round| of(round) as f64);
            (Summary::of(values.collect()), sum)
        };
        let (collect_ns, collect_ns_sum) = summary(|round| round.collect_ns);
        let (stopped_ns, stopped_ns_sum) = summary(|round| round.stopped_ns);
        let (_, blind_ns_sum) = summary(|round| round.blind_ns);
        let faults = rounds.iter().filter_map(|round| round.faults);
        let predicted = rounds.iter().filter_map(|round| round.predicted);
        Self {
            collect_ns,
            collect_ns_sum,
            stopped_ns,
            stopped_ns_sum,
            blind_ns_sum,
            faults: faults.reduce(u64::saturating_add),
            predicted: predicted.reduce(|a, b| Predicted {
                pages: a.pages.saturating_add(b.pages),
                faults_avoided: a.faults_avoided.saturating_add(b.faults_avoided),
                false_positives: a.false_positives.saturating_add(b.false_positives),
                memory_bytes: a.memory_bytes.max(b.memory_bytes),
            }),
        }
    }
}

impl Summary {
    fn of(mut values: Vec<f64>) -> Self {
        let Some(last) = values.len().checked_sub(1) else {
            return Self::default();
        };
        values.sort_unstable_by(f64::total_cmp);
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            median: f64::midpoint(values[last / 2], values[last.div_ceil(2)]),
            max: values[last],
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn per_second(count: u64, seconds: f64) -> f64 {
    ratio(count as f64, seconds)
}

/// Divides, or returns 0 if `whole` is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
