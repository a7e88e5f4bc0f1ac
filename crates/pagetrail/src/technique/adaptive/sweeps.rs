//! [`Sweeps`]: programs that write one page after the other, and where they will write next.
//!
//! Each page of a sweep is written once in many rounds, so what is remembered of pages tells nothing; but where a run of written
//! pages goes on where the last one ended, it will most likely go on. What lies ahead can be released before it is written, many pages by
//! one call, each of which would have cost a fault.
//!
//! A few pages among them stay armed. They tell how far the sweep has come, since whatever is released is reported: a sweep whose
//! first page is not written has ended.

use crate::page_set::{PageRange, PageSet, page_size};

/// From one page that stays armed to the next at least; shorter runs are not followed.
const APART_MIN: u64 = 64;

/// Each released stretch takes a call, which is about as dear for 64 pages as for a thousand; what is released between the last page
/// written and the next one that is armed is reported in vain. So many stretches, or up to twice as many, for the pages of a round.
const STRETCHES: u64 = 4;

/// So many sweeps are followed at once.
const SWEEPS_MAX: usize = 16;

/// Rounds whose least advance is taken for the next one's.
const STEPS: usize = 3;

/// The sweeps that are known.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// By ascending heads.
    known: Vec<Sweep>,
}

/// Where a sweep is.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// Behind the last page that it has written.
    head: u64,
    /// How far it came in the last rounds, in bytes.
    steps: [u64; STEPS],
    /// For how many rounds it has gone on.
    rounds: u32,
    /// Where what was released ahead of it ends, and from one page in it that is armed to the next.
    released: u64,
    apart: u64,
}

/// What a round told about what was released before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// Pages that were released and reached.
    pub(super) reached: u64,
    /// Pages that were released, and reported in vain.
    pub(super) false_positives: u64,
}

impl Sweeps {
    /// Learns from the write set of a round.
    pub(super) fn follow(&mut self, written: &PageSet) -> Followed {
        let least = APART_MIN * page_size();
        let mut followed = Followed::default();
        let ranges = written.ranges();
        let mut next: Vec<Sweep> = Vec::with_capacity(self.known.len());
        // The range on which each of them goes on, ascending.
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

    /// Gives what lies ahead of each sweep that has gone on for `rounds_min` rounds, and how far apart pages in it are to stay
    /// armed ([`stretches`]); `release` says up to where that was released.
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
                let pages = (ahead.page_count() / STRETCHES / 2).next_power_of_two();
                sweep.apart = pages.max(APART_MIN) * page_size();
                sweep.released = release(ahead, sweep.apart);
            }
        }
    }

    /// What was released ahead in `range` is mapped no longer.
    pub(super) fn forget(&mut self, range: PageRange) {
        self.known.retain(|sweep| !range.contains(sweep.head));
    }
}

/// The stretches of `ahead` that are to be released: all but a page every `apart` bytes, beginning with the first.
pub(super) fn stretches(ahead: PageRange, apart: u64) -> impl Iterator<Item = PageRange> {
    (ahead.start()..ahead.end())
        .step_by(apart as usize)
        .filter_map(move |start| {
            PageRange::new(start + page_size(), ahead.end().min(start + apart))
        })
}

/// How many pages [`stretches`] has, of so many bytes.
fn released_of(bytes: u64, apart: u64) -> u64 {
    bytes / page_size() - bytes.div_ceil(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, end: u64) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    /// Follows rounds of written pages; gives what is released after the last of them.
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
    fn what_goes_on_is_released_as_far_as_the_slowest_of_its_last_rounds() {
        let mut sweeps = Sweeps::default();
        let rounds: &[&[(u64, u64)]] = &[&[(0, 100)], &[(100, 300)], &[(300, 430)]];
        assert_eq!(ahead(&mut sweeps, rounds), []);
        let rounds: &[&[(u64, u64)]] = &[&[(430, 600), (2000, 2001)]];
        assert_eq!(ahead(&mut sweeps, rounds), [pages(600, 730)]);
        // It came to page 700, as far as the armed page 728 tells.
        let told = sweeps.follow(&PageSet::from_iter([pages(600, 728), pages(729, 730)]));
        assert_eq!((told.reached, told.false_positives), (126, 1));
    }

    #[test]
    fn what_has_stopped_is_forgotten_and_counted() {
        let mut sweeps = Sweeps::default();
        let rounds: &[&[(u64, u64)]] = &[&[(0, 100)], &[(100, 200)], &[(200, 300)], &[(300, 400)]];
        assert_eq!(ahead(&mut sweeps, rounds), [pages(400, 500)]);
        let told = sweeps.follow(&stretches(pages(400, 500), APART_MIN * page_size()).collect());
        assert_eq!((told.reached, told.false_positives), (0, 98));
        assert_eq!(ahead(&mut sweeps, &[&[]]), []);
    }

    #[test]
    fn two_sweeps_are_told_apart_and_a_range_written_again_is_none() {
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
    fn one_page_of_each_stretch_stays_armed() {
        let apart = 64 * page_size();
        let released: PageSet = stretches(pages(10, 10 + 129), apart).collect();
        let expected = [pages(11, 10 + 64), pages(11 + 64, 10 + 128)];
        assert_eq!(released.ranges(), expected);
        assert_eq!(released.page_count(), released_of(129 * page_size(), apart));
    }

    #[test]
    fn a_long_stretch_takes_few_calls() {
        let mut sweeps = Sweeps::default();
        for n in 0..4 {
            sweeps.follow(&PageSet::from_iter([pages(n * 6000, n * 6000 + 6000)]));
        }
        let mut calls = 0;
        sweeps.look_ahead(3, |ahead, apart| {
            calls += stretches(ahead, apart).count();
            ahead.end()
        });
        assert!((4..=8).contains(&calls), "{calls}");
    }
}
