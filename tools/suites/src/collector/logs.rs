//! What a collector costs by each way to learn what was written, in a guest that has all of them
//! and whose clock counts instructions: section VI of the OoH paper in counts.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_steps::products::Profile;
use pagetrail_steps::repo::Repo;

use super::{Kit, Mode, PROGRAMS};
use crate::ooh::recorded::Known;
use crate::ooh::spent::{self, Spent};

const MODES: [Mode; 7] = [
    Mode::Off,
    Mode::Mprotect,
    Mode::Kernel,
    Mode::ForCollector,
    Mode::Log("epml"),
    Mode::Log("spml"),
    Mode::Log("spml-search"),
];

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

/// In such a guest: each program in its smallest size by each way, one line of JSON each, but for
/// what is known.
pub fn measure_in_guest(args: &[String]) -> Result<()> {
    let [programs, library, preload, known] = args else {
        bail!("usage: measure-collector-logs PROGRAMS LIBRARY PRELOAD KNOWN");
    };
    let known = Known::read(known)?;
    let kit = Kit {
        programs: programs.into(),
        library: library.into(),
        preload: preload.into(),
    };
    for name in PROGRAMS {
        let mut checksum = None;
        let row_of = |mode: Mode| json!({"program": name, "by": mode.name()});
        for mode in MODES.into_iter().filter(|mode| !known.has(&row_of(*mode))) {
            let spent = Spent::begin()?;
            let run = kit.run(name, 0, mode)?;
            let spent = spent.end()?;
            let what = format!("{name} by {}", mode.name());
            ensure!(run["provider"] == mode.provider(), "{what}: {run}");
            let right = checksum.get_or_insert_with(|| run["checksum"].clone());
            ensure!(run["checksum"] == *right, "{what}: a wrong result");
            let rounds = &spent["rounds"];
            ensure!(
                (*rounds != 0) == matches!(mode, Mode::Log(_)),
                "{what}: {rounds} rounds of the log"
            );
            println!("{}", row(name, mode, &run, spent)?);
        }
    }
    Ok(())
}

fn row(name: &str, mode: Mode, run: &Value, spent: Value) -> Result<Value> {
    // The clock advances by a nanosecond for each instruction.
    let instructions = |key: &str| -> Result<u64> {
        let ms = run[key].as_f64().with_context(|| key.to_owned())?;
        Ok((ms * 1e6) as u64)
    };
    let mut row = spent;
    let own = json!({
        "program": name,
        "by": mode.name(),
        "instructions": instructions("run_ms")?,
        "collecting_instructions": instructions("collecting_ms")?,
        "pause_max_instructions": instructions("pause_max_ms")?,
        "collections": run["collections"],
        "faults": run["faults"],
        "heap_bytes": run["heap_bytes"],
    });
    spent::add(&mut row, own);
    Ok(row)
}
