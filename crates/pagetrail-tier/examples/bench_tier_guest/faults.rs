//! Table 5: the faults that moving pages causes, and asking about them, as the kernel counts them
//! for the program.

use std::thread;

use pagetrail::Target;
use pagetrail_tier::mover::{NodeMover, NodeOptions};
use pagetrail_tier::source::{Watched, WatchedKind};
use pagetrail_tier::{Place, Settings, TierLoop, TierLoopOptions};
use serde_json::{Value, json};

use crate::program::{Built, HotSet, Layout};
use crate::{Error, PAGES, WINDOW, kernel_tiering, replaced, round};

/// In so many windows everything has been moved, or it will not be.
const WINDOWS_MAX: usize = 20;

/// Who moves all pages of a program to fast memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// One call after the other, without asking first.
    MovePages,
    /// Ours, with access-scan as the source.
    Ours,
    /// The kernel's tiering.
    NumaBalancing,
}

fn run(built: &Built, mover: Mover, write_every: u64) -> Result<Value, Error> {
    let layout = Layout {
        pages: PAGES,
        run_pages: PAGES,
        write_every,
        fast_pages: 0,
    };
    let mut program = HotSet::start(built, layout)?;
    // It has had its own first faults.
    thread::sleep(WINDOW);
    let before = program.minor_faults();
    let (mut windows, mut sampling_faults) = (0, 0);
    match mover {
        Mover::MovePages => {
            program.move_to(0..PAGES, Place::Fast);
            thread::sleep(WINDOW);
        }
        Mover::NumaBalancing => {
            kernel_tiering(true)?;
            while windows < WINDOWS_MAX && program.in_fast(0)?.1 < PAGES {
                thread::sleep(WINDOW);
                windows += 1;
            }
            kernel_tiering(false)?;
        }
        Mover::Ours => {
            let source = Watched::start(Target::process(program.pid())?, WatchedKind::Accesses)?;
            let node = NodeMover::new(program.pid(), NodeOptions::default());
            let options = TierLoopOptions {
                settings: Settings::default(),
                capacity: 2 * PAGES * pagetrail::page_size(),
                timeout: None,
            };
            let mut tier_loop = TierLoop::new(Box::new(source), Box::new(node), options)?;
            tier_loop.begin_period()?;
            while windows < WINDOWS_MAX && program.in_fast(0)?.1 < PAGES {
                thread::sleep(WINDOW);
                tier_loop.window()?;
                windows += 1;
            }
            sampling_faults = tier_loop.totals().faults;
        }
    }
    let faults = program.minor_faults() - before;
    let (_, moved) = program.in_fast(0)?;
    let intact = program.finish()?;
    Ok(json!({
        "moved_pages": moved,
        "faults": faults,
        "of_them_for_being_asked": sampling_faults,
        "faults_per_moved_page": round(faults as f64 / moved.max(1) as f64),
        "windows": windows,
        "its_memory_is_intact": intact,
    }))
}

/// A program in slow memory that reads, or writes, all its pages all the time, and is moved to fast
/// memory.
pub(crate) fn document() -> Result<Value, Error> {
    let built = Built::new()?;
    let mut rows = Vec::new();
    for (name, mover) in [
        (
            "move_pages, all at once and without asking",
            Mover::MovePages,
        ),
        ("ours (access-scan, move_pages)", Mover::Ours),
        ("numa_balancing=2 with demotion", Mover::NumaBalancing),
    ] {
        eprintln!("{name}");
        let with = |write_every| match run(&built, mover, write_every) {
            Ok(result) => result,
            Err(error) => json!({ "not_here": error.to_string() }),
        };
        rows.push(json!({ "design": name, "read": with(0), "write": with(1) }));
    }
    kernel_tiering(false)?;
    rows.extend(replaced::rows(&built));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(json!({
        "schema": 1,
        "kernel": release.trim(),
        "what": "table 5: a program in slow memory that reads, or writes, all its pages all the time is moved to fast memory; \
                 its minor faults, by the kernel's count",
        "paper": "exits to the hypervisor per moved page: 1.00 (read) and 1.00 (write) by Linux, 1.00 and 1.84 to 1.97 by write \
                  protection, less than 0.002 by HMM-V",
        "differs": "no hypervisor, whose tables forget a page that moves: move_pages(2) maps it anew itself, and a fault is that of \
                    an access in the middle of a move. What is left is a fault for each question",
        "replaced": "by UFFDIO_MOVE the program itself takes a page out of its place and puts a copy there; a thread of it reads or \
                     writes in any order meanwhile",
        "pages": PAGES,
        "designs": rows,
        "waits": replaced::waits(&built),
    }))
}
