//! [`Retention`]: which checkpoints of a chain stay; a rule on times and labels, and nothing else.
//!
//! Periods are those of UTC, whatever the time zone: what stays does not depend on where the rule
//! is applied. A week begins on Monday.

use crate::format::manifest::Manifest;
use std::collections::BTreeSet;

const HOUR_NS: u64 = 3_600_000_000_000;
const DAY_NS: u64 = 24 * HOUR_NS;
/// 1970-01-01 was a Thursday, the fourth day of its week.
const DAYS_BEFORE_EPOCH: u64 = 3;

/// Which checkpoints stay: each that one of the rules keeps, and the newest in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest so many.
    pub last: u32,
    /// The newest one of each of the newest so many hours that have any.
    pub hourly: u32,
    /// The newest one of each of the newest so many days that have any.
    pub daily: u32,
    /// The newest one of each of the newest so many weeks that have any.
    pub weekly: u32,
    /// Whether those with a label are like the others; else they all stay, and do not count.
    pub labels_go: bool,
}

impl Retention {
    /// Keeps the newest so many, and those with a label.
    pub fn last(count: u32) -> Self {
        Self {
            last: count,
            ..Self::default()
        }
    }

    /// The numbers of those that stay, of checkpoints in ascending order.
    pub fn kept<'a>(&self, manifests: impl IntoIterator<Item = &'a Manifest>) -> BTreeSet<u64> {
        let manifests = manifests.into_iter();
        self.kept_of(manifests.map(|m| (m.number, m.taken_unix_ns, m.label.is_some())))
    }

    fn kept_of(&self, checkpoints: impl IntoIterator<Item = (u64, u64, bool)>) -> BTreeSet<u64> {
        let (labelled, mut plain): (Vec<_>, Vec<_>) = checkpoints
            .into_iter()
            .partition(|(_, _, has_label)| *has_label && !self.labels_go);
        plain.reverse();
        let mut kept: BTreeSet<u64> = labelled.iter().map(|(number, ..)| *number).collect();
        let last = (self.last as usize).max(1);
        kept.extend(plain.iter().take(last).map(|(number, ..)| *number));
        let week = |ns: u64| (ns / DAY_NS + DAYS_BEFORE_EPOCH) / 7;
        let rules: [(u32, &dyn Fn(u64) -> u64); 3] = [
            (self.hourly, &|ns| ns / HOUR_NS),
            (self.daily, &|ns| ns / DAY_NS),
            (self.weekly, &week),
        ];
        for (count, period) in rules {
            // A set, since a clock that was put back visits a period twice.
            let mut seen = BTreeSet::new();
            for (number, taken, _) in &plain {
                if seen.len() as u64 == u64::from(count) {
                    break;
                }
                if seen.insert(period(*taken)) {
                    kept.insert(*number);
                }
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = HOUR_NS / 60;

    fn kept(retention: Retention, checkpoints: &[(u64, u64, bool)]) -> Vec<u64> {
        let kept = retention.kept_of(checkpoints.iter().copied());
        kept.into_iter().collect()
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        // Every 20 minutes of three days, from a Saturday, 2026-11-21, on.
        let start = 20_778 * DAY_NS;
        let all: Vec<_> = (0..3 * 72)
            .map(|n| (n + 1, start + n * 20 * MINUTE_NS, false))
            .collect();
        let by = |change: fn(&mut Retention)| {
            let mut retention = Retention::default();
            change(&mut retention);
            kept(retention, &all)
        };
        assert_eq!(by(|_| {}), [216]);
        assert_eq!(by(|r| r.last = 3), [214, 215, 216]);
        assert_eq!(by(|r| r.hourly = 3), [210, 213, 216]);
        assert_eq!(by(|r| r.daily = 2), [144, 216]);
        assert_eq!(by(|r| r.daily = 9), [72, 144, 216]);
        // The week ends with Sunday, the second day.
        assert_eq!(by(|r| r.weekly = 2), [144, 216]);
        let mixed = by(|r| (r.last, r.hourly, r.weekly) = (2, 2, 2));
        assert_eq!(mixed, [144, 213, 215, 216]);
    }

    #[test]
    fn labels_stay_and_do_not_count() {
        let all: Vec<_> = (1..=6).map(|n| (n, n, n == 2 || n == 6)).collect();
        assert_eq!(kept(Retention::last(2), &all), [2, 4, 5, 6]);
        let labels_go = Retention {
            labels_go: true,
            ..Retention::last(2)
        };
        assert_eq!(kept(labels_go, &all), [5, 6]);
    }

    /// What must stay by the words of the documentation, found another way: of each period, its
    /// newest; of these, those with the newest periods.
    fn must_stay(retention: Retention, all: &[(u64, u64, bool)]) -> BTreeSet<u64> {
        let plain: Vec<_> = all.iter().filter(|c| retention.labels_go || !c.2).collect();
        let mut stay: BTreeSet<u64> = all
            .iter()
            .filter(|c| c.2 && !retention.labels_go)
            .map(|c| c.0)
            .collect();
        let after = |number: u64| plain.iter().filter(move |other| other.0 > number);
        let week = |ns: u64| (ns + 3 * DAY_NS) / (7 * DAY_NS);
        for (number, taken, _) in &plain {
            let newer = |period: &dyn Fn(u64) -> u64| {
                let of: BTreeSet<u64> = after(*number).map(|other| period(other.1)).collect();
                (!of.contains(&period(*taken))).then_some(of.len() as u32)
            };
            let is_in = |count: u32, newer: Option<u32>| newer.is_some_and(|newer| newer < count);
            if (after(*number).count() as u32) < retention.last.max(1)
                || is_in(retention.hourly, newer(&|ns| ns / HOUR_NS))
                || is_in(retention.daily, newer(&|ns| ns / DAY_NS))
                || is_in(retention.weekly, newer(&week))
            {
                stay.insert(*number);
            }
        }
        stay
    }

    #[test]
    fn what_must_stay_stays_and_nothing_else() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut at = random.u64(0..100 * DAY_NS);
            let all: Vec<_> = (1..=random.u64(0..60))
                .map(|number| {
                    let most = 1 << random.u32(30..50);
                    at += random.u64(0..most);
                    // Now and then the clock is put back.
                    if random.u32(0..10) == 0 {
                        at = at.saturating_sub(random.u64(0..2 * DAY_NS));
                    }
                    (number * 3, at, random.u32(0..8) == 0)
                })
                .collect();
            let retention = Retention {
                last: random.u32(0..6),
                hourly: random.u32(0..6),
                daily: random.u32(0..6),
                weekly: random.u32(0..4),
                labels_go: random.bool(),
            };
            let stay: Vec<u64> = must_stay(retention, &all).into_iter().collect();
            assert_eq!(kept(retention, &all), stay, "seed {seed}: {retention:?}");
        }
    }
}
