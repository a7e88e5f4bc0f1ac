//! What the tests of several modules share.

use pagetrail::{PageRange, PageSet};

/// The pages from the first to the second number, of each pair.
pub(crate) fn set(ranges: &[(u64, u64)]) -> PageSet {
    let page = pagetrail::page_size();
    let ranges = ranges.iter();
    let ranges = ranges.map(|&(from, to)| PageRange::new(from * page, to * page));
    ranges.flatten().collect()
}
