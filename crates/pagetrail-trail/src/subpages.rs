//! [`SubpageCounts`]: writes to sub-page heaps, counted in pages and in sub-pages.

use crate::model::{Round, Trail};

/// Writes to sub-page heaps, counted in pages and in sub-pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubpageCounts {
    /// Number of sub-pages in a page; the largest if it differs between rounds.
    pub subpages_per_page: u32,
    /// Pages with at least one dirty sub-page, summed over the rounds.
    pub page_writes: u64,
    /// Bytes in the pages that `page_writes` counts.
    pub page_bytes: u64,
    /// Bytes in the dirty sub-pages.
    pub subpage_bytes: u64,
}

impl SubpageCounts {
    /// Counts the writes of one round; `None` if the process had no sub-page heap.
    pub fn of_round(round: &Round, page_size: u64) -> Option<Self> {
        let subpages = round.subpages.as_ref()?;
        let page_bytes = subpages.pages(page_size).bytes();
        Some(Self {
            subpages_per_page: subpages.subpages_per_page,
            page_writes: page_bytes / page_size,
            page_bytes,
            subpage_bytes: subpages.dirty.bytes(),
        })
    }

    /// Counts the writes of all rounds; `None` if the process never had a sub-page heap.
    pub fn of(trail: &Trail) -> Option<Self> {
        let rounds = trail.rounds.iter();
        let counts = rounds.filter_map(|round| Self::of_round(round, trail.header.page_size));
        counts.reduce(|all, round| Self {
            subpages_per_page: all.subpages_per_page.max(round.subpages_per_page),
            page_writes: all.page_writes + round.page_writes,
            page_bytes: all.page_bytes + round.page_bytes,
            subpage_bytes: all.subpage_bytes + round.subpage_bytes,
        })
    }

    /// Dirty sub-pages, summed over the rounds.
    pub fn subpage_writes(&self, page_size: u64) -> u64 {
        self.subpage_bytes * u64::from(self.subpages_per_page.max(1)) / page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SubpageWrites;
    use pagetrail::{PageRange, PageSet};

    #[test]
    fn a_subpage_counts_for_less_than_its_page() {
        let dirty = PageSet::from_iter([
            PageRange::new(0x1200, 0x1400).unwrap(),
            PageRange::new(0x1e00, 0x2200).unwrap(),
        ]);
        let round = Round {
            subpages: Some(SubpageWrites {
                subpages_per_page: 8,
                aliases: PageSet::new(),
                dirty,
            }),
            ..Round::default()
        };
        let mut trail = Trail::default();
        trail.header.page_size = 4096;
        assert_eq!(SubpageCounts::of(&trail), None);
        trail.rounds = vec![Round::default(), round.clone(), round];
        let counts = SubpageCounts::of(&trail).unwrap();
        assert_eq!((counts.page_writes, counts.page_bytes), (4, 4 * 4096));
        assert_eq!(
            (counts.subpage_writes(4096), counts.subpage_bytes),
            (6, 3072)
        );
    }
}
