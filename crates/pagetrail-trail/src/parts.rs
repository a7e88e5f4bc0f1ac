//! [`for_each_part`]: the write sets of a trail, divided where the mapping changes.

use crate::Trail;
use crate::pages::{Covers, Pages};

/// Consecutive pages of one round's write set that lie in one mapping, or in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Position of the round in [`Trail::rounds`].
    pub round: usize,
    /// Number of the first page: its address divided by [`Header::page_size`].
    ///
    /// [`Header::page_size`]: crate::Header::page_size
    pub first_page: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
    /// Index in [`Trail::mappings`] of the mapping that covers the pages in that round, the later
    /// one if two do; `None` if no mapping is known there.
    pub mapping: Option<usize>,
}

/// Gives out all parts of all write sets: round by round, ascending addresses in each. Memory grows
/// with the number of mappings.
pub fn for_each_part(trail: &Trail, mut take: impl FnMut(Part)) {
    let pages = Pages::of(trail);
    let mut covers = Covers::of(trail);
    for (position, round) in trail.rounds.iter().enumerate() {
        let cover = covers.advance(round.index);
        cover.split(pages.runs(&round.written), |run, mapping| {
            take(Part {
                round: position,
                first_page: run.start,
                pages: run.end - run.start,
                mapping,
            });
        });
    }
}
