//! What a real kernel makes of moves other than those of single pages between nodes: to compressed
//! memory and back, and of huge pages as one. It is asked by `smaps`, `numa_maps` and `vmstat`, not
//! by our own accounting.
//!
//! Needs Linux 7.3 in a guest of the rig, with a zram device that is ours and two memory nodes.
//! Elsewhere it says so and passes.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use common::{BASE, Program, STAGES};
use pagetrail::{Capabilities, PageRange, PageSet, Target, Technique, mapped_pages, page_size};
use pagetrail_tier::mover::{Mover, NodeMover, NodeOptions, SwapMover};
use pagetrail_tier::source::{Watched, WatchedKind};
use pagetrail_tier::{Place, Settings, TierLoop, TierLoopOptions, Unit, nodes};
use rustix::process::Signal;

/// Emulation is slow.
const WINDOW: Duration = Duration::from_millis(300);
/// And the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(180);
const FOREVER: Duration = Duration::from_secs(3600);
/// What a program of this kind has besides: stack, heap, data.
const OTHER_PAGES: u64 = 100;
const HUGE_PAGES: u64 = 512;

fn not_here() -> Option<String> {
    // Swap is switched on for all of a machine, and a device that is there may be somebody's.
    if !std::env::var("PAGETRAIL_WHERE").is_ok_and(|place| place.ends_with("guest")) {
        return Some("in guests of the rig only".into());
    }
    let status = Capabilities::probe_one(Technique::AccessScan);
    let reason = status.reason();
    reason.map(|reason| format!("access-scan: {reason}"))
}

/// Switches swap in compressed memory on, once for all tests; why there is none.
fn no_zram() -> Option<String> {
    static DONE: Once = Once::new();
    let size = Path::new("/sys/block/zram0/disksize");
    if !size.exists() {
        return Some("no zram device".into());
    }
    DONE.call_once(|| {
        fs::write(size, "64M").expect("it takes a size");
        for program in ["mkswap", "swapon"] {
            let mut command = Command::new(Path::new("/sbin").join(program));
            let output = command.arg("/dev/zram0").output().expect(program);
            assert!(output.status.success(), "{program}: {output:?}");
        }
    });
    None
}

/// What `/proc/PID/smaps` says of the arena, in pages.
fn smaps(program: &Program, field: &str, pages: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/smaps", program.pid())).expect("smaps");
    let (mut inside, mut kib) = (false, 0);
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, _)) = word.split_once('-') {
            let start = u64::from_str_radix(start, 16).expect("an address");
            inside = (BASE..BASE + pages * page_size()).contains(&start);
        } else if inside && word == field {
            let number = line.split_whitespace().nth(1).expect("a number");
            kib += number.parse::<u64>().expect("a number");
        }
    }
    kib * 1024 / page_size()
}

/// Of the pages that are hot in a stage the part that is in memory.
fn present(program: &Program, pages: u64, stage: u64) -> f64 {
    let arena = PageSet::from_iter(PageRange::new(BASE, BASE + pages * page_size()));
    let mapped = mapped_pages(program.pid(), &arena).expect("it runs");
    let hot = (stage % STAGES..pages).step_by(STAGES as usize);
    let found = hot.clone().filter(|page| {
        let address = BASE + page * page_size();
        mapped.present.contains(address)
    });
    found.count() as f64 / hot.count() as f64
}

/// Turns the loop, period after period, until it is so.
fn until(program: &Program, tier_loop: &mut TierLoop, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    let mut tracking = false;
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what} in {TIMEOUT:?}");
        if !tracking {
            tracking = tier_loop.begin_period().expect("it runs");
            assert!(tracking, "there are no pauses");
        }
        program.run_for(WINDOW);
        let report = tier_loop.window().expect("it runs");
        eprintln!(
            "{} KiB in, {} KiB out, {:?}",
            report.promoted_bytes >> 10,
            report.demoted_bytes >> 10,
            report.failures
        );
        if report.over {
            tier_loop.end_period().expect("it runs");
            tracking = false;
        }
    }
}

fn tier_loop(program: &Program, mover: Box<dyn Mover>, capacity: u64) -> TierLoop {
    let target = Target::process(program.pid()).expect("it runs");
    let source = Watched::start(target, WatchedKind::Accesses).expect("access-scan works here");
    let options = TierLoopOptions {
        settings: Settings {
            // All periods are tracked: how many there are is a matter of how busy the machine is.
            pause_max: 0,
            ..Settings::default()
        },
        capacity,
        timeout: None,
    };
    TierLoop::new(Box::new(source), mover, options).expect("fine settings")
}

#[test]
fn pages_go_to_zram_and_are_mapped_again() {
    const PAGES: u64 = 1000;
    if let Some(reason) = not_here().or_else(no_zram) {
        pagetrail_skips::not_here(&reason);
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut program = Program::start(directory.path(), &[PAGES]);
    // It must not fetch them itself.
    program.signal(Signal::STOP);
    let units: Vec<Unit> = (0..PAGES)
        .map(|page| Unit {
            address: BASE + page * page_size(),
            bytes: page_size(),
            rank: 0,
        })
        .collect();
    let mut mover = SwapMover::new(program.pid(), None).expect("there is swap");
    assert_eq!(smaps(&program, "Swap:", PAGES), 0);
    let out = mover.carry_out(&units, Place::Slow, FOREVER);
    // A page may be in somebody's hands for a moment: the kernel counts what went.
    assert!(
        out.moved.len() as u64 >= PAGES * 9 / 10,
        "{:?}",
        out.failures()
    );
    assert_eq!(smaps(&program, "Swap:", PAGES), out.moved.len() as u64);
    let back = mover.carry_out(&out.moved, Place::Fast, FOREVER);
    assert_eq!(back.moved.len(), out.moved.len(), "{:?}", back.failures());
    assert_eq!(smaps(&program, "Swap:", PAGES), 0);
    assert_eq!(smaps(&program, "Rss:", PAGES), PAGES);
    program.signal(Signal::CONT);
    program.finish();
}

#[test]
fn what_is_cold_goes_to_zram_and_what_is_hot_stays() {
    const PAGES: u64 = 2000;
    if let Some(reason) = not_here().or_else(no_zram) {
        pagetrail_skips::not_here(&reason);
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut program = Program::start(directory.path(), &[PAGES]);
    let hot_pages = PAGES / STAGES;
    let fast_pages = hot_pages + hot_pages / 10 + OTHER_PAGES;
    let mover = SwapMover::new(program.pid(), None).expect("there is swap");
    let mut tier_loop = tier_loop(&program, Box::new(mover), fast_pages * page_size());
    for stage in 0..2 {
        until(&program, &mut tier_loop, "settled", || {
            let swapped = smaps(&program, "Swap:", PAGES);
            let part = present(&program, PAGES, stage);
            eprintln!(
                "stage {stage}: {swapped} of {PAGES} pages in swap, {part:.2} of the hot ones in memory"
            );
            // Now and then the program fetches another page.
            part >= 0.95 && swapped >= PAGES - fast_pages - PAGES / 20
        });
        program.signal(Signal::USR1);
    }
    drop(tier_loop);
    program.finish();
}

fn vmstat(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").expect("vmstat");
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    let (_, number) = pairs.find(|(known, _)| *known == name).expect(name);
    number.parse().expect("a number")
}

#[test]
fn huge_pages_move_as_one() {
    const COUNT: u64 = 10;
    const PAGES: u64 = COUNT * HUGE_PAGES;
    if let Some(reason) = not_here() {
        pagetrail_skips::not_here(&reason);
        return;
    }
    if nodes().len() < 2 {
        pagetrail_skips::not_here("one memory node, two are needed");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut program = Program::start(directory.path(), &[PAGES, HUGE_PAGES, 2, 1]);
    assert_eq!(smaps(&program, "AnonHugePages:", PAGES), PAGES);
    let before = ["thp_migration_success", "thp_migration_split"].map(vmstat);
    // The two hot ones fit, and half of another.
    let capacity = (2 * HUGE_PAGES + HUGE_PAGES / 2 + OTHER_PAGES) * page_size();
    let mover = NodeMover::new(program.pid(), NodeOptions::default());
    let mut tier_loop = tier_loop(&program, Box::new(mover), capacity);
    for stage in 0..2 {
        until(&program, &mut tier_loop, "settled", || {
            let (on_0, huge) = (
                program.on_node_0(),
                smaps(&program, "AnonHugePages:", PAGES),
            );
            assert_eq!(huge, PAGES, "none is split");
            assert_eq!(on_0 % HUGE_PAGES, 0, "none is in two places");
            let mut kernel = NodeMover::new(program.pid(), NodeOptions::default());
            let is_fast = |number: u64| {
                let start = BASE + number * HUGE_PAGES * page_size();
                let one = PageSet::from_iter(PageRange::new(start, start + page_size()));
                let mapped = mapped_pages(program.pid(), &one).expect("it runs");
                let runs = kernel.places(&mapped).expect("it runs");
                runs.first().is_some_and(|run| run.place == Place::Fast)
            };
            let hot = [stage, stage + STAGES].map(is_fast);
            eprintln!("stage {stage}: {on_0} pages on node 0, the hot ones among them: {hot:?}");
            on_0 <= 2 * HUGE_PAGES && hot == [true; 2]
        });
        program.signal(Signal::USR1);
    }
    let [moved, split] = ["thp_migration_success", "thp_migration_split"].map(vmstat);
    // Eight out, then two in and two out.
    assert!(moved - before[0] >= 12, "{} moves", moved - before[0]);
    assert_eq!(split, before[1]);
    drop(tier_loop);
    program.finish();
}
