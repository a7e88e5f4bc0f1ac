//! Strategies on made-up programs: what they save in log entries, and what they cost in volume,
//! beside sub-pages that are never merged. Entries and volume are counted as the guest's are: an
//! entry for each alias, or merge of aliases, that is written, and a sub-page for each that the
//! entry stands for.

use std::collections::BTreeMap;

use pagetrail::PageRange;
use proptest::prelude::*;

use super::{Aliased, Strategy, UnitStrategy};

const HEAP: Aliased = Aliased {
    base: 0x10_0000_0000,
    alias_bytes: 1024 * 4096,
    aliases: 8,
};
const ALL: u64 = 0xff;

/// A round of a program: pages with the aliases that it writes.
type Written = BTreeMap<u64, u64>;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    entries: u64,
    subpages: u64,
    /// The rounds after which something was separated.
    stops: u64,
}

/// Plays a program's rounds to a strategy.
fn play(kind: UnitStrategy, rounds: &[Written]) -> Counts {
    let mut strategy = Strategy::new(kind);
    let mut merged: BTreeMap<u64, u64> = BTreeMap::new();
    let mut counts = Counts::default();
    for round in rounds {
        let mut reported = Vec::new();
        for (number, written) in round {
            let group = merged.get(number).copied().unwrap_or(0);
            let (alone, in_group) = (written & !group, written & group != 0);
            counts.entries += u64::from(alone.count_ones() + u32::from(in_group));
            let reports = alone | if in_group { group } else { 0 };
            counts.subpages += u64::from(reports.count_ones());
            reported.extend(HEAP.among(reports).map(|alias| HEAP.page(alias, *number)));
        }
        let reported = reported.into_iter();
        let reported = reported.filter_map(|page| PageRange::new(page, page + 4096));
        let changes = strategy.plan([HEAP].into_iter(), &reported.collect());
        let mut separates = false;
        for change in changes {
            assert!(change.is_sound(), "{change:?}");
            for number in change.first..change.first + change.pages {
                let before = merged.insert(number, change.merged).unwrap_or(0);
                assert_ne!(before, change.merged, "nothing changes");
                separates |= before & !change.merged != 0;
            }
        }
        counts.stops += u64::from(separates);
    }
    counts
}

/// Entries and volume of a strategy, as shares of those without merges.
fn shares(kind: UnitStrategy, rounds: &[Written]) -> (f64, f64) {
    let (fixed, counts) = (play(UnitStrategy::Static, rounds), play(kind, rounds));
    assert_eq!(fixed.stops, 0);
    let share = |part: u64, whole: u64| part as f64 / whole as f64;
    (
        share(counts.entries, fixed.entries),
        share(counts.subpages, fixed.subpages),
    )
}

/// Small objects that die young: the same pages are filled anew, round after round, nearly all of
/// each.
fn nursery(rounds: u64) -> Vec<Written> {
    let mut rng = fastrand::Rng::with_seed(1);
    let page = |rng: &mut fastrand::Rng| match rng.u8(..50) {
        0 => ALL & !(1 << rng.u32(..8)),
        _ => ALL,
    };
    let round = |n: u64| {
        let first = n % 4 * 64;
        (first..first + 64)
            .map(|number| (number, page(&mut rng)))
            .collect()
    };
    (0..rounds).map(round).collect()
}

/// A pass over all memory takes eight rounds, and is followed by another one.
fn sweep(passes: u64) -> Vec<Written> {
    let round = |n: u64| {
        let first = n % 8 * 128;
        (first..first + 128).map(|number| (number, ALL)).collect()
    };
    (0..passes * 8).map(round).collect()
}

/// Records that lie anywhere change, some of them together by chance.
fn random_keys(rounds: u64, per_round: usize) -> Vec<Written> {
    let mut rng = fastrand::Rng::with_seed(2);
    let round = |_| {
        let mut round = Written::new();
        for _ in 0..per_round {
            *round.entry(rng.u64(..512)).or_default() |= 1 << rng.u32(..8);
        }
        round
    };
    (0..rounds).map(round).collect()
}

/// Two or three records of each page change in every round, and others now and then.
fn hot_set(rounds: u64) -> Vec<Written> {
    let mut rng = fastrand::Rng::with_seed(3);
    let masks: Vec<u64> = (0..100)
        .map(|_| 0b11 << rng.u32(..6) | 1 << rng.u32(..8))
        .collect();
    let round = |_| {
        let mut round: Written = (0..).zip(masks.iter().copied()).collect();
        for _ in 0..10 {
            *round.entry(rng.u64(..1000)).or_default() |= 1 << rng.u32(..8);
        }
        round
    };
    (0..rounds).map(round).collect()
}

#[test]
fn what_is_written_together_is_merged_and_what_is_not_stays_apart() {
    let programs = [
        ("nursery", nursery(100), 0.6),
        ("sweep", sweep(10), 0.5),
        ("hot set", hot_set(100), 0.6),
        ("random keys", random_keys(100, 300), 1.02),
        ("many random keys", random_keys(100, 3000), 1.02),
        ("nearly all keys", random_keys(100, 9000), 1.02),
    ];
    let mut wrong = Vec::new();
    for (name, rounds, entries_max) in programs {
        let (entries, volume) = shares(UnitStrategy::Adaptive, &rounds);
        let line = format!("{name}: {entries:.2} of the entries, {volume:.3} of the volume");
        if entries > entries_max || volume > 1.05 {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A program whose records change at random is reported with less if nothing is merged, and the
/// strategy that merges at once reports much more.
#[test]
fn history_pays_for_fewer_entries_with_volume() {
    let (entries, volume) = shares(UnitStrategy::History(8), &random_keys(100, 3000));
    assert!(entries < 0.5 && volume > 1.5, "{entries} {volume}");
    let (entries, volume) = shares(UnitStrategy::History(8), &nursery(100));
    assert!(entries < 0.6 && volume < 1.01, "{entries} {volume}");
}

/// Pages of different slabs, which are written alike twice and differently after that: two equal
/// rounds alone prove nothing.
#[test]
fn nothing_is_merged_before_anything_has_repeated() {
    let round = |mask: u64| -> Written { (0..6).map(|slab| (slab * 16, mask)).collect() };
    let rounds = [0b11, 0b11, 0b01, 0b01].map(round);
    assert_eq!(shares(UnitStrategy::Adaptive, &rounds), (1.0, 1.0));
}

#[test]
fn a_program_that_changes_its_ways_is_followed() {
    // Long enough for the longest back-off, then one record of each page.
    let mut rounds = sweep(40);
    rounds.extend((0..2000).map(|_| (0..128).map(|number| (number, 1)).collect()));
    let (_, volume) = shares(UnitStrategy::Adaptive, &rounds);
    let (_, after) = shares(UnitStrategy::Adaptive, &rounds[rounds.len() - 2000..]);
    assert!(volume < 2.0, "{volume}");
    assert!(after < 1.01, "{after}");
}

#[test]
fn history_merges_at_once_and_separates_everything_at_times() {
    let round: Written = [(3, 0b0110), (4, 0b1)].into();
    let rounds = vec![round; 9];
    let counts = play(UnitStrategy::History(4), &rounds);
    // Three rounds of two pages: the first of a period and the one after a separation show all.
    let expected = Counts {
        entries: 3 + 2 + 2 + 2 + 3 + 2 + 2 + 2 + 3,
        subpages: 9 * 3,
        stops: 2,
    };
    assert_eq!(counts, expected);
}

fn programs() -> impl proptest::strategy::Strategy<Value = Vec<Written>> {
    let round = prop::collection::btree_map(0..40u64, 1..=ALL, 0..20);
    prop::collection::vec(round, 0..60)
}

proptest! {
    /// Whatever a program does, no strategy has more entries than there are without merges, and
    /// none reports less than was written.
    #[test]
    fn entries_are_never_more(rounds in programs()) {
        let fixed = play(UnitStrategy::Static, &rounds);
        for kind in [UnitStrategy::Adaptive, UnitStrategy::History(1), UnitStrategy::History(5)] {
            let counts = play(kind, &rounds);
            prop_assert!(counts.entries <= fixed.entries, "{kind}: {counts:?}, {fixed:?}");
            prop_assert!(counts.subpages >= fixed.subpages);
        }
    }
}

#[test]
fn strategies_have_names() {
    for kind in [
        UnitStrategy::Static,
        UnitStrategy::Adaptive,
        UnitStrategy::History(12),
    ] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for wrong in [
        "",
        "history",
        "history:",
        "history:0",
        "history:-1",
        "dynamic",
    ] {
        assert!(wrong.parse::<UnitStrategy>().is_err(), "{wrong}");
    }
}
