//! `cargo xtask ooh pml`: the library for monitors where KVM logs by the processor's
//! page-modification log: its tests on an emulated Intel processor.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use pagetrail_rig::bochs::{self, Settings};
use pagetrail_steps::repo::Repo;

/// An emulator of one slow processor.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Tests that have guests of KVM, each in a process of its own, so that one that takes long can be
/// seen. The first says that the processor logs, or the others would be about something else.
const TESTS: [&str; 8] = [
    "kvm_logs::page_modification_logging_is_what_kvm_uses",
    "kvm_logs::rounds_have_the_pages_that_were_written_and_no_others",
    "kvm_logs::a_page_costs_an_exit_in_each_round_unless_the_processor_logs",
    "kvm_logs::a_full_ring_loses_nothing",
    "kvm_logs::a_replica_from_rounds_equals_memory",
    "kvm_logs::a_replica_kept_while_the_guest_runs_is_equal_in_the_end",
    "several_guests::each_of_several_guests_has_a_log_of_its_own",
    "whole_guests::a_guest_goes_on_from_its_snapshots",
];

/// What one test may take: several times what it does, on a busy machine. One that takes longer has
/// failed, and the others run.
const TEST_SECONDS_MAX: u32 = 600;

/// Where the tests lie in the emulated machine.
const PLACE: &str = "vmm";

/// Runs them, an eighth of their rounds unless all are wanted; true if all passed.
pub fn run(repo: &Repo, all_rounds: bool) -> Result<bool> {
    let tests = build(repo)?;
    let script = repo.target.join("vmm-bochs.sh");
    fs::write(&script, script_of(all_rounds))?;
    let files = [(PLACE.to_owned(), tests)];
    let command = [script.display().to_string()];
    let ran = bochs::run_with(repo, Settings::nested(TIMEOUT), &command, &files)?;
    let printed = String::from_utf8_lossy(&ran.printed);
    print!("{printed}");
    let passed = TESTS
        .iter()
        .filter(|test| printed.contains(&format!("PASSED {test}")));
    let passed = passed.count();
    println!("{passed} of {} tests passed", TESTS.len());
    Ok(ran.status == Some(0) && passed == TESTS.len())
}

/// The machine's one program: each test, and whether it passed. To the harness a test has passed
/// that is not there, or lacks something, so that what it says is looked at.
fn script_of(all_rounds: bool) -> String {
    let short = match all_rounds {
        true => "",
        false => "export PAGETRAIL_SHORT=1\n",
    };
    let mut script = format!("#!/bin/busybox sh\n{short}");
    for test in TESTS {
        script += &format!(
            "began=$(date +%s)\n\
             echo BEGINS {test}\n\
             timeout {TEST_SECONDS_MAX} /{PLACE} --exact --include-ignored --nocapture {test} > /said 2>&1\n\
             status=$?\ncat /said\n\
             [ $status = 0 ] && grep -q '1 passed' /said && ! grep -q 'not here:' /said && echo PASSED {test}\n\
             echo {test}: status $status, $(($(date +%s) - began)) s\n"
        );
    }
    script + "exit 0\n"
}

/// The package's tests as one static program.
fn build(repo: &Repo) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["rustc", "--quiet", "--package", "pagetrail-vmm"]);
    cargo.args(["--test", "vmm", "--message-format=json"]);
    cargo.args(["--", "-C", "target-feature=+crt-static"]);
    // Most of it otherwise, all of which the emulated machine reads and unpacks.
    cargo.args(["-C", "strip=symbols"]);
    let output = cargo.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let mut programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    let built = programs
        .next_back()
        .context("cargo has not built the tests")?;
    // Whatever builds the package's tests replaces it by one that needs libraries.
    let kept = repo.target.join("vmm-bochs");
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}
