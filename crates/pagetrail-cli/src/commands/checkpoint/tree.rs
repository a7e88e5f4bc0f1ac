//! `pagetrail checkpoint --tree` and `--cgroup`: checkpoints of all processes of a tree or of a
//! control group at one instant; and `log`, `show` and `verify` of a store of such.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::Target;
use pagetrail_checkpoint::{
    Error, Manifest, ProcessOptions, TreeCheckpointer, TreeInstant, TreeStore,
};
use pagetrail_recorder::Schedule;
use pagetrail_report::words;
use serde_json::{Value, json};

use super::args::{LogArgs, ModeArg, ShowArgs, TakeArgs, Which};
use super::complaints::{self, Complaints, Pruning};
use super::{lock, plain, text};
use crate::exit;
use crate::session::signals::{Addressee, Signals};
use crate::session::waiting::Waiting;

/// How soon a signal, or the end of the tree, is noticed.
const POLL: Duration = Duration::from_millis(100);

/// Takes checkpoints of a tree.
pub(super) fn take(args: &TakeArgs) -> Result<ExitCode> {
    args.budget()?;
    // First, so that a wrong PID leaves no empty store.
    let asked = target(args)?;
    if args.store.to_string_lossy().contains("://") {
        bail!("checkpoints of a tree lie in a directory: --store DIRECTORY");
    }
    if matches!(args.mode, ModeArg::Cow) {
        bail!("--mode cow saves one process; a tree takes --mode precopy and --mode stop");
    }
    let exposed = args.writing.exposed();
    let options = ProcessOptions {
        mode: args.mode.into(),
        technique: args.technique.0,
        trust_subpages: args.trust_subpages,
        report_again: args.report_again,
        trust_shared: args.trust_shared,
        ..ProcessOptions::default()
    };
    let writing = args.writing.options(false);
    let mut tree = lock::waited(args.writing.lock_wait, || {
        let store = TreeStore::create(&args.store, exposed)?;
        TreeCheckpointer::attach(target(args)?, store, options, writing)
    })?;
    lock::check_is_same(&asked)?;
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let mut pruning = Pruning::default();
    if args.every.is_none() && args.count.is_none() {
        one(&mut tree, args, &mut pruning)?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = args.interval().unwrap_or(Duration::from_nanos(1));
    let mut schedule = Schedule::new(Instant::now(), interval, None);
    let (mut taken, mut has_failed) = (0, false);
    let mut complaints = Complaints::default();
    loop {
        match one(&mut tree, args, &mut pruning) {
            Ok(()) => {
                taken += 1;
                has_failed = false;
                if let Some(line) = complaints.over() {
                    exit::message(&line);
                }
            }
            Err(_) if taken > 0 && !tree.is_alive() => break,
            Err(error) if passes(&error, args) && tree.is_alive() => {
                has_failed = true;
                let line = format!("{error:#}; trying again in time for the next");
                if let Some(line) = complaints.line(line, Instant::now()) {
                    exit::message(&words::printable(&line));
                }
            }
            Err(error) => return Err(error),
        }
        if args.count.is_some_and(|count| taken >= count) {
            break;
        }
        let now = Instant::now();
        schedule.advance(now);
        if has_failed {
            complaints::rest(&mut schedule, now);
        }
        if !wait(&mut signals, &tree, schedule.deadline()) {
            break;
        }
    }
    // What was said last is how it ended.
    Ok(ExitCode::from(if has_failed { exit::OPERATION } else { 0 }))
}

/// The processes that are asked for.
fn target(args: &TakeArgs) -> pagetrail::Result<Target> {
    match &args.cgroup {
        Some(path) => Target::cgroup(path),
        None => Target::tree(args.pid),
    }
}

/// Waits for the next checkpoint; false when the tree has ended or somebody asked to stop.
fn wait(signals: &mut Signals, tree: &TreeCheckpointer, deadline: Instant) -> bool {
    loop {
        if signals.stop_requested() {
            return false;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(POLL));
        if !tree.is_alive() {
            return false;
        }
    }
}

/// Whether trying again can help. A full store has no room a moment later.
fn passes(error: &anyhow::Error, args: &TakeArgs) -> bool {
    use pagetrail::Error::{Frozen, NotStopping, Traced};
    let of_store = match error.downcast_ref() {
        Some(Error::Io { .. }) => args.every.is_some(),
        Some(Error::Busy { .. } | Error::NotNow(_)) => true,
        _ => false,
    };
    let of_process = matches!(
        error.downcast_ref(),
        Some(NotStopping { .. } | Frozen { .. } | Traced { .. })
    );
    of_store || of_process
}

/// Takes a checkpoint of each process, and tells about it.
fn one(tree: &mut TreeCheckpointer, args: &TakeArgs, pruning: &mut Pruning) -> Result<()> {
    let began = Instant::now();
    let (instant, manifests) = tree.checkpoint().map_err(plain)?;
    let line = match args.json {
        true => document(&instant, &manifests).to_string(),
        false => taken(&instant, &manifests, began.elapsed()),
    };
    writeln!(io::stdout(), "{line}").context("cannot write to standard output")?;
    if let Some(keep) = args.keep {
        pruning.of(tree.prune(keep as usize).map_err(plain), "instants");
    }
    Ok(())
}

/// An instant that has just been taken.
fn taken(instant: &TreeInstant, manifests: &[Manifest], took: Duration) -> String {
    let sum = |of: fn(&Manifest) -> u64| manifests.iter().map(of).sum::<u64>();
    let pause = manifests
        .iter()
        .map(|manifest| manifest.cost.pause_ns)
        .max();
    format!(
        "instant {}: {}, {} copied, {} new to the store ({}), paused {}, took {}",
        instant.number,
        processes(instant.processes.len()),
        words::plural(sum(|manifest| manifest.cost.copied_pages), "page"),
        words::count(sum(|manifest| manifest.cost.stored_pages)),
        words::bytes(sum(Manifest::bytes_in_store) as f64),
        words::time(pause.unwrap_or(0) as f64),
        words::time(took.as_nanos() as f64)
    )
}

fn processes(count: usize) -> String {
    match count {
        1 => "1 process".into(),
        count => format!("{} processes", words::count(count as u64)),
    }
}

/// An instant as JSON, with what its checkpoints cost where that is known.
fn document(instant: &TreeInstant, manifests: &[Manifest]) -> Value {
    let processes = instant.processes.iter().enumerate().map(|(at, part)| {
        let manifest = manifests.get(at);
        json!({
            "process": part.process,
            "pid": part.pid,
            "parent_pid": part.parent,
            "checkpoint": part.checkpoint,
            "taken_unix_ns": part.taken_unix_ns,
            "command": manifest.and_then(|manifest| Some(&manifest.process.as_ref()?.command)),
            "copied_pages": manifest.map(|manifest| manifest.cost.copied_pages),
            "stored_pages": manifest.map(|manifest| manifest.cost.stored_pages),
            "pause_ns": manifest.map(|manifest| manifest.cost.pause_ns),
        })
    });
    json!({
        "schema": 1,
        "instant": instant.number,
        "taken_unix_ns": instant.taken_unix_ns,
        "processes": processes.collect::<Vec<_>>(),
    })
}

/// The store of trees at a place, if it is one.
pub(super) fn at(path: &Path) -> Result<Option<TreeStore>> {
    match TreeStore::is_at(path) {
        true => Ok(Some(TreeStore::open(path).map_err(plain)?)),
        false => Ok(None),
    }
}

/// Refuses a store of trees where that of one process is needed.
pub(crate) fn refuse(path: &Path) -> Result<()> {
    if TreeStore::is_at(path) {
        let path = path.display().to_string();
        let path = words::printable(&path);
        bail!(
            "{path} has checkpoints of trees; those of one process are in {path}/processes/N (see pagetrail show {path})"
        );
    }
    Ok(())
}

/// Runs `log`.
pub(super) fn log(store: &TreeStore, args: &LogArgs) -> Result<ExitCode> {
    let (mut instants, mut damages) = (Vec::new(), Vec::new());
    for number in store.numbers().map_err(plain)? {
        match store.instant(number) {
            Ok(instant) => instants.push(instant),
            Err(error) => damages.push(error.to_string()),
        }
    }
    text::print(&match args.json {
        true => {
            let instants = instants.iter().map(|instant| document(instant, &[]));
            json!({ "schema": 1, "instants": instants.collect::<Vec<_>>(), "damages": damages })
                .to_string()
        }
        false if instants.is_empty() => "no checkpoint".into(),
        false => {
            let mut table = text::plain_table(&["instant", "taken", "processes"]);
            for instant in &instants {
                table.add_row([
                    instant.number.to_string(),
                    text::time(instant.taken_unix_ns),
                    words::count(instant.processes.len() as u64),
                ]);
            }
            table.to_string()
        }
    })?;
    for damage in &damages {
        exit::message(&words::printable(damage));
    }
    Ok(ExitCode::from(if damages.is_empty() {
        0
    } else {
        exit::NEGATIVE
    }))
}

/// Runs `show`.
pub(super) fn show(store: &TreeStore, args: &ShowArgs) -> Result<ExitCode> {
    let number = match &args.number {
        None => store.newest().map_err(plain)?,
        Some(Which::Number(number)) => *number,
        Some(Which::Label(label)) => bail!("instants of a tree have no labels: {label}"),
    };
    let instant = store.instant(number).map_err(plain)?;
    let mut manifests = Vec::new();
    for part in &instant.processes {
        let manifest = store.process(part.process);
        let manifest = manifest.and_then(|store| store.manifest(part.checkpoint));
        manifests.push(manifest.map_err(plain)?);
    }
    if args.json {
        text::print(&document(&instant, &manifests).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        text::plain_table(&["process", "checkpoint", "PID", "parent", "pages", "command"]);
    for (part, manifest) in instant.processes.iter().zip(&manifests) {
        let command = manifest.process.as_ref().map(text::command);
        let page_size = u64::from(manifest.page_size.max(1));
        table.add_row([
            part.process.to_string(),
            part.checkpoint.to_string(),
            part.pid.to_string(),
            part.parent.map_or_else(String::new, |pid| pid.to_string()),
            words::count(manifest.saved_bytes() / page_size),
            command.unwrap_or_default(),
        ]);
    }
    text::print(&format!(
        "instant {}, taken {}\n{table}",
        instant.number,
        text::time(instant.taken_unix_ns)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `verify`.
pub(super) fn verify(store: &TreeStore, args: &LogArgs) -> Result<ExitCode> {
    let waiting = Waiting::during("verifying the store");
    let problems = store.verify().map_err(plain)?;
    drop(waiting);
    let instants = store.numbers().map_err(plain)?.len() as u64;
    if args.json {
        text::print(
            &json!({ "schema": 1, "instants": instants, "damages": problems }).to_string(),
        )?;
    } else if problems.is_empty() {
        text::print(&format!(
            "{} of a tree, nothing damaged",
            words::plural(instants, "instant")
        ))?;
    }
    for problem in problems.iter().filter(|_| !args.json) {
        exit::message(&words::printable(problem));
    }
    Ok(ExitCode::from(if problems.is_empty() {
        0
    } else {
        exit::NEGATIVE
    }))
}
