//! [`Pacer`]: when the next round is due, so that tracking costs a target no more than a share of
//! its time.
//!
//! Pure: the caller says what each round cost. A round costs more the longer it is, but less than
//! in proportion, because a page faults once in it: so the interval at which a round costs just the
//! share is approached by taking, each time, the interval that the last cost would need. Where the
//! cost is in proportion to time, no interval helps; the longest one is then in use, and the pacer
//! says that the budget is not kept.

/// A round that costs less than expected lowers the expectation by one part in this many of the
/// difference, and the interval likewise; one that costs more counts at once.
const SLOWLY: f64 = 2.0;

/// What was spent above the share is saved in this many rounds.
const REPAID_IN: f64 = 8.0;

/// The most excess that is saved later: what the share allows in this time, or in the longest
/// interval.
const EXCESS_NS_MAX: f64 = 1e9;

/// A round at the longest interval that costs so much more than the share is one too many.
const TOLERANCE: f64 = 1.1;

/// So many of them in a row, and the budget is not kept.
const ROUNDS_OVER: u32 = 3;

/// The pace of one watch.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    share: f64,
    shortest_ns: f64,
    longest_ns: f64,
    interval_ns: f64,
    /// The expected cost of a round, once there was one.
    expected_ns: Option<f64>,
    excess_ns: f64,
    rounds_over: u32,
}

/// How a round fits the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strain {
    /// The interval is stretched, or is the longest and does not do.
    Over,
    /// The shortest interval does, or nearly.
    Fits,
    /// The shortest interval does, at half of the share.
    Slack,
}

impl Pacer {
    /// Begins with the shortest interval. The bounds are in nanoseconds.
    pub(super) fn new(share: f64, shortest_ns: f64, longest_ns: f64) -> Self {
        Self {
            share,
            shortest_ns,
            longest_ns: longest_ns.max(shortest_ns),
            interval_ns: shortest_ns,
            expected_ns: None,
            excess_ns: 0.0,
            rounds_over: 0,
        }
    }

    /// Says that a round of this length cost the target so much of its time.
    pub(super) fn spend(&mut self, round_ns: f64, cost_ns: f64) {
        let expected = match self.expected_ns {
            Some(expected) if cost_ns < expected => expected + (cost_ns - expected) / SLOWLY,
            _ => cost_ns,
        };
        self.expected_ns = Some(expected);
        let allowed = self.share * round_ns;
        let excess_max = self.share * self.longest_ns.max(EXCESS_NS_MAX);
        self.excess_ns = (self.excess_ns + cost_ns - allowed).clamp(0.0, excess_max);
        let is_longest = round_ns >= self.longest_ns * 0.99;
        self.rounds_over = match is_longest && cost_ns > allowed * TOLERANCE {
            true => self.rounds_over.saturating_add(1),
            false => 0,
        };
        let needed = (expected + self.excess_ns / REPAID_IN) / self.share;
        let next = match needed < self.interval_ns {
            true => self.interval_ns + (needed - self.interval_ns) / SLOWLY,
            false => needed,
        };
        self.interval_ns = next.clamp(self.shortest_ns, self.longest_ns);
    }

    /// The time from the last collect to the next, in nanoseconds.
    pub(super) fn interval_ns(&self) -> f64 {
        self.interval_ns
    }

    /// Whether the share is kept, as far as the last rounds show; short excesses are saved later.
    pub(super) fn is_kept(&self) -> bool {
        self.rounds_over < ROUNDS_OVER
    }

    /// How the last round fits the share.
    pub(super) fn strain(&self) -> Strain {
        let at_shortest = self.share * self.shortest_ns;
        let expected = self.expected_ns.unwrap_or(0.0);
        match self.interval_ns > self.shortest_ns * 1.05 || expected > at_shortest {
            true => Strain::Over,
            false if expected * 2.0 < at_shortest => Strain::Slack,
            false => Strain::Fits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: f64 = 1e6;

    /// A target: what a round of a length costs, in the same unit.
    type Target = dyn Fn(f64) -> f64;

    /// Lets a target run for so many rounds; returns their intervals and costs.
    fn run(pacer: &mut Pacer, target: &Target, rounds: usize) -> Vec<(f64, f64)> {
        let rounds = 0..rounds;
        let one = |_| {
            let interval = pacer.interval_ns();
            let cost = target(interval);
            pacer.spend(interval, cost);
            (interval, cost)
        };
        rounds.map(one).collect()
    }

    fn share_of(rounds: &[(f64, f64)]) -> f64 {
        let sum = |of: fn(&(f64, f64)) -> f64| rounds.iter().map(of).sum::<f64>();
        sum(|round| round.1) / sum(|round| round.0)
    }

    /// Pages that are written again and again, at random: a round finds more of them the longer it
    /// is, up to all.
    fn working_set(all_ns: f64, within_ns: f64) -> impl Fn(f64) -> f64 {
        move |round_ns| all_ns * (1.0 - (-round_ns / within_ns).exp())
    }

    #[test]
    fn a_cheap_target_has_the_shortest_interval() {
        let mut pacer = Pacer::new(0.03, 20.0 * MS, 1000.0 * MS);
        let rounds = run(&mut pacer, &|_| 0.2 * MS, 50);
        assert!(rounds.iter().all(|round| round.0 == 20.0 * MS));
        assert_eq!(pacer.strain(), Strain::Slack);
        assert!(pacer.is_kept());
    }

    #[test]
    fn a_dear_target_has_the_interval_that_the_share_allows() {
        let mut pacer = Pacer::new(0.03, 20.0 * MS, 1000.0 * MS);
        let rounds = run(&mut pacer, &|_| 9.0 * MS, 60);
        let (last, _) = rounds[59];
        assert!((last - 300.0 * MS).abs() < 3.0 * MS, "{last}");
        // What the short rounds of the beginning cost has been saved.
        assert!(share_of(&rounds) < 0.031, "{}", share_of(&rounds));
        assert_eq!(pacer.strain(), Strain::Over);
        assert!(pacer.is_kept());
    }

    #[test]
    fn a_target_that_is_too_dear_is_said_to_be() {
        let mut pacer = Pacer::new(0.03, 20.0 * MS, 200.0 * MS);
        // In proportion to time, so that no interval helps.
        let rounds = run(&mut pacer, &|interval| interval * 0.2, 30);
        assert_eq!(rounds[29].0, 200.0 * MS);
        assert!(!pacer.is_kept());
        // It becomes cheap, and nothing of that time is held against it for long.
        run(&mut pacer, &|_| 0.1 * MS, 60);
        assert!(pacer.is_kept());
        assert!(pacer.interval_ns() < 20.2 * MS, "{pacer:?}");
    }

    #[test]
    fn rounds_that_the_consumer_makes_longer_count_as_they_were() {
        let mut pacer = Pacer::new(0.02, 10.0 * MS, 1000.0 * MS);
        for _ in 0..50 {
            // A checkpoint every second, whatever is advised.
            pacer.spend(1000.0 * MS, 15.0 * MS);
        }
        assert!(pacer.is_kept());
        assert!((700.0..=760.0).contains(&(pacer.interval_ns() / MS)));
    }

    proptest! {
        /// Where some interval within the bounds keeps the share, one like it is found, the share
        /// is kept over all rounds, and the interval comes to rest.
        #[test]
        fn the_share_is_kept_and_the_interval_rests(
            share in 0.005..0.3f64,
            all_ms in 0.01..40.0f64,
            within_ms in 5.0..500.0f64,
        ) {
            let (shortest, longest) = (20.0 * MS, 2000.0 * MS);
            let target = working_set(all_ms * MS, within_ms * MS);
            let mut pacer = Pacer::new(share, shortest, longest);
            let rounds = run(&mut pacer, &target, 600);
            prop_assert!(rounds.iter().all(|round| (shortest..=longest).contains(&round.0)));
            let rest = &rounds[500..];
            let (low, high) = rest.iter().fold((f64::MAX, 0f64), |(low, high), round| {
                (low.min(round.0), high.max(round.0))
            });
            prop_assert!(high <= low * 1.02, "between {low} and {high}");
            if target(longest) < share * longest {
                prop_assert!(share_of(rest) <= share * 1.01, "{}", share_of(rest));
                prop_assert!(pacer.is_kept());
                // It is no longer than it must be.
                if low > shortest * 1.02 {
                    prop_assert!(share_of(rest) >= share * 0.97, "{}", share_of(rest));
                }
            }
        }

        /// Whatever rounds cost, the interval stays within its bounds, and a target that becomes
        /// cheap has the shortest again.
        #[test]
        fn any_costs_keep_the_bounds(
            costs in proptest::collection::vec((0.0..1e9f64, 1.0..3e9f64), 1..200),
        ) {
            let mut pacer = Pacer::new(0.03, 20.0 * MS, 1000.0 * MS);
            for (cost, round) in costs {
                pacer.spend(round, cost);
                prop_assert!((20.0 * MS..=1000.0 * MS).contains(&pacer.interval_ns()));
            }
            run(&mut pacer, &|_| 0.0, 100);
            prop_assert!(pacer.interval_ns() < 20.1 * MS);
        }

        /// Costs that vary from round to round cost no more than the share in the mean.
        #[test]
        fn noise_does_not_break_the_budget(
            noise in proptest::collection::vec(0.2..1.8f64, 400),
        ) {
            let mut pacer = Pacer::new(0.03, 20.0 * MS, 2000.0 * MS);
            let mut rounds = Vec::new();
            for noise in noise {
                let interval = pacer.interval_ns();
                let cost = 6.0 * MS * noise;
                pacer.spend(interval, cost);
                rounds.push((interval, cost));
            }
            prop_assert!(share_of(&rounds) <= 0.031, "{}", share_of(&rounds));
        }
    }
}
