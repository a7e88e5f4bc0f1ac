//! `cargo xtask bench checkpointer engines`: tkrzw's engines under CRIU, in the configurations of
//! table II of the OoH paper (its figures 7 to 9).
//!
//! An engine runs alone, and then with a pre-dump at a third and a dump at two thirds of that time,
//! after which it goes on to its end. Both runs take turns, so that a busy machine is busy for
//! both.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::NotHere;

use super::{ALL_BITS, Bits, Kit, phase, stats};
use crate::collector::engines::{CONFIGURATIONS, COUNTED, ENGINES, TKRZW, command};
use crate::ooh::recorded::Known;

/// The name of the recording.
const RECORDING: &str = "checkpointer_engines.json";

/// Measures every engine in every configuration, or in one of them, or one engine in one of them;
/// each result replaces what was recorded of the same before.
pub(super) fn bench(repo: &Repo, kit: &Kit, rounds: usize, only: &[&str]) -> Result<()> {
    are_here()?;
    let is_wanted = |at: usize, name: &str| only.get(at).is_none_or(|only| *only == name);
    let mut found = false;
    for (engine, all) in ENGINES {
        for (configuration, words) in CONFIGURATIONS.into_iter().zip(all) {
            if !is_wanted(0, configuration) || !is_wanted(1, engine) {
                continue;
            }
            found = true;
            let mut runs = Vec::new();
            for _ in 0..rounds {
                let dir = repo.target.join("engines");
                runs.push(measure(kit, &command(engine, words), &dir)?);
            }
            let mut result = stats::median_of(&runs);
            result["engine"] = json!(engine);
            result["configuration"] = json!(configuration);
            result["rounds"] = json!(rounds);
            println!("{result}");
            keep(repo, result)?;
        }
    }
    ensure!(
        found,
        "configurations are {}; engines {}",
        CONFIGURATIONS.join(", "),
        ENGINES.map(|(engine, _)| engine).join(", ")
    );
    Ok(())
}

/// Whether there is a program that runs engines.
pub(super) fn are_here() -> Result<()> {
    match program(TKRZW) {
        Some(_) => Ok(()),
        None => Err(NotHere::error("apt-get install tkrzw-utils")),
    }
}

/// In a guest with a log and a clock that counts instructions: each engine by each kind of bits,
/// one line of JSON each, but for what is known.
pub(super) fn by_logs(kit: &Kit, known: &Known) -> Result<()> {
    for (engine, words) in COUNTED {
        let command = command(engine, words);
        let row = |bits: Bits| json!({"engine": engine, "words": words, "bits": bits.name()});
        let wanted = ALL_BITS.into_iter().filter(|bits| !known.has(&row(*bits)));
        let mut wanted = wanted.peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let alone = Engine::start(&command)?.end()?;
        for bits in wanted {
            let dir = Path::new("/tmp/engines");
            let (whole, phases) =
                in_time(alone, |due| checkpointed(kit, bits, &command, due, dir))?;
            println!(
                "{}",
                json!({
                    "engine": engine,
                    "words": words,
                    "bits": bits.name(),
                    "alone_instructions": alone.as_nanos() as u64,
                    "checkpointed_instructions": whole.as_nanos() as u64,
                    "phases": phases,
                })
            );
        }
    }
    Ok(())
}

/// Keeps a result among those of other engines and configurations.
fn keep(repo: &Repo, result: Value) -> Result<()> {
    let list = recordings::merged(
        repo,
        RECORDING,
        "engines",
        result,
        &["engine", "configuration"],
    )?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let recording = json!({"schema": 1, "kernel": release.trim(), "engines": list});
    recordings::keep(
        repo,
        RECORDING,
        format!("{recording:#}\n").as_bytes(),
        Place::Here,
        "cargo xtask bench checkpointer engines",
    )
}

/// One run alone, and one with CRIU.
fn measure(kit: &Kit, command: &str, dir: &Path) -> Result<Value> {
    let alone = Engine::start(command)?.end()?;
    let (checkpointed, phases) = in_time(alone, |due| {
        checkpointed(kit, Bits::Ours, command, due, dir)
    })?;
    Ok(json!({
        "alone_ms": alone.as_millis() as u64,
        "checkpointed_ms": checkpointed.as_millis() as u64,
        "phases": phases,
    }))
}

/// A run that had ended before it was dumped.
#[derive(Debug)]
struct EndedBefore(String);

impl fmt::Display for EndedBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EndedBefore {}

/// Dumps a run that takes about `alone`; one that is over before that, since runs differ by more
/// than half on a busy machine, once more with dumps that come sooner.
fn in_time<T>(mut alone: Duration, run: impl Fn(Duration) -> Result<T>) -> Result<T> {
    const SOONER: u32 = 4;
    for _ in 0..SOONER {
        match run(alone) {
            Err(error) if error.is::<EndedBefore>() => alone /= 2,
            ended => return ended,
        }
    }
    run(alone)
}

/// One run with CRIU, with dumps at a third and at two thirds of `due`: how long it took, and
/// CRIU's phases.
fn checkpointed(
    kit: &Kit,
    bits: Bits,
    command: &str,
    due: Duration,
    dir: &Path,
) -> Result<(Duration, Vec<Value>)> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    let mut engine = Engine::start(command)?;
    let pid = engine.child.id().to_string();
    let mut phases = Vec::new();
    for (number, verb) in ["pre-dump", "dump"].into_iter().enumerate() {
        let due = due * (number as u32 + 1) / 3;
        thread::sleep(due.saturating_sub(engine.began.elapsed()));
        if engine.child.try_wait()?.is_some() {
            let ended = format!("{command}: ended before its {verb}");
            return Err(EndedBefore(ended).into());
        }
        let images = dir.join(number.to_string());
        fs::create_dir(&images)?;
        let path = images.display().to_string();
        let mut args = vec![verb, "-t", &pid, "--track-mem", "-D", &path, "-o", "log"];
        if number > 0 {
            args.extend(["--prev-images-dir", "../0", "--leave-running"]);
        }
        phases.push(phase(kit, bits, &args, &images)?);
    }
    let checkpointed = engine.end()?;
    fs::remove_dir_all(dir)?;
    // An increment without pages that stayed as they were is none: the bits were not used.
    let skipped = phases[1]["pages_skipped_parent"].as_u64();
    ensure!(
        skipped.is_some_and(|pages| pages > 0),
        "{command}: the dump has all pages again: {}",
        phases[1]
    );
    Ok((checkpointed, phases))
}

/// A running engine, in a session of its own. It is killed in the end, unless it has ended.
struct Engine {
    child: Child,
    began: Instant,
}

impl Engine {
    fn start(command: &str) -> Result<Self> {
        let began = Instant::now();
        let mut setsid = Command::new("setsid");
        setsid.args(command.split(' ')).current_dir("/");
        setsid.stdin(Stdio::null()).stdout(Stdio::null());
        let child = setsid.stderr(Stdio::null()).spawn();
        let child = child.context("cannot run setsid")?;
        Ok(Self { child, began })
    }

    /// Waits for its end; how long it has run.
    fn end(mut self) -> Result<Duration> {
        let status = self.child.wait()?;
        ensure!(status.success(), "an engine: {status}");
        Ok(self.began.elapsed())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
