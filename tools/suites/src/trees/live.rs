//! The live view of processes with very many mappings: how soon it redraws, full of rounds.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::screen::Top;
use super::{Bench, Running, spread};

const CHILDREN: u32 = 3;
const MAPPINGS: u32 = 10_000;
/// Mappings that each process writes to in 100 ms.
const WRITTEN: [u32; 2] = [100, 3000];
/// As many rounds as the view holds.
const FILL: Duration = Duration::from_secs(30);
/// How often a key is pressed.
const KEYS: usize = 41;
const GOAL_MS: u32 = 50;

pub(super) fn measure(bench: &Bench) -> Result<Vec<Value>> {
    WRITTEN.iter().map(|written| of(bench, *written)).collect()
}

fn of(bench: &Bench, written: u32) -> Result<Value> {
    let mut command = Command::new(bench.victim("patchwork"));
    command.args([600, CHILDREN, MAPPINGS, written].map(|number| number.to_string()));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut program = Running(child?);
    let mut lines = BufReader::new(program.0.stdout.take().context("no pipe")?).lines();
    let ready = lines.next().context("the program has ended at once")??;
    ensure!(ready == "ready", "it said: {ready}");
    let pid = program.0.id();
    let top = Top::start(bench, pid, "100ms")?;
    sleep(FILL);
    let answer = spread(&top.latencies(KEYS)?);
    if let Some(pid) = Pid::from_raw(i32::try_from(pid)?) {
        kill_process(pid, Signal::TERM)?;
    }
    let status = program.0.wait()?;
    ensure!(
        status.success(),
        "the program did not stay as it was: {status}"
    );
    println!(
        "{} processes of {MAPPINGS} mappings, {written} written to by each in 100 ms: top answers a key \
         in {} ms, {} at most (goal {GOAL_MS})",
        CHILDREN + 1,
        answer["median"],
        answer["max"],
    );
    Ok(json!({
        "processes": CHILDREN + 1,
        "mappings_each": MAPPINGS,
        "mappings_written_by_each_in_100_ms": written,
        "interval_ms": 100,
        "top_answer_ms": answer,
        "top_answer_goal_ms": GOAL_MS,
    }))
}
