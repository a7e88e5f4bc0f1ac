//! `cargo xtask subpage suites`: programs' own tests on the sub-page allocator, for every number of
//! parts.
//!
//! A test that fails is tried once more, and without our allocator: what fails there as well says
//! nothing about it. A program that crashes, or that the allocator ends, has failed whatever comes
//! after.

mod python;
mod redis;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::python::TESTS;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{Outcome, Steps};

const ALL_PARTS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// What the allocator's messages begin with.
const FATAL: &str = "pagetrail-alloc: ";

/// What a program runs on.
#[derive(Clone, Copy)]
enum Allocator<'a> {
    Libc,
    Ours { library: &'a Path, parts: &'a str },
}

impl Allocator<'_> {
    /// What `LD_PRELOAD` is to be.
    fn preload(&self) -> &Path {
        match self {
            Self::Libc => Path::new(""),
            Self::Ours { library, .. } => library,
        }
    }

    fn parts(&self) -> &str {
        match self {
            Self::Libc => "1",
            Self::Ours { parts, .. } => parts,
        }
    }
}

/// What a run of a suite found wrong.
#[derive(Default)]
struct Failures {
    /// Names of tests.
    tests: BTreeSet<String>,
    /// Why the run does not count, however many tests went well.
    crash: Option<String>,
}

impl Failures {
    fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.crash.is_none()
    }
}

/// Runs what is asked for: `python`, `redis` or both, for some parts or all; true if nothing
/// failed.
pub fn run(repo: &Repo, asked: &[String]) -> Result<bool> {
    let (suites, parts): (Vec<&str>, Vec<&str>) = asked
        .iter()
        .map(String::as_str)
        .partition(|word| ["python", "redis"].contains(word));
    if let Some(bad) = parts.iter().find(|parts| !ALL_PARTS.contains(parts)) {
        bail!("subpage suites takes python, redis, and parts of {ALL_PARTS:?}, not '{bad}'");
    }
    let all = |suite| suites.is_empty() || suites.contains(&suite);
    let library = Product::AllocatorLibrary.build(repo, Profile::Release)?;
    let mut steps = Steps::default();
    for allocator in ours(&library, if parts.is_empty() { &ALL_PARTS } else { &parts }) {
        let parts = allocator.parts();
        if all("python") {
            steps.run(&format!("Python, {parts} parts"), || {
                python::test(allocator, TESTS)
            });
        }
        if all("redis") {
            steps.run(&format!("Redis, {parts} parts"), || {
                redis::test(repo, allocator, None)
            });
        }
    }
    Ok(steps.finish())
}

fn ours<'a>(
    library: &'a Path,
    parts: &'a [&'a str],
) -> impl Iterator<Item = Allocator<'a>> + use<'a> {
    parts
        .iter()
        .map(move |parts| Allocator::Ours { library, parts })
}

/// What is part of the test of everything, for each suite.
pub fn short_of_python(repo: &Repo) -> Result<Outcome> {
    let library = Product::AllocatorLibrary.build(repo, Profile::Dev)?;
    let parts = "8";
    let library = &library;
    python::test(Allocator::Ours { library, parts }, python::SHORT)
}

/// The short form of Redis' tests.
pub fn short_of_redis(repo: &Repo) -> Result<Outcome> {
    let library = Product::AllocatorLibrary.build(repo, Profile::Dev)?;
    let parts = "8";
    let library = &library;
    redis::test(repo, Allocator::Ours { library, parts }, Some(redis::SHORT))
}

/// Runs a suite on our allocator, and tells what is wrong with it from what is wrong with the suite
/// here.
fn judge(
    allocator: Allocator<'_>,
    mut run: impl FnMut(Allocator<'_>) -> Result<Failures>,
) -> Result<Outcome> {
    let first = run(allocator)?;
    if first.is_empty() {
        return Ok(Outcome::Passed);
    }
    if let Some(crash) = first.crash {
        println!("crashed: {crash}");
        return Ok(Outcome::Failed);
    }
    println!("failed: {:?}; again, and on libc's allocator:", first.tests);
    let again = run(allocator)?;
    if let Some(crash) = again.crash {
        println!("crashed: {crash}");
        return Ok(Outcome::Failed);
    }
    let native = run(Allocator::Libc)?;
    let mut fine = true;
    for test in &first.tests {
        if !again.tests.contains(test) {
            println!("failed once, passed once: {test}");
        } else if native.tests.contains(test) {
            println!("fails on libc's allocator, too: {test}");
        } else {
            println!("fails on ours, not on libc's: {test}");
            fine = false;
        }
    }
    Ok(Outcome::of(fine))
}

/// Runs a command; what it printed, both streams.
fn output(command: &mut Command) -> Result<(Output, String)> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let text = [&*output.stdout, b"\n", &*output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok((output, text))
}

/// The allocator's own complaint in what was printed.
fn complaint(text: &str) -> Option<String> {
    text.lines()
        .find(|line| line.contains(FATAL))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(tests: &[&str], crash: Option<&str>) -> Failures {
        Failures {
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
            crash: crash.map(str::to_owned),
        }
    }

    /// What comes of these runs on ours, and this one on libc's.
    fn outcome(ours: &[Failures], libc: &[&str]) -> Outcome {
        let mut ours = ours.iter();
        let allocator = Allocator::Ours {
            library: Path::new("/l"),
            parts: "8",
        };
        let run = |allocator: Allocator<'_>| {
            let next = match allocator {
                Allocator::Libc => return Ok(failures(libc, None)),
                Allocator::Ours { .. } => ours.next().unwrap(),
            };
            Ok(Failures {
                tests: next.tests.clone(),
                crash: next.crash.clone(),
            })
        };
        judge(allocator, run).unwrap()
    }

    #[test]
    fn only_what_fails_on_ours_alone_fails() {
        let none = || failures(&[], None);
        let some = || failures(&["a", "b"], None);
        assert_eq!(outcome(&[none()], &[]), Outcome::Passed);
        assert_eq!(outcome(&[some(), some()], &["a", "b"]), Outcome::Passed);
        assert_eq!(outcome(&[some(), some()], &["a"]), Outcome::Failed);
        let other = failures(&["a"], None);
        assert_eq!(outcome(&[some(), other], &["a"]), Outcome::Passed);
        let crash = || failures(&[], Some("signal 6"));
        assert_eq!(outcome(&[crash()], &[]), Outcome::Failed);
        assert_eq!(outcome(&[some(), crash()], &["a", "b"]), Outcome::Failed);
    }
}
