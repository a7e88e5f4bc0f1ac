//! What the loop must reach, on a simulated machine whose every access is known: `-- --nocapture` prints the figures.

#![allow(clippy::print_stdout, reason = "figures for whoever reads the test")]

use pagetrail_tier::simulate::{Outcome, Prices, Report, RunOptions, WorkloadKind, run};
use pagetrail_tier::{Ranking, Settings};

const PAGES: usize = 20_000;
const SEEDS: [u64; 2] = [7, 8];

fn options(workload: WorkloadKind, fast_percent: usize, windows: u64, seed: u64) -> RunOptions {
    RunOptions {
        workload,
        pages: PAGES,
        fast_pages: PAGES * fast_percent / 100,
        windows,
        period: 0,
        settings: Settings::default(),
        report: Report::Accesses,
        seed,
    }
}

fn show(name: &str, outcome: &Outcome) {
    let found: Vec<String> = outcome
        .windows
        .iter()
        .map(|window| {
            let mark = if window.report.doubt { "!" } else { "" };
            format!("{:.3}{mark}", window.found)
        })
        .collect();
    println!(
        "{name}: faults {}, moved {}, found {}",
        outcome.bill.faults,
        outcome.bill.moved,
        found.join(" ")
    );
}

/// How much of the hot set is in fast memory, from the 9th window on.
fn settled(outcome: &Outcome) -> f64 {
    let windows = &outcome.windows[8..];
    windows.iter().map(|window| window.found).sum::<f64>() / windows.len() as f64
}

#[test]
fn a_hot_set_that_fits_is_found_within_three_windows() {
    for (hot_percent, fast) in [(10, 20), (20, 25), (40, 50), (80, 90)] {
        for seed in SEEDS {
            let fixed = WorkloadKind::Fixed { hot_percent };
            let outcome = run(&options(fixed, fast, 30, seed)).unwrap();
            show(
                &format!("{hot_percent}% hot, {fast}% fast, seed {seed}"),
                &outcome,
            );
            let found = outcome.windows[2].found;
            assert!(found >= 0.95, "{hot_percent}% hot, seed {seed}: {found}");
            assert!(settled(&outcome) >= 0.99);
        }
    }
}

#[test]
fn after_it_moves_within_five() {
    for hot_percent in [10, 15] {
        for seed in SEEDS {
            let moving = WorkloadKind::Moving {
                hot_percent,
                windows: 25,
            };
            let outcome = run(&options(moving, 20, 100, seed)).unwrap();
            show(
                &format!("{hot_percent}% hot, moving, seed {seed}"),
                &outcome,
            );
            let changes = outcome
                .windows
                .iter()
                .enumerate()
                .filter(|(_, w)| w.changed);
            let mut stages = 0;
            for (first, _) in changes {
                let found = outcome.windows[first + 4].found;
                assert!(found >= 0.95, "window {first} + 4, seed {seed}: {found}");
                stages += 1;
            }
            assert_eq!(stages, 3);
        }
    }
}

#[test]
fn the_queue_halves_the_faults_at_the_same_accuracy() {
    let fixed = WorkloadKind::Fixed { hot_percent: 20 };
    let with = |level_max| {
        let mut options = options(fixed, 25, 60, SEEDS[0]);
        options.settings.level_max = level_max;
        run(&options).unwrap()
    };
    let (on, off) = (with(7), with(0));
    let part = on.bill.faults as f64 / off.bill.faults as f64;
    println!("faults with the queue: {part:.3} of those without");
    assert!(part <= 0.5, "{part}");
    assert!((settled(&on) - settled(&off)).abs() < 0.02);
}

#[test]
fn capacity_is_kept_in_every_window() {
    for (hot_percent, fast) in [(80, 20), (20, 20), (10, 50)] {
        let fixed = WorkloadKind::Fixed { hot_percent };
        let outcome = run(&options(fixed, fast, 20, SEEDS[0])).unwrap();
        let capacity = (PAGES * fast / 100) as u64 * pagetrail::page_size();
        for window in &outcome.windows {
            assert!(window.report.usage.fast <= capacity, "{window:?}");
            let all = window.report.usage.fast + window.report.usage.slow;
            assert_eq!(all, PAGES as u64 * pagetrail::page_size());
            assert!(window.report.failures.is_empty(), "{window:?}");
        }
    }
}

#[test]
fn ahead_of_what_asks_about_every_page_on_a_moving_hot_set() {
    let moving = WorkloadKind::Moving {
        hot_percent: 15,
        windows: 25,
    };
    let with = |settings: Settings| {
        let mut options = options(moving, 20, 100, SEEDS[0]);
        options.settings = settings;
        let outcome = run(&options).unwrap();
        let found = outcome.windows.iter().map(|w| w.found).sum::<f64>();
        let found = found / outcome.windows.len() as f64;
        (outcome.bill.performance(&Prices::default()), found)
    };
    let (ours, found) = with(Settings::default());
    println!("ours: priced performance {ours:.3}, hot pages in fast memory {found:.3}");
    for ranking in [
        Ranking::Threshold,
        Ranking::TwoLists,
        Ranking::FirstTouch,
        Ranking::Random,
    ] {
        // Those that never move need not ask, either.
        let moves = !matches!(ranking, Ranking::FirstTouch | Ranking::Random);
        let (theirs, found) = with(Settings::baseline(ranking));
        println!(
            "{ranking:?}: priced performance {theirs:.3}, hot pages in fast memory {found:.3}"
        );
        assert!(
            !moves || ours > theirs,
            "{ranking:?}: {theirs} against {ours}"
        );
    }
    // Each stays where it was: a fifth of anything is fast.
    let (_, found) = with(Settings::baseline(Ranking::FirstTouch));
    assert!((found - 0.2).abs() < 0.02, "{found}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let zipf = || run(&options(WorkloadKind::Zipf, 20, 12, 3)).unwrap();
    let (first, second) = (zipf(), zipf());
    assert_eq!(first.bill, second.bill);
    for (a, b) in first.windows.iter().zip(&second.windows) {
        assert_eq!((a.found, a.bill), (b.found, b.bill));
    }
}
