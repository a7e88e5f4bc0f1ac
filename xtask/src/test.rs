//! `cargo xtask test`: everything that must be fine, on any machine, in one command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::repo::{Repo, program};
use crate::steps::{Outcome, Steps};
use crate::table::Table;
use crate::{packages, tidy, victims};

/// Runs every step, prints the table and the sum; true if nothing failed.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    let rows = repo.target.join("rows");
    if rows.exists() {
        fs::remove_dir_all(&rows)?;
    }
    fs::create_dir_all(&rows)?;
    let mut tally = Tally::default();
    let mut steps = Steps::default();
    steps.run("system packages", packages::ensure_installed);
    steps.run("formatting", || formatting(repo));
    steps.run("clippy", || clippy(repo));
    steps.run("tidy", || tidy::run(repo).map(Outcome::of));
    steps.run("licences and advisories", || deny(repo));
    steps.run("victims", || build_victims(repo));
    steps.run("tests", || tests(repo, &rows, &mut tally));
    steps.run("techniques", || techniques(&rows));
    let fine = steps.finish();
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(fine)
}

fn formatting(repo: &Repo) -> Result<Outcome> {
    if !has_component(repo, "fmt") {
        return Ok(Outcome::NotHere("rustup component add rustfmt".to_owned()));
    }
    succeeds(&mut repo.cargo(&["fmt", "--all", "--check"]))
}

fn clippy(repo: &Repo) -> Result<Outcome> {
    if !has_component(repo, "clippy") {
        return Ok(Outcome::NotHere("rustup component add clippy".to_owned()));
    }
    let mut clippy = repo.cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    succeeds(clippy.args(["--", "--deny", "warnings"]))
}

/// `cargo deny`, where somebody has installed it: it needs the network, and rarely changes its mind.
fn deny(repo: &Repo) -> Result<Outcome> {
    if program("cargo-deny").is_none() {
        return Ok(Outcome::NotHere("cargo install cargo-deny".to_owned()));
    }
    succeeds(&mut repo.cargo(&["deny", "check"]))
}

fn build_victims(repo: &Repo) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    victims::build(repo).map(|_| Outcome::Passed)
}

fn tests(repo: &Repo, rows: &Path, tally: &mut Tally) -> Result<Outcome> {
    let mut tests = repo.cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests
        .env("PAGETRAIL_ROWS", rows)
        .env("PAGETRAIL_WHERE", "this machine");
    run_tests(&mut tests, tally).map(Outcome::of)
}

fn techniques(rows: &Path) -> Result<Outcome> {
    let table = Table::read(rows)?;
    print!("{}", table.render());
    Ok(Outcome::of(!table.any_fails()))
}

/// Runs something that prints as Rust's test harness does, and counts; true if it succeeded.
fn run_tests(command: &mut Command, tally: &mut Tally) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("no standard output")?;
    let mut own = Tally::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        own.add(&line);
    }
    let fine = child.wait()?.success();
    if !fine && own.failed == 0 {
        // Killed, or not even built: there is no line that says so.
        own.failed = 1;
    }
    tally.passed += own.passed;
    tally.failed += own.failed;
    Ok(fine)
}

fn has_component(repo: &Repo, name: &str) -> bool {
    let mut version = repo.cargo(&[name, "--version"]);
    let version = version.stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

fn succeeds(command: &mut Command) -> Result<Outcome> {
    Ok(Outcome::of(command.status()?.success()))
}

/// The sum of what test harnesses say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Counts a line like `test result: ok. 3 passed; 0 failed; 0 ignored; ...`; no other line.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        let words: Vec<&str> = result.split([' ', ';']).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1] {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_result_lines_only() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "7 passed; 7 failed",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out",
        ] {
            tally.add(line);
        }
        assert_eq!((tally.passed, tally.failed), (13, 2));
    }

    #[test]
    fn a_run_that_dies_without_a_word_is_a_failure() {
        let mut tally = Tally::default();
        let mut killed = Command::new("sh");
        killed.args(["-c", "kill -9 $$"]);
        assert!(!run_tests(&mut killed, &mut tally).unwrap());
        assert_eq!((tally.passed, tally.failed), (0, 1));
    }
}
