//! [`Costs`]: when a page is worth watching, decided by what things cost.
//!
//! A page that is written in the next round with probability `p` costs a fault with that probability when it is armed, and
//! a vain report with the other when it is not. So it is armed where `p * fault < (1 - p) * vain`. The same two prices
//! say for how long a page may be predicted dirty on the evidence of the rounds in which it was: until its probability, which
//! Laplace's rule lets decay by one part in as many rounds as it was seen written, has come down to where the two are equal.

use super::super::Tracker;
use super::super::pagemap_scan::{HugePages, PagemapScan};
use crate::page_set::{PageSet, page_size};
use crate::region::Region;
use crate::sys::scratch::Scratch;
use crate::sys::uffd::Uffd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What it costs the consumer that a page is reported which nobody has written.
///
/// The technique `adaptive` weighs it against what a fault costs the tracked program, and finds out the latter by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FalsePositiveCost {
    /// A copy within memory.
    Copied,
    /// It is read and hashed, and found unchanged: a checkpoint, a store that knows contents.
    #[default]
    Hashed,
    /// It is searched for references: a garbage collector.
    Scanned,
    /// It goes over a network of 10 Gb/s: a migration.
    Sent,
    /// As measured by the consumer.
    Costs(Duration),
}

impl FalsePositiveCost {
    /// Nanoseconds for a page of this machine. Those that are not given are round numbers for 4 KiB on server processors of
    /// the 2020s; only their relation to the price of a fault matters, and that roughly.
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

/// No price is higher.
const COST_NS_MAX: u64 = 1_000_000_000;

/// A probability in parts of 256.
pub(super) type Share = u8;

/// Weight of the last observation in an estimate: one part in `1 << RECENT`.
const RECENT: u32 = 2;

/// So many halvings of the number of rounds between two questions; the longest time for which a page is predicted dirty
/// without a question is `1 << ASK_LOG_MAX` rounds.
pub(super) const ASK_LOG_MAX: u32 = 6;

/// Where the price of a fault cannot be measured.
const FAULT_NS_DEFAULT: u64 = 1_000;

/// The prices, and what follows from them.
#[derive(Debug)]
pub(super) struct Costs {
    /// By the share of rounds in which a page is written: what it saves in a round, in nanoseconds, that it is armed.
    gain: [i64; 256],
    /// Levels for each doubling of the time between two questions.
    steps: u8,
    /// By the level: rounds from one question to the next, as a power of two.
    ask_log: [u8; LEVEL_MAX as usize + 1],
    sweep_rounds: u32,
}

impl Costs {
    /// With the price of a fault on this machine.
    pub(super) fn here(vain: FalsePositiveCost) -> Self {
        static FAULT_NS: OnceLock<u64> = OnceLock::new();
        let fault_ns = *FAULT_NS.get_or_init(|| {
            let measured = measure_fault();
            tracing::debug!(?measured, "a fault costs");
            measured.map_or(FAULT_NS_DEFAULT, |time| time.as_nanos() as u64)
        });
        Self::of(fault_ns, vain.ns())
    }

    pub(super) fn of(fault_ns: u64, vain_ns: u64) -> Self {
        let (fault, vain) = (fault_ns.max(1) as i64, vain_ns.max(1) as i64);
        let mut gain = [0; 256];
        for (share, gain) in gain.iter_mut().enumerate() {
            let written = share as i64;
            *gain = ((256 - written) * vain - written * fault) / 256;
        }
        let even = vain as f64 / (vain + fault) as f64;
        // Seen written in n rounds, a page may be predicted so for n * ln(1 / even): its probability decays to `even` by then.
        let steps = (1.0 / (1.0 / even).ln()).ceil();
        let steps = steps.clamp(1.0, f64::from(LEVEL_MAX / ASK_LOG_MAX as u8)) as u8;
        let mut ask_log = [0; LEVEL_MAX as usize + 1];
        for (level, log) in (0..=LEVEL_MAX).zip(&mut ask_log) {
            *log = (1 + level / steps).min(ASK_LOG_MAX as u8);
        }
        Self {
            gain,
            steps,
            ask_log,
            sweep_rounds: (vain / fault).clamp(SWEEP_ROUNDS_MIN, i64::from(u32::MAX)) as u32,
        }
    }

    /// What it saves in a round that a page is armed; negative where it costs more than it saves.
    pub(super) fn gain(&self, written: Share) -> i64 {
        self.gain[usize::from(written)]
    }

    /// How much it must cost that a page is armed, for it to be predicted dirty where a question costs `price`: the first
    /// time that it is predicted, for a round or two, must pay for the question at its end, unless it is all but certain to be written.
    pub(super) fn worth_asking(&self, price: i64) -> i64 {
        (-price * 2 / 3).max(self.gain(CERTAIN_ENOUGH)).min(-1)
    }

    /// For how many rounds a sweep must have gone on for it to be predicted to go on: Laplace's rule again.
    pub(super) fn sweep_rounds(&self) -> u32 {
        self.sweep_rounds
    }

    /// Rounds from one question to the next, as a power of two.
    pub(super) fn ask_log(&self, level: u8) -> u32 {
        self.ask_log[usize::from(level & LEVEL_MAX)].into()
    }

    /// The lowest level at which a page is asked more seldom than `due` says; above [`LEVEL_MAX`] where there is none.
    pub(super) fn level_resting(&self, due: u32) -> u8 {
        self.ask_log.partition_point(|log| u32::from(*log) <= due) as u8
    }

    /// The highest level that makes a difference.
    pub(super) fn level_max(&self) -> u8 {
        (self.steps * ASK_LOG_MAX as u8).min(LEVEL_MAX)
    }
}

/// Fewer are chance.
const SWEEP_ROUNDS_MIN: i64 = 3;

/// What it takes to look at a page without re-arming it in the same step.
pub(super) const LOOK_NS: i64 = 30;

/// A page that is written in so many of 256 rounds will be asked seldom soon, and need not pay for its first questions.
const CERTAIN_ENOUGH: Share = 240;

/// Levels fit into six bits.
pub(super) const LEVEL_MAX: u8 = 63;

/// The estimate after a round in which the page was written.
pub(super) fn after_write(written: Share) -> Share {
    let quiet = Share::MAX - written;
    written + (quiet >> RECENT) + Share::from(quiet != 0 && quiet >> RECENT == 0)
}

/// The estimate after so many rounds in which it was not.
pub(super) fn after_quiet(written: Share, rounds: u32) -> Share {
    match QUIET.get(rounds as usize) {
        Some(estimates) => estimates[usize::from(written)],
        None => 0,
    }
}

/// Estimates after 0, 1, .. rounds without a write: in as many as it has rows every estimate comes down to 0.
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

/// What a write-protection fault costs a program here, handled by the kernel.
fn measure_fault() -> Option<Duration> {
    const PAGES: u64 = 128;
    const TRIES: u32 = 5;
    let mut memory = Scratch::new(PAGES * page_size()).ok()?;
    let fd = Uffd::own(false).ok()?;
    let mut tracker = PagemapScan::new(fd, None, HugePages::Split).ok()?;
    let region = Region::scratch(memory.range());
    let mut pass = || {
        let began = Instant::now();
        for page in 0..PAGES {
            memory.write(page * page_size(), 1);
        }
        began.elapsed()
    };
    pass();
    let untracked = (0..TRIES).map(|_| pass()).min()?;
    tracker.arm(&region).ok()?;
    let mut out = PageSet::new();
    let mut tracked = Duration::MAX;
    for _ in 0..TRIES {
        tracked = tracked.min(pass());
        out.clear();
        tracker.collect(&[], &mut out).ok()?;
    }
    Some(tracked.saturating_sub(untracked) / PAGES as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_predicted_where_that_is_cheaper() {
        let costs = Costs::of(1_000, 1_500);
        assert!(costs.gain(0) > 0 && costs.gain(128) > 0 && costs.gain(255) < 0);
        // Written in three rounds of five both cost the same.
        assert!((-20..=20).contains(&costs.gain(154)), "{}", costs.gain(154));
        // A dear question, or a dear vain page, asks for more certainty.
        let entry = |costs: &Costs, price| {
            let worth = costs.worth_asking(price);
            (0..=255).find(|share| costs.gain(*share) <= worth).unwrap()
        };
        assert!(entry(&costs, 300) < entry(&costs, 1_000));
        assert!(entry(&costs, 300) < entry(&Costs::of(1_000, 10_000), 300));
        assert_eq!(entry(&costs, 1_000_000), CERTAIN_ENOUGH);
        assert!(entry(&costs, 0) > 153);
        assert!(costs.sweep_rounds() < Costs::of(1_000, 10_000).sweep_rounds());
    }

    #[test]
    fn what_is_asked_seldom_was_written_long() {
        for vain in [1, 500, 1_500, 20_000, 1_000_000] {
            let costs = Costs::of(1_000, vain);
            assert_eq!(costs.ask_log(0), 1);
            assert_eq!(costs.ask_log(costs.level_max()), ASK_LOG_MAX);
            let logs = (0..=costs.level_max()).map(|level| costs.ask_log(level));
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
