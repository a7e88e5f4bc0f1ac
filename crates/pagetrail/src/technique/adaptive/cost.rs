//! [`Costs`]: when it pays to arm a page.
//!
//! A page that is written in the next round with probability `p` costs a fault with that
//! probability if it is armed, and a false positive with the opposite probability if it is not. So
//! it is armed if `p * fault < (1 - p) * false_positive`. The same two costs determine for how long
//! a page may be predicted dirty on the evidence of the rounds in which it was: until its
//! probability, which by Laplace's rule decays by one part in as many rounds as it was seen
//! written, has come down to where the two are equal.

use crate::page_set::page_size;
use crate::technique::price;
use std::time::Duration;

/// The cost of a false positive to the consumer: of a page that is reported although it was not
/// written.
///
/// The technique `adaptive` trades it against the cost of a fault to the tracked program, which it
/// measures itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FalsePositiveCost {
    /// The page is copied within memory.
    Copied,
    /// The page is read, hashed, and found unchanged, as in a checkpoint or a content-addressed
    /// store.
    #[default]
    Hashed,
    /// The page is searched for references, as in a garbage collector.
    Scanned,
    /// The page is sent over a network of 10 Gb/s, as in a migration.
    Sent,
    /// The cost that the consumer has measured for a page.
    Costs(Duration),
}

impl FalsePositiveCost {
    /// The cost in nanoseconds for a page of this machine. Unless given, it is a round number for 4
    /// KiB on server processors of the 2020s; only its rough relation to the cost of a fault
    /// matters.
    fn ns(self) -> u64 {
        let per_4_kib = match self {
            Self::Copied => 500,
            Self::Hashed => 1_500,
            Self::Scanned => 2_500,
            Self::Sent => 3_500,
            Self::Costs(time) => return time.as_nanos().min(u128::from(COST_NS_MAX)) as u64,
        };
        per_4_kib * page_size() / 4096
    }
}

/// The highest cost of a page.
const COST_NS_MAX: u64 = 1_000_000_000;

/// A probability in parts of 256.
pub(super) type Share = u8;

/// The weight of the last observation in an estimate: one part in `1 << RECENT`.
const RECENT: u32 = 2;

/// How often the check interval may double; a page is predicted dirty without a check for at most
/// `1 << CHECK_LOG_MAX` rounds.
pub(super) const CHECK_LOG_MAX: u32 = 6;

/// The costs, and what follows from them.
#[derive(Debug)]
pub(super) struct Costs {
    /// What arming a page saves in a round, in nanoseconds, indexed by the share of rounds in which
    /// it is written.
    gain: [i64; 256],
    /// The number of levels for each doubling of the check interval.
    steps: u8,
    /// log2 of the check interval in rounds, indexed by the level.
    check_log: [u8; LEVEL_MAX as usize + 1],
    sweep_rounds: u32,
}

impl Costs {
    /// Computes the costs with the cost of a fault on this machine, which counts as a multiple of
    /// its price.
    pub(super) fn here(false_positive: FalsePositiveCost, fault_weight: f64) -> Self {
        let fault_ns = price::of_protection().as_nanos() as f64 * fault_weight;
        Self::of(fault_ns as u64, false_positive.ns())
    }

    pub(super) fn of(fault_ns: u64, false_positive_ns: u64) -> Self {
        let (fault, false_positive) = (fault_ns.max(1) as i64, false_positive_ns.max(1) as i64);
        let mut gain = [0; 256];
        for (share, gain) in gain.iter_mut().enumerate() {
            let written = share as i64;
            *gain = ((256 - written) * false_positive - written * fault) / 256;
        }
        let even = false_positive as f64 / (false_positive + fault) as f64;
        // Seen written in n rounds, a page may be predicted dirty for n * ln(1 / even) rounds: by
        // then its probability decays to `even`.
        let steps = (1.0 / (1.0 / even).ln()).ceil();
        let steps = steps.clamp(1.0, f64::from(LEVEL_MAX / CHECK_LOG_MAX as u8)) as u8;
        let mut check_log = [0; LEVEL_MAX as usize + 1];
        for (level, log) in (0..=LEVEL_MAX).zip(&mut check_log) {
            *log = (1 + level / steps).min(CHECK_LOG_MAX as u8);
        }
        Self {
            gain,
            steps,
            check_log,
            sweep_rounds: (false_positive / fault).clamp(SWEEP_ROUNDS_MIN, i64::from(u32::MAX))
                as u32,
        }
    }

    /// What arming a page saves in a round; negative if it costs more than it saves.
    pub(super) fn gain(&self, written: Share) -> i64 {
        self.gain[usize::from(written)]
    }

    /// The gain at which a page is predicted dirty if a check costs `price`: the first prediction,
    /// for a round or two, must pay for the check at its end, unless the page is all but certain to
    /// be written.
    pub(super) fn worth_checking(&self, price: i64) -> i64 {
        (-price * 2 / 3).max(self.gain(CERTAIN_ENOUGH)).min(-1)
    }

    /// For how many rounds a sweep must have continued to be predicted to continue: Laplace's rule
    /// again.
    pub(super) fn sweep_rounds(&self) -> u32 {
        self.sweep_rounds
    }

    /// log2 of the check interval in rounds.
    pub(super) fn check_log(&self, level: u8) -> u32 {
        self.check_log[usize::from(level & LEVEL_MAX)].into()
    }

    /// The lowest level with a longer check interval than `due`; above [`LEVEL_MAX`] if there is
    /// none.
    pub(super) fn level_resting(&self, due: u32) -> u8 {
        self.check_log.partition_point(|log| u32::from(*log) <= due) as u8
    }

    /// The highest level that makes a difference.
    pub(super) fn level_max(&self) -> u8 {
        (self.steps * CHECK_LOG_MAX as u8).min(LEVEL_MAX)
    }
}

/// A sweep that continued for fewer rounds may be chance.
const SWEEP_ROUNDS_MIN: i64 = 3;

/// The cost of inspecting a page that the scan did not re-arm.
pub(super) const INSPECT_NS: i64 = 30;

/// A page that is written in so many of 256 rounds will soon be checked rarely, and need not pay
/// for its first checks.
const CERTAIN_ENOUGH: Share = 240;

/// The highest level: levels are six bits wide.
pub(super) const LEVEL_MAX: u8 = 63;

/// The estimate after a round in which the page was written.
pub(super) fn after_write(written: Share) -> Share {
    let quiet = Share::MAX - written;
    written + (quiet >> RECENT) + Share::from(quiet != 0 && quiet >> RECENT == 0)
}

/// The estimate after so many rounds in which the page was not written.
pub(super) fn after_quiet(written: Share, rounds: u32) -> Share {
    match QUIET.get(rounds as usize) {
        Some(estimates) => estimates[usize::from(written)],
        None => 0,
    }
}

/// Estimates after 0, 1, .. rounds without a write; in as many rounds as the table has rows, every
/// estimate decays to 0.
static QUIET: [[Share; 256]; 24] = {
    let mut estimates = [[0; 256]; 24];
    let mut written = 0;
    while written < 256 {
        let mut estimate = written as Share;
        let mut rounds = 0;
        while rounds < estimates.len() {
            estimates[rounds][written] = estimate;
            let lost = estimate >> RECENT;
            estimate = estimate.saturating_sub(if lost == 0 { 1 } else { lost });
            rounds += 1;
        }
        written += 1;
    }
    estimates
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_predicted_dirty_if_that_is_cheaper() {
        let costs = Costs::of(1_000, 1_500);
        assert!(costs.gain(0) > 0 && costs.gain(128) > 0 && costs.gain(255) < 0);
        // Written in three rounds of five, both cost the same.
        assert!((-20..=20).contains(&costs.gain(154)), "{}", costs.gain(154));
        // An expensive check, or an expensive false positive, requires more certainty.
        let entry = |costs: &Costs, price| {
            let worth = costs.worth_checking(price);
            (0..=255).find(|share| costs.gain(*share) <= worth).unwrap()
        };
        assert!(entry(&costs, 300) < entry(&costs, 1_000));
        assert!(entry(&costs, 300) < entry(&Costs::of(1_000, 10_000), 300));
        assert_eq!(entry(&costs, 1_000_000), CERTAIN_ENOUGH);
        assert!(entry(&costs, 0) > 153);
        assert!(costs.sweep_rounds() < Costs::of(1_000, 10_000).sweep_rounds());
    }

    #[test]
    fn rarely_checked_pages_were_written_for_long() {
        for false_positive in [1, 500, 1_500, 20_000, 1_000_000] {
            let costs = Costs::of(1_000, false_positive);
            assert_eq!(costs.check_log(0), 1);
            assert_eq!(costs.check_log(costs.level_max()), CHECK_LOG_MAX);
            let logs = (0..=costs.level_max()).map(|level| costs.check_log(level));
            assert!(logs.is_sorted());
        }
    }

    #[test]
    fn estimates_reach_both_ends_and_stay_there() {
        let written = (0..40).fold(0, |share, _| after_write(share));
        assert_eq!((written, after_write(255)), (255, 255));
        assert_eq!((after_quiet(255, 1000), after_quiet(0, 5)), (0, 0));
        assert_eq!(after_quiet(200, 0), 200);
        let step_by_step = (0..5).fold(200, |share, _| after_quiet(share, 1));
        assert_eq!(after_quiet(200, 5), step_by_step);
    }
}
