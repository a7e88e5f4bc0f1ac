//! Figure 7: programs in huge pages, each where it fits into fast memory and where it does not.

use pagetrail_tier::simulate::{
    Bill, Machine, Outcome, Prices, Program, Report, RunOptions, Workload, WorkloadKind,
    betweenness, breadth_first, memory_mode, page_rank, run,
};
use pagetrail_tier::{Ranking, Result, Settings};
use serde_json::{Value, json};

use crate::designs::{PERIOD, calm_bytes};
use crate::{SEED, round};

const HUGE_PAGES: usize = 512;
/// Vertices of the graphs, as a power of two: some forty huge pages.
const SCALE: u32 = 20;
const MINUTES: u64 = 10;
/// The paper's machine: gigabytes of fast memory, and of slow memory, in which a program's pages
/// lie anywhere.
const FAST: usize = 32;
const SLOW: usize = 128;
const POLICY: &str = "the paper's policy";
const TWO_LISTS: &str = "two lists (Nimble)";
const MEMORY_MODE: &str = "memory mode, a direct-mapped cache";

/// Makes a program anew.
type Make<'a> = &'a dyn Fn() -> Box<dyn Program>;

/// A program, and how many gigabytes the paper's takes (table 6).
struct Case<'a> {
    name: &'a str,
    program: Make<'a>,
    size: &'a str,
    gigabytes: usize,
}

impl Case<'_> {
    /// In whole huge pages, as the paper's fast memory is to the paper's program.
    fn fast_pages(&self) -> usize {
        let pages = (self.program)().pages();
        (pages * FAST / self.gigabytes).next_multiple_of(HUGE_PAGES)
    }

    fn run(&self, settings: Settings) -> Result<Outcome> {
        let mut program = (self.program)();
        let options = RunOptions {
            fast_pages: self.fast_pages(),
            windows: MINUTES * PERIOD,
            period: PERIOD,
            settings: Settings {
                calm_bytes: calm_bytes(program.pages()),
                ..settings
            },
            report: Report::Accesses,
            huge_pages: true,
        };
        run(&mut *program, &options)
    }

    /// Fast memory first, as the paper's NUMA balancing was configured.
    fn first_touch(&self) -> Bill {
        let mut program = (self.program)();
        let machine = Machine::of_huge_pages(program.pages(), self.fast_pages());
        for _ in 0..MINUTES * PERIOD {
            let Some(accesses) = program.run() else {
                break;
            };
            machine.touch(&accesses);
        }
        machine.bill()
    }

    fn cached(&self) -> Bill {
        let mut program = (self.program)();
        let huge_pages = program.pages().div_ceil(HUGE_PAGES);
        let places = (huge_pages * SLOW / self.gigabytes) as u32;
        let frames = fastrand::Rng::with_seed(SEED).choose_multiple(0..places, huge_pages);
        let frames: Vec<u32> = (0..program.pages())
            .map(|page| frames[page / HUGE_PAGES] * HUGE_PAGES as u32 + (page % HUGE_PAGES) as u32)
            .collect();
        let fast_pages = self.fast_pages();
        memory_mode(&mut *program, &frames, fast_pages, MINUTES * PERIOD)
    }

    fn row(&self) -> Result<Value> {
        let performance = |bill: &Bill| bill.performance(&Prices::default());
        let base = performance(&self.first_touch());
        let ours = performance(&self.run(Settings::default())?.bill);
        let policy = performance(&self.run(Settings::paper())?.bill);
        let lists = performance(&self.run(Settings::baseline(Ranking::TwoLists))?.bill);
        let cache = performance(&self.cached());
        Ok(json!({
            "program": self.name,
            "size": self.size,
            "fast_percent": (FAST * 100 / self.gigabytes).min(100),
            "first_touch_of_all_fast": round(base),
            "over_first_touch": {
                "ours": round(ours / base),
                POLICY: round(policy / base),
                TWO_LISTS: round(lists / base),
                MEMORY_MODE: round(cache / base),
            },
            "ours_over_policy": round(ours / policy),
            "policy_over_memory_mode": round(policy / cache),
            "policy_over_two_lists": round(policy / lists),
        }))
    }
}

pub(crate) fn figure() -> Result<Value> {
    let (rank, between) = (page_rank(SCALE, 12, SEED), betweenness(SCALE, 6, SEED));
    let search = breadth_first(SCALE, 12, SEED);
    let pages = rank.pages().next_multiple_of(HUGE_PAGES);
    let rank = move || -> Box<dyn Program> { Box::new(rank.clone()) };
    let between = move || -> Box<dyn Program> { Box::new(between.clone()) };
    let search = move || -> Box<dyn Program> { Box::new(search.clone()) };
    let redis = move || -> Box<dyn Program> {
        Box::new(Workload::new(
            WorkloadKind::Fixed { hot_percent: 20 },
            pages,
            SEED,
        ))
    };
    let programs: [(&str, Make<'_>, [usize; 2]); 4] = [
        ("PageRank", &rank, [18, 70]),
        ("betweenness centrality", &between, [20, 76]),
        ("breadth-first search", &search, [19, 76]),
        (
            "Redis: a fifth of its pages hot, anywhere",
            &redis,
            [32, 100],
        ),
    ];
    let mut rows = Vec::new();
    let (mut logs, mut fitting) = (0.0, 0);
    for (name, program, [small, large]) in programs {
        for (size, gigabytes) in [("small", small), ("large", large)] {
            let case = Case {
                name,
                program,
                size,
                gigabytes,
            };
            let row = case.row()?;
            if size == "small" {
                logs += row["policy_over_memory_mode"].as_f64().unwrap_or(1.0).ln();
                fitting += 1;
            }
            rows.push(row);
        }
    }
    Ok(json!({
        "what": "programs in huge pages, with as much fast memory as the paper's machine had for the paper's programs",
        "paper": "what fits: 14.7% ahead of memory mode; what does not: see the rows",
        "differs": "the programs are some forty huge pages large; the caches of the processor, and what filling a cache takes, are not \
                    priced; a moved huge page costs what its 512 pages would",
        "fitting_policy_over_memory_mode": round((logs / f64::from(fitting)).exp()),
        "ours": rows,
    }))
}
