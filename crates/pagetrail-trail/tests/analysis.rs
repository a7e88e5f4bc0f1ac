//! The analysis against one that keeps a set of page numbers per round, and by hand.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use pagetrail::{PageRange, PageSet};
use pagetrail_trail::analysis::WINDOWS;
use pagetrail_trail::{Analysis, Header, Mapping, Round, Trail};

const PAGE: u64 = 4096;

fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(start * PAGE, end * PAGE).unwrap()
}

fn mapping(range: PageRange, first_round: u32, last_round: Option<u32>) -> Mapping {
    Mapping {
        range,
        name: String::new(),
        permissions: "rw-p".into(),
        untracked: None,
        shared: None,
        first_round,
        last_round,
    }
}

fn trail(mappings: Vec<Mapping>, written: Vec<PageSet>) -> Trail {
    let rounds = (0..).zip(written).map(|(index, written)| Round {
        index,
        start_ns: u64::from(index) * 100_000_000,
        duration_ns: 100_000_000,
        written,
        ..Round::default()
    });
    Trail {
        header: Header {
            page_size: PAGE,
            ..Header::default()
        },
        mappings,
        rounds: rounds.collect(),
        end: None,
        ..Trail::default()
    }
}

/// Mappings that follow each other in slots of 16 pages, the old one sometimes still there in the
/// round in which the new one appears; writes anywhere, in parts of pages too.
fn random_trail(random: &mut fastrand::Rng) -> Trail {
    let rounds = random.u32(0..80);
    let mut mappings = Vec::new();
    for slot in 0..4 {
        let mut first = random.u32(0..20);
        while first < rounds {
            let last = first + random.u32(0..30);
            let start = slot * 16 + random.u64(0..4);
            let range = pages(start, start + random.u64(1..12));
            mappings.push(mapping(range, first, (last < rounds).then_some(last)));
            first = last + random.u32(0..4).max(u32::from(last == first));
        }
    }
    mappings.sort_by_key(|mapping| mapping.first_round);
    let mut set = |ranges_max: usize| -> PageSet {
        (0..random.usize(0..ranges_max))
            .map(|_| {
                let start = random.u64(0..70);
                let range = pages(start, start + random.u64(1..9));
                match random.u8(0..4) {
                    // Several of these fit into one page without touching.
                    0 => {
                        let start = range.start() + 512 * random.u64(0..8);
                        PageRange::new(start, start + 512).unwrap()
                    }
                    1 => PageRange::new(range.start() + 512, range.end() - 512).unwrap(),
                    _ => range,
                }
            })
            .collect()
    };
    let written: Vec<PageSet> = (0..rounds).map(|_| set(9)).collect();
    let newly_mapped: Vec<PageSet> = (0..rounds).map(|_| set(2)).collect();
    let mut trail = trail(mappings, written);
    for (round, newly_mapped) in trail.rounds.iter_mut().zip(newly_mapped) {
        round.newly_mapped = round.written.intersection(&newly_mapped);
    }
    trail
}

fn numbers(set: &PageSet) -> BTreeSet<u64> {
    let touched = |range: &PageRange| range.start() / PAGE..range.end().div_ceil(PAGE);
    set.ranges().iter().flat_map(touched).collect()
}

/// Index of the newest mapping that covers a page.
fn owner(trail: &Trail, round: u32, page: u64) -> Option<usize> {
    trail.mappings.iter().rposition(|mapping| {
        let lives = mapping.first_round <= round && mapping.last_round.is_none_or(|l| l >= round);
        lives && mapping.range.contains(page * PAGE)
    })
}

#[test]
fn agrees_with_sets_of_page_numbers() {
    common::for_seeds(400, |random| {
        let trail = random_trail(random);
        let analysis = Analysis::of(&trail);
        let written: Vec<BTreeSet<u64>> =
            trail.rounds.iter().map(|r| numbers(&r.written)).collect();

        let mut writes = BTreeMap::<Option<usize>, u64>::new();
        let mut newly_mapped = BTreeMap::<Option<usize>, u64>::new();
        let mut distinct = BTreeMap::<Option<usize>, BTreeSet<u64>>::new();
        let mut in_rounds = BTreeMap::<Option<usize>, BTreeSet<u32>>::new();
        let mut times = BTreeMap::<u64, u32>::new();
        for (k, round) in trail.rounds.iter().enumerate() {
            for page in &written[k] {
                let of = owner(&trail, round.index, *page);
                *writes.entry(of).or_default() += 1;
                distinct.entry(of).or_default().insert(*page);
                in_rounds.entry(of).or_default().insert(round.index);
                *times.entry(*page).or_default() += 1;
            }
            let new = numbers(&round.newly_mapped);
            for page in &new {
                *newly_mapped
                    .entry(owner(&trail, round.index, *page))
                    .or_default() += 1;
            }
            let counts = analysis.rounds[k];
            assert_eq!(counts.written_pages, written[k].len() as u64);
            assert_eq!(counts.newly_mapped_pages, new.len() as u64);
            let before = if k > 0 {
                &written[k - 1]
            } else {
                &BTreeSet::new()
            };
            assert_eq!(
                counts.reused_pages,
                written[k].intersection(before).count() as u64
            );
        }

        let all = (0..trail.mappings.len()).map(Some).chain([None]);
        for of in all {
            let counts = of.map_or(analysis.unmapped, |index| analysis.mappings[index]);
            let get = |map: &BTreeMap<_, u64>| map.get(&of).copied().unwrap_or(0);
            assert_eq!(counts.page_writes, get(&writes));
            assert_eq!(counts.newly_mapped_page_writes, get(&newly_mapped));
            assert_eq!(
                counts.distinct_pages,
                distinct.get(&of).map_or(0, |s| s.len() as u64)
            );
            assert_eq!(
                counts.rounds_written,
                in_rounds.get(&of).map_or(0, |s| s.len() as u32)
            );
        }
        assert_eq!(
            analysis.page_writes,
            times.values().map(|n| u64::from(*n)).sum()
        );
        assert_eq!(analysis.distinct_pages, times.len() as u64);
        let mut rounds_per_page = vec![0; 8];
        for rounds in times.values() {
            rounds_per_page[rounds.ilog2() as usize] += 1;
        }
        while rounds_per_page.last() == Some(&0) {
            rounds_per_page.pop();
        }
        assert_eq!(analysis.rounds_per_page, rounds_per_page);

        for (set, length) in analysis.working_sets.iter().zip(WINDOWS) {
            let width = (length as usize).min(written.len()).max(1);
            let sizes: Vec<usize> = written
                .windows(width)
                .map(|rounds| rounds.iter().flatten().collect::<BTreeSet<_>>().len())
                .collect();
            let full = if written.len() >= length as usize {
                sizes.len()
            } else {
                0
            };
            assert_eq!(set.windows as usize, full);
            assert_eq!(
                set.max_pages,
                sizes.iter().copied().max().unwrap_or(0) as u64
            );
            let mean = sizes.iter().sum::<usize>() as f64 / sizes.len().max(1) as f64;
            assert!((set.mean_pages - mean).abs() < 1e-9);
        }
    });
}

#[test]
fn rates_shares_and_costs_by_hand() {
    let heap = mapping(pages(0, 10), 0, None);
    let stack = mapping(pages(100, 110), 1, None);
    let mut trail = trail(
        vec![heap, stack],
        vec![
            [pages(0, 4)].into_iter().collect(),
            [pages(2, 4), pages(100, 102)].into_iter().collect(),
            [pages(100, 101), pages(500, 501)].into_iter().collect(),
        ],
    );
    for (round, collect_ns) in trail.rounds.iter_mut().zip([10, 40, 20]) {
        round.collect_ns = collect_ns;
    }
    trail.rounds[2].duration_ns = 300_000_000;
    trail.rounds[1].faults = Some(4);
    trail.rounds[2].faults = Some(2);
    let analysis = Analysis::of(&trail);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    close(analysis.seconds, 0.5);
    close(analysis.pages_per_second.mean, 20.0);
    close(analysis.pages_per_second.median, 40.0);
    close(analysis.pages_per_second.max, 40.0);
    close(analysis.pages_per_round.mean, 10.0 / 3.0);
    close(analysis.mappings[0].share, 0.6);
    close(analysis.mappings[0].pages_per_second, 12.0);
    close(analysis.mappings[1].share, 0.3);
    close(analysis.unmapped.share, 0.1);
    // Of six page-writes after the first round, pages 2, 3 and 100 were written just before.
    close(analysis.reuse, 0.5);
    close(analysis.costs.collect_ns.mean, 70.0 / 3.0);
    close(analysis.costs.collect_ns.median, 20.0);
    close(analysis.costs.collect_ns.max, 40.0);
    assert_eq!(analysis.costs.collect_ns_sum, 70);
    assert_eq!(analysis.costs.faults, Some(6));
}

#[test]
fn an_empty_trail_has_no_numbers_and_no_nans() {
    let empty = Analysis::of(&Trail::default());
    assert_eq!(empty.page_writes, 0);
    assert_eq!(empty.costs.faults, None);
    for number in [
        empty.reuse,
        empty.seconds,
        empty.pages_per_second.mean,
        empty.unmapped.share,
    ] {
        assert_eq!(number, 0.0);
    }
    // A round without a length has no rate.
    let mut timeless = trail(Vec::new(), vec![[pages(1, 2)].into_iter().collect()]);
    timeless.rounds[0].duration_ns = 0;
    assert_eq!(Analysis::of(&timeless).pages_per_second.max, 0.0);
}
