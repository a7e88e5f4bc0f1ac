//! What a round costs a target, by what was counted: pure.

use super::{Spent, meter::Used, ns};
use std::time::Duration;

/// A target that runs for a smaller part of the time counts as if it ran for this one: a program
/// that sleeps is slowed down by nothing that matters.
const BUSY_MIN: f64 = 0.05;

/// What is left of a target's processor time without the cost, at least.
const OWN_MIN: f64 = 0.1;

/// The faults that tracking caused. A page that was reported without being predicted has faulted
/// once; but the target had no more than its minor faults, since others may have written, and a
/// huge page that is left whole is reported without one.
pub(super) fn faults(spent: &Spent, used: Used) -> u64 {
    let noticed = spent.reported.saturating_sub(spent.predicted);
    let faults = spent.faults.unwrap_or(noticed);
    used.minor_faults.map_or(faults, |minor| faults.min(minor))
}

/// By how much time in a target's processor time has to be stretched to be time of the round: a
/// target that runs a tenth of the time is slowed down tenfold by the same faults, and one with ten
/// threads a tenth as much.
pub(super) fn stretch(cpu: Option<Duration>, faulting_ns: f64, round_ns: f64) -> f64 {
    let cpu_ns = cpu.map_or(round_ns, ns);
    let own_ns = (cpu_ns - faulting_ns).max(cpu_ns * OWN_MIN);
    round_ns / own_ns.max(round_ns * BUSY_MIN)
}

/// By how many times its processor time a collect costs a target more than that it stands still
/// meanwhile, because processors are scarce. A collect then takes from the target, or from others
/// that are tracked with it, what these would have used: so it may take no more than the share of
/// what the target itself uses, which for one that mostly sleeps is little.
///
/// `waited`: for how long somebody waited for a processor; where it is unknown, processors count as
/// scarce.
pub(super) fn competition(waited: Option<Duration>, stretch: f64, round_ns: f64) -> f64 {
    let scarce = waited.map_or(1.0, |waited| (ns(waited) / round_ns).min(1.0));
    scarce * (stretch - 1.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    #[test]
    fn faults_are_what_was_noticed_and_happened() {
        let spent = Spent {
            reported: 1000,
            predicted: 300,
            ..Spent::default()
        };
        let used = |minor_faults| Used {
            minor_faults,
            ..Used::default()
        };
        assert_eq!(faults(&spent, used(None)), 700);
        assert_eq!(faults(&spent, used(Some(5000))), 700);
        assert_eq!(faults(&spent, used(Some(20))), 20);
        let counted = Spent {
            faults: Some(40),
            ..spent
        };
        assert_eq!(faults(&counted, used(None)), 40);
    }

    #[test]
    fn faults_slow_down_the_time_in_which_a_target_runs() {
        let of = |cpu: f64| {
            let cpu = Duration::from_nanos(cpu as u64);
            stretch(Some(cpu), 2.0 * MS, 100.0 * MS)
        };
        // All of the time, but for the faults.
        assert!((of(102.0 * MS) - 1.0).abs() < 1e-9);
        assert!((of(22.0 * MS) - 5.0).abs() < 1e-9);
        // Ten threads.
        assert!((of(1002.0 * MS) - 0.1).abs() < 1e-9);
        // One that sleeps, and one that does nothing but fault.
        assert!((of(3.0 * MS) - 20.0).abs() < 1e-9);
        assert!(of(2.0 * MS) <= 20.0);
    }

    #[test]
    fn a_collect_competes_where_processors_are_scarce() {
        let of = |waited: Option<u64>, stretch| {
            let waited = waited.map(Duration::from_millis);
            competition(waited, stretch, 100.0 * MS)
        };
        // Idle processors, or a target that runs all the time: it stands still, and that is all.
        assert_eq!((of(Some(0), 20.0), of(Some(100), 1.0)), (0.0, 0.0));
        // Ten threads are not given anything back.
        assert_eq!(of(Some(100), 0.1), 0.0);
        // One that sleeps: twenty times in all.
        assert_eq!((of(Some(100), 20.0), of(None, 20.0)), (19.0, 19.0));
        assert!((of(Some(50), 5.0) - 2.0).abs() < 1e-9);
        // The kernel counts on while it is read.
        assert_eq!(of(Some(101), 20.0), 19.0);
    }
}
