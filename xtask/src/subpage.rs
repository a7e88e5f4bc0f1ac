//! The sub-page allocator on real programs: what its parts save and cost (figures 8 to 11 of Lu et al.), and its throughput
//! beside libc's.
//!
//! Programs do a fixed amount of work and say what processor time it took, the kernel's faults included; runs of all
//! variants take turns, so that a busy machine is busy for all of them.

mod checkpoints;
pub(crate) mod suites;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::repo::{Repo, program};
use crate::steps::NotHere;

/// Parts that are measured; the first is what the others are compared with.
const PARTS: [&str; 5] = ["1", "2", "4", "8", "16"];

/// How often everything is run; medians count.
const RUNS: usize = 3;

/// Time between rounds: the paper's interval, scaled to programs of seconds.
const INTERVALS_MS: [u32; 3] = [50, 200, 1000];

/// A program, its records, and how many of them it changes between two pauses of 20 ms.
struct Workload {
    name: &'static str,
    program: &'static str,
    records: u32,
    bytes: u32,
    updates: u32,
    per_pause: u32,
}

const WORKLOADS: &[Workload] = &[
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
];

const fn workload(
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

/// Patterns of allocation, and in how many threads.
const PATTERNS: &[(&str, &str)] = &[
    ("pair", "1"),
    ("pair", "2"),
    ("bulk", "1"),
    ("bulk", "2"),
    ("mixed", "1"),
    ("mixed", "2"),
    ("large", "1"),
    ("large", "2"),
    ("handover", "2"),
];

/// What is compiled, and what it is linked with.
const PROGRAMS: &[(&str, &str, &[&str])] = &[
    ("patterns.c", "gcc", &["-fno-builtin", "-pthread"]),
    ("tokyo.c", "gcc", &["-ltokyocabinet"]),
    ("tkrzw.cc", "g++", &["-std=c++17", "-ltkrzw"]),
    ("nodes.cc", "g++", &[]),
];

/// What it runs on.
struct Kit {
    sources: PathBuf,
    programs: PathBuf,
    library: PathBuf,
    pagetrail: PathBuf,
}

impl Kit {
    fn build(repo: &Repo) -> Result<Self> {
        for (package, header) in [
            ("libtokyocabinet-dev", "/usr/include/tcutil.h"),
            ("libtkrzw-dev", "/usr/include/tkrzw_dbm_tiny.h"),
        ] {
            if !PathBuf::from(header).exists() {
                return Err(NotHere::error(&format!("apt-get install {package}")));
            }
        }
        if program("python3").is_none() {
            return Err(NotHere::error("apt-get install python3"));
        }
        let packages = ["pagetrail-cli", "pagetrail-alloc-preload"];
        let mut cargo = repo.cargo(&["build", "--quiet", "--release"]);
        let status = cargo
            .args(packages.map(|name| format!("--package={name}")))
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
            let out = kit.programs.join(source.file_stem().unwrap_or_default());
            let mut command = Command::new(compiler);
            command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(out);
            let status = command.arg(&source).args(*flags).status()?;
            ensure!(status.success(), "{} does not compile", source.display());
        }
        Ok(kit)
    }

    /// The words that start a workload.
    fn words(&self, workload: &Workload) -> Vec<String> {
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

    /// A program on libc's allocator, or on ours.
    fn under(&self, words: &[String], parts: Option<&str>) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("PYTHONMALLOC", "malloc");
        if let Some(parts) = parts {
            command.env("LD_PRELOAD", &self.library);
            command.env("PAGETRAIL_PARTS", parts);
        }
        command
    }

    fn run(&self, words: &[String], parts: Option<&str>) -> Result<Value> {
        said(self.under(words, parts))
    }

    /// The same while its rounds are recorded; also what was written.
    fn record(&self, words: &[String], parts: &str, interval_ms: u32) -> Result<(Value, Value)> {
        let trail = self.programs.join("subpage.trail");
        let mut command = Command::new(&self.pagetrail);
        command
            .args(["record", "--parts", parts, "--interval"])
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
fn said(mut command: Command) -> Result<Value> {
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
        for (sum, key) in bytes.iter_mut().zip(["page_bytes", "unit_bytes"]) {
            *sum += round["units"][key].as_u64().unwrap_or(0);
        }
    }
    Ok(json!({"page_bytes": bytes[0], "unit_bytes": bytes[1]}))
}

/// Measures everything, prints tables, and replaces the recorded results.
pub(crate) fn bench(repo: &Repo, part: Option<&str>) -> Result<()> {
    let kit = Kit::build(repo)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let results = match part {
        None | Some("programs") => programs(&kit)?,
        Some("throughput") => throughput(&kit)?,
        Some("checkpoints") => checkpoints::measure(repo, &kit, &WORKLOADS[..6])?,
        Some(other) => {
            bail!("bench subpage takes programs, throughput or checkpoints, not '{other}'")
        }
    };
    let name = format!("subpage_{}.json", part.unwrap_or("programs"));
    let results = json!({"schema": 1, "kernel": release.trim(), "runs": RUNS, "results": results});
    let path = repo.root.join("bench/results").join(name);
    let text = serde_json::to_string_pretty(&results)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    if part.is_none() {
        bench(repo, Some("throughput"))?;
        return bench(repo, Some("checkpoints"));
    }
    Ok(())
}

/// Nanoseconds per object and peak memory, libc's first.
fn throughput(kit: &Kit) -> Result<Vec<Value>> {
    let variants = [None, Some("1"), Some("8")];
    let mut results = Vec::new();
    for (pattern, threads) in PATTERNS {
        let binary = kit.programs.join("patterns").display().to_string();
        let words = [binary, (*pattern).to_owned(), (*threads).to_owned()];
        let mut runs: [Vec<Value>; 3] = Default::default();
        for _ in 0..RUNS {
            for (runs, parts) in runs.iter_mut().zip(variants) {
                runs.push(kit.run(&words, parts)?);
            }
        }
        let of =
            |key: &str| -> Result<Vec<f64>> { runs.iter().map(|runs| median(runs, key)).collect() };
        let (ns, kib) = (of("ns")?, of("peak_kib")?);
        println!(
            "{pattern:>9} x{threads}: libc {:.1} ns, 1 part {:.2}x, 8 parts {:.2}x; memory {:.2}x",
            ns[0],
            ns[1] / ns[0],
            ns[2] / ns[0],
            kib[1] / kib[0]
        );
        results.push(json!({
            "pattern": pattern,
            "threads": threads,
            "ns": {"libc": ns[0], "1": ns[1], "8": ns[2]},
            "peak_kib": {"libc": kib[0], "1": kib[1]},
        }));
    }
    Ok(results)
}

/// Each program without tracking, with it, and what it wrote.
fn programs(kit: &Kit) -> Result<Vec<Value>> {
    let mut results = Vec::new();
    for workload in WORKLOADS {
        println!("== {}", workload.name);
        let words = kit.words(workload);
        let mut libc = Vec::new();
        let mut mapped: Vec<Vec<Value>> = vec![Vec::new(); PARTS.len()];
        let mut tracked = mapped.clone();
        let mut volumes = mapped.clone();
        for _ in 0..RUNS {
            libc.push(kit.run(&words, None)?);
            for (index, parts) in PARTS.iter().enumerate() {
                mapped[index].push(kit.run(&words, Some(parts))?);
                let (run, volume) = kit.record(&words, parts, INTERVALS_MS[1])?;
                tracked[index].push(run);
                volumes[index].push(volume);
            }
        }
        let libc = total(&libc)?;
        let mapped = mapped
            .iter()
            .map(|runs| total(runs))
            .collect::<Result<Vec<_>>>()?;
        let tracked = tracked
            .iter()
            .map(|runs| total(runs))
            .collect::<Result<Vec<_>>>()?;
        let pages = median(&volumes[0], "unit_bytes")?;
        let mut variants = Vec::new();
        for (index, parts) in PARTS.iter().enumerate() {
            let bytes = median(&volumes[index], "unit_bytes")?;
            let sweep = INTERVALS_MS.iter().map(|&interval_ms| {
                let (_, volume) = kit.record(&words, parts, interval_ms)?;
                Ok(json!({"interval_ms": interval_ms, "written": volume}))
            });
            println!(
                "{parts:>3} parts: mapped {:.2}x, tracked {:.2}x, written {:.1} MB, {:.2} of pages",
                mapped[index] / mapped[0],
                tracked[index] / tracked[0],
                bytes / 1e6,
                bytes / pages
            );
            variants.push(json!({
                "parts": parts,
                "mapped_ms": mapped[index],
                "tracked_ms": tracked[index],
                "unit_bytes": bytes,
                "intervals": sweep.collect::<Result<Vec<_>>>()?,
            }));
        }
        results.push(json!({
            "program": workload.name,
            "records": workload.records,
            "updates": workload.updates,
            "libc_ms": libc,
            "variants": variants,
        }));
    }
    Ok(results)
}

/// The median of the whole work's time.
fn total(runs: &[Value]) -> Result<f64> {
    let whole = runs.iter().map(|run| {
        let part = |key: &str| run[key].as_f64().context("a run without its time");
        Ok(json!({"ms": part("fill_ms")? + part("update_ms")?}))
    });
    median(&whole.collect::<Result<Vec<_>>>()?, "ms")
}

fn median(runs: &[Value], key: &str) -> Result<f64> {
    let values = runs.iter().map(|run| run[key].as_f64());
    let mut values: Vec<f64> = values
        .collect::<Option<_>>()
        .with_context(|| format!("a run without {key}"))?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}
