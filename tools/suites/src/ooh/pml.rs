//! `cargo xtask ooh pml`: the library for monitors where KVM logs by the processor's
//! page-modification log: its tests on an emulated Intel processor.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use pagetrail_rig::bochs;
use pagetrail_steps::repo::Repo;

/// An emulator of one slow processor.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What has guests of KVM, and that the processor logs.
const WORDS: [&str; 7] = [
    "kvm_logs",
    "several_guests",
    "whole_guests",
    "page_modification_logging",
    "--include-ignored",
    "--test-threads=1",
    "--nocapture",
];

/// Runs them; true if all passed.
pub fn run(repo: &Repo) -> Result<bool> {
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
        message["executable"].as_str().map(str::to_owned)
    });
    let built = programs
        .next_back()
        .context("cargo has not built the tests")?;
    // Whatever builds the package's tests replaces it by one that needs libraries.
    let kept = repo.target.join("vmm-bochs");
    fs::copy(&built, &kept).with_context(|| built.clone())?;
    let words = WORDS.iter().map(|&word| word.to_owned());
    let command: Vec<String> = [kept.display().to_string()]
        .into_iter()
        .chain(words)
        .collect();
    let ran = bochs::run_program(repo, bochs::Settings::nested(TIMEOUT), &command)?;
    let printed = String::from_utf8_lossy(&ran.printed);
    print!("{printed}");
    let whole =
        printed.contains("page_modification_logging") && printed.contains("test result: ok.");
    Ok(ran.status == Some(0) && whole)
}
