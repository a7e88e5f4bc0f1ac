//! `cargo xtask exact`: a program in the process-level virtual machine, held against what it is
//! known to write and to read.
//!
//! `crates/pagetrail-vm/examples/exact` runs on an emulated Intel processor, where
//! page-modification logging tells of writes, and under KVM with AMD's nested paging, which has
//! write protection instead. Each leaves a row for the table of techniques.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use pagetrail_rig::kernel::Series;
use pagetrail_rig::{Needs, bochs, place};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);
const SERIES: &str = "7.x";
const SUBJECT: &str = "a program as a guest";

/// Runs it where that is possible; rows go to a file in `rows`.
pub fn run(repo: &Repo, rows: Option<&Path>) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let built = build(repo)?;
    let guest = place(Series::named(SERIES)?);
    let runs = [
        ("emulated Intel, PML", on_bochs(repo, &built).map(drop)),
        (guest.as_str(), in_guest(repo, &built)),
    ];
    let mut fine = true;
    let mut absent = Vec::new();
    let mut lines = String::new();
    for (place, ran) in runs {
        let (status, reason) = match ran {
            Ok(()) => ("works", String::new()),
            Err(error) if error.is::<NotHere>() => {
                absent.push(error.to_string());
                ("absent", error.to_string())
            }
            Err(error) => {
                println!("{place}: {error:#}");
                fine = false;
                ("fails", error.to_string())
            }
        };
        let row = json!({
            "where": place, "subject": SUBJECT, "technique": "kvm", "status": status, "reason": reason,
        });
        lines += &format!("{row}\n");
    }
    if let Some(rows) = rows {
        fs::write(rows.join("program-as-guest"), lines)?;
    }
    Ok(match absent.is_empty() || !fine {
        true => Outcome::of(fine),
        false => Outcome::NotHere(absent.join("; ")),
    })
}

/// Builds it for a machine without libraries.
fn build(repo: &Repo) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["rustc", "--quiet", "--package", "pagetrail-vm"]);
    cargo.args(["--example", "exact"]);
    let status = cargo
        .args(["--", "-C", "target-feature=+crt-static"])
        // Most of it otherwise, all of which the emulated machine reads and unpacks.
        .args(["-C", "strip=symbols"])
        .status()?;
    ensure!(status.success(), "the program does not build");
    // Whatever builds the package's tests replaces it by one that needs libraries.
    let built = repo.target.join("debug/examples/exact");
    let kept = repo.target.join("exact-static");
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}

/// What it prints where page-modification logging tells of writes.
pub fn with_pml(repo: &Repo) -> Result<String> {
    on_bochs(repo, &build(repo)?)
}

fn on_bochs(repo: &Repo, built: &Path) -> Result<String> {
    println!("-- on an emulated Intel processor");
    let command = [built.display().to_string(), "pml".to_owned()];
    let settings = bochs::Settings::nested(TIMEOUT);
    let ran = bochs::run_program(repo, settings, &command)?;
    let printed = String::from_utf8_lossy(&ran.printed).into_owned();
    print!("{printed}");
    ensure!(ran.status == Some(0), "it ended with {:?}", ran.status);
    Ok(printed)
}

fn in_guest(repo: &Repo, built: &Path) -> Result<()> {
    println!("-- with AMD's nested paging");
    let needs = Needs {
        timeout: TIMEOUT,
        nested: true,
        ..Needs::default()
    };
    let printed = pagetrail_rig::output(repo, SERIES, &needs, vec![built.display().to_string()])?;
    print!("{}", String::from_utf8_lossy(&printed));
    Ok(())
}
