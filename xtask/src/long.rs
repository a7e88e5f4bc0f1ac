//! What takes too long for every change: `soak` tests for an hour what `test` tries for seconds, `bench` measures anew what
//! `bench/results/` keeps.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::repo::Repo;

/// Longer forms of the tests, by the variables that they read.
const SOAK: &[(&str, &str)] = &[
    ("PAGETRAIL_LONG", "1"),
    ("PAGETRAIL_STRESS_SECONDS", "120"),
    ("PAGETRAIL_FUZZ_ITERATIONS", "5000000"),
];

/// Runs the suites that have a long form in it.
pub(crate) fn soak(repo: &Repo) -> Result<bool> {
    let mut fine = true;
    for package in ["pagetrail", "pagetrail-trail"] {
        let mut cargo = repo.cargo(&["test", "--release", "--no-fail-fast", "--package", package]);
        fine &= cargo.envs(SOAK.iter().copied()).status()?.success();
    }
    Ok(fine)
}

/// Each result and the command, behind `cargo run --release`, that makes it.
const RESULTS: &[(&str, &[&str])] = &[
    (
        "bench.json",
        &["--package", "pagetrail-cli", "--", "bench", "--json"],
    ),
    (
        "bare_loop.json",
        &["--package", "pagetrail", "--example", "bare_loop", "41"],
    ),
    (
        "attach_stop.json",
        &["--package", "pagetrail", "--example", "attach_stop"],
    ),
];

/// Measures everything and replaces the recorded results; for an idle machine.
pub(crate) fn bench(repo: &Repo) -> Result<()> {
    for (name, arguments) in RESULTS {
        println!("== {name}");
        let mut cargo = repo.cargo(&["run", "--quiet", "--release"]);
        let output = cargo.args(*arguments).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "{name}: {}", output.status);
        let path = repo.root.join("bench/results").join(name);
        fs::write(&path, output.stdout)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
