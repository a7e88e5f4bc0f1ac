//! Boehm's collector, unmodified, on our soft-dirty bits: `tests/collector/*.c` and libgc's own
//! tests as a test, and the collector's time by provider as a benchmark (figures 5 and 6 of the OoH
//! paper).

pub(crate) mod engines;
pub mod logs;
pub mod machine;
mod memory;
mod table;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::{self as rig, libgc};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::Outcome;

/// GCBench and six of the Phoenix suite, in the order of the tables.
const PROGRAMS: &[&str] = &[
    "gcbench",
    "histogram",
    "kmeans",
    "wordcount",
    "matmul",
    "pca",
    "stringmatch",
];

/// Not measured: it is there to be wrong when a write is missed.
const POINTERS: &str = "pointers";

/// The tests of libgc's own suite that need nothing but the library.
const OWN_TESTS: &[&str] = &["test", "realloc_test", "smash_test", "huge_test", "middle"];

/// How libgc learns what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Not at all: every collection is a full one.
    Off,
    /// By `mprotect` and `SIGSEGV`.
    Mprotect,
    /// By the kernel's soft-dirty bits.
    Kernel,
    /// By ours.
    Ours,
    /// By ours, with the setting for a collector that reads them.
    ForCollector,
    /// By ours for a collector, from a log of `/dev/ooh`: the technique that reads it.
    Log(&'static str),
}

const MODES: &[Mode] = &[
    Mode::Off,
    Mode::Mprotect,
    Mode::Kernel,
    Mode::Ours,
    Mode::ForCollector,
];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Mprotect => "mprotect",
            Self::Kernel => "soft-dirty of the kernel",
            Self::Ours => "pagetrail",
            Self::ForCollector => "pagetrail for collectors",
            Self::Log(technique) => technique,
        }
    }

    /// What the programs call it.
    fn provider(self) -> &'static str {
        match self {
            Self::Off => "none",
            Self::Mprotect => "mprotect",
            Self::Kernel | Self::Ours | Self::ForCollector | Self::Log(_) => "soft-dirty",
        }
    }
}

/// Compiled programs and what they run with.
struct Kit {
    programs: PathBuf,
    library: PathBuf,
    preload: PathBuf,
}

impl Kit {
    fn build(repo: &Repo, profile: Profile) -> Result<Self> {
        let libgc = libgc::fetch()?;
        let kit = Self {
            programs: repo.target.join("collector"),
            preload: Product::SoftDirtyLibrary.build(repo, profile)?,
            library: libgc.library,
        };
        fs::create_dir_all(&kit.programs)?;
        for name in PROGRAMS.iter().chain([&POINTERS]) {
            let source = repo.root.join("tests/collector").join(format!("{name}.c"));
            kit.compile(&source, name, &["-Wall", "-Werror"], &[&libgc.headers])?;
        }
        for name in OWN_TESTS {
            let source = libgc.source.join("tests").join(format!("{name}.c"));
            let headers = [&libgc.source.join("include"), &libgc.headers];
            let flags = ["-w", "-pthread", "-DGC_THREADS"];
            kit.compile(&source, &format!("libgc-{name}"), &flags, &headers)?;
        }
        Ok(kit)
    }

    fn compile(
        &self,
        source: &Path,
        name: &str,
        flags: &[&str],
        headers: &[&PathBuf],
    ) -> Result<()> {
        let fresh = self.programs.join(format!(".{name}.new"));
        let mut gcc = Command::new("gcc");
        gcc.arg("-O2").args(flags);
        for directory in headers {
            gcc.arg("-I").arg(directory);
        }
        gcc.arg("-o").arg(&fresh).arg(source);
        gcc.arg(self.library.join("libgc.so.1"));
        let status = gcc.status().context("cannot run gcc")?;
        ensure!(status.success(), "{}: gcc failed", source.display());
        Ok(fs::rename(&fresh, self.programs.join(name))?)
    }

    fn command(&self, name: &str, mode: Mode) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command
            .env("LD_LIBRARY_PATH", &self.library)
            .stdin(Stdio::null());
        match mode {
            Mode::Off | Mode::Kernel => {}
            Mode::Mprotect => {
                command.env("GC_USE_GETWRITEWATCH", "0");
            }
            Mode::Ours | Mode::ForCollector | Mode::Log(_) => {
                let reader = match mode {
                    Mode::Ours => "any",
                    _ => "collector",
                };
                if let Mode::Log(technique) = mode {
                    command.env("PAGETRAIL_SOFTDIRTY_TECHNIQUE", technique);
                }
                command
                    .env("LD_PRELOAD", &self.preload)
                    .env("PAGETRAIL_SOFTDIRTY", "always")
                    .env("PAGETRAIL_SOFTDIRTY_READER", reader);
            }
        }
        command
    }

    /// Runs one of our programs; what it says of itself.
    fn run(&self, name: &str, size: u32, mode: Mode) -> Result<Value> {
        let switch = if mode == Mode::Off { "off" } else { "on" };
        let mut command = self.command(name, mode);
        let output = command.args([&size.to_string(), switch]).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let what = format!("{name} {size}, {}", mode.name());
        ensure!(
            output.status.success(),
            "{what}: {}: {errors}",
            output.status
        );
        serde_json::from_slice(&output.stdout).with_context(|| what)
    }
}

/// Compiles the programs so that they find their library; gives the directory.
pub fn programs(repo: &Repo) -> Result<PathBuf> {
    let libgc = libgc::fetch()?;
    let kit = Kit {
        programs: repo.target.join("collector-plain"),
        preload: PathBuf::new(),
        library: libgc.library,
    };
    fs::create_dir_all(&kit.programs)?;
    let search = format!("-Wl,-rpath,{}", kit.library.display());
    for name in PROGRAMS {
        let source = repo.root.join("tests/collector").join(format!("{name}.c"));
        let flags = ["-Wall", "-Werror", &search];
        kit.compile(&source, name, &flags, &[&libgc.headers])?;
    }
    Ok(kit.programs)
}

/// The short form: every program is right with every provider, libgc's own tests pass on ours, and
/// it says that it uses it.
pub fn test(repo: &Repo) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let kit = Kit::build(repo, Profile::Dev)?;
    let mut fine = true;
    for (name, size) in PROGRAMS
        .iter()
        .map(|name| (*name, 0))
        .chain([(POINTERS, 1)])
    {
        let right = kit.run(name, size, Mode::Off)?;
        for mode in [Mode::Mprotect, Mode::Ours, Mode::ForCollector] {
            let run = kit.run(name, size, mode)?;
            let agrees = run["checksum"] == right["checksum"];
            let is_used = run["provider"] == mode.provider();
            println!(
                "{name} by {}: {}, {} collections{}",
                mode.name(),
                run["provider"].as_str().unwrap_or_default(),
                run["collections"],
                if agrees { "" } else { ": WRONG RESULT" }
            );
            fine &= agrees && is_used;
        }
    }
    let modes = [Mode::Ours, Mode::ForCollector];
    for (name, mode) in OWN_TESTS
        .iter()
        .flat_map(|name| modes.map(|mode| (name, mode)))
    {
        let mut command = kit.command(&format!("libgc-{name}"), mode);
        command
            .env("GC_ENABLE_INCREMENTAL", "1")
            .env("GC_PRINT_VERBOSE_STATS", "1");
        let output = command.output()?;
        let said =
            String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
        let is_used = said.contains("Using soft-dirty bit feature");
        println!(
            "libgc's {name} by {}: {}{}",
            mode.name(),
            output.status,
            if is_used { "" } else { ", without soft-dirty" }
        );
        fine &= output.status.success() && is_used;
    }
    Ok(Outcome::of(fine))
}

/// Measures here and in a guest with soft-dirty bits of its own, or one of both, prints tables, and
/// replaces the recorded results.
pub fn bench(repo: &Repo, args: &[String]) -> Result<()> {
    let (here, guest) = match args.first().map(String::as_str) {
        Some("memory") => return memory::bench(repo, &args[1..]),
        None => (true, true),
        Some("here") => (true, false),
        Some("guest") => (false, true),
        Some(other) => bail!("bench collector takes here, guest or memory, not '{other}'"),
    };
    let rounds: usize = match args.get(1) {
        Some(rounds) => rounds
            .parse()
            .with_context(|| format!("'{rounds}' is no number of rounds"))?,
        None => ROUNDS,
    };
    ensure!(rounds > 0, "without a round there is nothing to record");
    let some = args.get(2..).unwrap_or_default();
    for name in some {
        ensure!(
            PROGRAMS.contains(&name.as_str()),
            "programs are {}, not '{name}'",
            PROGRAMS.join(", ")
        );
    }
    let kit = Kit::build(repo, Profile::Release)?;
    if !some.is_empty() {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        let before = load()?;
        let mut results = measure(&kit, &some, &[1, 2, 3], rounds)?;
        // They may be all that was measured that day, on a machine that was not idle.
        let machine = recordings::machine(Place::Here);
        results["machine"] = format!("{machine}, load {before} to {}", load()?).into();
        let words = format!("here {rounds} {}", some.join(" "));
        return record(
            repo,
            "collector_programs.json",
            &results,
            Place::Here,
            &words,
        );
    }
    if here {
        let results = measure(&kit, PROGRAMS, &[1, 2, 3], rounds)?;
        record(repo, "collector.json", &results, Place::Here, "here")?;
    }
    if guest {
        let results = measured_in_guest(repo, &kit, rounds)?;
        record(
            repo,
            "collector_guest.json",
            &results,
            Place::Guest,
            "guest",
        )?;
    }
    Ok(())
}

/// How many processes wanted a processor, in the mean of the last minute.
fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn measured_in_guest(repo: &Repo, kit: &Kit, rounds: usize) -> Result<Value> {
    let this = env::current_exe()?.display().to_string();
    let paths = [&kit.programs, &kit.library, &kit.preload].map(|path| path.display().to_string());
    let verb = [this, "measure-collector".to_owned(), rounds.to_string()];
    let command = [&verb[..], &paths].concat();
    let needs = rig::Needs {
        timeout: Duration::from_secs(3600),
        ..rig::Needs::default()
    };
    let output = rig::output(repo, "6.12", &needs, command)?;
    serde_json::from_slice(&output).context("the guest's results")
}

fn record(repo: &Repo, name: &str, results: &Value, place: Place, words: &str) -> Result<()> {
    print!("{}", table::render(results)?);
    let text = serde_json::to_string_pretty(results)? + "\n";
    let command = format!("cargo xtask bench collector {words}");
    recordings::keep(repo, name, text.as_bytes(), place, &command)
}

/// Measures the two smallest sizes, since emulation is slow; the results on standard output.
pub fn measure_in_guest(args: &[String]) -> Result<()> {
    let [rounds, programs, library, preload] = args else {
        bail!("usage: measure-collector ROUNDS PROGRAMS LIBRARY PRELOAD");
    };
    let kit = Kit {
        programs: programs.into(),
        library: library.into(),
        preload: preload.into(),
    };
    println!("{}", measure(&kit, PROGRAMS, &[0, 1], rounds.parse()?)?);
    Ok(())
}

/// Interleaved runs of each program with each provider, unless said otherwise.
const ROUNDS: usize = 3;

/// The size of which a third of the rounds is enough: its runs are long.
const LARGE: u32 = 3;

/// Medians of interleaved runs of programs.
fn measure(kit: &Kit, programs: &[&str], sizes: &[u32], rounds: usize) -> Result<Value> {
    let mut results = Vec::new();
    for name in programs {
        for &size in sizes {
            let rounds = match size {
                LARGE => rounds.div_ceil(3),
                _ => rounds,
            };
            results.extend(measure_one(kit, name, size, rounds)?);
        }
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(json!({
        "schema": 2,
        "kernel": release.trim(),
        "results": results,
    }))
}

fn measure_one(kit: &Kit, name: &str, size: u32, rounds: usize) -> Result<Vec<Value>> {
    let mut runs: Vec<(Mode, Vec<Value>)> = MODES.iter().map(|mode| (*mode, Vec::new())).collect();
    for _ in 0..rounds {
        for (mode, runs) in &mut runs {
            let run = kit.run(name, size, *mode)?;
            // Without bits of its own the kernel makes libgc fall back to mprotect.
            if run["provider"] == mode.provider() {
                runs.push(run);
            }
        }
    }
    runs.retain(|(_, runs)| !runs.is_empty());
    let checksums = runs
        .iter()
        .flat_map(|(_, runs)| runs)
        .map(|run| &run["checksum"]);
    let mut checksums: Vec<&Value> = checksums.collect();
    checksums.dedup();
    ensure!(
        checksums.len() == 1,
        "{name} {size}: results differ: {checksums:?}"
    );
    let (off, off_runs) = &runs[0];
    ensure!(
        *off == Mode::Off,
        "{name} {size}: no run without incremental collection"
    );
    // What the program would take without a collector. The rest is the collector's, the faults that
    // it causes included.
    let own = median(off_runs, "run_ms")? - median(off_runs, "collecting_ms")?;
    let result = |(mode, runs): &(Mode, Vec<Value>)| -> Result<Value> {
        let run_ms = median(runs, "run_ms")?;
        Ok(json!({
            "program": name,
            "size": size,
            "mode": mode.name(),
            "rounds": runs.len(),
            "run_ms": round(run_ms),
            "collecting_ms": round(median(runs, "collecting_ms")?),
            "gc_ms": round(run_ms - own),
            "pause_max_ms": round(median(runs, "pause_max_ms")?),
            "collections": median(runs, "collections")?,
            "heap_bytes": median(runs, "heap_bytes")?,
        }))
    };
    runs.iter().map(result).collect()
}

fn round(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}

fn median(runs: &[Value], key: &str) -> Result<f64> {
    let values = runs.iter().map(|run| run[key].as_f64());
    let mut values: Vec<f64> = values
        .collect::<Option<_>>()
        .with_context(|| format!("a run without {key}"))?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}
