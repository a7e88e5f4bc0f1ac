//! `cargo xtask bench ooh`: section VI of the OoH paper on a real kernel, in counts. One guest has
//! the log, soft-dirty bits, `PAGEMAP_SCAN` and userfaultfd side by side, and its clock advances by
//! a nanosecond for each instruction, so that times are numbers of instructions.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::guest::End;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

use super::spent::Spent;
use super::{Guests, SERIES};
use crate::{checkpointer, collector};

const RECORDING: &str = "ooh_guest.json";
/// Of each part: one processor is emulated, with each of its stores.
const TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Memory of Listing 1.
const SIZES: [&str; 2] = ["1M", "10M"];
/// Techniques of the paper, and the newer ones of the kernel.
const TECHNIQUES: [&str; 6] = [
    "pagemap-scan",
    "userfaultfd",
    "soft-dirty",
    "epml",
    "spml",
    "spml-search",
];

/// Measures all of it, or one part, and replaces what was recorded.
pub fn run(repo: &Repo, only: &[String]) -> Result<()> {
    let mut recording = recorded(repo)?;
    let wants = |part: &str| only.is_empty() || only.iter().any(|only| only == part);
    let parts = parts(repo, &wants)?;
    let mut guests = Guests::open(repo, SERIES[0])?;
    guests.machine.counted = true;
    guests.machine.timeout = TIMEOUT;
    for (part, command, modules) in parts {
        guests.machine.modules = modules.iter().map(|&name| name.to_owned()).collect();
        recording[part] = lines(&output(&guests, command)?)?;
    }
    if let Some(kernel) = recording["listing1"][0].get("kernel") {
        recording["kernel"] = kernel.clone();
    }
    let text = format!("{recording:#}\n");
    println!("{text}");
    let command = "cargo xtask bench ooh";
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Guest, command)
}

/// A part of the recording, the command that measures it in a guest, and the kernel modules that it
/// needs there.
type Part = (&'static str, Vec<String>, &'static [&'static str]);

/// Builds what the parts need, before a guest is taken that others may wait for.
fn parts(repo: &Repo, wants: &impl Fn(&str) -> bool) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    if wants("engines") {
        let (command, modules) = checkpointer::engines_by_logs(repo)?;
        parts.push(("engines", command, modules));
    }
    if wants("checkpointer") {
        let (command, modules) = checkpointer::measured_by_logs(repo)?;
        parts.push(("checkpointer", command, modules));
    }
    if wants("collector") {
        parts.push(("collector", collector::logs::prepare(repo)?, &[]));
    }
    if wants("listing1") {
        let measured = Product::Command.build(repo, Profile::Release)?;
        let this = std::env::current_exe()?.display().to_string();
        let verb = "measure-listing1-logs".to_owned();
        let command = vec![this, verb, measured.display().to_string()];
        parts.push(("listing1", command, &[]));
    }
    Ok(parts)
}

/// In such a guest: Listing 1 by each technique and size, one line of JSON for each of its results,
/// with what the run took as a whole.
pub fn measure_listing1(args: &[String]) -> Result<()> {
    let [command] = args else {
        bail!("usage: measure-listing1-logs COMMAND");
    };
    for size in SIZES {
        for technique in TECHNIQUES {
            let spent = Spent::begin()?;
            let mut bench = Command::new(command);
            bench.args(["bench", "--json", "--runs", "1", "--size", size]);
            let output = bench.args(["--technique", technique]).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{technique}: {said}");
            let spent = spent.end()?;
            let mut document: Value = serde_json::from_slice(&output.stdout)?;
            let Value::Array(results) = document["results"].take() else {
                bail!("{technique}: no results");
            };
            for mut result in results {
                result["kernel"] = document["kernel"].clone();
                result["run"] = spent.clone();
                println!("{result}");
            }
        }
    }
    Ok(())
}

fn recorded(repo: &Repo) -> Result<Value> {
    let path = repo.root.join("bench/results").join(RECORDING);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(json!({"schema": 1})),
        Err(error) => Err(error.into()),
    }
}

fn output(guests: &Guests, command: Vec<String>) -> Result<Vec<u8>> {
    let mut output = Vec::new();
    let what = command.join(" ");
    let end = guests.run(command, &mut |bytes| {
        output.extend_from_slice(bytes);
        // It takes long, and what is there stays if a later part fails.
        std::io::stderr().write_all(bytes)
    })?;
    let said = String::from_utf8_lossy(&output);
    ensure!(end == End::Exited(0), "{what}: {end:?}: {said}");
    Ok(output)
}

fn lines(output: &[u8]) -> Result<Value> {
    let lines = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let rows: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
    Ok(rows.context("the guest's results")?.into())
}
