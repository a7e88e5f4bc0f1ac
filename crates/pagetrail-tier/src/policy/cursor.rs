//! [`Cursor`]: walks a set of pages along with the table.

use pagetrail::{PageRange, PageSet};

/// Adds a range, unless it is empty.
pub(super) fn push(set: &mut PageSet, start: u64, end: u64) {
    if let Some(range) = PageRange::new(start, end) {
        set.insert(range);
    }
}

/// Walks a set along with the table.
pub(super) struct Cursor<'a> {
    ranges: &'a [PageRange],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(set: Option<&'a PageSet>) -> Self {
        Self {
            ranges: set.map_or(&[], PageSet::ranges),
        }
    }

    /// Leaves ranges behind that end before an address.
    fn advance(&mut self, address: u64) {
        while let [first, rest @ ..] = self.ranges
            && first.end() <= address
        {
            self.ranges = rest;
        }
    }

    /// Whether an address is in the set, and the next address at which that changes.
    #[inline]
    pub(super) fn at(&mut self, address: u64) -> (bool, u64) {
        self.advance(address);
        match self.ranges.first() {
            Some(range) if range.start() <= address => (true, range.end()),
            Some(range) => (false, range.start()),
            None => (false, u64::MAX),
        }
    }

    /// Whether any address from `start` to `end` is in the set.
    pub(super) fn any(&mut self, start: u64, end: u64) -> bool {
        self.advance(start);
        self.ranges.first().is_some_and(|range| range.start() < end)
    }

    /// Adds what lies from `start` to `end` to `out`.
    pub(super) fn between(&mut self, start: u64, end: u64, out: &mut PageSet) {
        self.advance(start);
        while let [first, rest @ ..] = self.ranges
            && first.start() < end
        {
            push(out, first.start().max(start), first.end().min(end));
            if first.end() > end {
                return;
            }
            self.ranges = rest;
        }
    }
}
