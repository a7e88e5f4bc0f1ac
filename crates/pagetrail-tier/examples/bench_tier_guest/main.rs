//! Ours beside the kernel's own tiering and DAMON's, on two nodes of a real kernel: `cargo xtask
//! bench tier` runs this in a guest.
//!
//! The program's hot fifth is known, and where its pages are is asked of the kernel after each
//! window. A guest has no slow memory, so that time is priced; moves and faults are counted by the
//! kernel. It takes over the machine: NUMA balancing, demotion and DAMON are switched on and off.
//! With `faults` it counts the faults that moving and asking cause, and with `record redis` or
//! `record sqlite` and the path of `pagetrail` it prints the trail of one of them under load.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the result of an example, and how far it is"
)]

mod damon;
mod faults;
mod program;
mod recording;
mod replaced;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use damon::Tiering;
use pagetrail::{Capabilities, Target, Technique};
use pagetrail_tier::mover::{NodeMover, NodeOptions};
use pagetrail_tier::simulate::{Bill, Prices};
use pagetrail_tier::source::{Watched, WatchedKind};
use pagetrail_tier::{Settings, TierLoop, TierLoopOptions, nodes};
use program::{Built, HotSet, Layout};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error>;

/// Emulation is slow.
const WINDOW: Duration = Duration::from_millis(500);
const PAGES: u64 = 10_000;
/// Windows before the hot set moves, and after.
const WINDOWS: usize = 10;
/// What is left of node 0 for the promoting side, in MiB, besides what of the program is there.
const FREE_MIB: u64 = 6;

/// Who moves pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Design {
    Ours,
    NumaBalancing,
    Damon,
    Nobody,
}

impl Design {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours (access-scan, move_pages)",
            Self::NumaBalancing => "numa_balancing=2 with demotion",
            Self::Damon => "DAMON's migrate_hot and migrate_cold",
            Self::Nobody => "nobody",
        }
    }
}

fn write(path: &str, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| format!("writing {text} to {path}: {error}").into())
}

/// The kernel's tiering on or off.
fn kernel_tiering(on: bool) -> Result<(), Error> {
    write(
        "/proc/sys/kernel/numa_balancing",
        if on { "2" } else { "0" },
    )?;
    write(
        "/sys/kernel/mm/numa/demotion_enabled",
        if on { "1" } else { "0" },
    )?;
    if on {
        // As fast as ours looks: the defaults look through memory once in a second to a minute.
        let debug = "/sys/kernel/debug/sched/numa_balancing";
        for (name, value) in [
            ("scan_delay_ms", "100"),
            ("scan_period_min_ms", "250"),
            ("scan_period_max_ms", "500"),
            ("scan_size_mb", "256"),
        ] {
            write(&format!("{debug}/{name}"), value)?;
        }
    }
    Ok(())
}

/// Counters of the kernel's.
fn vmstat() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// A pass of the program over its hot pages, of which a part is in fast memory: it reads each, and
/// writes every other one.
fn bill(hot: u64, found: f64) -> Bill {
    let fast = (hot as f64 * found) as u64;
    Bill {
        reads_fast: fast,
        writes_fast: fast / 2,
        reads_slow: hot - fast,
        writes_slow: (hot - fast) / 2,
        ..Bill::default()
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn run(built: &Built, design: Design, run_pages: u64) -> Result<Value, Error> {
    eprintln!("{}, runs of {run_pages} pages", design.name());
    let layout = Layout {
        pages: PAGES,
        run_pages,
        write_every: 2,
        fast_pages: PAGES / program::STAGES,
    };
    let mut program = HotSet::start(built, layout)?;
    let hog = built.hog(FREE_MIB)?;
    let hot = PAGES / program::STAGES;
    let mut tier_loop = match design {
        Design::Ours => {
            let source = Watched::start(Target::process(program.pid())?, WatchedKind::Accesses)?;
            let mover = NodeMover::new(program.pid(), NodeOptions::default());
            let options = TierLoopOptions {
                settings: Settings::default(),
                // As many pages more as the others find free, less what else the program has.
                capacity: (hot + (FREE_MIB << 8)) * pagetrail::page_size(),
                timeout: None,
            };
            let mut tier_loop = TierLoop::new(Box::new(source), Box::new(mover), options)?;
            tier_loop.begin_period()?;
            Some(tier_loop)
        }
        _ => None,
    };
    let before = vmstat();
    let faults_before = program.minor_faults();
    let tiering = match design {
        Design::Damon => Some(Tiering::start(program.pid(), WINDOW)?),
        _ => None,
    };
    kernel_tiering(design == Design::NumaBalancing)?;
    let (mut found, mut fast_pages) = (Vec::new(), Vec::new());
    for stage in 0..2 {
        if stage > 0 {
            program.next_stage()?;
        }
        for _ in 0..WINDOWS {
            thread::sleep(WINDOW);
            if let Some(tier_loop) = &mut tier_loop {
                tier_loop.window()?;
            }
            let (part, pages) = program.in_fast(stage)?;
            found.push(round(part));
            fast_pages.push(pages);
        }
    }
    kernel_tiering(false)?;
    drop((tiering, tier_loop, hog));
    let faults = program.minor_faults() - faults_before;
    let after = vmstat();
    let counted = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    let all = found.iter().fold(Bill::default(), |sum, part| {
        let pass = bill(hot, *part);
        Bill {
            reads_fast: sum.reads_fast + pass.reads_fast,
            writes_fast: sum.writes_fast + pass.writes_fast,
            reads_slow: sum.reads_slow + pass.reads_slow,
            writes_slow: sum.writes_slow + pass.writes_slow,
            ..sum
        }
    });
    let intact = program.finish()?;
    let last = |stage: usize| found[(stage + 1) * WINDOWS - 1];
    Ok(json!({
        "design": design.name(),
        "hot_in_fast_memory_at_the_end": last(0),
        "and_after_it_moved": last(1),
        "mean": round(found.iter().sum::<f64>() / found.len() as f64),
        "priced_placement": {
            "latency": round(all.performance(&Prices::default())),
            "measured": round(all.performance(&Prices::measured())),
        },
        "by_window": found,
        "fast_pages_most": fast_pages.iter().max(),
        "page_migrations": counted("pgmigrate_success"),
        "promoted_by_the_kernel": counted("pgpromote_success"),
        "demoted_by_the_kernel": counted("pgdemote_kswapd") + counted("pgdemote_direct") + counted("pgdemote_proactive"),
        "hint_faults": counted("numa_hint_faults"),
        "faults_of_the_program": faults,
        "its_memory_is_intact": intact,
    }))
}

fn main() -> Result<(), Error> {
    let status = Capabilities::probe_one(Technique::AccessScan);
    if let Some(reason) = status.reason() {
        return Err(format!("access-scan: {reason}").into());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["record", program, pagetrail] = arguments[..] {
        let trail = recording::record(program, Path::new(pagetrail))?;
        return Ok(std::io::stdout().write_all(&trail)?);
    }
    let nodes = nodes();
    if nodes.len() < 2 {
        return Err(format!("{} memory node, two are needed", nodes.len()).into());
    }
    let (hot_pages_are, run_pages) = match arguments[..] {
        [] | ["scattered"] => ("every fifth page", 1),
        ["stretch"] => ("one stretch", PAGES / program::STAGES),
        ["faults"] => {
            println!("{:#}", faults::document()?);
            return Ok(());
        }
        _ => return Err(format!("{arguments:?}: scattered, stretch, faults or record").into()),
    };
    let built = Built::new()?;
    let mut designs = Vec::new();
    for design in [
        Design::Ours,
        Design::NumaBalancing,
        Design::Damon,
        Design::Nobody,
    ] {
        designs.push(match run(&built, design, run_pages) {
            Ok(result) => result,
            Err(error) => {
                eprintln!("{}: {error}", design.name());
                json!({ "design": design.name(), "not_here": error.to_string() })
            }
        });
        let _ = kernel_tiering(false);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = json!({
        "schema": 1,
        "kernel": release.trim(),
        "what": "a program with a hot fifth of its pages, the first fifth of all in fast memory; the hot set moves in the middle. The \
                 part of it in fast memory after each window, as the kernel tells",
        "priced": "nothing here was measured as time: the program's accesses cost the paper's table 2 ('latency') or tables 3 and 4 \
                   ('measured'); faults and moves are counted beside. 1 is all memory fast",
        "pages": PAGES,
        "window_ms": WINDOW.as_millis() as u64,
        "windows_per_stage": WINDOWS,
        "hot_pages_are": hot_pages_are,
        "designs": designs,
    });
    println!("{document:#}");
    Ok(())
}
