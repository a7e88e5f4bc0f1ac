//! Comparing two checkpoints, mapping by mapping.

use super::Store;
use super::image::Image;
use crate::error::Result;
use crate::map::Source;
use pagetrail::{PageRange, PageSet};

/// How a mapping differs between two checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingDiff {
    /// Its addresses.
    pub range: PageRange,
    /// Its name, in the later checkpoint where that has it.
    pub name: String,
    /// Whether the first, and the second checkpoint has it.
    pub present: (bool, bool),
    /// The pages whose contents differ.
    pub pages: PageSet,
}

impl Store {
    /// What differs between the contents of two checkpoints: mappings that one of them lacks, and
    /// those with pages that differ. The hashes tell; no contents are read.
    ///
    /// # Errors
    ///
    /// One of them does not exist or is damaged.
    pub fn diff(&self, first: u64, second: u64) -> Result<Vec<MappingDiff>> {
        let (a, b) = (self.image(first)?, self.image(second)?);
        let differing = differing(&a, &b)?;
        let (of_a, of_b) = (&a.manifest().mappings, &b.manifest().mappings);
        let mut found = Vec::new();
        let (mapped_a, mapped_b) = (a.manifest().addresses(), b.manifest().addresses());
        for mapping in of_b {
            found.push(MappingDiff {
                range: mapping.range,
                name: mapping.name.clone(),
                present: (mapped_a.intersects(mapping.range), true),
                pages: differing.intersection(&PageSet::from_iter([mapping.range])),
            });
        }
        for mapping in of_a {
            if !mapped_b.intersects(mapping.range) {
                found.push(MappingDiff {
                    range: mapping.range,
                    name: mapping.name.clone(),
                    present: (true, false),
                    pages: differing.intersection(&PageSet::from_iter([mapping.range])),
                });
            }
        }
        found.retain(|diff| !diff.pages.is_empty() || diff.present != (true, true));
        found.sort_by_key(|diff| diff.range);
        Ok(found)
    }
}

/// The pages that have other contents in the one than in the other.
fn differing(a: &Image, b: &Image) -> Result<PageSet> {
    let mut found = PageSet::new();
    let page_size = a.map.page_size();
    // Elsewhere both are zeros: a run of these may be as long as it likes.
    let both = stored(a).union(&stored(b));
    for range in both.ranges() {
        for start in (range.start()..range.end()).step_by(page_size as usize) {
            let Some(page) = PageRange::new(start, start + page_size) else {
                continue;
            };
            let hash = |image: &Image| match image.map.within(page).next() {
                Some(run) => image.hash_at(run.source),
                None => Ok(None),
            };
            if hash(a)? != hash(b)? {
                found.insert(page);
            }
        }
    }
    Ok(found)
}

/// The addresses of the pages that are in packs.
fn stored(image: &Image) -> PageSet {
    let runs = image.map.runs().iter();
    let runs = runs.filter(|run| matches!(run.source, Source::Stored { .. }));
    let ranges = runs
        .filter_map(|run| PageRange::new(run.start, run.start + run.pages * image.map.page_size()));
    ranges.collect()
}
