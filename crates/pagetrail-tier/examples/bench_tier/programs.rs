//! Redis and SQLite, recorded in a guest with Linux 7.x: figures 2, 3 and 6 with what real programs
//! touch.

use std::fs::File;
use std::io::BufReader;

use pagetrail_tier::simulate::{Program, recorded};
use pagetrail_tier::{Error, Result};
use pagetrail_trail::Trail;
use serde_json::{Value, json};

use crate::{by_fast, degrees, list, round, tracking};

/// Rounds of a window: with 50 ms each, the 600 ms of the paper. An emulated guest on a busy
/// machine is slower, and its rounds longer, in which less is done.
const ROUNDS: usize = 12;
/// How much of memory is fast, in percent.
const FAST: [usize; 4] = [10, 20, 30, 50];
/// Of the guest's clock; a recording is gone through again and again.
const MINUTES: u64 = 10;

/// What part of all accesses the fifth of the pages gets that is used most.
fn hottest_fifth(program: &mut dyn Program, windows: usize) -> f64 {
    let hot = program.hot();
    let (mut all, mut theirs) = (0u64, 0u64);
    for accesses in (0..windows).filter_map(|_| program.run()) {
        let counts = |page: u32| {
            let page = page as usize;
            u64::from(accesses.reads[page]) + u64::from(accesses.writes[page])
        };
        all += (0..accesses.reads.len() as u32).map(counts).sum::<u64>();
        theirs += hot.iter().copied().map(counts).sum::<u64>();
    }
    round(theirs as f64 / all.max(1) as f64)
}

/// What comes of one recording.
fn figures(path: &str) -> Result<Value> {
    let file = File::open(path).map_err(|source| Error::Io {
        what: path.into(),
        source,
    })?;
    let mut trail = Trail::read(BufReader::new(file))?;
    // In the first round of either kind everything counts as touched.
    trail.rounds.drain(..trail.rounds.len().min(2));
    let program = recorded(&trail, ROUNDS);
    let all_ns: u64 = trail.rounds.iter().map(|round| round.duration_ns).sum();
    let round_ms = round(all_ns as f64 / 1e6 / trail.rounds.len().max(1) as f64);
    let (pages, windows) = (program.pages(), program.windows());
    let share = hottest_fifth(&mut program.clone(), windows);
    // Where its socket was differs from run to run.
    let command = trail.header.command.join(" ");
    let name = command
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned();
    let program = move || -> Box<dyn Program> { Box::new(program.clone()) };
    Ok(json!({
        "program": name,
        "pages": pages,
        "rounds_ms_mean": round_ms,
        "windows_recorded": windows,
        "accesses_to_the_hottest_fifth": share,
        "figure_2": tracking(&program)?,
        "figure_3": list([0, 7], |level_max| degrees(&program, level_max))?,
        "figure_6": by_fast(&name, &program, &FAST, MINUTES)?,
    }))
}

/// The figures for some recordings.
pub(crate) fn document(paths: &[String]) -> Result<Value> {
    Ok(json!({
        "schema": 1,
        "recorded": "by pagetrail record --access, in a guest with Linux 7.x. A page counts once for each round in which it was \
                     written, or touched only; what is used more often than that counts as if it stayed in the processor's cache. \
                     Twelve rounds are a window; a recording is gone through again and again",
        "redis": "values of 4 KB, read and replaced by turns, 80% of the requests for a fifth of them, which lie anywhere",
        "sqlite": "a table of 20,000 rows in memory and its index; three of four requests look a row up, one changes one, 80% of \
                   them are for the newest fifth; every 10 s all rows are added up",
        "paper": {
            "figure_2": "Redis: less than half the slowdown of scanning everything; less than 2% from windows of 600 ms on",
            "figure_3": "Redis: the hot fifth stands out with and without the queue, a little higher with it",
            "figure_6": "Redis: 0.70 of all fast while the hot set does not fit, then 10% and more ahead of numa_balancing",
            "figure_7": "Redis with a hot fifth and a third of memory fast, huge pages: 10% ahead of numa_balancing, two lists (Nimble) 19% behind it",
        },
        "differs": "priced, not measured (see tier.json). No client waits for another, so that slow memory costs more than the paper's \
                    throughput shows; SQLite is not in the paper",
        "ours": list(paths, |path| figures(path))?,
    }))
}
