//! `cargo xtask bench vm collector`: what libgc costs a program that is a guest of `pagetrail vm`,
//! by the write set of the machine, beside its `mprotect` mode natively, into
//! `bench/results/collector_machine.json`.
//!
//! Both run in one guest of the rig, one after the other, whose clock advances by a nanosecond for
//! each instruction: those of the program, of its kernel, of KVM and of what is ours.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::Needs;
use pagetrail_steps::products::Profile;
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

use super::{Kit, Mode, PROGRAMS, median};

const SERIES: &str = "7.x";
const RECORDING: &str = "collector_machine.json";
/// Sizes of the programs; a fourth would take an emulator hours.
const SIZES: [&str; 3] = ["0", "1", "2"];
/// Runs of the smallest size. The clock is exact, so that larger ones differ by little: one each.
const ROUNDS: usize = 3;
/// KVM's counters over all virtual machines, which exist as long as these do.
const COUNTERS: &str = "/sys/kernel/debug/kvm";
/// How often they are looked up in the first run.
const LOOK: Duration = Duration::from_millis(10);

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Natively,
    AsGuest,
}

impl Where {
    fn name(self) -> &'static str {
        match self {
            Self::Natively => "natively",
            Self::AsGuest => "guest",
        }
    }
}

/// What is measured. What a program takes without the collector is the run without incremental
/// collection, less its collecting, at each of the two.
const RUNS: [(Where, Mode); 5] = [
    (Where::Natively, Mode::Off),
    (Where::Natively, Mode::Mprotect),
    (Where::AsGuest, Mode::Off),
    (Where::AsGuest, Mode::Mprotect),
    (Where::AsGuest, Mode::ForCollector),
];

/// Measures the sizes that are asked for, or all, and replaces what was recorded of these.
pub fn bench(repo: &Repo, sizes: &[String]) -> Result<()> {
    let sizes: Vec<&str> = match sizes {
        [] => SIZES.to_vec(),
        asked => asked.iter().map(String::as_str).collect(),
    };
    for size in &sizes {
        ensure!(
            SIZES.contains(size),
            "sizes are {}, not '{size}'",
            SIZES.join(", ")
        );
    }
    let kit = Kit::build(repo, Profile::Release)?;
    let mut build = repo.cargo(&["build", "--release", "--package", "pagetrail-vm"]);
    let built = build.args(["--example", "run"]).status()?;
    ensure!(built.success(), "the program does not build");
    let command = repo.target.join("release/examples/run");
    let this = std::env::current_exe()?;
    let needs = Needs {
        timeout: Duration::from_secs(4 * 3600),
        memory_mib: 3072,
        nested: true,
        counted: true,
        ..Needs::default()
    };
    // A program is recorded as soon as it is there.
    let programs = |size| PROGRAMS.iter().map(move |name| (size, *name));
    for (size, name) in sizes.into_iter().flat_map(programs) {
        let mut words = vec![
            this.display().to_string(),
            "measure-collector-machine".to_owned(),
        ];
        let paths = [&kit.programs, &kit.library, &kit.preload, &command];
        words.extend(paths.map(|path| path.display().to_string()));
        words.extend([size, name].map(str::to_owned));
        let printed = pagetrail_rig::output(repo, SERIES, &needs, words)?;
        keep(repo, &printed)?;
    }
    Ok(())
}

fn keep(repo: &Repo, printed: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(printed);
    let mut results = recordings::list(repo, RECORDING, "results")?;
    let mut kernel = Value::Null;
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let mut row: Value = serde_json::from_str(line)?;
        kernel = row["kernel"].take();
        if let Some(row) = row.as_object_mut() {
            row.remove("kernel");
        }
        let keys = ["program", "size", "where", "by"];
        let is_same = |other: &Value| keys.iter().all(|key| other[*key] == row[*key]);
        match results.iter().position(is_same) {
            Some(at) => results[at] = row,
            None => results.push(row),
        }
    }
    ensure!(!kernel.is_null(), "nothing was measured: {text}");
    let document = json!({"schema": 1, "kernel": kernel, "results": results});
    print!(
        "{}",
        render(&document).context("the results lack something")?
    );
    let text = serde_json::to_string_pretty(&document)? + "\n";
    let command = "cargo xtask bench vm collector";
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Guest, command)
}

/// In such a guest: a program in one size, one line of JSON for each way to run it.
pub fn measure_in_guest(args: &[String]) -> Result<()> {
    let [programs, library, preload, command, size, name] = args else {
        bail!("usage: measure-collector-machine PROGRAMS LIBRARY PRELOAD COMMAND SIZE NAME");
    };
    let kit = Kit {
        programs: programs.into(),
        library: library.into(),
        preload: preload.into(),
    };
    let measured = Measured {
        kit,
        command: command.into(),
        size: size.parse()?,
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    for mut row in measured.rows(name)? {
        row["kernel"] = release.trim().into();
        println!("{row}");
    }
    Ok(())
}

struct Measured {
    kit: Kit,
    /// What becomes the guest: the example `run` of `pagetrail-vm`.
    command: PathBuf,
    size: u32,
}

impl Measured {
    fn rows(&self, name: &str) -> Result<Vec<Value>> {
        let mut own = [0.0; 2];
        let mut checksum = None;
        let mut rows = Vec::new();
        // `mprotect` in a guest takes several times as long; one size shows it.
        let is_wanted =
            |run: &&(Where, Mode)| **run != (Where::AsGuest, Mode::Mprotect) || self.size == 0;
        for &(place, mode) in RUNS.iter().filter(is_wanted) {
            let rounds = if self.size == 0 { ROUNDS } else { 1 };
            let (mut runs, mut counters) = (Vec::new(), None);
            for round in 0..rounds {
                let counts = (round == 0 && place == Where::AsGuest).then_some(&mut counters);
                runs.push(self.run(name, place, mode, counts)?);
            }
            for run in &runs {
                let right = checksum.get_or_insert_with(|| run["checksum"].clone());
                ensure!(run["checksum"] == *right, "{name}: a wrong result: {run}");
                ensure!(run["provider"] == mode.provider(), "{name}: {run}");
            }
            let instructions = |key: &str| Ok::<f64, anyhow::Error>(median(&runs, key)? * 1e6);
            let (run, collecting) = (instructions("run_ms")?, instructions("collecting_ms")?);
            let own = &mut own[usize::from(place == Where::AsGuest)];
            if mode == Mode::Off {
                *own = run - collecting;
            }
            let mut row = json!({
                "program": name,
                "size": self.size,
                "where": place.name(),
                "by": match mode {
                    Mode::ForCollector => "machine",
                    mode => mode.name(),
                },
                "runs": rounds,
                "run_instructions": run.round(),
                "collecting_instructions": collecting.round(),
                "gc_instructions": (run - *own).round(),
                "pause_max_instructions": instructions("pause_max_ms")?.round(),
                "collections": median(&runs, "collections")?,
                "faults": median(&runs, "faults")?,
                "heap_bytes": median(&runs, "heap_bytes")?,
            });
            if let Some([exits, interrupts]) = counters {
                row["exits"] = (exits - interrupts).into();
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Runs one of the programs; what it says of itself.
    fn run(
        &self,
        name: &str,
        place: Where,
        mode: Mode,
        counters: Option<&mut Option<[u64; 2]>>,
    ) -> Result<Value> {
        let of_program = self.kit.command(name, mode);
        let mut command = match place {
            Where::Natively => of_program,
            Where::AsGuest => {
                let mut command = Command::new(&self.command);
                command.arg(of_program.get_program());
                let variables = of_program.get_envs();
                command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
                command
            }
        };
        let log = std::env::temp_dir().join("collector-machine.log");
        let _ = fs::remove_file(&log);
        let switch = if mode == Mode::Off { "off" } else { "on" };
        command.args([&self.size.to_string(), switch]);
        command.env("PAGETRAIL_SOFTDIRTY_LOG", &log);
        let output = match counters {
            Some(counters) => {
                let (output, seen) = counted(&mut command)?;
                *counters = seen;
                output
            }
            None => command.stdin(Stdio::null()).output()?,
        };
        let what = format!("{name} {}, {} by {}", self.size, place.name(), mode.name());
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{what}: {}: {errors}",
            output.status
        );
        if mode == Mode::ForCollector {
            let said = fs::read_to_string(&log).unwrap_or_default();
            ensure!(
                said.contains("by the virtual machine") && !said.contains("counts as written"),
                "{what}: {said}"
            );
        }
        serde_json::from_slice(&output.stdout).with_context(|| what)
    }
}

/// Runs a command; all exits of its virtual machine, and those for interrupts, as last seen before
/// its end.
fn counted(command: &mut Command) -> Result<(Output, Option<[u64; 2]>)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let mut seen = None;
            while !is_over.load(Ordering::Relaxed) {
                seen = seen.max(counters());
                thread::sleep(LOOK);
            }
            seen
        });
        let output = child.wait_with_output();
        is_over.store(true, Ordering::Relaxed);
        let seen = seen.join().map_err(|_| anyhow::anyhow!("a panic"))?;
        Ok((output?, seen))
    })
}

fn counters() -> Option<[u64; 2]> {
    let number = |name| -> Option<u64> {
        let text = fs::read_to_string(Path::new(COUNTERS).join(name)).ok()?;
        text.trim().parse().ok()
    };
    Some([number("exits")?, number("irq_exits")?])
}

/// The collector's instructions by the machine beside `mprotect` natively, and those of whole runs.
fn render(document: &Value) -> Option<String> {
    let rows = document["results"].as_array()?;
    let mut text = format!(
        "libgc on Linux {}: instructions in millions, the collector's and of whole runs\n\
         {:<12} {:>4} {:>12} {:>12} {:>12} {:>12} {:>6} {:>6} {:>11} {:>10}\n",
        document["kernel"].as_str()?,
        "program",
        "size",
        "GC mprotect",
        "GC machine",
        "run mprotect",
        "run machine",
        "GC x",
        "run x",
        "collections",
        "exits each",
    );
    let is_of = |row: &Value, place: &str, by: &str| row["where"] == place && row["by"] == by;
    for row in rows.iter().filter(|row| is_of(row, "guest", "machine")) {
        let is_same = |other: &&Value| {
            other["program"] == row["program"]
                && other["size"] == row["size"]
                && is_of(other, "natively", "mprotect")
        };
        let beside = rows.iter().find(is_same)?;
        let millions = |row: &Value, key: &str| Some(row[key].as_f64()? / 1e6);
        let [gc, run] = ["gc_instructions", "run_instructions"];
        let ratio = |key| Some(millions(row, key)? / millions(beside, key)?);
        let collections = row["collections"].as_f64()?;
        // Writing to a text does not fail.
        let _ = writeln!(
            text,
            "{:<12} {:>4} {:>12.1} {:>12.1} {:>12.1} {:>12.1} {:>6.2} {:>6.2} {:>11} {:>10.1}",
            row["program"].as_str()?,
            row["size"],
            millions(beside, gc)?,
            millions(row, gc)?,
            millions(beside, run)?,
            millions(row, run)?,
            ratio(gc)?,
            ratio(run)?,
            collections,
            row["exits"].as_f64()? / collections,
        );
    }
    Some(text)
}
