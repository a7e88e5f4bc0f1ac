//! What can be computed from a trail: rates, working sets, reuse, shares of mappings, costs.
//!
//! Pure functions: a [`Trail`] in, numbers out; no clock, no file, no rendering. A *page* is
//! [`Header::page_size`](crate::Header::page_size) bytes, whatever machine this runs on; a range that
//! touches a part of a page counts that page. A *page-write* is one page in the write set of one round.
//!
//! Fresh pages ([`Round::fresh`](crate::Round::fresh)) are part of every count, as they are part of the
//! write set, and are counted once more beside it, so that a reader can tell them apart.

use crate::pages::{Cover, Covers, Pages, seek};
use crate::{Round, Trail};

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
    pub fn of(trail: &Trail) -> Self {
        let mut counting = Counting::new(trail);
        let mut covers = Covers::of(trail);
        for (position, round) in (0..).zip(&trail.rounds) {
            counting.round(position, round, covers.advance(round.index));
        }
        counting.finish(trail)
    }
}

/// Consecutive pages that every round writes as a whole or not at all, and that at any time lie in one
/// mapping or in none.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Position of the last round that wrote it, plus 1; 0 when none did.
    last: u32,
    /// How many rounds wrote it.
    rounds: u32,
    /// Index of the last mapping in which it was written, plus 1; 0 when there was none. A mapping that
    /// vanished does not come back, so that one is enough to count distinct pages per mapping.
    mapping: u32,
    /// Whether it was written while in no mapping.
    unmapped: bool,
}

/// The numbers while rounds go by.
struct Counting {
    pages: Pages,
    /// Where segments begin, in page numbers; the last one only ends the last but one.
    bounds: Vec<u64>,
    segments: Vec<Segment>,
    /// For each round the pages whose last round it is.
    last_written: Vec<u64>,
    windows: [Window; WINDOWS.len()],
    analysis: Analysis,
}

/// A working set while the window slides.
#[derive(Default)]
struct Window {
    pages: u64,
    sum: f64,
    count: u32,
    max: u64,
}

impl Counting {
    fn new(trail: &Trail) -> Self {
        let pages = Pages::of(trail);
        let bounds = bounds(trail, pages);
        Self {
            pages,
            segments: vec![Segment::default(); bounds.len()],
            bounds,
            last_written: vec![0; trail.rounds.len()],
            windows: Default::default(),
            analysis: Analysis {
                mappings: vec![MappingCounts::default(); trail.mappings.len()],
                ..Analysis::default()
            },
        }
    }

    fn round(&mut self, position: usize, round: &Round, cover: &Cover) {
        for (window, length) in self.windows.iter_mut().zip(WINDOWS) {
            if let Some(left) = position.checked_sub(length as usize) {
                window.pages -= self.last_written[left];
            }
        }
        let mut counts = RoundCounts::default();
        let mut writers: Vec<Option<usize>> = Vec::new();
        let mut from = 0;
        cover.split(self.pages.runs(&round.written), |run, mapping| {
            let written = run.end - run.start;
            counts.written_pages += written;
            let of = self.analysis.mapping(mapping);
            of.page_writes = of.page_writes.saturating_add(written);
            if writers.last() != Some(&mapping) {
                writers.push(mapping);
            }
            from = seek(&self.bounds, from, |bound| *bound < run.start);
            while self.bounds[from] < run.end {
                counts.reused_pages += self.segment(from, position, mapping);
                from += 1;
            }
        });
        // A mapping comes twice when another lies inside it.
        writers.sort_unstable();
        writers.dedup();
        for mapping in writers {
            self.analysis.mapping(mapping).rounds_written += 1;
        }
        cover.split(self.pages.runs(&round.fresh), |run, mapping| {
            let fresh = run.end - run.start;
            counts.fresh_pages += fresh;
            let of = self.analysis.mapping(mapping);
            of.fresh_page_writes = of.fresh_page_writes.saturating_add(fresh);
        });
        counts.pages_per_second = per_second(counts.written_pages, seconds(round.duration_ns));
        self.analysis.rounds.push(counts);
        for (window, length) in self.windows.iter_mut().zip(WINDOWS) {
            if position + 1 >= length as usize {
                window.sum += window.pages as f64;
                window.count += 1;
                window.max = window.max.max(window.pages);
            }
        }
    }

    /// Notes that a round wrote a segment. Returns how many of its pages the round before wrote too.
    fn segment(&mut self, index: usize, position: usize, mapping: Option<usize>) -> u64 {
        let pages = self.bounds[index + 1] - self.bounds[index];
        let segment = &mut self.segments[index];
        let before = (segment.last as usize).checked_sub(1);
        if let Some(before) = before {
            self.last_written[before] -= pages;
        }
        self.last_written[position] += pages;
        for (window, length) in self.windows.iter_mut().zip(WINDOWS) {
            if before.is_none_or(|before| before + length as usize <= position) {
                window.pages += pages;
            }
        }
        segment.last = position as u32 + 1;
        segment.rounds += 1;
        let new = match mapping {
            None => !std::mem::replace(&mut segment.unmapped, true),
            Some(mapping) => {
                let mapping = mapping as u32 + 1;
                std::mem::replace(&mut segment.mapping, mapping) != mapping
            }
        };
        if new {
            self.analysis.mapping(mapping).distinct_pages += pages;
        }
        if before.is_some_and(|before| before + 1 == position) {
            pages
        } else {
            0
        }
    }

    fn finish(self, trail: &Trail) -> Analysis {
        let mut analysis = self.analysis;
        for (segment, bounds) in self.segments.iter().zip(self.bounds.windows(2)) {
            if segment.rounds > 0 {
                let pages = bounds[1] - bounds[0];
                let bucket = segment.rounds.ilog2() as usize;
                if analysis.rounds_per_page.len() <= bucket {
                    analysis.rounds_per_page.resize(bucket + 1, 0);
                }
                analysis.rounds_per_page[bucket] += pages;
                analysis.distinct_pages += pages;
            }
        }
        let rounds = &analysis.rounds;
        let sum = |of: fn(&RoundCounts) -> u64, from: usize| {
            let counts = rounds.iter().skip(from).map(of);
            counts.fold(0, u64::saturating_add)
        };
        analysis.seconds = trail.rounds.iter().map(|r| seconds(r.duration_ns)).sum();
        analysis.page_writes = sum(|round| round.written_pages, 0);
        analysis.fresh_page_writes = sum(|round| round.fresh_pages, 0);
        let reusable = sum(|round| round.written_pages, 1);
        analysis.reuse = ratio(sum(|round| round.reused_pages, 1) as f64, reusable as f64);
        analysis.pages_per_round =
            Summary::of(rounds.iter().map(|r| r.written_pages as f64).collect());
        analysis.pages_per_second = Summary {
            mean: per_second(analysis.page_writes, analysis.seconds),
            ..Summary::of(rounds.iter().map(|r| r.pages_per_second).collect())
        };
        let all_rounds = (analysis.page_writes, analysis.seconds);
        let unmapped = std::iter::once(&mut analysis.unmapped);
        for mapping in analysis.mappings.iter_mut().chain(unmapped) {
            mapping.share = ratio(mapping.page_writes as f64, all_rounds.0 as f64);
            mapping.pages_per_second = per_second(mapping.page_writes, all_rounds.1);
        }
        for (i, window) in self.windows.iter().enumerate() {
            analysis.working_sets[i] = WorkingSet {
                window: WINDOWS[i],
                windows: window.count,
                mean_pages: match window.count {
                    0 => window.pages as f64,
                    count => window.sum / f64::from(count),
                },
                max_pages: window.max.max(window.pages),
            };
        }
        analysis.costs = Costs::of(&trail.rounds);
        analysis
    }
}

/// All places where a segment begins or ends, ascending.
fn bounds(trail: &Trail, pages: Pages) -> Vec<u64> {
    const BATCH: usize = 1 << 20;
    let mut bounds: Vec<u64> = Vec::new();
    let mut batch_end = BATCH;
    for mapping in &trail.mappings {
        let run = pages.run(mapping.range);
        bounds.extend([run.start, run.end]);
    }
    for round in &trail.rounds {
        for run in pages.runs(&round.written) {
            // Runs that touch, which sub-page ranges can make, share a bound.
            bounds.extend([run.start, run.end]);
        }
        // Rounds mostly repeat pages: what is the same is dropped before memory fills with it.
        if bounds.len() > batch_end {
            bounds.sort_unstable();
            bounds.dedup();
            batch_end = bounds.len() * 2 + BATCH;
        }
    }
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

impl Analysis {
    fn mapping(&mut self, index: Option<usize>) -> &mut MappingCounts {
        match index {
            Some(index) => &mut self.mappings[index],
            None => &mut self.unmapped,
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
        let faults = rounds.iter().filter_map(|round| round.faults);
        Self {
            collect_ns,
            collect_ns_sum,
            stopped_ns,
            stopped_ns_sum,
            faults: faults.reduce(u64::saturating_add),
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

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
