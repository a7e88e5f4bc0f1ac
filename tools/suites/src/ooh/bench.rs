//! `cargo xtask bench ooh`: section VI of the OoH paper on a real kernel, in counts. One guest has
//! the log, soft-dirty bits, `PAGEMAP_SCAN` and userfaultfd side by side, and its clock advances by
//! a nanosecond for each instruction, so that times are numbers of instructions.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_rig::guest::End;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

use super::{Guests, SERIES};
use crate::{checkpointer, collector};

const RECORDING: &str = "ooh_guest.json";
/// Memory of Listing 1.
const SIZES: &str = "1M,10M";
/// Techniques of the paper, and the newer ones of the kernel.
const TECHNIQUES: &str = "pagemap-scan,userfaultfd,soft-dirty,epml,spml,spml-search";

/// Measures all of it, or one part, and replaces what was recorded.
pub fn run(repo: &Repo, only: &[String]) -> Result<()> {
    let mut recording = recorded(repo)?;
    let wants = |part: &str| only.is_empty() || only.iter().any(|only| only == part);
    let mut guests = Guests::open(repo, SERIES[0])?;
    guests.machine.counted = true;
    if wants("listing1") {
        let command = Product::Command.build(repo, Profile::Release)?;
        let words = ["bench", "--json", "--runs", "1", "--size", SIZES];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend(["--technique".to_owned(), TECHNIQUES.to_owned()]);
        words.insert(0, command.display().to_string());
        let document = output(&guests, words)?;
        let mut document: Value = serde_json::from_slice(&document).context("Listing 1")?;
        recording["kernel"] = document["kernel"].take();
        recording["listing1"] = document["results"].take();
    }
    if wants("collector") {
        recording["collector"] = lines(&output(&guests, collector::logs::prepare(repo)?)?)?;
    }
    if wants("checkpointer") {
        let (command, modules) = checkpointer::measured_by_logs(repo)?;
        guests.machine.modules = modules.iter().map(|&name| name.to_owned()).collect();
        recording["checkpointer"] = lines(&output(&guests, command)?)?;
    }
    let text = format!("{recording:#}\n");
    println!("{text}");
    let command = "cargo xtask bench ooh";
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Guest, command)
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
        Ok(())
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
