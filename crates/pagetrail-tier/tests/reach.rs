//! What the loop must reach, on a simulated machine whose every access is known: `-- --nocapture`
//! prints the figures.

#![allow(clippy::print_stdout, reason = "figures for readers of the test")]

use pagetrail_tier::mover::DryRun;
use pagetrail_tier::simulate::{
    Accesses, Machine, Outcome, Prices, Program, Recorded, Report, RunOptions, Workload,
    WorkloadKind, breadth_first, run,
};
use pagetrail_tier::{Moves, Ranking, Settings, TierLoop, TierLoopOptions};

const PAGES: usize = 20_000;
const SEEDS: [u64; 2] = [7, 8];

fn options(fast_percent: usize, windows: u64) -> RunOptions {
    RunOptions {
        fast_pages: PAGES * fast_percent / 100,
        windows,
        period: 0,
        settings: Settings::default(),
        report: Report::Accesses,
        huge_pages: false,
    }
}

fn program(kind: WorkloadKind, seed: u64) -> Workload {
    Workload::new(kind, PAGES, seed)
}

fn show(name: &str, outcome: &Outcome) {
    let found: Vec<String> = outcome
        .windows
        .iter()
        .map(|window| {
            let mark = if window.report.phase_change { "!" } else { "" };
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
            let outcome = run(&mut program(fixed, seed), &options(fast, 30)).unwrap();
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
            let outcome = run(&mut program(moving, seed), &options(20, 100)).unwrap();
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

/// Whatever level the new hot pages have reached when they are left for others, all at once.
/// (Everything is doubted at most once in as many windows as a degree counts over.)
#[test]
fn after_it_moves_again_within_five_wherever_the_queue_is() {
    for windows in 10..=40 {
        let moving = WorkloadKind::Moving {
            hot_percent: 15,
            windows,
        };
        let outcome = run(&mut program(moving, SEEDS[0]), &options(20, 4 * windows)).unwrap();
        show(&format!("moving every {windows} windows"), &outcome);
        for stage in 1..4 {
            let found = outcome.windows[(stage * windows + 4) as usize].found;
            assert!(found >= 0.95, "stage {stage} of {windows} windows: {found}");
        }
    }
}

#[test]
fn the_queue_halves_the_faults_at_the_same_accuracy() {
    for (hot_percent, fast) in [(10, 15), (20, 25), (40, 45)] {
        let fixed = WorkloadKind::Fixed { hot_percent };
        let with = |level_max| {
            let mut options = options(fast, 60);
            options.settings.level_max = level_max;
            run(&mut program(fixed, SEEDS[0]), &options).unwrap()
        };
        let (on, off) = (with(7), with(0));
        let part = on.bill.faults as f64 / off.bill.faults as f64;
        println!("{hot_percent}% hot: faults with the queue: {part:.3} of those without");
        assert!(part <= 0.5, "{part}");
        assert!((settled(&on) - settled(&off)).abs() < 0.02);
    }
}

#[test]
fn capacity_is_kept_in_every_window() {
    for (hot_percent, fast) in [(80, 20), (20, 20), (10, 50)] {
        let fixed = WorkloadKind::Fixed { hot_percent };
        let outcome = run(&mut program(fixed, SEEDS[0]), &options(fast, 20)).unwrap();
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
        let mut options = options(20, 100);
        options.settings = settings;
        let outcome = run(&mut program(moving, SEEDS[0]), &options).unwrap();
        let found = outcome.windows.iter().map(|w| w.found).sum::<f64>();
        let found = found / outcome.windows.len() as f64;
        (outcome.bill.performance(&Prices::default()), found)
    };
    let (ours, found) = with(Settings::default());
    println!("ours: priced performance {ours:.3}, hot pages in fast memory {found:.3}");
    for ranking in [
        Ranking::Threshold,
        Ranking::TwoLists,
        Ranking::Recency,
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

/// RAMinate keeps writes out of slow memory, and leaves what is only read there.
#[test]
fn by_writes_alone_what_is_read_stays_in_slow_memory() {
    const ALL: usize = 1000;
    // Fast memory is filled by the first pages, which are not used.
    let (read, written) = (400..500, 900..1000);
    let accesses = Accesses {
        reads: (0..ALL)
            .map(|page| if read.contains(&page) { 100 } else { 0 })
            .collect(),
        writes: (0..ALL)
            .map(|page| if written.contains(&page) { 100 } else { 0 })
            .collect(),
    };
    let with = |settings: Settings| {
        let mut options = options(0, 40);
        options.fast_pages = 200;
        options.settings = settings;
        options.report = Report::AccessesAndWrites;
        let mut program = Recorded::new(ALL, vec![accesses.clone()]);
        run(&mut program, &options).unwrap().from(10)
    };
    let (by_writes, ours) = (with(Settings::by_writes()), with(Settings::default()));
    println!("by writes alone: {by_writes:?}\nours: {ours:?}");
    assert_eq!((by_writes.writes_slow, by_writes.reads_fast), (0, 0));
    assert_eq!((ours.writes_slow, ours.reads_slow), (0, 0));
}

/// What is calm, of 20,000 pages: the paper's 256 MiB of 16 GB.
fn by_the_clock(windows: u64) -> RunOptions {
    let mut options = options(30, windows);
    options.period = 100;
    options.settings.calm_bytes = PAGES as u64 * pagetrail::page_size() / 64;
    options
}

#[test]
fn who_is_well_placed_is_hardly_asked_and_who_is_idle_not_at_all() {
    let fixed = WorkloadKind::Fixed { hot_percent: 20 };
    let outcome = run(&mut program(fixed, SEEDS[0]), &by_the_clock(2000)).unwrap();
    let late = outcome.from(1000);
    let per_minute = late.faults as f64 / 10.0 / PAGES as f64;
    println!("well placed: {per_minute:.3} faults per page and minute");
    // It makes 150 accesses to each page in that time.
    assert!(per_minute < 0.15, "{per_minute}");
    assert!(settled(&outcome) >= 0.99);
    let mut idle = program(fixed, SEEDS[0]).accesses(0);
    let outcome = run(&mut idle, &by_the_clock(1000)).unwrap();
    assert_eq!((outcome.bill.faults, outcome.bill.moved), (0, 0));
}

#[test]
fn a_glance_in_a_pause_notices_that_the_hot_set_has_moved() {
    let moving = WorkloadKind::Moving {
        hot_percent: 20,
        // In the middle of a pause of three periods.
        windows: 750,
    };
    let outcome = run(&mut program(moving, SEEDS[0]), &by_the_clock(1500)).unwrap();
    show("moving in a pause", &outcome);
    let found = |window: usize| outcome.windows[window].found;
    assert!(found(749) >= 0.95 && found(750) < 0.5);
    // The next period begins at 800, with a window for the probe.
    assert!(found(805) >= 0.95, "{}", found(805));
}

#[test]
fn a_dry_run_is_not_calm_when_much_would_move() {
    let machine = Machine::new(PAGES, PAGES / 4);
    let mut program = program(WorkloadKind::Fixed { hot_percent: 20 }, SEEDS[0]);
    let source = Box::new(machine.source(Report::Accesses));
    let options = TierLoopOptions {
        settings: by_the_clock(0).settings,
        capacity: PAGES as u64 / 4 * pagetrail::page_size(),
        timeout: None,
    };
    let mut tier_loop = TierLoop::new(source, Box::new(DryRun(machine.mover())), options).unwrap();
    for _ in 0..5 {
        assert!(tier_loop.begin_period().unwrap());
        loop {
            machine.touch(&program.run().unwrap());
            if tier_loop.window().unwrap().over {
                tier_loop.end_period().unwrap();
                break;
            }
        }
    }
    let totals = tier_loop.totals();
    assert_eq!((totals.periods, totals.pauses), (5, 0));
    assert_eq!(machine.bill().moved, 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let zipf = || run(&mut program(WorkloadKind::Zipf, 3), &options(20, 12)).unwrap();
    let (first, second) = (zipf(), zipf());
    assert_eq!(first.bill, second.bill);
    for (a, b) in first.windows.iter().zip(&second.windows) {
        assert_eq!((a.found, a.bill), (b.found, b.bill));
    }
}

/// While moves are held plans go on, and nothing counts as calm; then all that waited moves.
#[test]
fn held_moves_wait() {
    let machine = Machine::new(PAGES, PAGES / 5);
    let hot = WorkloadKind::Fixed { hot_percent: 10 };
    let mut workload = program(hot, SEEDS[0]);
    let options = TierLoopOptions {
        capacity: (PAGES / 5) as u64 * pagetrail::page_size(),
        ..TierLoopOptions::default()
    };
    let source = Box::new(machine.source(Report::Accesses));
    let mut tier_loop = TierLoop::new(source, Box::new(machine.mover()), options).unwrap();
    tier_loop.set_moves(Moves::Held);
    assert!(tier_loop.begin_period().unwrap());
    let mut window = |tier_loop: &mut TierLoop| {
        machine.touch(&workload.run().unwrap());
        tier_loop.window().unwrap()
    };
    for index in 0..6 {
        let report = window(&mut tier_loop);
        // What is hot shows after some windows.
        assert!(report.held_bytes > 0 || index < 4, "{report:?}");
        assert_eq!((report.promoted_bytes, report.demoted_bytes), (0, 0));
        assert!(report.failures.is_empty(), "{report:?}");
    }
    assert_eq!(machine.bill().moved, 0);
    tier_loop.set_moves(Moves::CarriedOut);
    let report = window(&mut tier_loop);
    assert_eq!(report.held_bytes, 0);
    assert!(report.promoted_bytes > 0, "{report:?}");
    assert!(machine.fast_part(&workload.hot()) > 0.9);
}

/// The queue is left out while fast memory would serve more without it, and costs little more
/// where it pays.
#[test]
fn the_queue_is_left_out_where_phases_are_shorter_than_it() {
    let search = breadth_first(17, 50, SEEDS[0]);
    let performance = |program: &mut dyn Program, fast_percent: usize, trial: bool| {
        let pages = program.pages();
        let options = RunOptions {
            fast_pages: pages * fast_percent / 100,
            windows: 1000,
            period: 100,
            settings: Settings {
                trial,
                // By the last windows alone, which is what the queue makes guesses in.
                long_windows: 0,
                calm_bytes: pages as u64 * pagetrail::page_size() / 64,
                ..Settings::default()
            },
            report: Report::Accesses,
            huge_pages: false,
        };
        let outcome = run(program, &options).unwrap();
        outcome.bill.performance(&Prices::default())
    };
    for fast_percent in [40, 60, 80] {
        let [without, with] =
            [false, true].map(|trial| performance(&mut search.clone(), fast_percent, trial));
        println!("breadth-first search, {fast_percent}% fast: {without:.3}, tried {with:.3}");
        assert!(with > without + 0.01, "{without} and {with}");
    }
    let hot = WorkloadKind::Fixed { hot_percent: 10 };
    let [without, with] =
        [false, true].map(|trial| performance(&mut program(hot, SEEDS[0]), 20, trial));
    println!("10% hot, 20% fast: {without:.3}, tried {with:.3}");
    assert!(with > without - 0.01, "{without} and {with}");
}

/// Where phases come again, pages compete by a longer time; where a hot set moves, they do not.
#[test]
fn the_order_that_serves_more_is_followed() {
    let performance = |program: &mut dyn Program, fast_percent: usize, adapt_order: bool| {
        let pages = program.pages();
        let options = RunOptions {
            fast_pages: pages * fast_percent / 100,
            windows: 1000,
            period: 100,
            settings: Settings {
                adapt_order,
                calm_bytes: pages as u64 * pagetrail::page_size() / 64,
                ..Settings::default()
            },
            report: Report::Accesses,
            huge_pages: false,
        };
        let outcome = run(program, &options).unwrap();
        outcome.bill.performance(&Prices::default())
    };
    let search = breadth_first(17, 50, SEEDS[0]);
    let [without, with] = [false, true].map(|adapt| performance(&mut search.clone(), 40, adapt));
    println!("breadth-first search: {without:.3}, the order chosen {with:.3}");
    assert!(with > without + 0.01, "{without} and {with}");
    let moving = WorkloadKind::Moving {
        hot_percent: 15,
        windows: 500,
    };
    let [without, with] =
        [false, true].map(|adapt| performance(&mut program(moving, SEEDS[0]), 20, adapt));
    println!("moving, 15% hot: {without:.3}, the order chosen {with:.3}");
    assert!(with > without - 0.002, "{without} and {with}");
}
