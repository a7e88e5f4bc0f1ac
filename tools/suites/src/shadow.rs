//! `cargo xtask shadow`: KVM with shadow page tables, on an emulated Intel processor.
//!
//! Two programs of `crates/pagetrail-vm/examples`: `exact`, whose writes must be reported exactly
//! there, too; and `motion`, the Xen study's MemoryMotion, under probes, once with nested paging
//! and once with shadow page tables. What is printed are counts; the times are those of a machine
//! whose clock counts instructions.
//!
//! [`sharing`] has the same program share pages instead, the study's content-based page sharing, in
//! a guest with AMD's nested paging.
//!
//! `cargo xtask test` has the writes alone, in a boot that it makes anyway ([`crate::intel`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_rig::Needs;
use pagetrail_rig::bochs::{self, Paging, Settings};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::Outcome;

/// Far more than it takes on a busy machine, which was seven minutes for the writes.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The kernel that shares pages.
const SERIES: &str = "6.12";

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
        paging,
        ..Settings::nested(TIMEOUT)
    };
    let ran = bochs::run_program(repo, settings, &command)?;
    let printed = String::from_utf8_lossy(&ran.printed).into_owned();
    if ran.status != Some(0) {
        print!("{printed}");
    }
    ensure!(ran.status == Some(0), "it ended with {:?}", ran.status);
    Ok(printed)
}

/// Pages that the host's kernel merges and parts again, under a program and under a guest, with
/// nested paging; recorded.
pub fn sharing(repo: &Repo) -> Result<()> {
    let motion = build(repo, "motion")?;
    let needs = Needs {
        timeout: TIMEOUT,
        nested: true,
        ..Needs::default()
    };
    let command = [&motion.display().to_string()[..], "1", "20-40", "sharing"];
    let command = command.map(str::to_owned).to_vec();
    let output = pagetrail_rig::output(repo, SERIES, &needs, command)?;
    let output = String::from_utf8(output)?;
    let lines = output.lines().map(serde_json::from_str);
    let lines = lines.collect::<Result<Vec<Value>, _>>();
    let lines = lines.context("the program says something else")?;
    check(&lines)?;
    print!("{}", table(&lines, &[]));
    let document = json!({"schema": 1, "kernel": lines[0]["kernel"], "nested": lines});
    let text = format!("{document:#}\n");
    recordings::keep(
        repo,
        "sharing.json",
        text.as_bytes(),
        Place::Guest,
        "cargo xtask shadow sharing",
    )
}

/// Pages were merged and parted in both places, each by a fault of its own, and those of the guest
/// were no longer KVM's.
fn check(lines: &[Value]) -> Result<()> {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    for place in ["native", "guest"] {
        let of = |line: &&Value| line["in"] == place && line["work"] == "parted";
        let mut lines = lines.iter().filter(of);
        let shared = lines.find(|line| line["what"] == "sharing");
        let shared = shared.with_context(|| format!("nothing was shared in {place}"))?;
        let [pages, merged] = ["pages", "merged"].map(|name| number(&shared[name]));
        ensure!(pages > 0.0 && merged > 0.9 * pages, "{shared}");
    }
    let calls = |work: &str| {
        let of = |line: &&Value| {
            line["in"] == "guest" && line["work"] == work && line["name"] == "kvm_unmap_gfn_range"
        };
        lines.iter().find(of).map(|line| number(&line["calls"]))
    };
    let [moved, merged] = ["motion", "merged"].map(|work| calls(work).unwrap_or_default());
    ensure!(
        merged > moved,
        "merging took nothing from KVM: {merged} calls, {moved} without it"
    );
    Ok(())
}

/// What was found of the guest, nested paging beside shadow page tables.
fn table(nested: &[Value], shadow: &[Value]) -> String {
    let mut rows: BTreeMap<[String; 3], [Option<&Value>; 2]> = BTreeMap::new();
    for (column, lines) in [nested, shadow].into_iter().enumerate() {
        for line in lines.iter().filter(|line| line["in"] == "guest") {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if let Some(name) = line["name"].as_str() {
                let key = [word(&line["work"]), word(&line["what"]), name.to_owned()];
                rows.entry(key).or_default()[column] = Some(line);
            }
        }
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<52} {:>12} {:>12}   mean of timed calls",
        "as a guest", "nested", "shadow"
    );
    for ([work, what, name], lines) in &rows {
        let count = |line: &Option<&Value>| {
            let count = line.map(|line| match what.as_str() {
                "function" => &line["calls"],
                _ => &line["count"],
            });
            count.map_or("-".to_owned(), ToString::to_string)
        };
        let mean = |line: &Option<&Value>| {
            let mean = line.and_then(|line| line["mean_ns"].as_f64());
            mean.map_or("-".to_owned(), |mean| format!("{mean:.0}"))
        };
        let _ = write!(
            text,
            "{:<52} {:>12} {:>12}",
            format!("{work} {what} {name}"),
            count(&lines[0]),
            count(&lines[1])
        );
        let _ = match what.as_str() {
            "function" => writeln!(text, "   {} {}", mean(&lines[0]), mean(&lines[1])),
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
            json!({"what": "function", "work": "motion", "in": "guest",
                   "name": name, "calls": calls, "mean_ns": 12.4})
        };
        let native = json!({"what": "exit", "in": "native", "name": "HLT", "count": 1});
        let text = table(&[line("f", 3), native], &[line("f", 9), line("g", 2)]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[0], ["motion", "function", "f", "3", "9", "12", "12"]);
        assert_eq!(rows[1], ["motion", "function", "g", "-", "2", "-", "12"]);
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn pages_that_nobody_merged_fail() {
        let shared = |place: &str, merged: u64| {
            json!({"what": "sharing", "work": "parted", "in": place, "pages": 100,
                   "merged": merged})
        };
        let calls = |work: &str, calls: u64| {
            json!({"what": "function", "work": work, "in": "guest", "name": "kvm_unmap_gfn_range",
                   "calls": calls})
        };
        let lines = |merged: u64, taken: u64| {
            let shared = [shared("native", 99), shared("guest", merged)];
            [&shared[..], &[calls("motion", 7), calls("merged", taken)]].concat()
        };
        assert!(check(&lines(99, 200)).is_ok());
        assert!(check(&lines(3, 200)).is_err());
        assert!(check(&lines(99, 7)).is_err());
        assert!(check(&lines(99, 200)[1..]).is_err());
    }
}
