//! [`Plan`]: what should move. Hot pages into fast memory that is free, then hot slow pages in
//! exchange for the coldest fast ones.
//!
//! HMM-V, sections 4.2.2 and 4.4. The order comes from a bucket sort: the histogram says how far
//! down each bucket is emptied, and one pass over the table puts each page that is to move into its
//! place.

use super::Policy;
use super::histogram::Histogram;
use super::page::Page;
use super::table::Place;

/// A page, or a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its degree, or whatever the ranking has; where pages compete by what they did over a longer
    /// time, too, the mean of both.
    pub rank: u16,
}

/// What should move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// From fast to slow memory, the coldest first; to be done first.
    pub demote: Vec<Unit>,
    /// From slow to fast memory, the hottest first.
    pub promote: Vec<Unit>,
    /// How much is hot and finds no room.
    pub left_out_bytes: u64,
    /// The degree of the coldest page that should be in fast memory; what is colder is not
    /// promoted.
    pub cut: u16,
}

impl Plan {
    /// Bytes that would move, in both directions.
    pub fn bytes(&self) -> u64 {
        let units = self.demote.iter().chain(&self.promote);
        units.map(|unit| unit.bytes).sum()
    }
}

/// How many bytes of each bucket move.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Budget {
    demote: Vec<u64>,
    promote: Vec<u64>,
    pub(super) left_out_bytes: u64,
    cut: u16,
}

/// Decides how many bytes of each bucket move, so that at most `capacity` bytes are in fast memory
/// afterwards.
///
/// A page of rank `hot` or above is hot; it takes the place of one whose rank is lower by more than
/// `margin`.
pub(super) fn budget(histogram: &Histogram, capacity: u64, hot: u16, margin: u16) -> Budget {
    let buckets = histogram.fast.len();
    let mut fast = histogram.fast.clone();
    let mut budget = Budget {
        demote: vec![0; buckets],
        promote: vec![0; buckets],
        left_out_bytes: 0,
        cut: hot,
    };
    let used = histogram.fast_bytes();
    let mut free = capacity.saturating_sub(used);
    // More than may be: out with the coldest, however warm.
    let mut over = used.saturating_sub(capacity);
    for (bytes, demoted) in fast.iter_mut().zip(&mut budget.demote) {
        let out = over.min(*bytes);
        *bytes -= out;
        *demoted += out;
        over -= out;
    }
    let mut coldest = 0;
    for rank in (usize::from(hot)..buckets).rev() {
        let mut left = histogram.slow[rank];
        let into_free = left.min(free);
        free -= into_free;
        left -= into_free;
        budget.promote[rank] += into_free;
        while left > 0 {
            while coldest < buckets && fast[coldest] == 0 {
                coldest += 1;
            }
            if coldest + usize::from(margin) >= rank {
                break;
            }
            let exchanged = left.min(fast[coldest]);
            fast[coldest] -= exchanged;
            left -= exchanged;
            budget.demote[coldest] += exchanged;
            budget.promote[rank] += exchanged;
        }
        if left > 0 && budget.left_out_bytes == 0 {
            budget.cut = rank as u16;
        }
        budget.left_out_bytes += left;
    }
    budget
}

impl Budget {
    /// Whether a page in this place moves, whose bytes no other page then has. A huge page that
    /// leaves may make more room than was asked for; one that comes must not take more.
    pub(super) fn takes(&mut self, place: Place, rank: u16, bytes: u64) -> bool {
        let (list, leaves_room) = match place {
            Place::Fast => (&mut self.demote, true),
            _ => (&mut self.promote, false),
        };
        let left = &mut list[usize::from(rank)];
        let takes = *left >= bytes || leaves_room && *left > 0;
        if takes {
            *left = left.saturating_sub(bytes);
        }
        takes
    }
}

/// The places of units in the order of their ranks.
struct Sorted {
    units: Vec<Unit>,
}

impl Sorted {
    fn new() -> Self {
        Self { units: Vec::new() }
    }

    /// The units by rank: a stable counting sort.
    fn finish(self, ranks: usize, hottest_first: bool) -> Vec<Unit> {
        let mut starts = vec![0usize; ranks + 1];
        let key = |rank: u16| match hottest_first {
            true => ranks - 1 - usize::from(rank),
            false => usize::from(rank),
        };
        for unit in &self.units {
            starts[key(unit.rank) + 1] += 1;
        }
        for bucket in 1..=ranks {
            starts[bucket] += starts[bucket - 1];
        }
        let mut sorted = self.units.clone();
        for unit in self.units {
            let place = &mut starts[key(unit.rank)];
            sorted[*place] = unit;
            *place += 1;
        }
        sorted
    }
}

impl Policy {
    /// Picks the units of a budget. Fast memory never holds more than it may: what would not fit
    /// stays.
    pub(super) fn pick(&self, mut budget: Budget, score: impl Fn(&Page, u64) -> u16) -> Plan {
        let (mut demote, mut promote) = (Sorted::new(), Sorted::new());
        let none = |bytes: &[u64]| bytes.iter().all(|bytes| *bytes == 0);
        let ranks = budget.demote.len();
        if !none(&budget.demote) || !none(&budget.promote) {
            self.table.for_each(|address, bytes, page| {
                if page.is_fixed() {
                    return;
                }
                let rank = score(page, address);
                if budget.takes(page.place(), rank, bytes) {
                    let list = match page.place() {
                        Place::Fast => &mut demote,
                        _ => &mut promote,
                    };
                    list.units.push(Unit {
                        address,
                        bytes,
                        rank,
                    });
                }
            });
        }
        let by_rank = |mut units: Vec<Unit>| {
            (units.iter_mut()).for_each(|unit| unit.rank = self.degrees.rank_of(unit.rank));
            units
        };
        Plan {
            demote: by_rank(demote.finish(ranks, false)),
            promote: by_rank(promote.finish(ranks, true)),
            left_out_bytes: budget.left_out_bytes,
            cut: self.degrees.rank_of(budget.cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(fast: &[u64], slow: &[u64]) -> Histogram {
        Histogram {
            fast: fast.to_vec(),
            slow: slow.to_vec(),
            ..Histogram::default()
        }
    }

    #[test]
    fn free_memory_is_filled_before_pages_are_exchanged() {
        let all = histogram(&[10, 0, 5, 0], &[100, 50, 4, 8]);
        let found = budget(&all, 20, 2, 0);
        // 5 free for the hottest, 3 of them and 4 more for the coldest.
        assert_eq!(found.promote, [0, 0, 4, 8]);
        assert_eq!(found.demote, [7, 0, 0, 0]);
        assert_eq!(found.left_out_bytes, 0);
    }

    #[test]
    fn equals_stay_where_they_are() {
        let all = histogram(&[0, 0, 0, 10], &[0, 0, 0, 10]);
        let found = budget(&all, 10, 1, 0);
        assert_eq!((found.promote[3], found.demote[3]), (0, 0));
        assert_eq!(found.left_out_bytes, 10);
        assert_eq!(found.cut, 3);
    }

    #[test]
    fn a_margin_keeps_near_equals_in_place() {
        let all = histogram(&[0, 0, 10, 0, 0], &[0, 0, 0, 3, 3]);
        assert_eq!(budget(&all, 10, 1, 0).demote, [0, 0, 6, 0, 0]);
        assert_eq!(budget(&all, 10, 1, 1).demote, [0, 0, 3, 0, 0]);
        assert_eq!(budget(&all, 10, 1, 2).demote, [0, 0, 0, 0, 0]);
    }

    #[test]
    fn too_much_in_fast_memory_leaves_the_coldest_first() {
        let all = histogram(&[2, 3, 10], &[0, 0, 6]);
        let found = budget(&all, 8, 1, 0);
        assert_eq!(found.demote, [2, 3, 2]);
        assert_eq!(found.promote, [0, 0, 0]);
    }
}
