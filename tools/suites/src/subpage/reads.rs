//! `cargo xtask bench subpage reads`: what it costs to watch reads of a sub-page heap, beside
//! writes.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kit::said;
use pagetrail_steps::repo::Repo;

/// What the example says that measures; medians of so many rounds.
pub(super) fn measure(repo: &Repo, rounds: usize) -> Result<Vec<Value>> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--release", "--example", "bench_reads"]);
    let status = cargo.arg("--package=pagetrail-alloc").status()?;
    ensure!(status.success(), "the release build failed");
    let mut command = Command::new(repo.target.join("release/examples/bench_reads"));
    command.arg(rounds.to_string());
    let measured = said(command)?;
    let rows = measured["rows"].as_array().context("no rows")?;
    for row in rows {
        let name = format!(
            "{:>3} parts, {} of {}",
            row["parts"].as_u64().unwrap_or_default(),
            row["technique"].as_str().unwrap_or_default(),
            row["notices"].as_str().unwrap_or_default(),
        );
        match row["not_here"].as_str() {
            Some(why) => println!("{name}: not here: {why}"),
            None => println!(
                "{name}: {:.0} ns for the first touch of a unit, {:.0} us to collect {:.0} units",
                row["first_touch_ns"].as_f64().unwrap_or(f64::NAN),
                row["collect_us"].as_f64().unwrap_or(f64::NAN),
                row["units"].as_f64().unwrap_or(f64::NAN),
            ),
        }
    }
    Ok(vec![measured])
}
