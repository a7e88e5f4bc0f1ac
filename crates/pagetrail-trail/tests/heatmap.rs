//! The grid: its axes hold together, no write is lost, and small ones come out as drawn by hand.

mod common;

use pagetrail::{PageRange, PageSet};
use pagetrail_trail::{Header, Heatmap, Mapping, Round, Trail};

const PAGE: u64 = 4096;

fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(start * PAGE, end * PAGE).unwrap()
}

fn trail(mappings: &[PageRange], written: Vec<PageSet>) -> Trail {
    let rounds = (0..).zip(written).map(|(index, written)| Round {
        index,
        start_ns: u64::from(index) * 10,
        duration_ns: 10,
        written,
        ..Round::default()
    });
    let mappings = mappings.iter().map(|range| Mapping {
        range: *range,
        name: String::new(),
        permissions: "rw-p".into(),
        untracked: None,
        shared: None,
        first_round: 0,
        last_round: None,
    });
    Trail {
        header: Header {
            page_size: PAGE,
            ..Header::default()
        },
        mappings: mappings.collect(),
        rounds: rounds.collect(),
        end: None,
        ..Trail::default()
    }
}

/// One line per row: separator or mapping, then a digit per cell, tenths.
fn drawn(heatmap: &Heatmap) -> Vec<String> {
    let line = |(index, row): (usize, &pagetrail_trail::heatmap::Row)| {
        let label = match (row.separator, row.mapping) {
            (true, _) => "-".to_owned(),
            (false, Some(mapping)) => mapping.to_string(),
            (false, None) => "?".to_owned(),
        };
        let cells = heatmap.row(index).iter();
        let digits: String = cells.map(|cell| format!(" {:.0}", cell * 10.0)).collect();
        format!("{label}:{digits}")
    };
    heatmap.rows.iter().enumerate().map(line).collect()
}

#[test]
fn two_mappings_and_a_page_outside_by_hand() {
    let trail = trail(
        &[pages(0, 8), pages(50, 60), pages(1000, 1002)],
        vec![
            [pages(0, 4)].into_iter().collect(),
            [pages(0, 1), pages(1000, 1001)].into_iter().collect(),
            [pages(3, 4), pages(1000, 1002), pages(5000, 5001)]
                .into_iter()
                .collect(),
        ],
    );
    let heatmap = Heatmap::of(&trail, 12, 100);
    assert_eq!(
        drawn(&heatmap),
        [
            "0: 10 10 0",
            "0: 10 0 0",
            "0: 10 0 0",
            "0: 10 0 10",
            "-: 0 0 0",
            "2: 0 10 10",
            "2: 0 0 10",
            "-: 0 0 0",
            "?: 0 0 10"
        ]
    );
    assert_eq!(heatmap.rows[0].range, pages(0, 1));
    assert_eq!(heatmap.rows[4].range, pages(4, 1000));
    assert_eq!(
        (heatmap.columns[1].start_ns, heatmap.columns[1].end_ns),
        (10, 20)
    );
    // Three blocks in three rows, without separators, and all rounds in one column.
    let small = Heatmap::of(&trail, 3, 1);
    assert_eq!(drawn(&small), ["0: 5", "2: 5", "?: 3"]);
    assert_eq!(small.columns[0].rounds, 3);
    // More blocks than rows: the largest gives its name.
    let tiny = Heatmap::of(&trail, 1, 3);
    assert_eq!(drawn(&tiny), ["0: 6 3 6"]);
    assert_eq!(tiny.rows[0].range, pages(0, 5001));
    assert_eq!(tiny.rows[0].pages, 7);
}

#[test]
fn a_sparse_giant_shows_the_pages_that_were_written() {
    let giant = pages(0, 16 << 20);
    let set = (0..100)
        .map(|i| pages(i * 160_000, i * 160_000 + 1))
        .collect();
    let heatmap = Heatmap::of(&trail(&[giant], vec![set]), 40, 10);
    assert_eq!(heatmap.rows.len(), 40);
    assert_eq!(heatmap.rows.iter().map(|row| row.pages).sum::<u64>(), 100);
    assert!(heatmap.cells.iter().all(|cell| *cell == 1.0));
}

#[test]
fn nothing_gives_an_empty_grid() {
    let written = trail(&[], vec![[pages(0, 4)].into_iter().collect()]);
    for heatmap in [
        Heatmap::of(&Trail::default(), 10, 10),
        Heatmap::of(&trail(&[pages(0, 1)], vec![PageSet::new()]), 10, 10),
        Heatmap::of(&written, 0, 10),
        Heatmap::of(&written, 10, 0),
    ] {
        assert_eq!(heatmap, Heatmap::default());
        assert_eq!((heatmap.cell(0, 0), heatmap.max()), (0.0, 0.0));
    }
}

/// Bounds kept, axes ascending and without holes, and each column holds all page-writes of its
/// rounds.
#[test]
fn random_grids_hold_together() {
    common::for_seeds(1000, |random| {
        let below = |random: &mut fastrand::Rng, bits_max: u32| {
            let bits = random.u32(1..bits_max);
            random.u64(0..1 << bits)
        };
        let mappings: Vec<PageRange> = (0..random.usize(0..6))
            .map(|_| {
                let start = below(random, 30);
                pages(start, start + 1 + below(random, 20))
            })
            .collect();
        let mut set = || -> PageSet {
            let ranges = (0..random.usize(0..20)).map(|_| {
                let start = below(random, 30);
                pages(start, start + random.u64(1..40))
            });
            ranges.collect()
        };
        let written = (0..12).map(|_| set()).collect();
        let trail = trail(&mappings, written);
        let (max_rows, max_columns) = (random.usize(1..60), random.usize(1..15));
        let heatmap = Heatmap::of(&trail, max_rows, max_columns);
        assert!(heatmap.rows.len() <= max_rows && heatmap.columns.len() <= max_columns);
        assert_eq!(
            heatmap.cells.len(),
            heatmap.rows.len() * heatmap.columns.len()
        );
        for two in heatmap.rows.windows(2) {
            assert!(two[0].range.end() <= two[1].range.start());
            assert!(!(two[0].separator && two[1].separator));
        }
        for row in &heatmap.rows {
            assert_eq!(row.separator, row.pages == 0);
            assert!(row.pages <= row.range.bytes() / PAGE);
            let mapping = row.mapping.map(|index| trail.mappings[index].range);
            assert!(mapping.is_none_or(|range| range.intersection(&row.range).is_some()));
        }
        let mut rounds = trail.rounds.iter();
        for (index, column) in heatmap.columns.iter().enumerate() {
            let expected: u64 = rounds
                .by_ref()
                .take(column.rounds)
                .map(|round| round.written.bytes() / PAGE)
                .sum();
            let drawn: f64 = (0..heatmap.rows.len())
                .map(|row| f64::from(heatmap.cell(row, index)) * heatmap.rows[row].pages as f64)
                .sum::<f64>()
                * column.rounds as f64;
            assert!((drawn - expected as f64).abs() <= 1e-4 * (expected as f64 + 1.0));
        }
        assert!(heatmap.columns.is_empty() || rounds.next().is_none());
    });
}

#[test]
fn a_mapping_never_written_gives_no_name_and_hides_none() {
    // The newer one lies over the written page, but appeared when all was over.
    let mut trail = trail(
        &[pages(0, 8), pages(0, 8)],
        vec![[pages(3, 4)].into_iter().collect(), PageSet::new()],
    );
    trail.mappings[0].last_round = Some(0);
    trail.mappings[1].first_round = 1;
    assert_eq!(drawn(&Heatmap::of(&trail, 10, 10)), ["0: 10 0"]);
}

#[test]
fn only_stretches_longer_than_all_that_was_written_are_left_out() {
    let rows = |gap: u64| {
        let written = [pages(0, 2), pages(2 + gap, 4 + gap)].into_iter().collect();
        Heatmap::of(&trail(&[pages(0, 100)], vec![written]), 100, 1).rows
    };
    assert_eq!(rows(4).len(), 8);
    assert_eq!(rows(5).len(), 5);
    assert!(rows(5)[2].separator);
}
