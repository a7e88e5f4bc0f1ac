//! What a collector costs by each way to learn what was written, in a guest that has all of them
//! and whose clock counts instructions: section VI of the OoH paper in counts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_steps::products::Profile;
use pagetrail_steps::repo::Repo;

use super::{Kit, Mode, PROGRAMS};

const MODES: [Mode; 7] = [
    Mode::Off,
    Mode::Mprotect,
    Mode::Kernel,
    Mode::ForCollector,
    Mode::Log("epml"),
    Mode::Log("spml"),
    Mode::Log("spml-search"),
];

/// What the module of `/dev/ooh` counts.
const COUNTERS: &str = "/sys/module/ooh/parameters";

/// Builds what the programs need; the words of the command that measures them in a guest.
pub(crate) fn prepare(repo: &Repo) -> Result<Vec<String>> {
    let kit = Kit::build(repo, Profile::Release)?;
    let this = std::env::current_exe()?.display().to_string();
    let paths = [&kit.programs, &kit.library, &kit.preload].map(|path| path.display().to_string());
    Ok([this, "measure-collector-logs".to_owned()]
        .into_iter()
        .chain(paths)
        .collect())
}

/// In such a guest: each program in its smallest size by each way, one line of JSON each.
pub fn measure_in_guest(args: &[String]) -> Result<()> {
    let [programs, library, preload] = args else {
        bail!("usage: measure-collector-logs PROGRAMS LIBRARY PRELOAD");
    };
    let kit = Kit {
        programs: programs.into(),
        library: library.into(),
        preload: preload.into(),
    };
    for name in PROGRAMS {
        let mut checksum = None;
        for mode in MODES {
            let before = Counters::read()?;
            let run = kit.run(name, 0, mode)?;
            let after = Counters::read()?;
            let what = format!("{name} by {}", mode.name());
            ensure!(run["provider"] == mode.provider(), "{what}: {run}");
            let right = checksum.get_or_insert_with(|| run["checksum"].clone());
            ensure!(run["checksum"] == *right, "{what}: a wrong result");
            let rounds = after.rounds - before.rounds;
            ensure!(
                (rounds > 0) == matches!(mode, Mode::Log(_)),
                "{what}: {rounds} rounds of the log"
            );
            println!("{}", row(name, mode, &run, &before, &after)?);
        }
    }
    Ok(())
}

fn row(name: &str, mode: Mode, run: &Value, before: &Counters, after: &Counters) -> Result<Value> {
    // The clock advances by a nanosecond for each instruction.
    let instructions = |key: &str| -> Result<u64> {
        let ms = run[key].as_f64().with_context(|| key.to_owned())?;
        Ok((ms * 1e6) as u64)
    };
    let entries = |at: usize| after.entries[at] - before.entries[at];
    Ok(json!({
        "program": name,
        "by": mode.name(),
        "instructions": instructions("run_ms")?,
        "collecting_instructions": instructions("collecting_ms")?,
        "pause_max_instructions": instructions("pause_max_ms")?,
        "collections": run["collections"],
        "faults": run["faults"],
        "heap_bytes": run["heap_bytes"],
        "rounds": after.rounds - before.rounds,
        "entries_by_address": entries(0),
        "entries_by_frame": entries(1),
        "entries_of_kernel": entries(2),
        "foreign": after.foreign - before.foreign,
    }))
}

/// Of all sessions since the module was loaded.
struct Counters {
    rounds: u64,
    foreign: u64,
    /// By virtual address, by page frame, and of the kernel's stores.
    entries: [u64; 3],
}

impl Counters {
    fn read() -> Result<Self> {
        let read = |name: &str| -> Result<Vec<u64>> {
            let path = Path::new(COUNTERS).join(name);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let numbers = text.trim().split(',').map(str::parse);
            Ok(numbers.collect::<Result<_, _>>()?)
        };
        let one = |name: &str| read(name)?.first().copied().context("no number");
        Ok(Self {
            rounds: one("rounds")?,
            foreign: one("foreign")?,
            entries: read("entries")?
                .try_into()
                .map_err(|found| anyhow::anyhow!("entries are {found:?}"))?,
        })
    }
}
