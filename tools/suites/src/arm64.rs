//! `cargo xtask arm64`: the conformance suite on arm64, in an emulated guest, for programs that
//! track their own memory; `cargo xtask arm64 guests`: the tests of the library for monitors there,
//! with guests of KVM in that guest. What runs is cross-built and static, since the guest has
//! nothing else.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_rig::arm64::{self, Job};
use pagetrail_rig::guest::{self, End};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::Tally;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// It links, and compiles what dependencies have in C.
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The oldest kernel of the rig that has PAGEMAP_SCAN for arm64, whose page tables have had the bit
/// for write protection by userfaultfd since Linux 6.10.
const SERIES: &str = "6.12";
/// The suite takes two minutes on a machine that is busy.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs the suite, and counts.
pub fn run(repo: &Repo, tally: &mut Tally) -> Result<Outcome> {
    run_suite(repo, &CONFORMANCE, tally)
}

/// Runs the tests of the library for monitors, with KVM.
pub fn run_guests(repo: &Repo, tally: &mut Tally) -> Result<Outcome> {
    run_suite(repo, &MONITORS, tally)
}

/// Tests of a package.
struct Suite {
    package: &'static str,
    /// Arguments of cargo that select what is built.
    features: &'static [&'static str],
    test: &'static str,
    arguments: &'static [&'static str],
    nested: bool,
}

const CONFORMANCE: Suite = Suite {
    package: "pagetrail",
    features: &[],
    test: "conformance",
    arguments: &["--test-threads", "2"],
    nested: false,
};

/// Tests that have guests: the others are the same on every processor. KVM's counts are printed.
const MONITORS: Suite = Suite {
    package: "pagetrail-vmm",
    features: &[],
    test: "vmm",
    arguments: &[
        "kvm_logs",
        "several_guests",
        "whole_guests",
        "--test-threads=1",
        "--nocapture",
    ],
    nested: true,
};

fn run_suite(repo: &Repo, suite: &Suite, tally: &mut Tally) -> Result<Outcome> {
    let program = match build(repo, suite) {
        Err(error) if error.is::<NotHere>() => return Ok(Outcome::NotHere(error.to_string())),
        built => built?,
    };
    let job = Job {
        program: &program,
        arguments: suite.arguments,
        environment: &[("PAGETRAIL_WHERE", "Linux 6.12 arm64 guest")],
        nested: suite.nested,
        timeout: TIMEOUT,
    };
    let mut own = Tally::default();
    let end = arm64::run(repo, SERIES, &job, &mut |bytes| {
        own.feed(bytes);
        guest::print_bytes(bytes)
    });
    let end = match end {
        Err(error) if error.is::<NotHere>() => return Ok(Outcome::NotHere(error.to_string())),
        end => end?,
    };
    if !own.has_result {
        let test = suite.test;
        own.lose(&format!("{test} on arm64: {end:?}, without a result"));
    }
    let passed = end == End::Exited(0) && own.has_result;
    tally.add(own, passed);
    Ok(Outcome::of(passed))
}

/// Cross-builds a suite.
fn build(repo: &Repo, suite: &Suite) -> Result<PathBuf> {
    if program(COMPILER).is_none() {
        let cure = "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
        return Err(NotHere::error(cure));
    }
    if !repo.has_target(TARGET)? {
        return Err(NotHere::error(&format!("rustup target add {TARGET}")));
    }
    let mut build = repo.cargo(&["test", "--no-run", "--message-format=json"]);
    build.args(["--package", suite.package, "--test", suite.test]);
    build.args(suite.features);
    build.args(["--target", TARGET]).stderr(Stdio::inherit());
    let name = TARGET.to_uppercase().replace('-', "_");
    build.env(format!("CARGO_TARGET_{name}_LINKER"), COMPILER);
    let flags = "-C target-feature=+crt-static";
    build.env(format!("CARGO_TARGET_{name}_RUSTFLAGS"), flags);
    let output = build.output()?;
    ensure!(output.status.success(), "the suite does not build");
    let messages = String::from_utf8(output.stdout)?;
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    let mut programs = messages
        .filter_map(Result::ok)
        .filter(|message| message["target"]["name"] == suite.test)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next().context("cargo built no suite")
}
