//! [`Degrees`]: the rank of a page, by its degree or as other designs have it.

use super::histogram::Tally;
use super::page::Page;
use super::settings::{RANDOM_RANKS, Ranking, Settings};
use super::spot_check::scatter;
use super::table::Place;

/// Ranks of pages under some settings.
pub(super) struct Degrees<'a> {
    settings: &'a Settings,
    /// Weighted counts of the ones in a byte of a history: counting them for each page would take longer.
    reads: [u16; 256],
    writes: [u16; 256],
}

impl<'a> Degrees<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        let weighted =
            |weight: u8| std::array::from_fn(|byte| byte.count_ones() as u16 * u16::from(weight));
        Self {
            settings,
            reads: weighted(settings.read_weight),
            writes: weighted(settings.write_weight),
        }
    }

    #[inline]
    pub(super) fn rank(&self, page: &Page, address: u64) -> u16 {
        match self.settings.ranking {
            Ranking::Degree => page.weighed(&self.reads, &self.writes),
            _ => self.other_rank(page, address),
        }
    }

    fn other_rank(&self, page: &Page, address: u64) -> u16 {
        let settings = self.settings;
        match settings.ranking {
            Ranking::Degree => page.weighed(&self.reads, &self.writes),
            Ranking::Threshold => {
                u16::from(page.touches(settings.windows) >= settings.threshold.into())
            }
            Ranking::TwoLists => page.touches(2),
            Ranking::FirstTouch => 0,
            Ranking::Random => scatter(address >> 12, RANDOM_RANKS.into()) as u16,
        }
    }
}

#[inline]
pub(super) fn count(
    degrees: &Degrees<'_>,
    tally: &mut Tally,
    page: &Page,
    address: u64,
    bytes: u64,
) {
    let fast = page.place() == Place::Fast;
    tally.add(fast, page.is_fixed(), degrees.rank(page, address), bytes);
}
