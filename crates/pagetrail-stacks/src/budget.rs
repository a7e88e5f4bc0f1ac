//! [`Budget`]: how often a fault is sampled, so that sampling adds at most a share to the time of
//! the tracked program.
//!
//! Pure: the caller measures times and says how many samples there were.

/// The longest sample period.
pub(crate) const PERIOD_MAX: u32 = 1 << 20;

/// Processor time after which a period is judged, in nanoseconds.
const WINDOW_CPU_NS: u64 = 5_000_000;
/// Processor time of a calm program after which a period becomes shorter, in nanoseconds.
const CALM_CPU_NS: u64 = 200_000_000;
/// A window is calm in which sampling takes less than this part of what is allowed.
const CALM_LOAD: f64 = 0.4;
/// What a period is multiplied by at least when it becomes shorter.
const SHORTER_MIN: f64 = 0.1;
/// The least part of a window that is taken for the program's own time.
const OWN_SHARE_MIN: f64 = 0.2;

/// What sampling may cost a program at its start, whose share is not known yet, in nanoseconds.
const CREDIT_NS: f64 = 5_000_000.0;

/// Chooses the sample period.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Sampling may add so much to the program's own time.
    share_max: f64,
    period: u32,
    /// Processor time and cost since the period was judged last, in nanoseconds.
    cpu_ns: u64,
    cost_ns: f64,
    /// What sampling has cost above its share, in nanoseconds; it must be made up for before the
    /// period becomes shorter.
    debt_ns: f64,
    calm_ns: u64,
    /// The greatest share of what is allowed that a calm window took.
    calm_load: f64,
}

impl Budget {
    /// Begins with a period of 1.
    pub(crate) fn new(share_max: f64) -> Self {
        Self {
            share_max,
            period: 1,
            cpu_ns: 0,
            cost_ns: 0.0,
            debt_ns: -CREDIT_NS,
            calm_ns: 0,
            calm_load: 0.0,
        }
    }

    /// Says that in so much processor time of the program samples cost so much of it. Returns the
    /// new period if it changes.
    pub(crate) fn spend(&mut self, cpu_ns: u64, cost_ns: f64) -> Option<u32> {
        self.cpu_ns += cpu_ns;
        self.cost_ns += cost_ns;
        if self.cpu_ns < WINDOW_CPU_NS {
            return None;
        }
        let cpu_ns = std::mem::take(&mut self.cpu_ns);
        let cost_ns = std::mem::take(&mut self.cost_ns);
        // The program's own time is what is left without the cost. That is an estimate, and may
        // exceed the time in which it arose: the period must not become hundreds of times longer
        // for that.
        let own_ns = (cpu_ns as f64 - cost_ns).max(cpu_ns as f64 * OWN_SHARE_MIN);
        let allowed = self.share_max * own_ns;
        // A whole second's budget may be saved up, so that a short burst is sampled whole.
        self.debt_ns = (self.debt_ns + cost_ns - allowed).max(-self.share_max * 1e9);
        let load = cost_ns / allowed;
        if load > 1.0 && self.debt_ns > 0.0 {
            (self.calm_ns, self.calm_load) = (0, 0.0);
            let longer = (f64::from(self.period) * load * 1.25).ceil();
            return self.change((longer as u32).min(PERIOD_MAX));
        }
        if load < CALM_LOAD && self.debt_ns <= 0.0 {
            self.calm_ns += cpu_ns;
            self.calm_load = self.calm_load.max(load);
            if self.calm_ns >= CALM_CPU_NS {
                // As much shorter as the busiest of these windows allows, a step at a time.
                let shorter = (self.calm_load / CALM_LOAD).clamp(SHORTER_MIN, 0.5);
                (self.calm_ns, self.calm_load) = (0, 0.0);
                return self.change(((f64::from(self.period) * shorter) as u32).max(1));
            }
        } else {
            (self.calm_ns, self.calm_load) = (0, 0.0);
        }
        None
    }

    fn change(&mut self, period: u32) -> Option<u32> {
        let changes = period != self.period;
        self.period = period;
        changes.then_some(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a rate of faults per second of its own time; what sampling adds in the end.
    fn added(budget: &mut Budget, faults_per_second: f64, seconds: f64, price_ns: f64) -> f64 {
        let (mut own, mut cost) = (0.0, 0.0);
        let mut period = f64::from(budget.period);
        while own < seconds * 1e9 {
            let step = 1e7;
            let price = faults_per_second * step / 1e9 / period * price_ns;
            own += step;
            cost += price;
            if let Some(new) = budget.spend((step + price) as u64, price) {
                period = f64::from(new);
            }
        }
        cost / own
    }

    #[test]
    fn few_faults_are_all_sampled() {
        let mut budget = Budget::new(0.05);
        assert!(added(&mut budget, 10_000.0, 10.0, 1000.0) < 0.011);
        assert_eq!(budget.period, 1);
    }

    #[test]
    fn many_faults_cost_no_more_than_the_share() {
        for faults in [1e5, 3e5, 1e6] {
            let mut budget = Budget::new(0.05);
            let share = added(&mut budget, faults, 20.0, 1500.0);
            assert!(share <= 0.052, "{faults}: {share}");
            assert!(share > 0.01, "{faults}: {share}, it samples too little");
        }
    }

    /// A burst whose samples seem to cost more than the time in which they were taken.
    #[test]
    fn a_burst_leaves_no_period_that_samples_nothing() {
        let mut budget = Budget::new(0.05);
        for _ in 0..4 {
            budget.spend(
                WINDOW_CPU_NS,
                2.5 * WINDOW_CPU_NS as f64 / f64::from(budget.period),
            );
        }
        assert!(budget.period <= 500, "{}", budget.period);
        let share = added(&mut budget, 20_000.0, 1.0, 6000.0);
        assert!(budget.period <= 10, "{}", budget.period);
        assert!(share <= 0.052, "{share}");
    }

    #[test]
    fn the_period_becomes_short_again() {
        let mut budget = Budget::new(0.05);
        added(&mut budget, 1e6, 5.0, 1500.0);
        assert!(budget.period >= 16);
        added(&mut budget, 1e3, 20.0, 1500.0);
        assert_eq!(budget.period, 1);
    }
}
