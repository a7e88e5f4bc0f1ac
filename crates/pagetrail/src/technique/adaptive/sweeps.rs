//! [`Sweeps`]: sequential writers, and where they will write next.
//!
//! Each page of a sweep is written once in many rounds, so the history of a page predicts nothing;
//! but where a run of written pages continues where the last one ended, it will most likely
//! continue. The pages ahead can be released before they are written, many of them by one call, and
//! each of them would have cost a fault.
//!
//! A few pages among them stay armed. They show how far the sweep has come, since all released
//! pages are reported: a sweep whose first page is not written has ended.

use crate::page_set::{PageRange, PageSet, page_size};

/// The least distance between two pages that stay armed; shorter runs are not followed.
const APART_MIN: u64 = 64;

/// The memory ahead of a sweep is released in this many spans, or up to twice as many. Each takes a
/// call, which costs about as much for 64 pages as for a thousand; the pages between the last page
/// written and the next armed one are false positives.
const SPANS: u64 = 4;

/// The most sweeps that are followed at once.
const SWEEPS_MAX: usize = 16;

/// The number of last rounds whose smallest advance predicts the next one.
const STEPS: usize = 3;

/// The sweeps that are followed.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// Sorted by their heads.
    known: Vec<Sweep>,
}

/// The state of one sweep.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// The address after the last page that it has written.
    head: u64,
    /// Its advance in each of the last rounds, in bytes.
    steps: [u64; STEPS],
    /// The number of rounds for which it has continued.
    rounds: u32,
    /// The end of the memory that was released ahead of it, and the distance between armed pages in
    /// it.
    released: u64,
    apart: u64,
}

/// What a round showed about the memory that was released before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// Released pages that the sweep reached.
    pub(super) reached: u64,
    /// Released pages that the sweep did not reach.
    pub(super) false_positives: u64,
}

impl Sweeps {
    /// Learns from the dirty pages of a round.
    pub(super) fn follow(&mut self, written: &PageSet) -> Followed {
        let least = APART_MIN * page_size();
        let mut followed = Followed::default();
        let ranges = written.ranges();
        let mut next: Vec<Sweep> = Vec::with_capacity(self.known.len());
        // The ranges by which the sweeps continue, ascending.
        let mut taken: Vec<usize> = Vec::with_capacity(self.known.len());
        for sweep in &self.known {
            let at = ranges.partition_point(|range| range.end() <= sweep.head);
            let range = ranges.get(at).filter(|range| range.contains(sweep.head));
            let reached = range.map_or(sweep.head, PageRange::end);
            let within = reached.min(sweep.released).saturating_sub(sweep.head);
            let ahead = sweep.released.saturating_sub(sweep.head);
            followed.reached += released_of(within, sweep.apart);
            followed.false_positives +=
                released_of(ahead, sweep.apart) - released_of(within, sweep.apart);
            if reached - sweep.head < least || taken.last() == Some(&at) {
                continue;
            }
            taken.push(at);
            let mut steps = sweep.steps;
            steps.rotate_right(1);
            steps[0] = reached - sweep.head;
            next.push(Sweep {
                head: reached,
                steps,
                rounds: sweep.rounds.saturating_add(1),
                released: 0,
                apart: least,
            });
        }
        let mut taken = taken.into_iter().peekable();
        let runs = ranges.iter().enumerate().filter(|(at, range)| {
            let known = taken.next_if_eq(at).is_some();
            !known && range.bytes() >= least
        });
        let room = SWEEPS_MAX.saturating_sub(next.len());
        let begun: Vec<Sweep> = runs
            .take(room)
            .map(|(_, range)| Sweep {
                head: range.end(),
                steps: [range.bytes(), 0, 0],
                rounds: 0,
                released: 0,
                apart: least,
            })
            .collect();
        next.extend(begun);
        next.sort_unstable_by_key(|sweep| sweep.head);
        self.known = next;
        followed
    }

    /// Calls `release` with the memory ahead of each sweep that has continued for `rounds_min`
    /// rounds, and the distance between the pages in it that stay armed ([`spans_of`]); `release`
    /// returns the address up to which it released.
    pub(super) fn look_ahead(
        &mut self,
        rounds_min: u32,
        mut release: impl FnMut(PageRange, u64) -> u64,
    ) {
        for sweep in &mut self.known {
            let step = sweep.steps.into_iter().min().unwrap_or(0);
            if sweep.rounds < rounds_min {
                continue;
            }
            if let Some(ahead) = PageRange::new(sweep.head, sweep.head.saturating_add(step)) {
                let pages = (ahead.page_count() / SPANS / 2).next_power_of_two();
                sweep.apart = pages.max(APART_MIN) * page_size();
                sweep.released = release(ahead, sweep.apart);
            }
        }
    }

    /// Forgets the sweeps in a range that is no longer mapped.
    pub(super) fn forget(&mut self, range: PageRange) {
        self.known.retain(|sweep| !range.contains(sweep.head));
    }
}

/// The spans of `ahead` that are released: all but one page every `apart` bytes, beginning with the
/// first.
pub(super) fn spans_of(ahead: PageRange, apart: u64) -> impl Iterator<Item = PageRange> {
    (ahead.start()..ahead.end())
        .step_by(apart as usize)
        .filter_map(move |start| {
            PageRange::new(start + page_size(), ahead.end().min(start + apart))
        })
}

/// The number of pages in [`spans_of`] so many bytes.
fn released_of(bytes: u64, apart: u64) -> u64 {
    bytes / page_size() - bytes.div_ceil(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, end: u64) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    /// Follows rounds of written pages; returns what is released after the last of them.
    fn ahead(sweeps: &mut Sweeps, rounds: &[&[(u64, u64)]]) -> Vec<PageRange> {
        let mut released = Vec::new();
        for written in rounds {
            sweeps.follow(
                &written
                    .iter()
                    .map(|(first, end)| pages(*first, *end))
                    .collect(),
            );
            released.clear();
            sweeps.look_ahead(3, |range, _| {
                released.push(range);
                range.end()
            });
        }
        released
    }

    #[test]
    fn a_sweep_is_released_as_far_as_its_slowest_recent_round() {
        let mut sweeps = Sweeps::default();
        let rounds: &[&[(u64, u64)]] = &[&[(0, 100)], &[(100, 300)], &[(300, 430)]];
        assert_eq!(ahead(&mut sweeps, rounds), []);
        let rounds: &[&[(u64, u64)]] = &[&[(430, 600), (2000, 2001)]];
        assert_eq!(ahead(&mut sweeps, rounds), [pages(600, 730)]);
        // It came to page 700: the armed page 728 was not written.
        let stats = sweeps.follow(&PageSet::from_iter([pages(600, 728), pages(729, 730)]));
        assert_eq!((stats.reached, stats.false_positives), (126, 1));
    }

    #[test]
    fn a_sweep_that_stops_is_forgotten_and_its_false_positives_counted() {
        let mut sweeps = Sweeps::default();
        let rounds: &[&[(u64, u64)]] = &[&[(0, 100)], &[(100, 200)], &[(200, 300)], &[(300, 400)]];
        assert_eq!(ahead(&mut sweeps, rounds), [pages(400, 500)]);
        let stats = sweeps.follow(&spans_of(pages(400, 500), APART_MIN * page_size()).collect());
        assert_eq!((stats.reached, stats.false_positives), (0, 98));
        assert_eq!(ahead(&mut sweeps, &[&[]]), []);
    }

    #[test]
    fn two_sweeps_are_followed_and_a_rewritten_range_is_no_sweep() {
        let mut sweeps = Sweeps::default();
        let round = |n: u64| {
            [
                (n * 100, n * 100 + 100),
                (5000 + n * 64, 5064 + n * 64),
                (9000, 9500),
            ]
        };
        let rounds: Vec<_> = (0..5).map(round).collect();
        let rounds: Vec<&[(u64, u64)]> = rounds.iter().map(|round| &round[..]).collect();
        let released = ahead(&mut sweeps, &rounds);
        assert_eq!(released, [pages(500, 600), pages(5320, 5384)]);
    }

    #[test]
    fn one_page_before_each_span_stays_armed() {
        let apart = 64 * page_size();
        let released: PageSet = spans_of(pages(10, 10 + 129), apart).collect();
        let expected = [pages(11, 10 + 64), pages(11 + 64, 10 + 128)];
        assert_eq!(released.ranges(), expected);
        assert_eq!(released.page_count(), released_of(129 * page_size(), apart));
    }

    #[test]
    fn a_long_sweep_takes_few_calls() {
        let mut sweeps = Sweeps::default();
        for n in 0..4 {
            sweeps.follow(&PageSet::from_iter([pages(n * 6000, n * 6000 + 6000)]));
        }
        let mut calls = 0;
        sweeps.look_ahead(3, |ahead, apart| {
            calls += spans_of(ahead, apart).count();
            ahead.end()
        });
        assert!((4..=8).contains(&calls), "{calls}");
    }
}
