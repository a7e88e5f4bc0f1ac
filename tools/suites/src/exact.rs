//! `cargo xtask exact`: a program in the process-level virtual machine, held against what it is
//! known to write and to read.
//!
//! `crates/pagetrail-vm/examples/exact` runs on an emulated Intel processor, where
//! page-modification logging tells of writes, and under KVM with AMD's nested paging, which has
//! write protection instead. Each leaves a row for the table of techniques.

use std::fs::{self, File};
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

/// Where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// An emulated Intel processor with page-modification logging.
    Bochs,
    /// A guest with nested paging.
    Guest,
}

impl Machine {
    /// A word for files.
    fn word(self) -> &'static str {
        match self {
            Self::Bochs => "bochs",
            Self::Guest => "guest",
        }
    }

    fn place(self) -> Result<String> {
        Ok(match self {
            Self::Bochs => "emulated Intel, PML".to_owned(),
            Self::Guest => place(Series::named(SERIES)?),
        })
    }
}

/// Runs it on a machine, where that is possible; its row goes to a file in `rows`.
pub fn run(repo: &Repo, machine: Machine, rows: Option<&Path>) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let built = build(repo, machine)?;
    let ran = match machine {
        Machine::Bochs => on_bochs(repo, &built).map(drop),
        Machine::Guest => in_guest(repo, &built),
    };
    report(&machine.place()?, machine.word(), ran, rows)
}

/// What became of it in a place, of which a file with this word in its name gets a row.
pub(crate) fn report(
    place: &str,
    word: &str,
    ran: Result<()>,
    rows: Option<&Path>,
) -> Result<Outcome> {
    let (status, reason, outcome) = match ran {
        Ok(()) => ("works", String::new(), Outcome::Passed),
        Err(error) if error.is::<NotHere>() => {
            let why = error.to_string();
            ("absent", why.clone(), Outcome::NotHere(why))
        }
        Err(error) => {
            println!("{place}: {error:#}");
            ("fails", error.to_string(), Outcome::Failed)
        }
    };
    if let Some(rows) = rows {
        let row = json!({
            "where": place, "subject": SUBJECT, "technique": "kvm", "status": status, "reason": reason,
        });
        let file = rows.join(format!("program-as-guest-{word}"));
        fs::write(file, format!("{row}\n"))?;
    }
    Ok(outcome)
}

/// Builds it for a machine without libraries, one at a time: all builds go through one file.
pub(crate) fn build(repo: &Repo, machine: Machine) -> Result<PathBuf> {
    let lock = File::create(repo.target.join("exact.lock"))?;
    lock.lock().context("cannot lock target/exact.lock")?;
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
    let kept = repo.target.join(format!("exact-{}", machine.word()));
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}

/// What it prints where page-modification logging tells of writes.
pub fn with_pml(repo: &Repo) -> Result<String> {
    on_bochs(repo, &build(repo, Machine::Bochs)?)
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
