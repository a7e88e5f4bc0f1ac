//! [`Clock`]: decides whether a period is tracked, from how much the last ones moved.
//!
//! HMM-V, section 4.1.3: a period that moved little raises a counter, each period lowers it by one,
//! and tracking is on while it is 0. One step up and one down would cancel each other, so we read
//! the limit of 3 as follows: one calm period pauses one period, the next calm one in a row pauses
//! two, then three, until a period is not calm.

use super::settings::Settings;

/// The clock switch of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Calm periods in a row.
    calm: u8,
    /// Periods yet to pause.
    counter: u8,
}

impl Clock {
    /// Begins a period, and returns whether it is to be tracked.
    pub fn tick(&mut self) -> bool {
        if self.counter == 0 {
            return true;
        }
        self.counter -= 1;
        false
    }

    /// Whether the last period that was tracked moved little.
    pub fn was_calm(&self) -> bool {
        self.calm > 0
    }

    /// Ends a period that was tracked and moved this many bytes.
    pub fn tracked(&mut self, moved_bytes: u64, settings: &Settings) {
        self.calm = match moved_bytes < settings.calm_bytes {
            true => (self.calm + 1).min(settings.pause_max),
            false => 0,
        };
        self.counter = self.calm;
    }

    /// Makes the next period a tracked one.
    pub fn wake(&mut self) {
        *self = Self::default();
    }

    /// Number of periods that are still paused.
    pub fn counter(&self) -> u8 {
        self.counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of 20 periods are tracked, by how much each would move.
    fn tracked(moves: impl Fn(usize) -> u64) -> Vec<usize> {
        let settings = Settings::default();
        let mut clock = Clock::default();
        let mut tracked = Vec::new();
        for period in 0..20 {
            if clock.tick() {
                tracked.push(period);
                clock.tracked(moves(period), &settings);
            }
            assert!(clock.counter() <= settings.pause_max);
        }
        tracked
    }

    #[test]
    fn calm_periods_are_tracked_less_and_less_often() {
        assert_eq!(tracked(|_| 0), [0, 2, 5, 9, 13, 17]);
    }

    #[test]
    fn busy_periods_are_all_tracked() {
        assert_eq!(tracked(|_| 256 << 20), (0..20).collect::<Vec<_>>());
        assert_eq!(tracked(|p| if p < 5 { 0 } else { 1 << 30 }).len(), 17);
    }
}
