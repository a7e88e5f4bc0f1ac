//! [`Budget`]: keeps what tracking costs a target within a share of its time.
//!
//! After each collect it adds up what the round cost the target ([`Spent`], [`cost`]), by counters
//! that the kernel keeps anyway ([`meter`]) and a price that was measured
//! ([`crate::technique::price`]). Two
//! things are steered: how much a fault weighs against a false positive, for a technique that
//! predicts ([`weight`]), and when the next round is due ([`pacer`]). Neither has a say in what is
//! reported: every round is a superset, whatever they decide.

mod cost;
mod meter;
pub(crate) mod pace;
mod pacer;
mod weight;

use crate::types::Overhead;
use cost::{competition, faults, stretch};
use meter::{Meter, What};
use pacer::{Pacer, Strain};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use weight::{LEVEL_EVEN, Weight};

/// What tracking may cost, as the consumer has set it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Allowance {
    /// A share of the target's time.
    pub(crate) share: f64,
    /// The shortest and the longest time from one collect to the next.
    pub(crate) intervals: RangeInclusive<Duration>,
}

/// The largest share that can be set: at twice the time nobody speaks of a budget.
const SHARE_MAX: f64 = 1.0;

/// The first round is waited for no longer, however dear it is, since it shows what can be
/// predicted, and since a short program should have one. What it costs above the share is saved
/// later.
const FIRST_MAX: Duration = Duration::from_secs(1);

impl Allowance {
    /// What is wrong with it, in one line.
    pub(crate) fn is_wrong(&self) -> Option<&'static str> {
        let (shortest, longest) = (self.intervals.start(), self.intervals.end());
        if !(self.share > 0.0 && self.share <= SHARE_MAX) {
            Some("the overhead must be more than 0 and at most 1, which is 100 %")
        } else if shortest.is_zero() {
            Some("the shortest interval is zero")
        } else if shortest > longest {
            Some("the shortest interval is longer than the longest")
        } else {
            None
        }
    }
}

/// What a round cost, besides what the target's own counters say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// From the last collect to this one.
    pub(crate) duration: Duration,
    /// Processor time of the collect, and for how long the target was stopped.
    pub(crate) collect: Duration,
    pub(crate) stopped: Duration,
    /// Faults, where the technique counts them.
    pub(crate) faults: Option<u64>,
    /// Pages that the technique reported, and those of them that it did not notice by a fault.
    pub(crate) reported: u64,
    pub(crate) predicted: u64,
    /// Estimate of the predicted pages that were not written.
    pub(crate) false_positives: u64,
}

/// The budget of one watch.
#[derive(Debug)]
pub(crate) struct Budget {
    allowance: Allowance,
    fault: Duration,
    /// Of the target's faults on memory that is not new, the share that tracking caused in the last
    /// round.
    ours: f64,
    meter: Meter,
    pacer: Pacer,
    weight: Weight,
    /// Time for which consumers have stopped the target since the last collect.
    stopped: Duration,
    /// When the last collect ended.
    collected: Instant,
    was_kept: bool,
}

impl Budget {
    /// Begins to measure. `fault`: the price of a fault; `has_cost`: whether the consumer has set
    /// what a false positive costs, so that it would rather have these than faults.
    pub(crate) fn new(allowance: Allowance, pid: u32, fault: Duration, has_cost: bool) -> Self {
        Self::with(allowance, Meter::new(pid, What::Process), fault, has_cost)
    }

    /// Begins to measure a target of which some ranges alone are tracked.
    pub(crate) fn of_ranges(
        allowance: Allowance,
        pid: u32,
        fault: Duration,
        has_cost: bool,
    ) -> Self {
        Self::with(allowance, Meter::new(pid, What::Ranges), fault, has_cost)
    }

    /// Begins to measure a process that runs a guest; `write`: the price of a first write to a
    /// page.
    pub(crate) fn of_guest(allowance: Allowance, pid: u32, write: Duration) -> Self {
        Self::with(allowance, Meter::new(pid, What::Guest), write, false)
    }

    fn with(allowance: Allowance, meter: Meter, fault: Duration, has_cost: bool) -> Self {
        let (shortest, longest) = (allowance.intervals.start(), allowance.intervals.end());
        let least = if has_cost { LEVEL_EVEN } else { 0 };
        Self {
            pacer: Pacer::new(allowance.share, ns(*shortest), ns(*longest)),
            weight: Weight::new(least),
            // A target that has just been protected faults for that before all, unless it is
            // protected in part.
            ours: f64::from(u8::from(meter.is_of_process())),
            meter,
            allowance,
            fault,
            stopped: Duration::ZERO,
            collected: Instant::now(),
            was_kept: true,
        }
    }

    /// What a fault counts for a technique that predicts, as a multiple of its price.
    pub(crate) fn fault_weight(&self) -> f64 {
        self.weight.factor()
    }

    /// What a fault counts for the collect that comes next: the first one need not wait until it is
    /// settled to learn from how dear its round was.
    pub(crate) fn fault_weight_now(&mut self) -> f64 {
        if !self.weight.has_begun() {
            let shortest = ns(*self.allowance.intervals.start());
            self.weight.rise(self.needed_ns() / shortest.max(1.0));
        }
        self.weight.factor()
    }

    /// When the next collect is due. Once that is over it may become later, because the target has
    /// grown or faulted. Its counters are not read before, which for a hundred processes costs more
    /// than their collects.
    pub(crate) fn next_collect(&self) -> Instant {
        let due = self.collected + self.interval();
        // Who collects several processes together takes those that are due soon, too.
        let soon = Instant::now() + *self.allowance.intervals.start() / 4;
        match due > soon {
            true => due,
            false => due.max(self.collected + self.interval_of_what_is_known()),
        }
    }

    /// The interval that is needed by what the target has done since the last collect, within the
    /// bounds.
    fn interval_of_what_is_known(&self) -> Duration {
        let (shortest, longest) = (
            self.allowance.intervals.start(),
            self.allowance.intervals.end(),
        );
        let longest = match self.weight.has_begun() {
            true => *longest,
            false => FIRST_MAX.clamp(*shortest, *longest),
        };
        Duration::from_nanos(self.needed_ns() as u64).min(longest)
    }

    /// That interval, in nanoseconds.
    ///
    /// The faults of this round are paid for, and a collect makes the same pages fault once more:
    /// so none is due before their price is no more than the share. And if the next collect
    /// protects what is new since the last one, the target writes to each page of it once more: who
    /// collects before that pays for memory that is still being filled, and again for the same when
    /// it is full.
    fn needed_ns(&self) -> f64 {
        let used = self.meter.so_far();
        let passed_ns = ns(self.collected.elapsed()).max(1.0);
        let grown = used.grown.unwrap_or(0);
        let faulted = used.minor_faults.unwrap_or(0).saturating_sub(grown) as f64 * self.ours;
        let cost_ns = |faults: f64, has_happened: bool| {
            let faulting_ns = faults * ns(self.fault);
            let within = if has_happened { faulting_ns } else { 0.0 };
            faulting_ns * stretch(used.cpu, within, passed_ns)
        };
        let cost_ns = cost_ns(faulted, true).max(cost_ns(grown as f64, false));
        cost_ns / self.allowance.share
    }

    /// Counts time for which the consumer has stopped the target.
    pub(crate) fn count_stop(&mut self, time: Duration) {
        self.stopped += time;
    }

    /// Ends a round.
    pub(crate) fn settle(&mut self, spent: Spent) -> Overhead {
        let used = self.meter.used();
        let faults = faults(&spent, used);
        if let Some(minor) = used.minor_faults {
            let others = minor.saturating_sub(used.grown.unwrap_or(0));
            self.ours = (faults as f64 / others.max(1) as f64).min(1.0);
        }
        let stopped = spent.collect + spent.stopped + std::mem::take(&mut self.stopped);
        let round_ns = ns(spent.duration).max(1.0);
        let faulting_ns = faults as f64 * ns(self.fault);
        let stretch = stretch(used.cpu, faulting_ns, round_ns);
        let competing_ns = ns(spent.collect) * competition(used.waited, stretch, round_ns);
        let cost_ns = faulting_ns * stretch + ns(stopped) + competing_ns;
        self.pacer.spend(round_ns, cost_ns);
        let written = spent.reported - spent.false_positives.min(spent.reported);
        let strain = match self.pacer.strain() {
            // To predict more saves faults, and nothing else.
            Strain::Over if faulting_ns * stretch * 2.0 < cost_ns => Strain::Fits,
            strain => strain,
        };
        self.weight.observe(strain, spent.reported, written);
        self.collected = Instant::now();
        Overhead {
            allowed: self.allowance.share,
            share: cost_ns / round_ns,
            faults,
            fault: self.fault,
            stopped,
            reported_per_written: match written {
                0 => 1.0,
                written => spent.reported as f64 / written as f64,
            },
            next: self.interval(),
            is_kept: self.pacer.is_kept(),
        }
    }

    /// One line if whether the budget is kept has changed with the last round.
    pub(crate) fn news(&mut self) -> Option<String> {
        let is_kept = self.pacer.is_kept();
        if std::mem::replace(&mut self.was_kept, is_kept) == is_kept {
            return None;
        }
        let allowed = percent(self.allowance.share);
        let longest = self.allowance.intervals.end().as_millis();
        Some(match is_kept {
            true => format!("tracking costs no more than {allowed} again"),
            false => format!(
                "tracking costs more than {allowed} even with rounds of {longest} ms; it goes on so"
            ),
        })
    }

    /// Lets a fault cost something else, for tests.
    #[cfg(test)]
    pub(crate) fn set_price(&mut self, fault: Duration) {
        self.fault = fault;
    }

    fn interval(&self) -> Duration {
        Duration::from_nanos(self.pacer.interval_ns() as u64)
    }
}

/// A share in percent, as it would be typed.
fn percent(share: f64) -> String {
    let number = format!("{:.4}", share * 100.0);
    format!("{}%", number.trim_end_matches('0').trim_end_matches('.'))
}

fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_set::page_size;
    use crate::proc::pressure;
    use crate::sys::scratch::Scratch;

    #[test]
    fn allowances_are_checked() {
        let of = |share, shortest, longest| {
            let intervals = Duration::from_millis(shortest)..=Duration::from_millis(longest);
            Allowance { share, intervals }.is_wrong().is_some()
        };
        assert!(!of(0.03, 20, 1000) && !of(1.0, 100, 100));
        for share in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
            assert!(of(share, 20, 1000), "{share}");
        }
        assert!(of(0.03, 0, 10) && of(0.03, 20, 10));
    }

    #[test]
    fn a_target_that_is_too_dear_is_said_to_be_once() {
        let allowance = Allowance {
            share: 0.02,
            intervals: Duration::from_millis(10)..=Duration::from_millis(50),
        };
        let fault = Duration::from_micros(1);
        // Above the highest PID: its counters cannot be read, and it counts as running.
        let mut budget = Budget::new(allowance, 1 << 23, fault, false);
        let mut said = Vec::new();
        for round in 0..40 {
            let duration = budget.interval();
            // Each millisecond 50 pages, then none.
            let reported = if round < 30 {
                duration.as_millis() as u64 * 50
            } else {
                0
            };
            let overhead = budget.settle(Spent {
                duration,
                reported,
                ..Spent::default()
            });
            assert_eq!(overhead.next, budget.interval());
            if let Some(line) = budget.news() {
                said.push((line, overhead));
            }
        }
        let [(dear, first), (again, _)] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(dear.contains("2% even with rounds of 50 ms"), "{dear}");
        assert!(again.contains("again"), "{again}");
        assert!(!first.is_kept && first.share > 0.04, "{first:?}");
        assert_eq!((first.faults, first.allowed), (2500, 0.02));
    }

    #[test]
    fn memory_that_is_being_filled_is_waited_for() {
        let allowance = Allowance {
            share: 0.01,
            intervals: Duration::from_millis(1)..=Duration::from_secs(20),
        };
        let fault = Duration::from_micros(100);
        let of = |pid| Budget::new(allowance.clone(), pid, fault, false);
        let own = std::process::id();
        let (grows, rests) = (of(own), of(1 << 23));
        let ranges = Budget::of_ranges(allowance.clone(), own, fault, false);
        let mut memory = Scratch::new(4096 * page_size()).unwrap();
        (0..4096).for_each(|page| memory.write(page * page_size(), 1));
        std::thread::sleep(2 * *allowance.intervals.start());
        // Four tenths of a second of faults, of which a hundredth of the time may be: 40 s for one
        // processor, but other tests run on all others, and count as this process.
        let due = grows.next_collect() - grows.collected;
        assert!(due > Duration::from_millis(50), "{due:?}");
        // Nor is what is filled beside tracked ranges.
        for budget in [rests, ranges] {
            let due = budget.next_collect() - budget.collected;
            assert_eq!(due, Duration::from_millis(1));
        }
    }

    #[test]
    fn a_round_that_has_cost_too_much_is_lengthened() {
        let allowance = Allowance {
            share: 0.01,
            intervals: Duration::from_millis(1)..=Duration::from_secs(20),
        };
        let fault = Duration::from_micros(100);
        let own = std::process::id();
        let mut memory = Scratch::new(4096 * page_size()).unwrap();
        let fill = |memory: &mut Scratch| {
            (0..4096).for_each(|page| memory.write(page * page_size(), 1));
        };
        fill(&mut memory);
        let mut budget = Budget::new(allowance.clone(), own, fault, false);
        let ranges = Budget::of_ranges(allowance, own, fault, false);
        // Faults without growth, as of pages that are protected.
        drop(memory);
        let mut memory = Scratch::new(4096 * page_size()).unwrap();
        fill(&mut memory);
        std::thread::sleep(Duration::from_millis(2));
        let due = |budget: &Budget| budget.next_collect() - budget.collected;
        // As of memory that is being filled.
        assert!(
            due(&budget) > Duration::from_millis(50),
            "{:?}",
            due(&budget)
        );
        // But a first round not for long, of 20 s that are allowed.
        assert!(due(&budget) <= FIRST_MAX, "{:?}", due(&budget));
        // Nobody knows yet whether these were of the ranges.
        assert_eq!(due(&ranges), Duration::from_millis(1));
        // Nor are faults that tracking has nothing to do with waited for, once that is known.
        budget.settle(Spent {
            duration: Duration::from_secs(1),
            ..Spent::default()
        });
        assert_eq!(budget.ours, 0.0);
    }

    #[test]
    fn a_target_that_sleeps_pays_more_for_a_collect_where_others_wait() {
        let allowance = Allowance {
            share: 0.01,
            intervals: Duration::from_millis(10)..=Duration::from_secs(10),
        };
        let mut sleeps = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut budget = Budget::new(allowance, sleeps.id(), Duration::ZERO, false);
        let (began, before) = (Instant::now(), pressure::processors_us());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..=2 * processors {
                scope.spawn(|| while began.elapsed() < Duration::from_millis(100) {});
            }
        });
        let (duration, collect) = (began.elapsed(), Duration::from_millis(1));
        // Other processors of the machine may be idle.
        let scarce_us = pressure::processors_us()
            .zip(before)
            .map_or(i64::MAX, |(now, before)| now - before);
        let overhead = budget.settle(Spent {
            duration,
            collect,
            ..Spent::default()
        });
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        let alone = collect.as_secs_f64() / duration.as_secs_f64();
        let is_scarce = scarce_us > duration.as_micros() as i64 / 4;
        assert!(!is_scarce || overhead.share > 1.5 * alone, "{overhead:?}");
        // For a twentieth of the time it counts as running.
        assert!(overhead.share < 20.1 * alone, "{overhead:?}");
    }

    #[test]
    fn stops_are_no_reason_to_predict_more() {
        let weight_after = |fault| {
            let allowance = Allowance {
                share: 0.01,
                intervals: Duration::from_millis(10)..=Duration::from_millis(100),
            };
            let mut budget = Budget::new(allowance, 1 << 23, fault, false);
            let before = budget.fault_weight();
            for _ in 0..30 {
                budget.settle(Spent {
                    duration: Duration::from_millis(100),
                    stopped: Duration::from_millis(10),
                    reported: 1000,
                    ..Spent::default()
                });
            }
            budget.fault_weight() / before
        };
        // Faults that cost a thousandth of what the stops do, and twice as much.
        assert_eq!(weight_after(Duration::from_nanos(10)), 1.0);
        assert!(weight_after(Duration::from_micros(20)) > 1.0);
    }

    #[test]
    fn stops_of_the_consumer_count() {
        let allowance = Allowance {
            share: 0.01,
            intervals: Duration::from_millis(10)..=Duration::from_secs(10),
        };
        let mut budget = Budget::new(allowance, 1 << 23, Duration::ZERO, false);
        budget.count_stop(Duration::from_millis(30));
        let duration = Duration::from_secs(1);
        let overhead = budget.settle(Spent {
            duration,
            ..Spent::default()
        });
        assert!((overhead.share - 0.03).abs() < 1e-9);
        assert!(overhead.next >= Duration::from_secs(3), "{overhead:?}");
        assert_eq!(
            budget
                .settle(Spent {
                    duration,
                    ..Spent::default()
                })
                .share,
            0.0
        );
    }
}
