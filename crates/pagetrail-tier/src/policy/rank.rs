//! [`Degrees`]: the rank of a page, by its degree or as other designs have it.

use super::page::Page;
use super::settings::{RANDOM_RANKS, Ranking, Settings};
use super::spot_check::scatter;

/// Ranks of pages under some settings.
pub(super) struct Degrees {
    ranking: Ranking,
    windows: u8,
    threshold: u16,
    /// Weighted counts of the ones in a byte of a history: counting them for each page would take
    /// longer.
    reads: [u16; 256],
    writes: [u16; 256],
}

impl Degrees {
    pub(super) fn new(settings: &Settings) -> Self {
        let weighted =
            |weight: u8| std::array::from_fn(|byte| byte.count_ones() as u16 * u16::from(weight));
        Self {
            ranking: settings.ranking,
            windows: settings.windows,
            threshold: settings.threshold.into(),
            reads: weighted(settings.read_weight),
            writes: weighted(settings.write_weight),
        }
    }

    #[inline]
    pub(super) fn rank(&self, page: &Page, address: u64) -> u16 {
        match self.ranking {
            Ranking::Degree => page.weighed(&self.reads, &self.writes),
            _ => self.other_rank(page, address),
        }
    }

    fn other_rank(&self, page: &Page, address: u64) -> u16 {
        match self.ranking {
            Ranking::Degree => page.weighed(&self.reads, &self.writes),
            Ranking::Threshold => u16::from(page.touches(self.windows) >= self.threshold),
            Ranking::TwoLists => page.touches(2),
            Ranking::Recency => u16::from(self.windows).saturating_sub(page.windows_since()),
            Ranking::FirstTouch => 0,
            Ranking::Random => scatter(address >> 12, RANDOM_RANKS.into()) as u16,
        }
    }
}
