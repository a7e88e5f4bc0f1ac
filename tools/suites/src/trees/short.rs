//! Processes that end at once: `/bin/true`, so many times, from a shell.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Bench, run, spread};

const COUNT: u64 = 1000;

/// Times of the whole command, with start and end of the recorder.
pub(super) fn measure(bench: &Bench) -> Result<Value> {
    let script = format!("i=0; while [ $i -lt {COUNT} ]; do /bin/true; i=$((i+1)); done; echo $i");
    let shell = ["sh", "-c", &script];
    let trail = bench.trail("short.trail");
    let (mut plain_s, mut tracked_s, mut ratios, mut seen) = (vec![], vec![], vec![], vec![]);
    for _ in 0..bench.rounds {
        let plain = timed(Command::new(shell[0]).args(&shell[1..]))?;
        let tracked = timed(&mut bench.record(&trail, &[&["--"][..], &shell].concat()))?;
        let report = bench.report(&trail)?;
        // Those that were seen alive, without the shell, and those of which only that they lived is
        // known, where the kernel tells that.
        let alive = report["processes"].as_array().map_or(1, Vec::len) as u64 - 1;
        let short = report["short_lived_processes"].as_u64().unwrap_or(0);
        ensure!(
            alive + short <= COUNT,
            "{alive} processes and {short} short lives of {COUNT}"
        );
        plain_s.push(plain);
        tracked_s.push(tracked);
        ratios.push(tracked / plain);
        seen.push((alive + short) as f64);
    }
    let (ratio, seen) = (spread(&ratios), spread(&seen));
    println!(
        "{COUNT} processes that end at once, tracked / untracked (goal 1.5): {}; known of {}",
        ratio["median"], seen["median"]
    );
    Ok(json!({
        "processes": COUNT,
        "goal": 1.5,
        "untracked_s": spread(&plain_s),
        "tracked_s": spread(&tracked_s),
        "ratio": ratio,
        "processes_known": seen,
    }))
}

/// Runs it; in how many seconds, if it has started all of them.
fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    let output = run(command)?;
    let took = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let count = COUNT.to_string();
    ensure!(said.lines().any(|line| line == count), "it said: {said}");
    Ok(took)
}
