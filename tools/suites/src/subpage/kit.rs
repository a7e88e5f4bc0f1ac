//! [`Kit`]: the programs that are measured, compiled, and the ways of running them. [`Workload`]:
//! what they are to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::NotHere;

/// A program, its records, and how many of them it changes between two pauses of 20 ms.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) records: u32,
    pub(super) bytes: u32,
    pub(super) updates: u32,
    pub(super) per_pause: u32,
}

pub(super) const WORKLOADS: &[Workload] = &[
    workload("Tokyo Cabinet, 64 B", "tokyo", 400_000, 64, 200_000, 4000),
    workload("Tokyo Cabinet, 128 B", "tokyo", 200_000, 128, 200_000, 4000),
    workload("Tokyo Cabinet, 1 KiB", "tokyo", 40_000, 1024, 100_000, 2000),
    workload("tkrzw, 64 B", "tkrzw", 400_000, 64, 200_000, 4000),
    workload("tkrzw, 1 KiB", "tkrzw", 40_000, 1024, 100_000, 2000),
    workload("C++ map, 64 B", "nodes", 400_000, 64, 200_000, 4000),
    workload(
        "SQLite by Python, 64 B",
        "sqlite.py",
        100_000,
        64,
        40_000,
        1000,
    ),
    workload("Redis, 64 B", "redis.py", 200_000, 64, 100_000, 2000),
];

pub(super) const fn workload(
    name: &'static str,
    program: &'static str,
    records: u32,
    bytes: u32,
    updates: u32,
    per_pause: u32,
) -> Workload {
    Workload {
        name,
        program,
        records,
        bytes,
        updates,
        per_pause,
    }
}

/// What is compiled, and what it is linked with.
const PROGRAMS: &[(&str, &str, &[&str])] = &[
    ("patterns.c", "gcc", &["-fno-builtin", "-pthread"]),
    ("tokyo.c", "gcc", &["-ltokyocabinet"]),
    ("tkrzw.cc", "g++", &["-std=c++17", "-ltkrzw"]),
    ("nodes.cc", "g++", &[]),
    ("bayes.c", "gcc", &["-lm"]),
    ("genome.c", "gcc", &[]),
    ("intruder.c", "gcc", &[]),
    ("vacation.c", "gcc", &[]),
    ("counted.c", "gcc", SHARED),
];

/// A library that is preloaded.
const SHARED: &[&str] = &["-shared", "-fPIC"];

/// The allocator of a program.
#[derive(Clone, Copy)]
pub(super) enum Heap<'a> {
    Libc,
    /// A library that brings another one.
    Peer(&'a Path),
    /// Ours, with so many parts to a page.
    Parts(&'a str),
}

/// What it runs on.
pub(super) struct Kit {
    sources: PathBuf,
    pub(super) programs: PathBuf,
    library: PathBuf,
    pub(super) pagetrail: PathBuf,
}

impl Kit {
    /// Compiles the programs, and has cargo build the libraries and commands that they run with.
    pub(super) fn build(repo: &Repo, packages: &[&str]) -> Result<Self> {
        for (package, header) in [
            ("libtokyocabinet-dev", "/usr/include/tcutil.h"),
            ("libtkrzw-dev", "/usr/include/tkrzw_dbm_tiny.h"),
        ] {
            if !PathBuf::from(header).exists() {
                return Err(NotHere::error(&format!("apt-get install {package}")));
            }
        }
        for (name, package) in [("python3", "python3"), ("redis-server", "redis-server")] {
            if program(name).is_none() {
                return Err(NotHere::error(&format!("apt-get install {package}")));
            }
        }
        let mut cargo = repo.cargo(&["build", "--quiet", "--release"]);
        let status = cargo
            .args(packages.iter().map(|name| format!("--package={name}")))
            .status()?;
        ensure!(status.success(), "the release build failed");
        let kit = Self {
            sources: repo.root.join("tests/subpage"),
            programs: repo.target.join("subpage"),
            library: repo.target.join("release/libpagetrail_alloc.so"),
            pagetrail: repo.target.join("release/pagetrail"),
        };
        fs::create_dir_all(&kit.programs)?;
        for (source, compiler, flags) in PROGRAMS {
            let source = kit.sources.join(source);
            let name = source.file_stem().unwrap_or_default().display();
            let out = kit.programs.join(match *flags == SHARED {
                true => format!("lib{name}.so"),
                false => name.to_string(),
            });
            let mut command = Command::new(compiler);
            command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(out);
            let status = command.arg(&source).args(*flags).status()?;
            ensure!(status.success(), "{} does not compile", source.display());
        }
        Ok(kit)
    }

    /// The words that start a workload.
    pub(super) fn words(&self, workload: &Workload) -> Vec<String> {
        let mut words = match workload.program.ends_with(".py") {
            true => vec![
                "python3".to_owned(),
                self.sources.join(workload.program).display().to_string(),
            ],
            false => vec![self.programs.join(workload.program).display().to_string()],
        };
        let numbers = [
            workload.records,
            workload.bytes,
            workload.updates,
            workload.per_pause,
        ];
        words.extend(numbers.map(|number| number.to_string()));
        words
    }

    /// A program on libc's allocator, or on another one.
    pub(super) fn under(&self, words: &[String], heap: Heap<'_>) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("PYTHONMALLOC", "malloc");
        match heap {
            Heap::Libc => {}
            Heap::Peer(library) => {
                command.env("LD_PRELOAD", library);
            }
            Heap::Parts(parts) => {
                command.env("LD_PRELOAD", &self.library);
                command.env("PAGETRAIL_SUBPAGES", parts);
            }
        }
        command
    }

    /// Runs it to its end; what it says of itself.
    pub(super) fn run(&self, words: &[String], heap: Heap<'_>) -> Result<Value> {
        said(self.under(words, heap))
    }

    /// Runs it while its rounds are recorded; also gives what was written.
    pub(super) fn record(
        &self,
        words: &[String],
        parts: &str,
        interval_ms: u32,
    ) -> Result<(Value, Value)> {
        let trail = self.programs.join("subpage.trail");
        let mut command = Command::new(&self.pagetrail);
        command
            .args(["record", "--last-round", "--subpages", parts, "--interval"])
            .arg(format!("{interval_ms}ms"))
            .arg("-o")
            .arg(&trail)
            .arg("--")
            .args(words)
            .env("PYTHONMALLOC", "malloc");
        let run = said(command)?;
        let mut report = Command::new(&self.pagetrail);
        report.arg("report").arg(&trail).arg("--json");
        let output = report.output()?;
        ensure!(output.status.success(), "the recording cannot be read");
        Ok((run, written(&serde_json::from_slice(&output.stdout)?)?))
    }
}

/// The JSON on a command's standard output.
pub(super) fn said(mut command: Command) -> Result<Value> {
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {errors}",
        output.status
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?}"))
}

/// What the second half of a recording says: by then the program changes what is there.
fn written(report: &Value) -> Result<Value> {
    let rounds = report["rounds"]
        .as_array()
        .context("a report without rounds")?;
    let mut bytes = [0; 2];
    for round in &rounds[rounds.len() / 2..] {
        for (sum, key) in bytes.iter_mut().zip(["page_bytes", "subpage_bytes"]) {
            *sum += round["subpages"][key].as_u64().unwrap_or(0);
        }
    }
    Ok(json!({"page_bytes": bytes[0], "unit_bytes": bytes[1]}))
}

/// The median of a number that each run says.
pub(super) fn median(runs: &[Value], key: &str) -> Result<f64> {
    let values = runs.iter().map(|run| run[key].as_f64());
    let mut values: Vec<f64> = values
        .collect::<Option<_>>()
        .with_context(|| format!("a run without {key}"))?;
    ensure!(!values.is_empty(), "no runs");
    values.sort_by(f64::total_cmp);
    Ok((values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0)
}
