//! `cargo xtask bench trees [with COMMAND] [ROUNDS]`: what tracking trees of processes costs, side
//! by side with the same untracked, into `bench/results/trees.json`.
//!
//! Every program checks what it has done, and every recording is read again: a time counts only if
//! both are right. What is compared takes turns, and a ratio is the median of those of neighbours,
//! so that a busy machine is busy for both.

mod fleet;
mod live;
mod sampling;
mod screen;
mod short;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::victims;

/// How often everything is measured if nobody says otherwise.
const ROUNDS: usize = 7;

/// What is measured with.
struct Bench {
    pagetrail: PathBuf,
    victims: PathBuf,
    /// A directory for recordings.
    scratch: PathBuf,
    rounds: usize,
}

/// Measures, prints what came of it, and replaces the recorded results; not those of a `COMMAND`
/// that was built otherwise.
pub fn bench(repo: &Repo, asked: &[String]) -> Result<()> {
    let (command, asked) = match asked {
        [with, command, rest @ ..] if with == "with" => (Some(fs::canonicalize(command)?), rest),
        _ => (None, asked),
    };
    let rounds = match asked {
        [] => ROUNDS,
        [rounds] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => rounds,
            _ => bail!("the number of rounds must be 1 or more, not '{rounds}'"),
        },
        _ => bail!("bench trees takes [with COMMAND] [ROUNDS]"),
    };
    victims::build(repo)?;
    let is_kept = command.is_none();
    let bench = Bench {
        pagetrail: match command {
            Some(command) => command,
            None => Product::Command.build(repo, Profile::Release)?,
        },
        victims: repo.victims(),
        scratch: repo.target.join("trees"),
        rounds,
    };
    fs::create_dir_all(&bench.scratch)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let results = json!({
        "schema": 1,
        "kernel": release.trim(),
        "rounds": rounds,
        "load_average_before": load()?,
        "short_lives": short::measure(&bench)?,
        "sampling": sampling::measure(&bench)?,
        "fleet": fleet::measure(&bench)?,
        "live_view": live::measure(&bench)?,
        "load_average_after": load()?,
    });
    if !is_kept {
        println!("{}", serde_json::to_string_pretty(&results)?);
        return Ok(());
    }
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let command = "cargo xtask bench trees";
    recordings::keep(repo, "trees.json", text.as_bytes(), Place::Here, command)
}

/// The load of the last minute.
fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split(' ').next().context("no load average")?;
    Ok(first.parse()?)
}

impl Bench {
    /// A recording of this name.
    fn trail(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// `pagetrail record` into a file.
    fn record(&self, trail: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.pagetrail);
        command.arg("record").arg("-o").arg(trail).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// What a recording says.
    fn report(&self, trail: &Path) -> Result<Value> {
        let mut command = Command::new(&self.pagetrail);
        command.arg("report").arg(trail).arg("--json");
        let output = command.stderr(Stdio::inherit()).output()?;
        let status = output.status;
        ensure!(status.success(), "report {}: {status}", trail.display());
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A program of `tests/victims`.
    fn victim(&self, name: &str) -> PathBuf {
        self.victims.join(name)
    }
}

/// Runs a command to its end; it must succeed.
fn run(command: &mut Command) -> Result<Output> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {said}",
        output.status
    );
    Ok(output)
}

/// A program that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The middle of some values, and the least and the greatest.
fn spread(values: &[f64]) -> Value {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rounded = |value: Option<&f64>| value.map(|value| (value * 1000.0).round() / 1000.0);
    json!({
        "median": rounded(sorted.get(sorted.len() / 2)),
        "min": rounded(sorted.first()),
        "max": rounded(sorted.last()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let of = spread(&[3.0, 1.0, 2.00049]);
        assert_eq!(of, json!({"median": 2.0, "min": 1.0, "max": 3.0}));
        assert_eq!(spread(&[])["median"], Value::Null);
    }
}
