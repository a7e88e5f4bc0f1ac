//! [`PageMap`]: which page of an image lies where; pure arithmetic on runs of pages.

use pagetrail::{PageRange, PageSet};

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere: all zeros.
    Zero,
    /// Nowhere, although an older checkpoint may know it: as if nothing had been said.
    Absent,
    /// In a pack, by its number in a table of packs, at this place among its pages.
    Stored { pack: u32, page: u32 },
}

impl Source {
    /// Of the page `pages` further on.
    fn plus(self, pages: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Absent => Self::Absent,
            Self::Stored { pack, page } => Self::Stored {
                pack,
                page: page + pages as u32,
            },
        }
    }
}

/// Neighbouring pages whose contents are neighbours as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) pages: u64,
    pub(crate) source: Source,
}

/// Runs in ascending order of addresses, not overlapping. An address in none has not been said
/// anything about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageMap {
    page_size: u64,
    runs: Vec<Run>,
}

impl PageMap {
    pub(crate) fn new(page_size: u64) -> Self {
        Self {
            page_size,
            runs: Vec::new(),
        }
    }

    pub(crate) fn page_size(&self) -> u64 {
        self.page_size
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn runs_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.runs.iter_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages).sum()
    }

    fn end(&self, run: &Run) -> u64 {
        run.start + run.pages * self.page_size
    }

    /// Adds a run after all others; joins it with the last where they continue each other.
    pub(crate) fn push(&mut self, run: Run) {
        if run.pages == 0 {
            return;
        }
        if let Some(last) = self.runs.last_mut() {
            let end = last.start + last.pages * self.page_size;
            debug_assert!(run.start >= end);
            if run.start == end && last.source.plus(last.pages) == run.source {
                last.pages += run.pages;
                return;
            }
        }
        self.runs.push(run);
    }

    /// The addresses that something is said about.
    pub(crate) fn addresses(&self) -> PageSet {
        self.runs
            .iter()
            .filter_map(|run| PageRange::new(run.start, self.end(run)))
            .collect()
    }

    /// The part of the map inside `ranges`.
    pub(crate) fn restricted(&self, ranges: &PageSet) -> Self {
        let mut out = Self::new(self.page_size);
        let ranges = ranges.ranges();
        let mut first = 0;
        for run in &self.runs {
            let end = self.end(run);
            first += ranges[first..].partition_point(|range| range.end() <= run.start);
            for range in ranges[first..].iter().take_while(|r| r.start() < end) {
                let from = run.start.max(range.start());
                let to = end.min(range.end());
                out.push(Run {
                    start: from,
                    pages: (to - from) / self.page_size,
                    source: run.source.plus((from - run.start) / self.page_size),
                });
            }
        }
        out
    }

    /// This map with what `newer` says instead where that says something.
    pub(crate) fn overlaid(&self, newer: &Self) -> Self {
        let (Some(first), Some(last)) = (newer.runs.first(), self.runs.last()) else {
            return if newer.is_empty() {
                self.clone()
            } else {
                newer.clone()
            };
        };
        if first.start >= self.end(last) {
            let mut out = self.clone();
            newer.runs.iter().for_each(|run| out.push(*run));
            return out;
        }
        let untouched = self.addresses().difference(&newer.addresses());
        let old = self.restricted(&untouched);
        let mut out = Self::new(self.page_size);
        let (mut a, mut b) = (old.runs.iter().peekable(), newer.runs.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.start < y.start {
                out.push(**x);
                a.next();
            } else {
                out.push(**y);
                b.next();
            }
        }
        a.chain(b).for_each(|run| out.push(*run));
        out
    }

    /// The map in which pages of a pack lie at other places; `moves`: from where, ascending, to
    /// where.
    pub(crate) fn with_moved(&self, pack: u32, moves: &[(u32, u32)]) -> Self {
        let mut out = Self::new(self.page_size);
        let at = |place: u64| moves.partition_point(|(from, _)| u64::from(*from) < place);
        for run in &self.runs {
            let moves = match run.source {
                Source::Stored { pack: of, page } if of == pack => {
                    &moves[at(page.into())..at(u64::from(page) + run.pages)]
                }
                _ => &[],
            };
            if moves.is_empty() {
                out.push(*run);
                continue;
            }
            for n in 0..run.pages {
                let source = match run.source.plus(n) {
                    Source::Stored { pack, page } => {
                        let moved = moves.binary_search_by_key(&page, |(from, _)| *from);
                        let page = moved.map_or(page, |at| moves[at].1);
                        Source::Stored { pack, page }
                    }
                    other => other,
                };
                out.push(Run {
                    start: run.start + n * self.page_size,
                    pages: 1,
                    source,
                });
            }
        }
        out
    }

    /// Everything that it says but [`Source::Absent`].
    pub(crate) fn without_absent(&self) -> Self {
        let mut out = Self::new(self.page_size);
        let runs = self.runs.iter().filter(|run| run.source != Source::Absent);
        runs.for_each(|run| out.push(*run));
        out
    }

    /// The map in which, inside `ranges`, zero is not worth saying.
    pub(crate) fn with_zero_as_absent(mut self, ranges: &PageSet) -> Self {
        let zeros = self.runs.iter().filter(|run| run.source == Source::Zero);
        let zeros: PageSet = zeros
            .filter_map(|run| PageRange::new(run.start, self.end(run)))
            .collect();
        let mut absent = Self::new(self.page_size);
        for range in zeros.intersection(ranges).ranges() {
            absent.push(Run {
                start: range.start(),
                pages: range.bytes() / self.page_size,
                source: Source::Absent,
            });
        }
        self.overlay(&absent);
        self
    }

    /// Puts `newer` over this map; cheap where it comes after it.
    pub(crate) fn overlay(&mut self, newer: &Self) {
        let behind = match (newer.runs.first(), self.runs.last()) {
            (Some(first), Some(last)) => first.start >= self.end(last),
            _ => true,
        };
        if behind {
            newer.runs.iter().for_each(|run| self.push(*run));
        } else {
            *self = self.overlaid(newer);
        }
    }

    /// What this map says differently from `other`.
    pub(crate) fn changes_from(&self, other: &Self) -> Self {
        let mut out = Self::new(self.page_size);
        for run in &self.runs {
            let Some(range) = PageRange::new(run.start, self.end(run)) else {
                continue;
            };
            let mut at = run.start;
            let mut differing = |to: u64, from: u64| {
                out.push(Run {
                    start: from,
                    pages: (to - from) / self.page_size,
                    source: run.source.plus((from - run.start) / self.page_size),
                });
            };
            for part in other.within(range) {
                if run.source != Source::Absent {
                    differing(part.start, at);
                }
                let end = other.end(&part);
                let same =
                    run.source.plus((part.start - run.start) / self.page_size) == part.source;
                if !same {
                    differing(end, part.start);
                }
                at = end;
            }
            if run.source != Source::Absent {
                differing(range.end(), at);
            }
        }
        out
    }

    /// The run that an address is in.
    pub(crate) fn run_at(&self, address: u64) -> Option<&Run> {
        let first = self.runs.partition_point(|run| self.end(run) <= address);
        self.runs.get(first).filter(|run| run.start <= address)
    }

    /// The runs inside a range, cut to it.
    pub(crate) fn within(&self, range: PageRange) -> impl Iterator<Item = Run> + '_ {
        let first = self
            .runs
            .partition_point(|run| self.end(run) <= range.start());
        self.runs[first..]
            .iter()
            .take_while(move |run| run.start < range.end())
            .map(move |run| {
                let from = run.start.max(range.start());
                let to = self.end(run).min(range.end());
                Run {
                    start: from,
                    pages: (to - from) / self.page_size,
                    source: run.source.plus((from - run.start) / self.page_size),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PAGE: u64 = 4096;

    fn random_map(random: &mut fastrand::Rng) -> PageMap {
        let mut map = PageMap::new(PAGE);
        let mut page = 0;
        while page < 60 {
            page += random.u64(0..5);
            let pages = random.u64(1..6);
            let source = match random.u32(0..4) {
                0 if random.bool() => Source::Zero,
                0 => Source::Absent,
                pack => Source::Stored {
                    pack,
                    page: random.u32(0..8),
                },
            };
            map.push(Run {
                start: page * PAGE,
                pages,
                source,
            });
            page += pages;
        }
        map
    }

    /// Page by page, the obvious way.
    fn oracle(map: &PageMap) -> BTreeMap<u64, Source> {
        let each = map
            .runs
            .iter()
            .flat_map(|run| (0..run.pages).map(|n| (run.start / PAGE + n, run.source.plus(n))));
        each.collect()
    }

    #[test]
    fn the_arithmetic_is_that_of_single_pages() {
        let mut random = fastrand::Rng::with_seed(42);
        for _ in 0..3000 {
            let (a, b) = (random_map(&mut random), random_map(&mut random));
            let mut expected = oracle(&a);
            expected.extend(oracle(&b));
            let both = a.overlaid(&b);
            assert_eq!(oracle(&both), expected);
            let mut in_place = a.clone();
            in_place.overlay(&b);
            assert_eq!(in_place, both);

            let set = random_map(&mut random).addresses();
            let mut expected = oracle(&a);
            expected.retain(|page, _| set.contains(page * PAGE));
            assert_eq!(oracle(&a.restricted(&set)), expected);

            let of_a = oracle(&a);
            let mut expected = oracle(&b);
            expected.retain(|page, source| of_a.get(page).unwrap_or(&Source::Absent) != source);
            assert_eq!(oracle(&b.changes_from(&a)), expected);
        }
    }
}
