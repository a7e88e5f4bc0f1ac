//! [`Settings`]: every constant of the policy, with the paper's value as its default.

use serde::{Deserialize, Serialize};

/// A history is kept in as many bits.
pub(super) const WINDOWS_MAX: u8 = 16;
/// A page of this level backs off for 128 windows.
pub(super) const LEVEL_MAX: u8 = 8;
/// Degrees above are none that a bucket exists for.
pub(super) const WEIGHT_MAX: u8 = 32;

/// The order of pages by hotness; all but the first serve comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ranking {
    /// By degree: weighted reads and writes of the last windows (HMM-V).
    #[default]
    Degree,
    /// Hot is what was touched in as many of the last windows as [`Settings::threshold`] says,
    /// everything else is equal (HeMem).
    Threshold,
    /// Touched in both of the last two windows, in one, or in none: an active and an inactive list
    /// (Nimble, and the kernel's own).
    TwoLists,
    /// By the window in which a page was last accessed (LRU, in steps of a window).
    Recency,
    /// All pages are equal, so that each stays where it was first touched.
    FirstTouch,
    /// By a number drawn for each page once, from its address.
    Random,
}

/// The constants of the policy. The paper is HMM-V; what says *ours* is not in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of windows over which a degree counts, at most 16.
    pub windows: u8,
    /// The highest level of the queue, at most 8: a page of level x is backed off for 2^(x-1)
    /// windows. 0 turns the queue off.
    pub level_max: u8,
    /// Ours: the highest level of a huge page, if that is less. A fault samples all of it, so that
    /// it can be sampled more often; and a hot set may be so few huge pages that spot checks do not
    /// show when it moves.
    pub huge_level_max: u8,
    /// Weight of a window with a read in a degree. To a source that cannot distinguish them, every
    /// access is a read.
    pub read_weight: u8,
    /// Weight of a window with a write in a degree.
    pub write_weight: u8,
    /// A page of a lower degree is never hot.
    pub degree_min: u16,
    /// Ours: a page of a lower degree is not given fast memory. Less than `degree_min` lets all
    /// that was used compete for memory that the target has; what it asks of a pool is for hot
    /// pages.
    pub place_min: u16,
    /// The share of the pages that are hot by their degree for which a target wants fast memory
    /// from the pool.
    pub share_percent: u8,
    /// Percentage of its share that a target keeps when it gives memory to the pool.
    pub lower_percent: u16,
    /// Percentage of its share up to which a target gets memory from the pool.
    pub upper_percent: u16,
    /// When less was moved in a period, the next ones are not tracked.
    pub calm_bytes: u64,
    /// How many periods in a row are not tracked, at most.
    pub pause_max: u8,
    /// Moves are planned each time this many windows of a period have passed. Ours: the paper plans
    /// once, after the last of 8.
    pub decide_every: u8,
    /// A page replaces another one if its degree is higher by more than this, so that pages that
    /// are accessed by chance do not change places again and again; in the first windows of a
    /// period it is less, in proportion. Ours; the paper has 0.
    pub margin: u16,
    /// Ours: when a backed-off page turns out not to be in use, the windows in which it was assumed
    /// to be accessed are erased from its history.
    pub take_back: bool,
    /// Ours: once the whole history was observed, a backed-off page of a level below 4 does not
    /// count as accessed. Otherwise one access by chance would count as two, and two as five.
    pub only_answers: bool,
    /// Ours: one in this many backed-off pages is sampled in every window as a spot check; 0 for
    /// none.
    pub spot_check: u8,
    /// Ours: if more than this percentage of spot checks was not accessed (or of the pages of level
    /// 3 and above, if most of them are due at once), the program has entered another phase, and
    /// the back-off of all pages is reset.
    pub phase_change_percent: u8,
    /// Ours: a page that is accessed after no access in the remembered windows backs off for so
    /// many windows more, which do not count as accessed, so that rarely used pages are sampled
    /// rarely.
    pub rare_rest: u8,
    /// Ours: number of windows after which a period that follows a calm one ends early, if it is
    /// calm, too; 0 for never.
    pub settle_after: u8,
    /// Ours: in a period that is not tracked, a sample of backed-off pages is probed in one window.
    /// If it shows a phase change, by `phase_change_percent`, the period is tracked after all.
    pub probe: bool,
    /// Ours: the queue is left out while fast memory would serve more without it, which is tried on
    /// a sample of the pages.
    pub trial: bool,
    /// Ours: pages compete for fast memory by their degree and by the part of so many sampled
    /// windows in which they were accessed. 0: by their degree alone.
    pub long_windows: u8,
    /// Ours: where phases come again that are shorter than the time between two periods, pages
    /// compete by that longer time most of all. Which of the two orders fast memory would have
    /// served more by is tried on pages that are sampled anyway.
    pub adapt_order: bool,
    /// How pages are put into an order.
    pub ranking: Ranking,
    /// For [`Ranking::Threshold`]: pages accessed in this many of the last windows are hot.
    pub threshold: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            windows: 8,
            level_max: 7,
            huge_level_max: 4,
            read_weight: 1,
            write_weight: 3,
            degree_min: 3,
            place_min: 1,
            share_percent: 80,
            lower_percent: 75,
            upper_percent: 125,
            calm_bytes: 256 << 20,
            pause_max: 3,
            decide_every: 1,
            margin: 4,
            take_back: true,
            only_answers: true,
            spot_check: 32,
            phase_change_percent: 50,
            rare_rest: 2,
            settle_after: 4,
            probe: true,
            trial: false,
            long_windows: 64,
            adapt_order: true,
            ranking: Ranking::Degree,
            threshold: 4,
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, and must be {allowed}")]
pub struct SettingsError {
    /// The setting's name.
    pub name: &'static str,
    /// The value that was given.
    pub value: u64,
    /// The values that are allowed.
    pub allowed: &'static str,
}

impl Settings {
    /// The paper's policy without our additions.
    pub fn paper() -> Self {
        Self {
            huge_level_max: 7,
            place_min: 3,
            decide_every: 8,
            margin: 0,
            take_back: false,
            only_answers: false,
            spot_check: 0,
            rare_rest: 0,
            settle_after: 0,
            probe: false,
            long_windows: 0,
            ..Self::default()
        }
    }

    /// Settings of another design for comparison: no queue, so that every page is sampled in every
    /// window.
    pub fn baseline(ranking: Ranking) -> Self {
        Self {
            level_max: 0,
            degree_min: 1,
            margin: 0,
            settle_after: 0,
            probe: false,
            long_windows: 0,
            ranking,
            ..Self::default()
        }
    }

    /// RAMinate's, for comparison: pages are ranked by the windows in which they were written, so
    /// that writes to slow memory become few; reads count for nothing. For sources that report
    /// writes.
    pub fn by_writes() -> Self {
        Self {
            read_weight: 0,
            write_weight: 1,
            ..Self::baseline(Ranking::Degree)
        }
    }

    /// Weighs reads and writes by what each gains from fast memory: how much longer it takes in
    /// slow memory, in any unit. A window with a write counts as often as one with a read as its
    /// gain is larger, in steps of a quarter; what is hot, and by how much, is scaled with the
    /// weights.
    ///
    /// A window with a write is one with an access, too, where a source reports both: its weights
    /// add up, and a write weighs no less than a read.
    #[must_use]
    pub fn weighed(self, read_gain: f64, write_gain: f64) -> Self {
        let (read, write) = (read_gain.max(0.0), write_gain.max(0.0));
        // Of a window with a write: both weights together.
        let ratio = write / read;
        let (read_weight, write_weight) = match ratio {
            ratio if ratio.is_nan() => return self,
            ratio if ratio <= 1.0 => (WEIGHT_MAX / 4, 1),
            ratio => {
                // In quarters, so that 1.25 is not 1.
                let quarters = ((ratio - 1.0) * 4.0).round().clamp(1.0, WEIGHT_MAX.into());
                (4, quarters as u8)
            }
        };
        let scale = u16::from(read_weight).max(1);
        Self {
            degree_min: self.degree_min.saturating_mul(scale),
            place_min: self.place_min.saturating_mul(scale),
            margin: self.margin.saturating_mul(scale),
            read_weight,
            write_weight,
            ..self
        }
    }

    /// Checks that the settings make sense.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |name, value: u64, allowed: &'static str, fine: bool| match fine {
            true => Ok(()),
            false => Err(SettingsError {
                name,
                value,
                allowed,
            }),
        };
        let within = |name, value: u8, most: u8, allowed| {
            check(name, u64::from(value), allowed, (1..=most).contains(&value))
        };
        within("windows", self.windows, WINDOWS_MAX, "1 to 16")?;
        check(
            "level_max",
            self.level_max.into(),
            "0 to 8",
            self.level_max <= LEVEL_MAX,
        )?;
        check(
            "huge_level_max",
            self.huge_level_max.into(),
            "0 to 8",
            self.huge_level_max <= LEVEL_MAX,
        )?;
        check(
            "read_weight",
            self.read_weight.into(),
            "0 to 32",
            self.read_weight <= WEIGHT_MAX,
        )?;
        within("write_weight", self.write_weight, WEIGHT_MAX, "1 to 32")?;
        check(
            "degree_min",
            self.degree_min.into(),
            "at least 1",
            self.degree_min >= 1,
        )?;
        check(
            "place_min",
            self.place_min.into(),
            "at least 1",
            self.place_min >= 1,
        )?;
        within("share_percent", self.share_percent, 100, "1 to 100")?;
        check(
            "lower_percent",
            self.lower_percent.into(),
            "at most 100",
            self.lower_percent <= 100,
        )?;
        check(
            "upper_percent",
            self.upper_percent.into(),
            "100 to 10000",
            (100..=10_000).contains(&self.upper_percent),
        )?;
        within(
            "phase_change_percent",
            self.phase_change_percent,
            100,
            "1 to 100",
        )?;
        check(
            "rare_rest",
            self.rare_rest.into(),
            "at most 64",
            self.rare_rest <= 64,
        )?;
        within("decide_every", self.decide_every, u8::MAX, "1 to 255")?;
        within("threshold", self.threshold, WINDOWS_MAX, "1 to 16")
    }

    /// The settings for huge pages.
    pub(super) fn of_huge_pages(&self) -> Self {
        Self {
            level_max: self.level_max.min(self.huge_level_max),
            ..self.clone()
        }
    }

    /// Whether pages compete by what they did over a longer time, too.
    pub(super) fn has_means(&self) -> bool {
        self.mean_windows() > 0
    }

    /// How many windows a mean is over; 0 for none.
    pub(super) fn mean_windows(&self) -> u8 {
        match self.ranking {
            Ranking::Degree => self.long_windows,
            _ => 0,
        }
    }

    /// Whether there are two orders to choose from.
    pub(super) fn tries_orders(&self) -> bool {
        self.adapt_order && self.has_means()
    }

    /// Whether there is a queue that may be left out.
    pub(super) fn tries_without_queue(&self) -> bool {
        self.trial && self.level_max > 0 && self.ranking == Ranking::Degree
    }

    /// The highest rank that a page can have.
    pub(super) fn rank_max(&self) -> u16 {
        match self.ranking {
            Ranking::Degree => {
                u16::from(self.windows)
                    * (u16::from(self.read_weight) + u16::from(self.write_weight))
            }
            Ranking::Threshold => 1,
            Ranking::TwoLists => 2,
            Ranking::Recency => u16::from(self.windows),
            Ranking::FirstTouch => 0,
            Ranking::Random => RANDOM_RANKS - 1,
        }
    }
}

/// How many different ranks [`Ranking::Random`] draws from.
pub(super) const RANDOM_RANKS: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_as_the_gains() {
        let weights = |read, write| {
            let settings = Settings::default().weighed(read, write);
            settings.validate().unwrap();
            (
                settings.read_weight,
                settings.write_weight,
                settings.degree_min,
            )
        };
        // HMM-V's slowdowns: 68.4% and 188%, so that a written window counts 2.75 times as much.
        assert_eq!(weights(0.684, 1.88), (4, 7, 12));
        // Its latencies: writes gain next to nothing, and are accesses all the same.
        assert_eq!(weights(229.0, 12.0), (8, 1, 24));
        assert_eq!(weights(1.0, 1.0), (8, 1, 24));
        assert_eq!(weights(0.0, 5.0), (4, 32, 12), "only writes gain");
        for strange in [(0.0, 0.0), (-1.0, -1.0), (f64::NAN, f64::NAN)] {
            let settings = Settings::default().weighed(strange.0, strange.1);
            assert_eq!(settings, Settings::default(), "nothing is known");
        }
    }

    #[test]
    fn the_papers_values_are_the_default() {
        let Settings {
            windows,
            level_max,
            read_weight,
            write_weight,
            degree_min,
            share_percent,
            lower_percent,
            upper_percent,
            calm_bytes,
            pause_max,
            ..
        } = Settings::default();
        assert_eq!((windows, level_max), (8, 7));
        assert_eq!((read_weight, write_weight), (1, 3));
        assert_eq!((degree_min, share_percent), (3, 80));
        assert_eq!((lower_percent, upper_percent), (75, 125));
        assert_eq!((calm_bytes, pause_max), (256 << 20, 3));
        assert!(Settings::default().validate().is_ok());
        assert!(Settings::paper().validate().is_ok());
        assert!(Settings::by_writes().validate().is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.validate().unwrap_err().to_string()
        };
        assert!(wrong(|s| s.windows = 0).starts_with("windows is 0"));
        assert!(wrong(|s| s.windows = 17).contains("1 to 16"));
        assert!(wrong(|s| s.level_max = 9).starts_with("level_max is 9"));
        assert!(wrong(|s| s.huge_level_max = 9).contains("huge_level_max"));
        assert!(wrong(|s| s.write_weight = 0).contains("write_weight"));
        assert!(wrong(|s| s.degree_min = 0).contains("degree_min"));
        assert!(wrong(|s| s.share_percent = 101).contains("share_percent"));
        assert!(wrong(|s| s.lower_percent = 101).contains("lower_percent"));
        assert!(wrong(|s| s.upper_percent = 99).contains("upper_percent"));
        assert!(wrong(|s| s.decide_every = 0).contains("decide_every"));
    }
}
