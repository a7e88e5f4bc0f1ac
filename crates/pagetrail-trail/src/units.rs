//! [`UnitCounts`]: how much less a program wrote of sub-page heaps than its pages say.

use crate::model::{Round, Trail};

/// Writes to sub-page heaps, by pages and by parts of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounts {
    /// Into how many parts a page is divided; the most, where that differs.
    pub parts: u32,
    /// Pages of which something was written, summed over the rounds.
    pub page_writes: u64,
    /// Bytes in these pages.
    pub page_bytes: u64,
    /// Bytes in the parts that were written.
    pub unit_bytes: u64,
}

impl UnitCounts {
    /// Of one round; `None` if the process had no sub-page heap.
    pub fn of_round(round: &Round, page_size: u64) -> Option<Self> {
        let units = round.units.as_ref()?;
        let page_bytes = units.pages(page_size).bytes();
        Some(Self {
            parts: units.parts,
            page_writes: page_bytes / page_size,
            page_bytes,
            unit_bytes: units.units.bytes(),
        })
    }

    /// Of all rounds together.
    pub fn of(trail: &Trail) -> Option<Self> {
        let rounds = trail.rounds.iter();
        let counts = rounds.filter_map(|round| Self::of_round(round, trail.header.page_size));
        counts.reduce(|all, round| Self {
            parts: all.parts.max(round.parts),
            page_writes: all.page_writes + round.page_writes,
            page_bytes: all.page_bytes + round.page_bytes,
            unit_bytes: all.unit_bytes + round.unit_bytes,
        })
    }

    /// Units that were written, summed over the rounds.
    pub fn unit_writes(&self, page_size: u64) -> u64 {
        self.unit_bytes * u64::from(self.parts.max(1)) / page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UnitWrites;
    use pagetrail::{PageRange, PageSet};

    #[test]
    fn a_part_is_less_than_its_page() {
        let units = PageSet::from_iter([
            PageRange::new(0x1200, 0x1400).unwrap(),
            PageRange::new(0x1e00, 0x2200).unwrap(),
        ]);
        let round = Round {
            units: Some(UnitWrites {
                parts: 8,
                windows: PageSet::new(),
                units,
            }),
            ..Round::default()
        };
        let mut trail = Trail::default();
        trail.header.page_size = 4096;
        assert_eq!(UnitCounts::of(&trail), None);
        trail.rounds = vec![Round::default(), round.clone(), round];
        let counts = UnitCounts::of(&trail).unwrap();
        assert_eq!((counts.page_writes, counts.page_bytes), (4, 4 * 4096));
        assert_eq!((counts.unit_writes(4096), counts.unit_bytes), (6, 3072));
    }
}
