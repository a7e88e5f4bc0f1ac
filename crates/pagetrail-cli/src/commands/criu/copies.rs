//! `pagetrail restore --count`: copies of a process, each in a PID namespace and a mount namespace
//! of its own, which end with their first process (see `first`): all are started, or none.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagetrail_criu::{Engine, Error, ProcessCopy, check_addresses, check_kind};
use pagetrail_report::words;
use serde_json::{Value, json};

use super::args::RestoreArgs;
use super::with_cure;
use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::{open, text};
use crate::exit;
use crate::session::signals::{Addressee, Signals};

/// How often is looked whether a copy has ended, or a signal has come.
const POLL: Duration = Duration::from_millis(50);
/// What the messages of this program begin with.
const PREFIX: &str = "pagetrail: ";

/// Runs the subcommand.
pub(super) fn run(args: &RestoreArgs, count: u32) -> Result<ExitCode> {
    // What all copies would fail at is said once.
    Engine::find().map_err(with_cure)?;
    let store = open(&args.store, &args.key)?;
    let mut image = image(&store, args.at.as_ref())?;
    check_kind(&mut image).map_err(with_cure)?;
    let number = image.manifest().number;
    if count > 1 {
        for address in check_addresses(&mut image).map_err(with_cure)? {
            exit::message(&format!("the last copy has {address}, the others lose it"));
        }
    }
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let mut copies = Vec::new();
    for _ in 0..count {
        let first_process = first_process(args, number)?;
        copies.push(ProcessCopy::start(first_process).map_err(with_cure)?);
    }
    for (copy, at) in copies.iter_mut().zip(1..) {
        copy.wait_until_it_runs()
            .map_err(without_prefix)
            .with_context(|| format!("copy {at} of {count} cannot be started"))?;
    }
    if signals.stop_requested() {
        bail!("interrupted; no copy is left");
    }
    say(args, number, &copies)?;
    if args.wait {
        return Ok(wait_for_all(copies, &mut signals));
    }
    for copy in copies {
        copy.leave().map_err(with_cure)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command of a copy's first process.
fn first_process(args: &RestoreArgs, number: u64) -> Result<Vec<OsString>> {
    let program = env::current_exe().context("cannot find this program")?;
    let mut command: Vec<OsString> = vec![program.into(), "restore".into()];
    command.extend(["--first-of-copy".into(), "--at".into()]);
    command.push(number.to_string().into());
    command.extend(args.lazy.then(|| "--lazy".into()));
    if let Some(file) = &args.key.key_file {
        command.extend(["--key-file".into(), file.into()]);
    }
    let passed_on = args.criu_arg.iter();
    command.extend(passed_on.map(|arg| format!("--criu-arg={arg}").into()));
    command.extend(["--".into(), (&args.store).into()]);
    Ok(command)
}

/// What the first process said is said by this program now.
fn without_prefix(error: Error) -> anyhow::Error {
    match error {
        Error::CopyEnded(line) => anyhow::anyhow!("{}", stripped(&line)),
        error => with_cure(error),
    }
}

fn stripped(line: &str) -> &str {
    line.strip_prefix(PREFIX).unwrap_or(line)
}

fn say(args: &RestoreArgs, number: u64, copies: &[ProcessCopy]) -> Result<()> {
    if args.json {
        let all: Vec<Value> = copies.iter().map(document).collect();
        let document = json!({"schema": 1, "number": number, "copies": all});
        return text::print(&document.to_string());
    }
    for (copy, at) in copies.iter().zip(1..) {
        text::print(&format!(
            "checkpoint {number}, copy {at}: process {} runs after {}; it ends with process {}",
            copy.pid(),
            words::time(copy.running().as_nanos() as f64),
            copy.first_pid()
        ))?;
    }
    Ok(())
}

fn document(copy: &ProcessCopy) -> Value {
    json!({
        "pid": copy.pid(),
        "first_pid": copy.first_pid(),
        "running_ns": copy.running().as_nanos() as u64,
    })
}

/// Waits until all have ended, or a signal has come: then they end. Tells whether all went well.
fn wait_for_all(copies: Vec<ProcessCopy>, signals: &mut Signals) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut running: Vec<(ProcessCopy, u32)> = copies.into_iter().zip(1..).collect();
    while !running.is_empty() && !signals.stop_requested() {
        running.retain_mut(|(copy, at)| {
            let ended = copy.ended();
            if ended.and_then(|status| status.code()) == Some(exit::OPERATION.into()) {
                let complaint = copy.complaint();
                exit::message(&format!("copy {at} has ended: {}", stripped(&complaint)));
                code = ExitCode::from(exit::OPERATION);
            }
            ended.is_none()
        });
        thread::sleep(POLL);
    }
    code
}
