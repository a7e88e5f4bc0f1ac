//! [`Weight`]: how much a fault counts for a technique that predicts, against a false positive.
//!
//! Pure. While the target costs more than its share at the shortest interval, a fault counts more,
//! so that more pages are predicted dirty instead of protected; where it costs far less, a fault
//! counts less, so that fewer false positives are reported. What a step does shows some rounds
//! later, and it may do too much: a step that was taken back is not tried again for a time, which
//! doubles each time (exponential back-off), so that two neighbouring weights do not take turns.
//! The first round alone is different: nothing is known of its target but how dear it was, and so
//! the weight is what would have made it affordable ([`Weight::rise`]).

use super::pacer::Strain;

/// A fault may count from a sixteenth of its price to sixteen times its price, in powers of two.
const LEVEL_MAX: u8 = 8;
/// The level at which a fault counts as its price.
pub(super) const LEVEL_EVEN: u8 = 4;

/// How many rounds show what a step does: the prediction learns a page within three writes.
const ROUNDS_EACH: u32 = 3;

/// The most pages to report for each page written; above, less is predicted.
const REPORTED_MAX: f64 = 1.6;
/// Up to this many, more may be predicted.
const REPORTED_ROOM: f64 = 1.45;
/// With fewer pages, their ratio says nothing.
const PAGES_MIN: u64 = 64;

/// The longest time for which a step that was taken back is not tried again, in [`ROUNDS_EACH`].
const BACK_OFF_MAX: u32 = 64;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Predict more.
    Up,
    /// Predict less, because that is affordable.
    Down,
    /// Predict less, because too much is reported.
    Back,
}

/// The weight of a fault.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    level: u8,
    least: u8,
    rounds: u32,
    /// Whether a round has been added.
    has_begun: bool,
    reported: u64,
    written: u64,
    last: Option<Step>,
    up: BackOff,
    down: BackOff,
}

/// For how long a step is not tried.
#[derive(Clone, Copy, Debug)]
struct BackOff {
    /// In [`ROUNDS_EACH`].
    length: u32,
    left: u32,
}

impl BackOff {
    const NONE: Self = Self { length: 1, left: 0 };

    /// The step has been taken back.
    fn lengthen(&mut self) {
        self.left = self.length;
        self.length = (self.length * 2).min(BACK_OFF_MAX);
    }

    fn pass(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

impl Weight {
    /// Begins with a fault that counts as its price. `least`: the lowest level; [`LEVEL_EVEN`] if
    /// the consumer has set what a false positive costs, zero if precision is all that counts.
    pub(super) fn new(least: u8) -> Self {
        Self {
            level: LEVEL_EVEN,
            least,
            rounds: 0,
            has_begun: false,
            reported: 0,
            written: 0,
            last: None,
            up: BackOff::NONE,
            down: BackOff::NONE,
        }
    }

    /// Adds a round: how it fits the share, how many pages it reported, and how many of them were
    /// written, by estimate.
    pub(super) fn observe(&mut self, strain: Strain, reported: u64, written: u64) {
        self.reported += reported;
        self.written += written.min(reported);
        self.rounds += 1;
        self.has_begun = true;
        if self.rounds < ROUNDS_EACH {
            return;
        }
        let ratio = match self.reported < PAGES_MIN {
            true => 1.0,
            false => self.reported as f64 / self.written.max(1) as f64,
        };
        (self.rounds, self.reported, self.written) = (0, 0, 0);
        self.up.pass();
        self.down.pass();
        let step = match strain {
            _ if ratio > REPORTED_MAX && self.level > self.least => Step::Back,
            Strain::Over
                if ratio < REPORTED_ROOM && self.level < LEVEL_MAX && self.up.left == 0 =>
            {
                Step::Up
            }
            Strain::Slack if self.level > self.least && self.down.left == 0 => Step::Down,
            _ => return,
        };
        match (self.last.replace(step), step) {
            (Some(Step::Up), Step::Back) => self.up.lengthen(),
            (Some(Step::Down), Step::Up) => self.down.lengthen(),
            // After a step up was affordable by half at once, it was too large.
            (Some(Step::Up), Step::Down) => self.down.lengthen(),
            _ => {}
        }
        match step {
            Step::Up => self.level += 1,
            Step::Down | Step::Back => self.level -= 1,
        }
    }

    /// Whether a round has been added.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Before the first round is added: it cost so many times what the share allows at the shortest
    /// interval.
    pub(super) fn rise(&mut self, pressure: f64) {
        if !self.has_begun && pressure > 1.0 {
            let levels = pressure.log2().min(f64::from(LEVEL_MAX)) as u8;
            self.level = (LEVEL_EVEN + levels).min(LEVEL_MAX);
        }
    }

    /// What a fault counts, as a multiple of its price.
    pub(super) fn factor(&self) -> f64 {
        f64::from(self.level).exp2() / f64::from(LEVEL_EVEN).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lets a target run, which says for each level how it fits and how many pages it reports for
    /// each hundred written; returns the levels.
    fn run(weight: &mut Weight, target: impl Fn(u8) -> (Strain, u64), rounds: usize) -> Vec<u8> {
        let one = |_| {
            let (strain, reported) = target(weight.level);
            weight.observe(strain, reported, 100);
            weight.level
        };
        (0..rounds).map(one).collect()
    }

    fn steps(levels: &[u8]) -> usize {
        levels.windows(2).filter(|two| two[0] != two[1]).count()
    }

    #[test]
    fn a_cheap_target_is_reported_precisely() {
        let mut weight = Weight::new(0);
        let levels = run(&mut weight, |_| (Strain::Slack, 130), 40);
        assert_eq!(levels[39], 0);
        assert_eq!(weight.factor(), 1.0 / 16.0);
        // Unless the consumer has said what a false positive costs.
        let mut weight = Weight::new(LEVEL_EVEN);
        assert_eq!(run(&mut weight, |_| (Strain::Slack, 130), 40)[39], 4);
        assert_eq!(weight.factor(), 1.0);
    }

    #[test]
    fn a_dear_target_is_predicted_as_far_as_the_reports_allow() {
        let mut weight = Weight::new(0);
        let levels = run(&mut weight, |_| (Strain::Over, 110), 40);
        assert_eq!((levels[39], weight.factor()), (8, 16.0));
        let mut weight = Weight::new(0);
        let reported = |level: u8| (Strain::Over, 100 + 15 * u64::from(level.saturating_sub(2)));
        let levels = run(&mut weight, reported, 400);
        assert!(levels.iter().all(|level| *level <= 7));
        assert!(levels[200..].iter().all(|level| (5..=6).contains(level)));
    }

    #[test]
    fn a_first_round_that_is_dear_is_answered_at_once() {
        for (pressure, level) in [(0.0, 4), (1.5, 4), (5.0, 6), (1e9, 8), (f64::INFINITY, 8)] {
            let mut weight = Weight::new(0);
            weight.rise(pressure);
            assert_eq!(weight.level, level, "{pressure}");
            weight.observe(Strain::Over, 100, 100);
            weight.rise(1e9);
            assert_eq!(weight.level, level, "{pressure}");
        }
    }

    #[test]
    fn few_pages_say_nothing_about_precision() {
        let mut weight = Weight::new(0);
        for _ in 0..30 {
            weight.observe(Strain::Fits, 9, 1);
        }
        assert_eq!(weight.level, LEVEL_EVEN);
    }

    proptest! {
        /// However a target answers to its level, the level comes to rest, or is changed ever more
        /// rarely.
        #[test]
        fn levels_do_not_take_turns(
            strains in proptest::collection::vec(0..3u8, 9),
            reported in proptest::collection::vec(100..260u64, 9),
            least in 0..5u8,
        ) {
            let strain = |level: u8| match strains[usize::from(level)] {
                0 => Strain::Over,
                1 => Strain::Fits,
                _ => Strain::Slack,
            };
            let mut weight = Weight::new(least);
            let target = |level: u8| (strain(level), reported[usize::from(level)]);
            let levels = run(&mut weight, target, 3000);
            prop_assert!(levels.iter().all(|level| (least..=LEVEL_MAX).contains(level)));
            // A thousand evaluations, the last third of which may hold some tries of steps.
            let last = steps(&levels[2000..]);
            prop_assert!(last <= 24, "{last} steps in a thousand rounds");
        }
    }
}
