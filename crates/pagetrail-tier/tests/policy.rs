//! What must hold of every plan and of every pool, whatever the samples were.

use std::collections::BTreeSet;

use pagetrail::{PageRange, PageSet};
use pagetrail_tier::{Demand, Place, Policy, Pool, Ranking, Run, Sample, Settings, SourceCaps};
use proptest::collection::vec;
use proptest::prelude::*;

const PAGE: u64 = 4096;
const BLOCK: u64 = 512;

fn range(pages: std::ops::Range<u64>) -> PageRange {
    PageRange::new(pages.start * PAGE, pages.end * PAGE).unwrap()
}

/// Gap, length, whether it is fast, whether it is a huge page.
type Part = (u64, u64, bool, bool);
/// Runs of touched pages, first page and length: those accessed, and those written.
type Touched = (Vec<(u64, u64)>, Vec<(u64, u64)>);

fn layout(parts: &[Part]) -> Vec<Run> {
    let mut at = 0;
    let mut runs = Vec::new();
    for &(gap, pages, fast, huge) in parts {
        let start = if huge {
            (at + gap).next_multiple_of(BLOCK)
        } else {
            at + gap
        };
        let end = start + if huge { BLOCK } else { pages };
        at = end + 1;
        runs.push(Run {
            range: range(start..end),
            place: if fast { Place::Fast } else { Place::Slow },
            huge,
            fixed: pages % 17 == 0,
        });
    }
    runs
}

fn touched(starts: &[(u64, u64)]) -> PageSet {
    starts
        .iter()
        .map(|(start, pages)| range(*start..start + pages))
        .collect()
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    vec(
        (
            0..300u64,
            1..200u64,
            any::<bool>(),
            prop::bool::weighted(0.2),
        ),
        1..12,
    )
}

fn samples() -> impl Strategy<Value = Vec<Touched>> {
    let set = || vec((0..6000u64, 1..300u64), 0..20);
    vec((set(), set()), 1..20)
}

fn rankings() -> impl Strategy<Value = Ranking> {
    prop::sample::select(vec![
        Ranking::Degree,
        Ranking::Threshold,
        Ranking::TwoLists,
        Ranking::FirstTouch,
        Ranking::Random,
    ])
}

struct Checked {
    policy: Policy,
    plans: Vec<pagetrail_tier::Plan>,
}

/// Feeds samples, carries out every plan, and checks it on the way.
fn feed(
    parts: &[Part],
    samples: &[Touched],
    ranking: Ranking,
    capacity: u64,
) -> Result<Checked, TestCaseError> {
    let settings = Settings {
        ranking,
        ..Settings::default()
    };
    let caps = SourceCaps {
        accesses: true,
        writes: true,
        in_turns: false,
    };
    let mut policy = Policy::new(settings, caps, PAGE).unwrap();
    let runs = layout(parts);
    policy.set_layout(&runs);
    let fixed: u64 = runs
        .iter()
        .filter(|run| run.fixed && run.place == Place::Fast)
        .map(|run| run.range.bytes())
        .sum();
    let all = policy.usage().fast + policy.usage().slow;
    prop_assert_eq!(all, runs.iter().map(|run| run.range.bytes()).sum::<u64>());
    let mut plans = Vec::new();
    for (accessed, written) in samples {
        let known: PageSet = runs.iter().map(|run| run.range).collect();
        let (accessed, written) = (touched(accessed), touched(written));
        let noted = policy.observe(&Sample {
            accessed: Some(accessed.clone()),
            written: Some(written.clone()),
        });
        // Only known pages are armed again; unknown pages are exactly the others.
        prop_assert!(noted.rearm.difference(&known).is_empty());
        prop_assert_eq!(&noted.unknown, &accessed.union(&written).difference(&known));

        let plan = policy.plan(capacity);
        let mut places = std::collections::BTreeMap::new();
        policy.for_each(|address, bytes, _, place| {
            places.insert(address, (bytes, place));
        });
        let mut moving = BTreeSet::new();
        for (units, from) in [(&plan.demote, Place::Fast), (&plan.promote, Place::Slow)] {
            for unit in units {
                prop_assert!(moving.insert(unit.address), "twice: {:?}", unit);
                prop_assert_eq!(places.get(&unit.address), Some(&(unit.bytes, from)));
            }
        }
        prop_assert!(plan.demote.is_sorted_by_key(|unit| unit.rank));
        prop_assert!(
            plan.promote
                .is_sorted_by_key(|unit| std::cmp::Reverse(unit.rank))
        );
        for unit in &plan.demote {
            policy.moved(unit.address, Place::Slow);
        }
        for unit in &plan.promote {
            policy.moved(unit.address, Place::Fast);
        }
        let usage = policy.usage();
        prop_assert!(
            usage.fast <= capacity.max(fixed),
            "{:?} of {}",
            usage,
            capacity
        );
        prop_assert_eq!(usage.fast + usage.slow, all);
        plans.push(plan);
    }
    Ok(Checked { policy, plans })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_keep_capacity_and_name_each_page_once(
        parts in parts(),
        samples in samples(),
        ranking in rankings(),
        capacity_pages in 0..3000u64,
    ) {
        let first = feed(&parts, &samples, ranking, capacity_pages * PAGE)?;
        let second = feed(&parts, &samples, ranking, capacity_pages * PAGE)?;
        // Nothing but the samples decides.
        prop_assert_eq!(first.plans, second.plans);
        prop_assert_eq!(first.policy.hottest(1), second.policy.hottest(1));
    }

    #[test]
    fn a_pool_conserves_and_keeps_to_the_limits(
        members in vec((0..1_000_000u64, 0..2_000_000u64), 1..8),
        rounds in vec(vec(0..2_000_000u64, 8), 1..10),
        spare in 0..500_000u64,
    ) {
        let settings = Settings::default();
        let total = members.iter().map(|(initial, _)| initial).sum::<u64>() + spare;
        let mut pool = Pool::new(total);
        for (index, (initial, demand)) in members.iter().enumerate() {
            pool.join(&index.to_string(), *initial).unwrap();
            pool.demand(&index.to_string(), demand_of(*demand));
        }
        for demands in rounds {
            pool.balance(&settings);
            let held: u64 = pool.members().map(|(_, member)| member.size).sum();
            prop_assert_eq!(held + pool.free(), total);
            for (_, member) in pool.members() {
                let part = |percent: u64| member.initial * percent / 100;
                prop_assert!(member.size >= part(75) && member.size <= part(125), "{:?}", member);
                // Nobody is given what he does not want, but for the lower limit.
                prop_assert!(member.size <= member.demand.unwrap().steady.max(part(75)));
            }
            for (index, demand) in demands.iter().enumerate() {
                pool.demand(&index.to_string(), demand_of(*demand));
            }
        }
        for index in 0..members.len() {
            pool.leave(&index.to_string());
        }
        prop_assert_eq!(pool.free(), total);
    }
}

/// Four fifths of what is hot are wanted, as by default.
fn demand_of(steady: u64) -> Demand {
    Demand {
        wanted: steady * 4 / 5,
        steady,
    }
}

/// A daemon reads its configuration anew while pages are remembered.
#[test]
fn other_settings_take_what_is_remembered_along() {
    let caps = SourceCaps {
        accesses: true,
        writes: true,
        in_turns: false,
    };
    let with = |windows, ranking| Settings {
        windows,
        ranking,
        ..Settings::default()
    };
    let mut policy = Policy::new(with(16, Ranking::Degree), caps, PAGE).unwrap();
    policy.set_layout(&layout(&[(0, 100, true, false), (0, 1, false, true)]));
    let all = Some(touched(&[(0, 2000)]));
    let sample = Sample {
        accessed: all.clone(),
        written: all,
    };
    for windows in [16, 1, 8, 2, 16] {
        for ranking in [
            Ranking::Degree,
            Ranking::TwoLists,
            Ranking::Threshold,
            Ranking::Random,
        ] {
            policy.set_settings(with(windows, ranking)).unwrap();
            assert_eq!(policy.usage().fast, 100 * PAGE);
            (0..20).for_each(|_| drop(policy.observe(&sample)));
            policy.plan(50 * PAGE);
        }
    }
    assert!(policy.set_settings(with(0, Ranking::Degree)).is_err());
}

/// What was used once is placed where there is room, and asks no pool for more.
#[test]
fn what_was_used_once_is_placed_and_not_demanded() {
    let caps = SourceCaps {
        accesses: true,
        ..SourceCaps::default()
    };
    let planned = |place_min: u16| {
        let settings = Settings {
            place_min,
            ..Settings::default()
        };
        let mut policy = Policy::new(settings, caps, PAGE).unwrap();
        policy.set_layout(&layout(&[(0, 100, false, false)]));
        for window in 0..8 {
            let pages = match window {
                0 => 0..30,
                _ => 0..10,
            };
            policy.observe(&Sample {
                accessed: Some(PageSet::from_iter([range(pages)])),
                written: None,
            });
        }
        let demand = policy.demand();
        (policy.plan(100 * PAGE).promote.len(), demand)
    };
    let ((all, demand), (hot, demand_of_hot)) = (planned(1), planned(3));
    assert_eq!((all, hot), (30, 10));
    assert_eq!(demand, demand_of_hot);
}

/// Huge pages that were hot for long leave fast memory soon after the hot set has moved, though all
/// else there is hot, and they are too few for spot checks.
#[test]
fn a_hot_set_of_few_huge_pages_is_followed() {
    const SET: u64 = 3;
    const OTHERS: u64 = 29;
    const WINDOWS_MAX: u32 = 24;
    let caps = SourceCaps {
        accesses: true,
        ..SourceCaps::default()
    };
    let block = |number: u64| range(number * BLOCK..(number + 1) * BLOCK);
    let run = |number: u64, place| Run {
        range: block(number),
        place,
        huge: true,
        fixed: false,
    };
    // Two hot sets, and what is always hot.
    let sets = [0..SET, SET..2 * SET];
    let others = 2 * SET..2 * SET + OTHERS;
    let fast = others.clone().chain(sets[0].clone());
    let mut runs: Vec<Run> = fast.map(|number| run(number, Place::Fast)).collect();
    runs.extend(sets[1].clone().map(|number| run(number, Place::Slow)));
    runs.sort_by_key(|run| run.range);
    let capacity = (OTHERS + SET) * BLOCK * PAGE;
    // Back-off is at another point after each of them.
    for before in 60..200 {
        let mut policy = Policy::new(Settings::default(), caps, PAGE).unwrap();
        policy.set_layout(&runs);
        let mut window = |set: usize| {
            let hot = sets[set].clone().chain(others.clone());
            policy.observe(&Sample {
                accessed: Some(PageSet::from_iter(hot.map(block))),
                written: None,
            });
            let plan = policy.plan(capacity);
            for (units, place) in [(&plan.demote, Place::Slow), (&plan.promote, Place::Fast)] {
                for unit in units {
                    policy.moved(unit.address, place);
                }
            }
            let mut found = 0;
            policy.for_each(|address, _, _, place| {
                let number = address / (BLOCK * PAGE);
                found += u64::from(place == Place::Fast && sets[set].contains(&number));
            });
            found
        };
        let stays = (0..before).all(|_| window(0) == SET);
        assert!(stays, "what is hot stays");
        let taken = (1..200).find(|_| window(1) == SET);
        assert!(
            taken.is_some_and(|taken| taken <= WINDOWS_MAX),
            "after {before} windows found in {taken:?}"
        );
    }
}
