//! What a draft stores and nothing needs any more: pages that were put again, or whose mapping is
//! gone.
//!
//! A page that lies there as it is gives its place to one that comes later. What is left in the
//! end, in compressed frames above all, leaves the pack before it is published, where it is more
//! than a little.

use super::writer::Draft;
use crate::format::patch::FIRST_PATCH;
use crate::map::{PageMap, Source};
use pagetrail::{PageRange, PageSet};
use std::collections::BTreeSet;
use std::io;

/// A pack in which one page of so many is superseded is written once more without these. To unpack
/// and to pack a frame takes about as long as to take it in.
const SUPERSEDED_PART: usize = 32;

/// The places of a pack with so many pages that a map does not name, ascending.
fn unnamed(map: &PageMap, pack: u32, pages: usize) -> impl Iterator<Item = u32> {
    let mut is_named = vec![false; pages];
    for run in map.runs() {
        if let Source::Stored { pack: of, page } = run.source
            && of == pack
            && page < FIRST_PATCH
        {
            let from = page as usize;
            is_named[from..from + run.pages as usize].fill(true);
        }
    }
    (0..)
        .zip(is_named)
        .filter_map(|(place, is_named)| (!is_named).then_some(place))
}

impl Draft<'_> {
    /// The places in the pack of pages that have been put again since, or are put now: nothing
    /// needs what is there, if it lies there as it is.
    pub(super) fn superseded(&self, chunks: &[Vec<PageRange>]) -> BTreeSet<u32> {
        let Self { pack, staged, .. } = self;
        let mut ranges = chunks.iter().flatten();
        // Most batches are of pages that come for the first time.
        if !pack.frames.can_rewrite() || !ranges.any(|range| staged.within(*range).next().is_some())
        {
            return BTreeSet::new();
        }
        let replaced: PageSet = chunks.iter().flatten().copied().collect();
        let kept = staged.restricted(&staged.addresses().difference(&replaced));
        let places = unnamed(&kept, self.writer.known.next(), pack.gather.pages.len());
        places
            .filter(|place| pack.frames.is_plain(*place, pack.packing))
            .collect()
    }

    /// Takes what `map` does not name out of the pack, if it is more than a little; gives the map
    /// with the places of the pages as they are then.
    pub(super) fn compact(&mut self, map: PageMap) -> io::Result<PageMap> {
        let number = self.writer.known.next();
        let pages = self.pack.gather.pages.len();
        let dead: Vec<u32> = unnamed(&map, number, pages).collect();
        if dead.is_empty() || dead.len() < pages / SUPERSEDED_PART {
            return Ok(map);
        }
        let progress = self.progress();
        progress.begin("leaving out superseded pages", 0);
        // Which page is where is noted anew when the pack is published.
        self.writer.known.forget(&self.pack.gather.pages);
        let moves = self.pack.compact(&dead, self.writer.store.storage())?;
        tracing::debug!(
            pages,
            superseded = dead.len(),
            left_out = moves.is_some(),
            "pages of a pack are superseded"
        );
        Ok(match moves {
            Some(moves) => map.with_moved(number, &moves),
            None => map,
        })
    }
}
