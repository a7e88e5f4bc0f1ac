//! [`Degrees`]: the rank of a page, by its degree or as other designs have it.

use super::means::Means;
use super::page::Page;
use super::settings::{RANDOM_RANKS, Ranking, Settings};
use super::spot_check::scatter;

/// What pages compete by, where they have means over a longer time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By what they did lately, and as much by their means, which begin anew with each phase: for
    /// hot sets that move.
    Lately,
    /// By their means most of all, over all phases: for programs whose phases come again, and are
    /// shorter than the time between two periods.
    Steadily,
}

/// Ranks of pages under some settings.
pub(super) struct Degrees {
    ranking: Ranking,
    windows: u8,
    threshold: u16,
    /// Weighted counts of the ones in a byte of a history: counting them for each page would take
    /// longer.
    reads: [u16; 256],
    writes: [u16; 256],
    weights: (u8, u8),
    has_means: bool,
    order: Order,
    margin: u16,
    pub(super) means: Means,
}

impl Degrees {
    pub(super) fn new(settings: &Settings, order: Order) -> Self {
        let weighted =
            |weight: u8| std::array::from_fn(|byte| byte.count_ones() as u16 * u16::from(weight));
        Self {
            ranking: settings.ranking,
            windows: settings.windows,
            threshold: settings.threshold.into(),
            reads: weighted(settings.read_weight),
            writes: weighted(settings.write_weight),
            weights: (settings.read_weight, settings.write_weight),
            has_means: settings.has_means(),
            means: Means::new(
                settings.mean_windows(),
                settings.windows,
                order == Order::Lately,
            ),
            order,
            margin: settings.margin,
        }
    }

    #[inline]
    pub(super) fn rank(&self, page: &Page, address: u64) -> u16 {
        match self.ranking {
            Ranking::Degree => page.weighed(&self.reads, &self.writes),
            _ => self.other_rank(page, address),
        }
    }

    /// What a page's place among all is by: ranks of its history and of a longer time together.
    #[inline]
    pub(super) fn score(&self, page: &Page, address: u64) -> u16 {
        self.score_with(page, self.rank(page, address))
    }

    /// The score of a page of this rank.
    #[inline]
    pub(super) fn score_with(&self, page: &Page, rank: u16) -> u16 {
        match self.has_means {
            false => rank,
            true => {
                let (read, write) = self.weights;
                rank + self.mean_weight() * page.long_degree(self.windows, read, write)
            }
        }
    }

    /// Takes an order; returns whether that is another one.
    pub(super) fn set_order(&mut self, order: Order, settings: &Settings) -> bool {
        let is_another = self.order != order;
        if is_another {
            *self = Self::new(settings, order);
        }
        is_another
    }

    /// The windows that a mean is over, of those since a phase began and of all.
    pub(super) fn seen(&self, in_phase: u16, all: u16) -> u16 {
        match self.order {
            Order::Lately => in_phase,
            Order::Steadily => all,
        }
    }

    /// How often a mean counts beside a degree.
    fn mean_weight(&self) -> u16 {
        match self.order {
            Order::Lately => 1,
            Order::Steadily => 3,
        }
    }

    /// How much higher a score must be to take another's place, `seen` windows after a phase began.
    pub(super) fn margin(&self, seen: u16) -> u16 {
        let windows = u32::from(self.windows);
        let margin = u32::from(self.margin) * u32::from(self.in_score());
        let margin = match self.order {
            Order::Lately => margin * u32::from(seen).min(windows) / windows,
            // A mean is steady by itself.
            Order::Steadily => margin / 4,
        };
        // No score is as high: such a margin stays out of reach.
        u16::try_from(margin).unwrap_or(u16::MAX)
    }

    /// The lowest score of a page that is of some rank, on average.
    pub(super) fn score_of(&self, rank: u16) -> u16 {
        let below = rank.saturating_sub(1).saturating_mul(self.in_score());
        below.saturating_add(u16::from(rank > 0))
    }

    /// The rank of a score.
    pub(super) fn rank_of(&self, score: u16) -> u16 {
        score.div_ceil(self.in_score())
    }

    /// How many ranks a score is the sum of.
    pub(super) fn in_score(&self) -> u16 {
        1 + self.mean_weight() * u16::from(self.has_means)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_margins_that_no_page_has_stay_out_of_reach() {
        let settings = Settings {
            margin: u16::MAX,
            ..Settings::default()
        };
        for order in [Order::Lately, Order::Steadily] {
            let degrees = Degrees::new(&settings, order);
            let most = settings.rank_max() * degrees.in_score();
            for rank in [1 << 14, 1 << 15, (1 << 15) + 1, u16::MAX] {
                assert!(degrees.score_of(rank) > most, "{order:?}: {rank}");
            }
            assert!(degrees.margin(u16::MAX) > most, "{order:?}");
            assert_eq!((degrees.score_of(0), degrees.score_of(1)), (0, 1));
        }
    }
}
