//! `cargo xtask bench units`: what it saves and costs that sub-pages merge while programs run, into
//! `bench/results/units.json` (figures 9 and 10 of Lu et al., by counts).
//!
//! In a guest with nested paging `bench_units` runs the programs of `tests/subpage` by each
//! strategy; natively it tracks them by write protection. Rounds have the same writes everywhere,
//! since the programs ask for them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_rig::Needs;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::NotHere;

const SERIES: &str = "7.x";
/// The programs, and what they are linked with.
const PROGRAMS: [(&str, &[&str]); 7] = [
    ("gcbench", &[]),
    ("sweep", &[]),
    ("tokyo", &["-ltokyocabinet"]),
    ("bayes", &["-lm"]),
    ("genome", &[]),
    ("intruder", &[]),
    ("vacation", &[]),
];

/// The programs whose results are recorded, each in the place of what was recorded of it before.
const RECORDING: &str = "units.json";

/// Measures all programs, or one by its name in the recording, prints what came of it, and replaces
/// what was recorded of these.
pub fn run(repo: &Repo, only: Option<&str>) -> Result<()> {
    let directory = build(repo)?;
    let program = directory.join("bench_units");
    println!("== natively");
    let mut command = Command::new(&program);
    command
        .arg("native")
        .arg(&directory)
        .args(only)
        .stderr(Stdio::inherit());
    let native = last_document(&command.output()?.stdout)?;
    // Nothing measured is nothing to record.
    let programs = native["programs"].as_array();
    ensure!(
        programs.is_some_and(|programs| !programs.is_empty()),
        "bench units: no program has the name '{}'",
        only.unwrap_or_default()
    );
    println!("== in a guest");
    let needs = Needs {
        timeout: Duration::from_secs(3600),
        memory_mib: 3072,
        nested: true,
        counted: true,
        ..Needs::default()
    };
    let command = [&program, Path::new("guest"), &directory];
    let command = command.map(|word: &Path| word.display().to_string());
    let command = command.into_iter().chain(only.map(str::to_owned));
    let guest = last_document(&pagetrail_rig::output(
        repo,
        SERIES,
        &needs,
        command.collect(),
    )?)?;
    let before = repo.root.join("bench/results").join(RECORDING);
    let before: Value = match (only, fs::read_to_string(before)) {
        (Some(_), Ok(before)) => serde_json::from_str(&before)?,
        _ => Value::Null,
    };
    let mut results = json!({
        "schema": 2,
        "kernel": guest["kernel"],
        "native": merged(&before["native"], native),
        "guest": merged(&before["guest"], guest),
    });
    add_instructions(&mut results["guest"]["programs"]);
    print!(
        "{}",
        render(&results).context("the results lack something")?
    );
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let command = "cargo xtask bench units";
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Guest, command)
}

/// Adds what each run of the guest took: its clock advances by a nanosecond for each instruction.
fn add_instructions(programs: &mut Value) {
    let add = |runs: &mut Value| {
        for run in runs.as_array_mut().into_iter().flatten() {
            let said = &run["said"];
            let ms = ["fill_ms", "update_ms"].map(|key| said[key].as_f64());
            let ms: Option<f64> = ms.into_iter().sum();
            run["instructions"] = ms.map(|ms| (ms * 1e6).round()).into();
        }
    };
    // Those that were recorded before the clock was one of instructions have no runs without
    // rounds.
    let programs = programs.as_array_mut().into_iter().flatten();
    for program in programs.filter(|program| program["unprotected"].is_array()) {
        add(&mut program["runs"]);
        add(&mut program["unprotected"]);
        let intervals = program["intervals"].as_array_mut();
        let intervals = intervals.into_iter().flatten();
        intervals.for_each(|interval| add(&mut interval["runs"]));
    }
}

/// What was measured now, in the place of what is known of the same programs.
fn merged(before: &Value, mut now: Value) -> Value {
    let Some(mut programs) = before["programs"].as_array().cloned() else {
        return now;
    };
    for program in now["programs"].as_array().into_iter().flatten() {
        let is_same = |other: &&mut Value| other["program"] == program["program"];
        match programs.iter_mut().find(is_same) {
            Some(other) => *other = program.clone(),
            None => programs.push(program.clone()),
        }
    }
    now["programs"] = programs.into();
    now
}

/// Builds the programs into a directory that a guest sees.
fn build(repo: &Repo) -> Result<PathBuf> {
    if !Path::new("/usr/include/tcutil.h").exists() {
        return Err(NotHere::error("apt-get install libtokyocabinet-dev"));
    }
    let directory = repo.target.join("units");
    fs::create_dir_all(&directory)?;
    for (name, libraries) in PROGRAMS {
        let source = repo.root.join(format!("tests/subpage/{name}.c"));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        gcc.arg(directory.join(name)).arg(source).args(libraries);
        ensure!(gcc.status()?.success(), "{name}.c does not compile");
    }
    let library = Product::AllocatorLibrary.build(repo, Profile::Release)?;
    let mut cargo = repo.cargo(&["build", "--quiet", "--release", "--package=pagetrail-vm"]);
    let built = cargo.args(["--example", "bench_units"]).status()?;
    ensure!(built.success(), "the program does not build");
    let program = repo.target.join("release/examples/bench_units");
    for file in [library, program] {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(&file, directory.join(name)).with_context(|| file.display().to_string())?;
    }
    Ok(directory)
}

/// The document, after what says how far it has come.
fn last_document(printed: &[u8]) -> Result<Value> {
    let text = String::from_utf8_lossy(printed);
    let last = text.lines().rfind(|line| line.starts_with('{'));
    Ok(serde_json::from_str(last.context("nothing was measured")?)?)
}

/// Shares of entries, faults and volume: of the same number of sub-pages without merges, and of
/// whole pages.
fn render(results: &Value) -> Option<String> {
    let mut text = String::new();
    for program in results["guest"]["programs"].as_array()? {
        let runs = program["runs"].as_array()?;
        let of = |subpages: u64, units: &str| {
            let is_it = |run: &&Value| run["subpages"] == subpages && run["units"] == units;
            runs.iter().find(is_it)
        };
        let share = |run: &Value, of: &Value, key: &str| {
            let [part, whole] = [run, of].map(|run| run[key].as_f64());
            Some(part? / whole?)
        };
        let pages = of(1, "static")?;
        // Writing to a text does not fail.
        let _ = writeln!(
            text,
            "{}: {} rounds, {} log entries, {} faults, {} KiB by whole pages",
            program["program"].as_str()?,
            pages["rounds"],
            pages["log_entries"],
            pages["faults"],
            pages["volume_bytes"].as_u64()? >> 10
        );
        for run in runs.iter().filter(|run| run["subpages"] != 1) {
            let subpages = run["subpages"].as_u64()?;
            let apart = of(subpages, "static")?;
            let _ = writeln!(
                text,
                "  {subpages} sub-pages, {:<9} entries {:.2} of static ({:.2} of pages), faults {:.2} ({:.2}), \
                 volume {:.2} ({:.2})",
                run["units"].as_str()?,
                share(run, apart, "log_entries")?,
                share(run, pages, "log_entries")?,
                share(run, apart, "faults")?,
                share(run, pages, "faults")?,
                share(run, apart, "volume_bytes")?,
                share(run, pages, "volume_bytes")?,
            );
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_have_every_figure() {
        let recorded = include_str!("../../../bench/results/units.json");
        let text = render(&serde_json::from_str(recorded).unwrap()).unwrap();
        for program in ["GCBench", "sweep", "Tokyo Cabinet, 64 B", "genome"] {
            assert!(text.contains(&format!("{program}: ")), "{text}");
        }
        assert_eq!(text.matches("8 sub-pages, adaptive").count(), 10, "{text}");
    }
}
