//! [`Blocks`]: a set of pages, divided into the blocks of the table.

use crate::page_set::{PageRange, PageSet};

/// Divides the ranges of a set at the borders of blocks.
pub(super) struct Blocks<'a> {
    ranges: &'a [PageRange],
    /// The address from which the first of `ranges` is still to be visited.
    start: u64,
    block_bytes: u64,
    parts: Vec<PageRange>,
}

impl<'a> Blocks<'a> {
    pub(super) fn of(set: &'a PageSet, block_bytes: u64) -> Self {
        let ranges = set.ranges();
        Self {
            ranges,
            start: ranges.first().map_or(0, PageRange::start),
            block_bytes,
            parts: Vec::new(),
        }
    }

    /// The next block that has pages of the set, and the parts of the set in it.
    pub(super) fn next_block(&mut self) -> Option<(PageRange, &[PageRange])> {
        self.ranges.first()?;
        let start = self.start & !(self.block_bytes - 1);
        let block = PageRange::new(start, start.saturating_add(self.block_bytes))?;
        self.parts.clear();
        while let Some(range) = self.ranges.first()
            && self.start < block.end()
        {
            let end = range.end().min(block.end());
            self.parts.extend(PageRange::new(self.start, end));
            if end < range.end() {
                self.start = end;
            } else {
                self.ranges = &self.ranges[1..];
                self.start = self.ranges.first().map_or(0, PageRange::start);
                if self.ranges.is_empty() {
                    break;
                }
            }
        }
        Some((block, &self.parts))
    }
}

/// The number of pages of a set within a range.
pub(super) fn pages_within(set: &PageSet, range: PageRange) -> u64 {
    let ranges = set.ranges();
    let first = ranges.partition_point(|part| part.end() <= range.start());
    ranges[first..]
        .iter()
        .map_while(|part| part.intersection(&range))
        .map(|part| part.page_count())
        .sum()
}
