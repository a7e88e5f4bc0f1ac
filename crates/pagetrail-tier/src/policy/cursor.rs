//! [`Cursor`]: walks a set of pages along with the table; [`Touches`] walks both sets of a sample.

use pagetrail::{PageRange, PageSet};

use super::Sample;

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

    /// Skips ranges that end before an address.
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

/// The accesses to a page that a sample has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touch {
    pub(super) accessed: bool,
    pub(super) written: bool,
}

impl Touch {
    /// Whether there was any access; a write is one.
    #[inline]
    pub(super) fn any(self) -> bool {
        self.accessed || self.written
    }
}

/// Walks a sample along with the table.
pub(super) struct Touches<'a> {
    accessed: Cursor<'a>,
    written: Cursor<'a>,
}

impl<'a> Touches<'a> {
    pub(super) fn new(sample: &'a Sample) -> Self {
        Self {
            accessed: Cursor::new(sample.accessed.as_ref()),
            written: Cursor::new(sample.written.as_ref()),
        }
    }

    /// The accesses to an address, and the next address, at most `end`, at which that changes.
    #[inline]
    pub(super) fn at(&mut self, address: u64, end: u64) -> (Touch, u64) {
        let (accessed, accessed_until) = self.accessed.at(address);
        let (written, written_until) = self.written.at(address);
        let until = end.min(accessed_until).min(written_until);
        (Touch { accessed, written }, until)
    }

    /// The accesses to any address from `start` to `end`.
    pub(super) fn any(&mut self, start: u64, end: u64) -> Touch {
        Touch {
            accessed: self.accessed.any(start, end),
            written: self.written.any(start, end),
        }
    }

    /// Adds what was accessed from `start` to `end` to `out`.
    pub(super) fn between(&mut self, start: u64, end: u64, out: &mut PageSet) {
        self.accessed.between(start, end, out);
        self.written.between(start, end, out);
    }
}
