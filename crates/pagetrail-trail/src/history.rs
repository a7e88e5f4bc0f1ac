//! Counts that need the history of every page: distinct pages, reuse, working sets.
//!
//! The address space is processed in shards that fit into the processor's caches; ten million pages
//! visited round by round would miss the caches each time. Within a shard, pages with the same
//! history form one segment, so that the cost grows with the number of ranges, not of pages.

use std::ops::Range;

use pagetrail::PageSet;

use crate::Trail;
use crate::pages::{Cover, Covers, Pages, Run, seek};

/// Ranges per shard; about two megabytes of state.
const SHARD_RANGES: usize = 1 << 16;

/// Sums over the histories of all pages.
#[derive(Debug, PartialEq)]
pub(crate) struct History<const WINDOWS: usize> {
    /// For each round the number of its pages that the previous round wrote too.
    pub(crate) reused_pages: Vec<u64>,
    /// For each mapping the number of different pages written in it; the last entry is for pages in
    /// no mapping.
    pub(crate) distinct_pages: Vec<u64>,
    /// Pages by the number of rounds that wrote them: 1, 2-3, 4-7, ..
    pub(crate) rounds_per_page: Vec<u64>,
    /// For each window length and each round the number of different pages written in the window
    /// that ends with that round, which is shorter near the first round.
    pub(crate) window_pages: [Vec<u64>; WINDOWS],
}

/// Consecutive pages that every round writes as a whole or not at all, and that at any time lie in
/// one mapping or in none.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Position of the last round that wrote the segment, plus 1; 0 if none did.
    last: u32,
    /// Number of rounds that wrote the segment.
    rounds: u32,
    /// Index of the last mapping in which the segment was written, plus 1; 0 if there was none. A
    /// mapping that vanished does not return, so the last one is enough to count distinct pages per
    /// mapping.
    mapping: u32,
    /// Whether the segment was written while no mapping covered it.
    unmapped: bool,
}

impl<const WINDOWS: usize> History<WINDOWS> {
    pub(crate) fn of(trail: &Trail, windows: [u32; WINDOWS]) -> Self {
        Self::in_shards(trail, windows, SHARD_RANGES)
    }

    fn in_shards(trail: &Trail, windows: [u32; WINDOWS], shard_ranges: usize) -> Self {
        let mut history = Self {
            reused_pages: vec![0; trail.rounds.len()],
            distinct_pages: vec![0; trail.mappings.len() + 1],
            rounds_per_page: Vec::new(),
            window_pages: std::array::from_fn(|_| vec![0; trail.rounds.len()]),
        };
        // For each round the position of its first range that reaches into the current shard or
        // beyond.
        let mut cursors = vec![0; trail.rounds.len()];
        for shard in shards(trail, shard_ranges) {
            history.shard(trail, windows, &shard, &mut cursors);
        }
        for pages in &mut history.window_pages {
            // So far each entry is the pages that enter the window minus those that leave it.
            let mut sum = 0_u64;
            for change in pages {
                sum = sum.wrapping_add(*change);
                *change = sum;
            }
        }
        history
    }

    fn shard(
        &mut self,
        trail: &Trail,
        windows: [u32; WINDOWS],
        shard: &Run,
        cursors: &mut [usize],
    ) {
        let pages = Pages::of(trail);
        let mut runs: Vec<Run> = Vec::new();
        let mut runs_of_round: Vec<Range<usize>> = Vec::new();
        for (round, cursor) in trail.rounds.iter().zip(cursors) {
            let first = runs.len();
            clip(pages, &round.written, shard, cursor, &mut runs);
            runs_of_round.push(first..runs.len());
        }
        let mut covers = Covers::within(trail, shard);
        let bounds = bounds(&runs, covers.runs());
        let mut segments = vec![Segment::default(); bounds.len()];
        for (position, of_round) in runs_of_round.into_iter().enumerate() {
            if of_round.is_empty() {
                continue;
            }
            let cover: &Cover = covers.advance(trail.rounds[position].index);
            let mut from = 0;
            cover.split(runs[of_round].iter().cloned(), |run, mapping| {
                from = seek(&bounds, from, |bound| *bound < run.start);
                while bounds[from] < run.end {
                    let pages = bounds[from + 1] - bounds[from];
                    self.written(&mut segments[from], pages, position, mapping, windows);
                    from += 1;
                }
            });
        }
        for (segment, bounds) in segments.iter().zip(bounds.windows(2)) {
            if segment.rounds > 0 {
                let bucket = segment.rounds.ilog2() as usize;
                if self.rounds_per_page.len() <= bucket {
                    self.rounds_per_page.resize(bucket + 1, 0);
                }
                self.rounds_per_page[bucket] += bounds[1] - bounds[0];
            }
        }
    }

    /// Notes that the round at `position` wrote a segment.
    fn written(
        &mut self,
        segment: &mut Segment,
        pages: u64,
        position: usize,
        mapping: Option<usize>,
        windows: [u32; WINDOWS],
    ) {
        let before = (segment.last as usize).checked_sub(1);
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
            let index = mapping.unwrap_or(self.distinct_pages.len() - 1);
            self.distinct_pages[index] += pages;
        }
        if before.is_some_and(|before| before + 1 == position) {
            self.reused_pages[position] += pages;
        }
        for (changes, length) in self.window_pages.iter_mut().zip(windows) {
            let length = length as usize;
            // It enters now, or it does not leave when its last write would have left.
            let leaves = before.map(|before| before + length);
            let enters = leaves
                .filter(|leaves| *leaves > position)
                .unwrap_or(position);
            if let Some(change) = changes.get_mut(enters) {
                *change = change.wrapping_add(pages);
            }
            if let Some(change) = changes.get_mut(position + length) {
                *change = change.wrapping_sub(pages);
            }
        }
    }
}

/// Cuts the pages into shards with about `shard_ranges` ranges each, by a sample of the ranges.
fn shards(trail: &Trail, shard_ranges: usize) -> Vec<Run> {
    let ranges = || trail.rounds.iter().flat_map(|round| round.written.ranges());
    let total: usize = trail.rounds.iter().map(|r| r.written.ranges().len()).sum();
    // Each shard visits each round: not more often than there are ranges to see.
    let count = (total / shard_ranges).min(4 * total / trail.rounds.len().max(1));
    let mut cuts = vec![0];
    if count > 1 {
        let pages = Pages::of(trail);
        let step = (shard_ranges / 64).max(1);
        let sampled = ranges().step_by(step);
        let mut sample: Vec<u64> = sampled.map(|range| pages.run(*range).start).collect();
        sample.sort_unstable();
        cuts.extend((1..count).map(|index| sample[index * sample.len() / count]));
        cuts.dedup();
    }
    let ends = cuts[1..].iter().copied().chain([u64::MAX]);
    cuts.iter()
        .zip(ends)
        .map(|(start, end)| *start..end)
        .collect()
}

/// Appends the runs of a set within `shard`, and moves the cursor to the first range beyond it.
fn clip(pages: Pages, set: &PageSet, shard: &Run, cursor: &mut usize, runs: &mut Vec<Run>) {
    let mut end = shard.start;
    while let Some(range) = set.ranges().get(*cursor) {
        let run = pages.run(*range);
        if run.start >= shard.end {
            break;
        }
        // Two ranges smaller than a page may touch the same page.
        let clipped = run.start.max(end)..run.end.min(shard.end);
        if clipped.start < clipped.end {
            end = clipped.end;
            runs.push(clipped);
        }
        if run.end > shard.end {
            break;
        }
        *cursor += 1;
    }
}

/// All places where a segment begins or ends, ascending.
fn bounds(runs: &[Run], mappings: impl Iterator<Item = Run>) -> Vec<u64> {
    let runs = runs.iter().cloned().chain(mappings);
    let mut bounds: Vec<u64> = runs.flat_map(|run| [run.start, run.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

#[cfg(test)]
mod tests {
    use pagetrail::PageRange;

    use super::*;
    use crate::{Mapping, Round};

    /// One shard for all is tested through the analysis; many must come to the same.
    #[test]
    fn shards_of_all_sizes_add_up_to_the_same() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut range = |bytes_max: u64| {
            let start = random.u64(0..100_000);
            PageRange::new(start, start + random.u64(1..bytes_max)).unwrap()
        };
        for _ in 0..30 {
            let mut trail = Trail::default();
            trail.header.page_size = 256;
            trail.rounds = (0..20)
                .map(|index| Round {
                    index,
                    written: (0..40).map(|_| range(2000)).collect(),
                    ..Round::default()
                })
                .collect();
            trail.mappings = (0..10)
                .map(|index| Mapping {
                    range: range(20_000),
                    name: String::new(),
                    permissions: String::new(),
                    untracked: None,
                    shared: None,
                    first_round: index,
                    last_round: Some(index + 5),
                })
                .collect();
            let whole = History::of(&trail, [1, 3, 30]);
            for shard_ranges in [10, 33, 100] {
                assert!(shards(&trail, shard_ranges).len() > 3);
                let sum = History::in_shards(&trail, [1, 3, 30], shard_ranges);
                assert_eq!(sum, whole);
            }
        }
    }
}
