//! `cargo xtask bench subpage areas`: what it saves that a heap hands short-lived objects out in
//! whole pages while it is tracked, beside static sub-pages and whole pages.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kit::said;
use pagetrail_steps::repo::Repo;

/// What the example says that measures; means of two thirds of so many rounds.
pub(super) fn measure(repo: &Repo, rounds: usize) -> Result<Vec<Value>> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--release", "--example", "bench_areas"]);
    let status = cargo.arg("--package=pagetrail-alloc").status()?;
    ensure!(status.success(), "the release build failed");
    let mut command = Command::new(repo.target.join("release/examples/bench_areas"));
    command.arg(rounds.to_string());
    let measured = said(command)?;
    for row in measured["rows"].as_array().context("no rows")? {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<10} {:<18} {:>7.0} faults, {:>7.0} us, {:>9.0} bytes a round",
            row["work"].as_str().unwrap_or_default(),
            row["variant"].as_str().unwrap_or_default(),
            number("faults"),
            number("processor_us"),
            number("bytes"),
        );
    }
    Ok(vec![measured])
}
