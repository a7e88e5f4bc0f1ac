//! Page numbers: sets as runs of pages of the recording machine, and the mapping that covers a page
//! in each round.

use std::collections::{BTreeMap, btree_map};
use std::ops::Range;

use pagetrail::{PageRange, PageSet};

use crate::{Mapping, Trail};

/// Consecutive pages by number; never empty.
pub(crate) type Run = Range<u64>;

/// Converts between addresses and page numbers of one trail.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    shift: u32,
}

impl Pages {
    pub(crate) fn of(trail: &Trail) -> Self {
        // A trail that was never in a file may lack its page size.
        let shift = trail.header.page_size.max(1).ilog2();
        Self { shift }
    }

    /// Returns the pages that a range touches.
    pub(crate) fn run(self, range: PageRange) -> Run {
        range.start() >> self.shift..((range.end() - 1) >> self.shift) + 1
    }

    /// Returns the pages that a set touches, ascending, each once.
    pub(crate) fn runs(self, set: &PageSet) -> impl Iterator<Item = Run> + '_ {
        let mut covered = 0;
        set.ranges().iter().filter_map(move |range| {
            // Two ranges smaller than a page may touch the same page.
            let run = self.run(*range);
            let run = run.start.max(covered)..run.end;
            covered = run.end;
            (run.start < run.end).then_some(run)
        })
    }

    /// Returns the addresses of a run.
    pub(crate) fn range(self, run: &Run) -> PageRange {
        let end = ((run.end - 1) << self.shift).saturating_add(1 << self.shift);
        PageRange::new(run.start << self.shift, end).expect("runs are never empty")
    }
}

/// Returns the first position from `from` on whose value is not `below`. Fast if it is near
/// (galloping search).
pub(crate) fn seek<T>(sorted: &[T], from: usize, below: impl Fn(&T) -> bool) -> usize {
    let mut step = 1;
    while sorted.get(from + step).is_some_and(&below) {
        step *= 2;
    }
    let end = sorted.len().min(from + step + 1);
    from + sorted[from..end].partition_point(below)
}

/// The mapping that covers each page; the newest if several do.
#[derive(Default)]
pub(crate) struct Cover {
    /// Disjoint pieces: first page, to the page after the last and the mapping's index.
    pieces: BTreeMap<u64, (u64, usize)>,
}

impl Cover {
    /// Covers the pages of `run` with a mapping, which replaces earlier ones there.
    pub(crate) fn paint(&mut self, run: Run, mapping: usize) {
        if let Some((_, (end, below))) = self.pieces.range_mut(..run.start).next_back()
            && *end > run.start
        {
            let tail = (*end, *below);
            *end = run.start;
            if tail.0 > run.end {
                self.pieces.insert(run.end, tail);
            }
        }
        while let Some((&start, &(end, below))) = self.pieces.range(run.clone()).next() {
            self.pieces.remove(&start);
            if end > run.end {
                self.pieces.insert(run.end, (end, below));
            }
        }
        self.pieces.insert(run.start, (run.end, mapping));
    }

    /// Removes the pieces of a mapping within `run`.
    fn wipe(&mut self, run: Run, mapping: usize) {
        let pieces = self.pieces.range(run).filter(|(_, (_, of))| *of == mapping);
        let starts: Vec<u64> = pieces.map(|(start, _)| *start).collect();
        for start in starts {
            self.pieces.remove(&start);
        }
    }

    /// Splits runs, which must ascend, where the mapping changes.
    pub(crate) fn split(
        &self,
        runs: impl Iterator<Item = Run>,
        mut take: impl FnMut(Run, Option<usize>),
    ) {
        let mut walk = Walk::through(&self.pieces);
        let (mut mapping, mut until) = (None, 0);
        for mut run in runs {
            while run.start < run.end {
                if run.start >= until {
                    (mapping, until) = walk.at(run.start);
                }
                let end = run.end.min(until);
                take(run.start..end, mapping);
                run.start = end;
            }
        }
    }
}

/// Pieces that are passed one by one before the tree is searched anew: the next run is mostly near.
const STEPS_MAX: usize = 8;

/// Looks for pages that ascend in the pieces of a [`Cover`].
struct Walk<'a> {
    pieces: &'a BTreeMap<u64, (u64, usize)>,
    /// The pieces after `next`.
    ahead: btree_map::Range<'a, u64, (u64, usize)>,
    /// The first piece that may not have ended before the page that is looked for.
    next: Option<(&'a u64, &'a (u64, usize))>,
}

impl<'a> Walk<'a> {
    fn through(pieces: &'a BTreeMap<u64, (u64, usize)>) -> Self {
        let mut ahead = pieces.range(..);
        let next = ahead.next();
        Self {
            pieces,
            ahead,
            next,
        }
    }

    /// Returns the mapping that covers `page`, and the page at which that changes.
    fn at(&mut self, page: u64) -> (Option<usize>, u64) {
        let mut steps = 0;
        while let Some((&start, &(end, mapping))) = self.next {
            if page < end {
                return match page < start {
                    true => (None, start),
                    false => (Some(mapping), end),
                };
            }
            if steps == STEPS_MAX {
                let before = self.pieces.range(..=page).next_back();
                let from = before.map_or(page, |(start, _)| *start);
                self.ahead = self.pieces.range(from..);
            }
            steps += 1;
            self.next = self.ahead.next();
        }
        (None, u64::MAX)
    }
}

/// Computes the cover of each round, in order.
pub(crate) struct Covers<'a> {
    mappings: &'a [Mapping],
    pages: Pages,
    cover: Cover,
    /// Mappings still to appear, the next one last.
    appear: Vec<usize>,
    /// Mappings still to vanish, the next one last.
    vanish: Vec<(u32, usize)>,
}

impl<'a> Covers<'a> {
    /// Covers of all pages.
    pub(crate) fn of(trail: &'a Trail) -> Self {
        Self::within(trail, &(0..u64::MAX))
    }

    /// Covers of the pages in `part`; mappings outside of it may be missing.
    pub(crate) fn within(trail: &'a Trail, part: &Run) -> Self {
        let pages = Pages::of(trail);
        let mappings = &trail.mappings[..];
        let mut appear: Vec<usize> = (0..mappings.len())
            .filter(|index| {
                let run = pages.run(mappings[*index].range);
                run.start < part.end && part.start < run.end
            })
            .collect();
        let mut vanish: Vec<(u32, usize)> = appear
            .iter()
            .filter_map(|index| Some((mappings[*index].last_round?, *index)))
            .collect();
        appear.sort_by_key(|index| mappings[*index].first_round);
        appear.reverse();
        vanish.sort_unstable();
        vanish.reverse();
        Self {
            mappings,
            pages,
            cover: Cover::default(),
            appear,
            vanish,
        }
    }

    /// Returns the pages of all mappings that have not appeared yet.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mappings = self.appear.iter().map(|index| &self.mappings[*index]);
        mappings.map(|mapping| self.pages.run(mapping.range))
    }

    /// Returns the cover of a round; rounds must ascend from call to call.
    pub(crate) fn advance(&mut self, round: u32) -> &Cover {
        while let Some((_, index)) = self.vanish.pop_if(|(last, _)| *last < round) {
            let run = self.pages.run(self.mappings[index].range);
            self.cover.wipe(run, index);
        }
        let mappings = self.mappings;
        while let Some(index) = self
            .appear
            .pop_if(|index| mappings[*index].first_round <= round)
        {
            let mapping = &mappings[index];
            if mapping.last_round.is_none_or(|last| last >= round) {
                self.cover.paint(self.pages.run(mapping.range), index);
            }
        }
        &self.cover
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares painting and wiping with a table that has one entry per page.
    #[test]
    fn cover_agrees_with_a_table_of_pages() {
        const PAGES: u64 = 40;
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let mut cover = Cover::default();
            let mut table = [None; PAGES as usize];
            let mut painted: Vec<Run> = Vec::new();
            for index in 0..12 {
                let start = random.u64(0..PAGES - 1);
                let run = start..random.u64(start + 1..PAGES);
                cover.paint(run.clone(), index);
                table[run.start as usize..run.end as usize].fill(Some(index));
                painted.push(run);
                if random.u8(0..3) == 0 {
                    let gone = random.usize(0..painted.len());
                    cover.wipe(painted[gone].clone(), gone);
                    for page in table.iter_mut().filter(|page| **page == Some(gone)) {
                        *page = None;
                    }
                }
                let mut seen = Vec::new();
                cover.split(std::iter::once(0..PAGES), |run, mapping| {
                    seen.extend(run.map(|_| mapping));
                });
                assert_eq!(seen, table);
            }
        }
    }

    /// Runs that are near each other, far from each other, between pieces and after all of them.
    #[test]
    fn a_walk_finds_what_a_search_finds() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..300 {
            let mut cover = Cover::default();
            for index in 0..random.usize(0..200) {
                let start = random.u64(0..1000);
                cover.paint(start..start + random.u64(1..4), index);
            }
            let at = |page: u64| {
                let before = cover.pieces.range(..=page).next_back();
                let piece = before.filter(|(_, (end, _))| *end > page);
                piece.map(|(_, (_, mapping))| *mapping)
            };
            let step_max = [3, 100][random.usize(0..2)];
            let (mut runs, mut from) = (Vec::new(), 0);
            while from < 1010 {
                let start = from + random.u64(0..step_max);
                from = start + random.u64(1..6);
                runs.push(start..from);
            }
            let expected: Vec<_> = runs.iter().cloned().flatten().map(at).collect();
            let mut seen = Vec::new();
            cover.split(runs.into_iter(), |run, mapping| {
                seen.extend(run.map(|_| mapping));
            });
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn seek_finds_the_first_value_that_is_not_below() {
        let sorted: Vec<u64> = (0..50).map(|i| i * 2).collect();
        for from in 0..50 {
            for value in from as u64 * 2..110 {
                let expected = from + sorted[from..].partition_point(|x| *x < value);
                assert_eq!(seek(&sorted, from, |x| *x < value), expected);
            }
        }
    }
}
