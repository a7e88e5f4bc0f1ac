//! `cargo xtask shadow`: KVM with shadow page tables, on an emulated Intel processor.
//!
//! Two programs of `crates/pagetrail-vm/examples`: `exact`, whose writes must be reported exactly
//! there, too; and `motion`, the Xen study's MemoryMotion, under probes, once with nested paging
//! and once with shadow page tables. What is printed are counts; the times are those of a machine
//! whose clock counts instructions.
//!
//! It is no part of `cargo xtask test`: a boot is a minute of a processor, and this is three.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_rig::bochs::{self, Paging, Settings};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::Outcome;

/// Far more than it takes on a busy machine, which was seven minutes for the writes.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// How much of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Writes alone, with shadow page tables.
    Short,
    /// MemoryMotion as well, with both kinds of paging.
    Whole,
}

/// Runs it.
pub fn run(repo: &Repo, extent: Extent) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let exact = build(repo, "exact")?;
    println!("-- writes, with shadow page tables");
    print!("{}", on_bochs(repo, Paging::Shadow, &exact, &["shadow"])?);
    if extent == Extent::Short {
        return Ok(Outcome::Passed);
    }
    let motion = build(repo, "motion")?;
    let mut documents = Vec::new();
    for paging in [Paging::Nested, Paging::Shadow] {
        println!("-- MemoryMotion, {paging:?} paging");
        let printed = on_bochs(repo, paging, &motion, &[])?;
        let lines = printed.lines().map(serde_json::from_str);
        let lines = lines.collect::<Result<Vec<Value>, _>>();
        documents.push(lines.context("the program says something else")?);
    }
    print!("{}", table(&documents[0], &documents[1]));
    let kept = repo.target.join("shadow.json");
    let [nested, shadow] = [&documents[0], &documents[1]];
    let document = json!({"schema": 1, "nested": nested, "shadow": shadow});
    fs::write(&kept, format!("{document:#}\n"))?;
    println!("{}", kept.display());
    Ok(Outcome::Passed)
}

/// Builds an example for a machine without libraries.
fn build(repo: &Repo, example: &str) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["rustc", "--quiet", "--package", "pagetrail-vm"]);
    cargo.args(["--example", example]);
    let status = cargo
        .args(["--", "-C", "target-feature=+crt-static"])
        // Most of it otherwise, all of which the emulated machine reads and unpacks.
        .args(["-C", "strip=symbols"])
        .status()?;
    ensure!(status.success(), "the program {example} does not build");
    // Whatever builds the package's tests replaces it by one that needs libraries.
    let built = repo.target.join("debug/examples").join(example);
    let kept = repo.target.join(format!("{example}-static"));
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}

fn on_bochs(repo: &Repo, paging: Paging, built: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = vec![built.display().to_string()];
    command.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let settings = Settings {
        timeout: TIMEOUT,
        paging,
    };
    let ran = bochs::run_program(repo, settings, &command)?;
    let printed = String::from_utf8_lossy(&ran.printed).into_owned();
    if ran.status != Some(0) {
        print!("{printed}");
    }
    ensure!(ran.status == Some(0), "it ended with {:?}", ran.status);
    Ok(printed)
}

/// What was found of the guest, nested paging beside shadow page tables.
fn table(nested: &[Value], shadow: &[Value]) -> String {
    let mut rows: BTreeMap<(String, String), [Option<&Value>; 2]> = BTreeMap::new();
    for (column, lines) in [nested, shadow].into_iter().enumerate() {
        for line in lines.iter().filter(|line| line["in"] == "guest") {
            let what = line["what"].as_str().unwrap_or_default();
            if let Some(name) = line["found"]["name"].as_str() {
                let key = (what.to_owned(), name.to_owned());
                rows.entry(key).or_default()[column] = Some(&line["found"]);
            }
        }
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<44} {:>12} {:>12}   mean of timed calls",
        "MemoryMotion as a guest", "nested", "shadow"
    );
    for ((what, name), found) in &rows {
        let count = |found: &Option<&Value>| {
            let count = found.map(|found| match what.as_str() {
                "function" => &found["calls"],
                _ => &found["count"],
            });
            count.map_or("-".to_owned(), ToString::to_string)
        };
        let mean = |found: &Option<&Value>| {
            let mean = found.and_then(|found| found["mean_ns"].as_f64());
            mean.map_or("-".to_owned(), |mean| format!("{mean:.0}"))
        };
        let _ = write!(
            text,
            "{:<44} {:>12} {:>12}",
            format!("{what} {name}"),
            count(&found[0]),
            count(&found[1])
        );
        let _ = match what.as_str() {
            "function" => writeln!(text, "   {} {}", mean(&found[0]), mean(&found[1])),
            _ => writeln!(text),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_of_them_lacks_is_a_dash() {
        let line = |name: &str, calls: u64| {
            json!({"what": "function", "in": "guest",
                   "found": {"name": name, "calls": calls, "mean_ns": 12.4}})
        };
        let native = json!({"what": "exit", "in": "native", "found": {"name": "HLT", "count": 1}});
        let text = table(&[line("f", 3), native], &[line("f", 9), line("g", 2)]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[0], ["function", "f", "3", "9", "12", "12"]);
        assert_eq!(rows[1], ["function", "g", "-", "2", "-", "12"]);
        assert_eq!(rows.len(), 2);
    }
}
