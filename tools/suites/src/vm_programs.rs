//! `cargo xtask vm-programs`: Python's own tests as a guest of KVM, beside the same natively in the
//! same machine.
//!
//! What passes natively must pass as a guest, and the interpreter must end in the same way. A test
//! that does not is tried once more, since some count on times.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::python::{self, TESTS};
use pagetrail_rig::Needs;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{Outcome, Steps};

const SERIES: &str = "7.x";

/// What concerns a process and its memory, beyond the tests that other programs are tried with.
const MORE: &[&str] = &["test_signal", "test_mmap", "test_select", "test_posix"];

/// For a file of tests in one of its forms: some wait for a minute, and emulation is slow.
const SECONDS_MAX: u64 = 1500;

/// Runs the files that are asked for, or all; true if nothing failed.
pub fn run(repo: &Repo, asked: &[String]) -> Result<bool> {
    let asked: Vec<&str> = match asked {
        [] => [TESTS, MORE].concat(),
        some => some.iter().map(String::as_str).collect(),
    };
    let pagetrail = Product::Command.build(repo, Profile::Dev)?;
    let mut steps = Steps::default();
    for file in asked {
        steps.run(&format!("Python's {file} as a guest"), || {
            test(repo, &pagetrail, file)
        });
    }
    Ok(steps.finish())
}

fn test(repo: &Repo, pagetrail: &Path, file: &str) -> Result<Outcome> {
    let first = Beside::of(repo, pagetrail, file, &BTreeSet::new())?;
    ensure!(!first.native.tests.is_empty(), "{}", first.native.log);
    let passed = first.native.passed().count();
    println!("{passed} of {} pass natively", first.native.tests.len());
    let lost = first.lost();
    if lost.is_empty() && first.ends_as_natively() {
        return Ok(Outcome::Passed);
    }
    print!("{}", first.guest.log);
    first.print_ends();
    if lost.is_empty() {
        return Ok(Outcome::Failed);
    }
    println!("again: {lost:?}");
    let again = Beside::of(repo, pagetrail, file, &lost)?;
    let lost_again = again.lost();
    for test in &lost {
        let what = match lost_again.contains(test) {
            true => "passes natively, not as a guest",
            false => "failed once, passed once",
        };
        println!("{what}: {test}");
    }
    again.print_ends();
    Ok(Outcome::of(
        lost_again.is_empty() && again.ends_as_natively(),
    ))
}

/// A file of tests in both forms.
struct Beside {
    native: Run,
    guest: Run,
}

impl Beside {
    /// Runs it, or some tests of it, in a machine of its own.
    fn of(repo: &Repo, pagetrail: &Path, file: &str, tests: &BTreeSet<&str>) -> Result<Self> {
        let needs = Needs {
            timeout: Duration::from_secs(2 * SECONDS_MAX + 60),
            nested: true,
            ..Needs::default()
        };
        let mut command = vec![
            python::find()?.display().to_string(),
            "-c".to_owned(),
            include_str!("vm_programs.py").to_owned(),
            SECONDS_MAX.to_string(),
            pagetrail.display().to_string(),
            file.to_owned(),
        ];
        command.extend(tests.iter().map(|&test| test.to_owned()));
        let output = pagetrail_rig::output(repo, SERIES, &needs, command)?;
        Self::parse(&serde_json::from_slice(&output)?)
    }

    fn parse(results: &Value) -> Result<Self> {
        Ok(Self {
            native: Run::parse(&results["native"]).context("no results of a native run")?,
            guest: Run::parse(&results["guest"]).context("no results of a guest")?,
        })
    }

    /// The tests that pass natively only.
    fn lost(&self) -> BTreeSet<&str> {
        let passed: BTreeSet<&str> = self.guest.passed().collect();
        let native = self.native.passed();
        native.filter(|test| !passed.contains(test)).collect()
    }

    /// Natively, it may have ended badly because of a test that passes as a guest.
    fn ends_as_natively(&self) -> bool {
        [Some(0), self.native.status].contains(&self.guest.status)
    }

    fn print_ends(&self) {
        if !self.ends_as_natively() {
            let [native, guest] = [&self.native, &self.guest].map(|run| match run.status {
                Some(status) => format!("status {status}"),
                None => format!("no end within {SECONDS_MAX} s"),
            });
            println!("natively {native}, as a guest {guest}");
        }
    }
}

/// What became of a file of tests.
struct Run {
    /// As Python has it: negative for signals. `None` if it came to no end.
    status: Option<i64>,
    /// What became of each test.
    tests: BTreeMap<String, String>,
    log: String,
}

impl Run {
    fn parse(results: &Value) -> Option<Self> {
        let tests = results["tests"].as_object()?.iter();
        let outcome =
            |(name, outcome): (&String, &Value)| Some((name.clone(), outcome.as_str()?.to_owned()));
        Some(Self {
            status: results["status"].as_i64(),
            tests: tests.map(outcome).collect::<Option<_>>()?,
            log: results["log"].as_str()?.to_owned(),
        })
    }

    fn passed(&self) -> impl Iterator<Item = &str> {
        let passed = self
            .tests
            .iter()
            .filter(|(_, outcome)| *outcome == "passed");
        passed.map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(tests: &Value) -> Value {
        json!({"status": 0, "tests": tests, "log": ""})
    }

    #[test]
    fn only_what_passes_natively_can_be_lost() {
        let native = run(
            &json!({"a": "passed", "b": "failure", "c": "skipped", "d": "passed", "e": "passed"}),
        );
        let guest = run(&json!({"a": "passed", "b": "failure", "c": "passed", "d": "skipped"}));
        let beside = Beside::parse(&json!({"native": native, "guest": guest})).unwrap();
        let lost: Vec<&str> = beside.lost().into_iter().collect();
        assert_eq!(lost, ["d", "e"], "e has not even begun");
        assert!(beside.ends_as_natively());
        assert!(Beside::parse(&json!({"native": native})).is_err());
    }
}
