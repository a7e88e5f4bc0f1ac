//! [`PageAccumulator`]: collects pages that arrive one by one, in any order and repeatedly, and
//! merges them into a set in batches. Pure.

use std::mem;

use pagetrail::{PageRange, PageSet};

/// The number of ranges that are collected before they are merged.
const UNMERGED_MAX: usize = 1 << 16;

/// A set of pages, of which the latest are not merged yet.
#[derive(Debug, Default)]
pub(crate) struct PageAccumulator {
    merged: PageSet,
    unmerged: Vec<PageRange>,
}

impl PageAccumulator {
    pub(crate) fn add(&mut self, range: PageRange) {
        // Pages mostly arrive in ascending order.
        if let Some(last) = self.unmerged.last_mut()
            && last.end() == range.start()
            && let Some(longer) = PageRange::new(last.start(), range.end())
        {
            *last = longer;
            return;
        }
        self.unmerged.push(range);
        if self.unmerged.len() >= UNMERGED_MAX {
            self.merge();
        }
    }

    pub(crate) fn union_with(&mut self, pages: PageSet) {
        if self.merged.is_empty() {
            self.merged = pages;
        } else {
            self.merged.union_with(&pages);
        }
    }

    /// Merges, and returns the set, which stays.
    pub(crate) fn merge(&mut self) -> &mut PageSet {
        let unmerged = self.unmerged.drain(..).collect();
        self.union_with(unmerged);
        &mut self.merged
    }

    /// Removes and returns all pages.
    pub(crate) fn take(&mut self) -> PageSet {
        mem::take(self.merge())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_however_many_come() {
        let mut pages = PageAccumulator::default();
        let page = |n: u64| PageRange::new(n << 12, (n + 1) << 12).unwrap();
        let mut expected = PageSet::new();
        for n in 0..UNMERGED_MAX as u64 + 10 {
            // Every second page twice, and at times two in a row.
            let n = n / 2 * 2 + n % 100 / 99;
            pages.add(page(n));
            expected.insert(page(n));
        }
        pages.union_with(PageSet::from_iter([page(1 << 20)]));
        expected.insert(page(1 << 20));
        assert_eq!(*pages.merge(), expected);
        assert_eq!(pages.take(), expected);
        assert!(pages.take().is_empty());
    }
}
