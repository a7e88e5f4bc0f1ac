//! The whole loop on a program whose hot set is known: between two nodes of a real kernel, which is
//! asked where pages are.
//!
//! Needs Linux 7.3 and two memory nodes. Elsewhere it says so and passes, and a guest runs it.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::thread;
use std::time::Duration;

use common::{BASE, Program, STAGES};
use pagetrail::{Capabilities, PageRange, PageSet, Target, Technique, mapped_pages, page_size};
use pagetrail_tier::mover::{Mover, NodeMover, NodeOptions};
use pagetrail_tier::source::{Damon, Source, Watched, WatchedKind};
use pagetrail_tier::{Place, Settings, TierLoop, TierLoopOptions, WindowReport, nodes};
use rustix::process::Signal;

const PAGES: u64 = 2000;
/// Emulation is slow.
const WINDOW: Duration = Duration::from_millis(400);
/// What a program of this kind has besides: stack, heap, data.
const OTHER_PAGES: u64 = 100;

/// The pages that are hot in a stage and in fast memory, as a part of all that are hot, and how
/// many pages are in fast memory: as the kernel has it.
fn in_fast(program: &Program, stage: u64) -> (f64, u64) {
    let page = page_size();
    let arena = PageSet::from_iter(PageRange::new(BASE, BASE + PAGES * page));
    let mapped = mapped_pages(program.pid(), &arena).expect("it runs");
    assert_eq!(mapped.present, arena);
    let mut kernel = NodeMover::new(program.pid(), NodeOptions::default());
    let runs = kernel.places(&mapped).expect("it runs");
    let fast: PageSet = runs
        .iter()
        .filter(|run| run.place == Place::Fast)
        .map(|run| run.range)
        .collect();
    // numa_maps counts by itself.
    assert_eq!(fast.page_count(), program.on_node_0(), "{fast:?}");
    let hot = (stage % STAGES..PAGES).step_by(STAGES as usize);
    let found = hot
        .clone()
        .filter(|i| fast.contains(BASE + i * page))
        .count();
    (found as f64 / hot.count() as f64, fast.page_count())
}

fn not_here() -> Option<String> {
    let nodes = nodes();
    if nodes.len() < 2 {
        return Some(format!("{} memory node, two are needed", nodes.len()));
    }
    let status = Capabilities::probe_one(Technique::AccessScan);
    status
        .reason()
        .map(|reason| format!("access-scan: {reason}"))
}

fn show(report: &WindowReport, found: f64, fast: u64) {
    eprintln!(
        "window {}: {} faults, {} KiB in, {} KiB out, {:?}; {:.1}% of the hot set in fast memory, {fast} pages there; \
         collect {:?}, policy {:?}, moving {:?}",
        report.index,
        report.faults,
        report.promoted_bytes >> 10,
        report.demoted_bytes >> 10,
        report.failures,
        found * 100.0,
        report.collect,
        report.policy,
        report.moving,
    );
}

#[test]
fn the_hot_set_is_found_followed_and_left_in_peace() {
    if let Some(reason) = not_here() {
        pagetrail_skips::not_here(&reason);
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut program = Program::start(directory.path(), &[PAGES]);
    let pid = program.pid();
    // All memory came from node 0; a fifth and a little may stay there.
    let hot_pages = PAGES / STAGES;
    let capacity = (hot_pages + hot_pages / 10 + OTHER_PAGES) * page_size();
    let target = Target::process(pid).expect("it runs");
    let source = Watched::start(target, WatchedKind::Accesses).expect("access-scan works here");
    let mover = NodeMover::new(pid, NodeOptions::default());
    let options = TierLoopOptions {
        settings: Settings::default(),
        capacity,
        timeout: None,
    };
    let mut tier_loop =
        TierLoop::new(Box::new(source), Box::new(mover), options).expect("fine settings");
    assert!(tier_loop.begin_period().expect("it runs"));
    let window = |tier_loop: &mut TierLoop, program: &Program, stage| {
        program.run_for(WINDOW);
        let report = tier_loop.window().expect("it runs");
        let (found, fast) = in_fast(program, stage);
        show(&report, found, fast);
        assert!(report.usage.fast <= capacity, "{report:?}");
        assert!(fast * page_size() <= capacity, "the kernel's count, too");
        found
    };
    let first: Vec<f64> = (0..8)
        .map(|_| window(&mut tier_loop, &program, 0))
        .collect();
    assert!(first[2] >= 0.95, "found within three windows: {first:?}");
    assert!(first[7] >= 0.95, "and kept: {first:?}");
    for stage in 1..=2 {
        program.signal(Signal::USR1);
        // Everything is doubted at most once in as many as a degree counts over.
        let moved: Vec<f64> = (0..10)
            .map(|_| window(&mut tier_loop, &program, stage))
            .collect();
        assert!(
            moved[4] >= 0.95,
            "found again within five windows: {moved:?}"
        );
    }
    // Left alone, pages cost nothing: most hot pages take no fault in most windows.
    let totals = tier_loop.totals().clone();
    eprintln!("{totals:?}");
    assert!(
        totals.faults < totals.windows * hot_pages * 7 / 10,
        "{totals:?}"
    );
    let before = in_fast(&program, 2);
    drop(tier_loop);
    thread::sleep(WINDOW);
    assert_eq!(
        in_fast(&program, 2),
        before,
        "its pages stay where they are"
    );
    program.finish();
}

#[test]
fn damon_tells_whether_a_program_runs() {
    if let Some(reason) = not_here() {
        pagetrail_skips::not_here(&reason);
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = Program::start(directory.path(), &[PAGES]);
    let arena = PageSet::from_iter(PageRange::new(BASE, BASE + PAGES * page_size()));
    let mut damon = match Damon::start(program.pid(), WINDOW) {
        Err(error) if error.is_machine_limit() => {
            pagetrail_skips::not_here(&error);
            return;
        }
        started => started.expect("it starts"),
    };
    // It takes a while to learn, and to forget; how long is a matter of its samples, and of how
    // busy the machine is.
    let mut until = |what: &str, is_so: fn(u64) -> bool| {
        for _ in 0..60 {
            thread::sleep(WINDOW + WINDOW / 4);
            let sample = damon.window().expect("it runs");
            let accessed = sample.accessed.expect("accesses are what it tells");
            let part = accessed.intersection(&arena).page_count();
            eprintln!("DAMON saw {part} of {PAGES} pages in touched regions");
            if is_so(part) {
                return;
            }
        }
        panic!("{what}");
    };
    until("the program is seen", |pages| pages > 0);
    program.signal(Signal::STOP);
    until("nobody touches anything", |pages| pages < PAGES / 20);
    program.signal(Signal::CONT);
    until("it is seen again", |pages| pages > 0);
}
