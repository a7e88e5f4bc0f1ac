//! Figure 8: four programs, each with a share of fast memory, as islands and in a pool.
//!
//! The programs of section 5.9.1, in units of a share of 8 GB: one streams through 10 GB, and its
//! machine uses 1.9 GB besides now and then, which is what the paper's 9.5 GB of hot memory, 80% of
//! what is above the threshold, come from; graph500 has 6.5 GB hot of 19, Redis 6.4 of 32, PageRank
//! 1 of 19.

use pagetrail_tier::simulate::{
    Accesses, Bill, Machine, Prices, Program, Report, Workload, WorkloadKind, memory_mode_window,
};
use pagetrail_tier::{Pool, Result, Settings, TierLoop, TierLoopOptions};
use serde_json::{Value, json};

use crate::designs::{PERIOD, calm_bytes};
use crate::{SEED, round};

/// Pages of fast memory that each program begins with: 8 GB in the paper.
const SHARE: usize = 4000;
/// Pages of slow memory: 128 GB in the paper.
const SLOW: usize = 16 * SHARE;
const MINUTES: u64 = 10;

/// A program, and another beside it in the same target.
struct Beside {
    first: Workload,
    second: Workload,
}

impl Beside {
    fn pages(&self) -> usize {
        self.first.pages() + self.second.pages()
    }

    fn run(&mut self) -> Option<Accesses> {
        let (mut first, second) = (self.first.run()?, self.second.run()?);
        first.reads.extend(second.reads);
        first.writes.extend(second.writes);
        Some(first)
    }
}

/// So many tenths of a GB, in pages.
fn tenths(count: usize) -> usize {
    SHARE * count / 80
}

fn hot(all: usize, hot: usize, seed: u64) -> Beside {
    let kind = WorkloadKind::Fixed {
        hot_percent: (hot * 100 / all) as u32,
    };
    Beside {
        first: Workload::new(kind, tenths(all), SEED + seed),
        second: Workload::new(WorkloadKind::Sweep, 0, SEED),
    }
}

fn programs() -> Vec<(&'static str, Prices, Beside)> {
    let streaming = Beside {
        // Four times through it in a window of 600 ms: 67 GB/s.
        first: Workload::new(WorkloadKind::Sweep, tenths(100), SEED)
            .accesses(4 * tenths(100) as u64),
        second: Workload::new(WorkloadKind::Fixed { hot_percent: 100 }, tenths(19), SEED)
            .accesses(tenths(19) as u64 * 3 / 4),
    };
    vec![
        ("649.fotonik3d_s: streams", Prices::streaming(), streaming),
        ("graph500", Prices::measured(), hot(190, 65, 1)),
        ("Redis", Prices::measured(), hot(320, 64, 2)),
        ("PageRank", Prices::measured(), hot(190, 10, 3)),
    ]
}

struct Kept {
    name: &'static str,
    prices: Prices,
    program: Beside,
    machine: Machine,
    tier_loop: TierLoop,
    tracking: bool,
}

fn settings() -> Settings {
    Settings {
        calm_bytes: calm_bytes(SHARE),
        ..Settings::default()
    }
}

fn start() -> Result<Vec<Kept>> {
    let start = |(name, prices, program): (&'static str, Prices, Beside)| {
        let machine = Machine::new(program.pages(), SHARE);
        let options = TierLoopOptions {
            settings: settings(),
            capacity: SHARE as u64 * pagetrail::page_size(),
            timeout: None,
        };
        let source = Box::new(machine.source(Report::Accesses));
        Ok(Kept {
            name,
            prices,
            program,
            tier_loop: TierLoop::new(source, Box::new(machine.mover()), options)?,
            machine,
            tracking: false,
        })
    };
    programs().into_iter().map(start).collect()
}

/// A run in one of the two modes.
struct Run {
    names: Vec<&'static str>,
    performances: Vec<f64>,
    fast_pages: Vec<usize>,
    above_lower_limits: bool,
}

fn run(pooled: bool) -> Result<Run> {
    let share = SHARE as u64 * pagetrail::page_size();
    let mut all = start()?;
    let mut pool = Pool::new(all.len() as u64 * share);
    for kept in &all {
        pool.join(kept.name, share).expect("it fits");
    }
    for window in 0..MINUTES * PERIOD {
        for kept in &mut all {
            if window.is_multiple_of(PERIOD) {
                kept.tracking = kept.tier_loop.begin_period()?;
            }
            if let Some(accesses) = kept.program.run() {
                kept.machine.touch(&accesses);
            }
            if kept.tracking {
                let report = kept.tier_loop.window()?;
                kept.tracking = !report.over;
                if report.over {
                    kept.tier_loop.end_period()?;
                    pool.demand(kept.name, report.demand);
                }
            }
        }
        if pooled {
            pool.balance(&settings());
            for kept in &mut all {
                let size = pool.member(kept.name).map_or(share, |member| member.size);
                kept.tier_loop.set_capacity(size);
                let pages = (size / pagetrail::page_size()) as usize;
                kept.machine.set_fast_pages(pages);
            }
        }
    }
    let bill = |kept: &Kept| -> Bill { kept.machine.bill() };
    Ok(Run {
        names: all.iter().map(|kept| kept.name).collect(),
        performances: all
            .iter()
            .map(|kept| bill(kept).performance(&kept.prices))
            .collect(),
        fast_pages: all.iter().map(|kept| kept.machine.in_fast()).collect(),
        above_lower_limits: pool
            .members()
            .all(|(_, member)| member.size * 4 >= member.initial * 3),
    })
}

/// Runs the programs with pages where they were first touched, fast memory first: what NUMA
/// balancing in guests leaves them with.
fn first_touch() -> Vec<f64> {
    let run = |(_, prices, mut program): (_, Prices, Beside)| {
        let machine = Machine::new(program.pages(), SHARE);
        for _ in 0..MINUTES * PERIOD {
            if let Some(accesses) = program.run() {
                machine.touch(&accesses);
            }
        }
        machine.bill().performance(&prices)
    };
    programs().into_iter().map(run).collect()
}

/// Runs the programs with all fast memory as one cache of them, and pages anywhere in slow memory.
fn cached() -> Vec<f64> {
    let mut all = programs();
    let mut frames: Vec<u32> = (0..SLOW as u32).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut frames);
    let mut bills = vec![Bill::default(); all.len()];
    for _ in 0..MINUTES * PERIOD {
        let accesses: Vec<_> = (all.iter_mut())
            .map(|(_, _, program)| program.run().unwrap_or_default())
            .collect();
        let mut rest = &frames[..];
        let mut window = Vec::new();
        for ((accesses, bill), (_, _, program)) in accesses.iter().zip(&mut bills).zip(&all) {
            let (own, others) = rest.split_at(program.pages());
            rest = others;
            window.push((accesses, own, bill));
        }
        memory_mode_window(&mut window, all.len() * SHARE);
    }
    let performance = |(bill, (_, prices, _)): (&Bill, &(_, Prices, _))| bill.performance(prices);
    bills.iter().zip(&all).map(performance).collect()
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logs = values.iter().map(|value| value.ln()).sum::<f64>();
    (logs / values.len() as f64).exp()
}

/// Both modes side by side.
pub(crate) fn figure() -> Result<Value> {
    let (islands, pool) = (run(false)?, run(true)?);
    let (first_touch, cached) = (first_touch(), cached());
    let programs = islands.names.iter().enumerate().map(|(index, name)| {
        json!({
            "program": name,
            "island": round(islands.performances[index]),
            "pool": round(pool.performances[index]),
            "first_touch": round(first_touch[index]),
            "memory_mode": round(cached[index]),
            "fast_pages_island": islands.fast_pages[index],
            "fast_pages_pool": pool.fast_pages[index],
        })
    });
    let sum = |pages: &[usize]| pages.iter().sum::<usize>();
    let island_mean = geometric_mean(&islands.performances);
    let pool_mean = geometric_mean(&pool.performances);
    let (touch_mean, cache_mean) = (geometric_mean(&first_touch), geometric_mean(&cached));
    Ok(json!({
        "programs": programs.collect::<Vec<_>>(),
        "pool_against_islands": round(pool_mean / island_mean),
        "islands_against_first_touch": round(island_mean / touch_mean),
        "islands_against_memory_mode": round(island_mean / cache_mean),
        "geometric_mean": {
            "island": round(island_mean),
            "pool": round(pool_mean),
            "first_touch": round(touch_mean),
            "memory_mode": round(cache_mean),
        },
        "fast_memory_used": round(sum(&pool.fast_pages) as f64 / sum(&islands.fast_pages) as f64),
        "all_above_their_lower_limit": pool.above_lower_limits,
    }))
}
