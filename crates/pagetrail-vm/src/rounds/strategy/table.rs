//! [`Pages`]: what a strategy knows of each page of a heap, and what it decides for it. Pure.

use super::evidence::Evidence;
use crate::rounds::unit_change::Aliased;

/// The number of pages that are judged together: those of a slab, whose objects are of one size.
const AREA: u64 = 16;
/// The number of equal observations after which the aliases of a page are merged.
const EQUAL_MIN: u8 = 2;
/// The rounds in which a merged page is written until it is observed again: this many, doubled each
/// time that it was as expected.
const FIRST_AGE: u16 = 2;
/// How often that is doubled.
const BACK_OFF_MAX: u8 = 7;
/// Merges are taken apart in one round of so many, since that stops the program for a moment.
const SEPARATING: u32 = 4;

/// A page with its aliases.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The aliases that are merged.
    merged: u64,
    /// The aliases that the next observation is expected to show; 0 before the first one.
    expected: u64,
    /// How often they were observed in a row.
    equal: u8,
    /// How often a merge was confirmed by an observation.
    confirmed: u8,
    /// The rounds in which the merged page was written.
    age: u16,
}

/// What was observed in the pages of a slab.
#[derive(Clone, Copy, Debug, Default)]
struct Area {
    /// Of all pages, had everything been merged that was written in two rounds.
    together: Evidence,
    /// Of pages that were observed as expected before.
    equal: Evidence,
}

/// What was observed in all pages of a heap.
#[derive(Clone, Copy, Debug)]
struct HeapEvidence {
    /// Of pages all of whose aliases were written the last time.
    whole: Evidence,
    /// Of pages that were observed as expected before: without it each area would have to make the
    /// same mistakes before it knows.
    equal: Evidence,
}

/// The pages of a heap.
#[derive(Debug)]
pub(super) struct Pages {
    all: u64,
    pages: Vec<Page>,
    areas: Vec<Area>,
    heap: HeapEvidence,
}

impl Pages {
    pub(super) fn new(of: Aliased) -> Self {
        Self {
            all: u64::MAX >> (64 - of.aliases),
            pages: vec![Page::default(); of.pages() as usize],
            areas: vec![Area::default(); of.pages().div_ceil(AREA) as usize],
            heap: HeapEvidence {
                whole: Evidence::default(),
                equal: Evidence::of_heap(),
            },
        }
    }

    /// Merges what was written in the same round, and at times separates everything (Lu et al.,
    /// section 6.2). Returns the pages that change, ascending, with their merged aliases.
    pub(super) fn merge_at_once(
        &mut self,
        observed: &[(u64, u64)],
        separates: bool,
    ) -> Vec<(u64, u64)> {
        if separates {
            let pages = self.pages.iter_mut().zip(0..);
            let merged = pages.filter(|(page, _)| page.merged != 0);
            return merged
                .map(|(page, number)| {
                    page.merged = 0;
                    (number, 0)
                })
                .collect();
        }
        let mut changes = Vec::new();
        for &(number, written) in observed {
            let page = &mut self.pages[number as usize];
            // A page has one merge at a time. Others join once they are written with it.
            let joins = page.merged == 0 || page.merged & written != 0;
            let merged = page.merged | written;
            if joins && written.count_ones() > 1 && merged != page.merged {
                page.merged = merged;
                changes.push((number, merged));
            }
        }
        changes
    }

    /// Learns from a round, and decides. Returns the pages that change, ascending, with their
    /// merged aliases.
    pub(super) fn adapt(&mut self, observed: &[(u64, u64)], round: u32) -> Vec<(u64, u64)> {
        let may_separate = round.is_multiple_of(SEPARATING);
        let mut changes = Vec::new();
        for &(number, written) in observed {
            let page = &mut self.pages[number as usize];
            let before = page.merged;
            if page.merged == 0 {
                let area = &mut self.areas[(number / AREA) as usize];
                page.observe(written, area, &mut self.heap, self.all);
            } else {
                page.age = page.age.saturating_add(1);
                if may_separate && page.is_due(written) {
                    page.merged = 0;
                }
            }
            if page.merged != before {
                changes.push((number, page.merged));
            }
        }
        changes
    }
}

impl Page {
    /// Learns from a round in which none of the aliases was merged, and decides whether to merge
    /// those that were written.
    fn observe(&mut self, written: u64, area: &mut Area, heap: &mut HeapEvidence, all: u64) {
        let (is_first, was_equal) = (self.expected == 0, self.equal >= EQUAL_MIN);
        let together = self.expected | written;
        if !is_first {
            area.together.add(written, together);
            if was_equal {
                area.equal.add(written, together);
                heap.equal.add(written, together);
            }
            if self.expected == all {
                heap.whole.add(written, all);
            }
        }
        let is_equal = written == self.expected;
        self.equal = if is_equal {
            self.equal.saturating_add(1)
        } else {
            1
        };
        let repeats = area.equal.permits() || heap.equal.permits() && !area.equal.refuses();
        let merged = if !is_first && area.together.permits() {
            together
        } else if self.equal >= EQUAL_MIN && repeats
            || written == all && heap.whole.permits() && !area.equal.refuses()
        {
            written
        } else {
            0
        };
        self.confirmed = match was_equal && merged != 0 {
            true => (self.confirmed + 1).min(BACK_OFF_MAX),
            false => 0,
        };
        self.expected = written;
        if merged.count_ones() > 1 {
            (self.merged, self.expected, self.age) = (merged, merged, 0);
            self.equal = self.equal.max(EQUAL_MIN);
        }
    }

    /// Whether a merged page is to be observed again: after a while, or when others of its aliases
    /// are written, too.
    fn is_due(&self, written: u64) -> bool {
        written & !self.merged != 0 || self.age >= FIRST_AGE << self.confirmed
    }
}
