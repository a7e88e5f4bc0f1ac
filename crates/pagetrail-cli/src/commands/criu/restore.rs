//! `pagetrail restore`: a process started anew from a checkpoint that CRIU made.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pagetrail_checkpoint::criu::Written;
use pagetrail_checkpoint::{Image, Store};
use pagetrail_criu::{Engine, Given, RestoreOptions, Restored};
use pagetrail_report::words;
use serde_json::json;

use super::args::RestoreArgs;
use super::{copies, first, with_cure};
use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::{open, text};
use crate::session::signals::{Addressee, Signals};
use crate::session::waiting::Waiting;

/// Runs the subcommand.
pub(crate) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    match args.count {
        Some(count) => copies::run(args, count),
        None if args.first_of_copy => first::run(args),
        None if args.wait => bail!(
            "a process that CRIU starts is not this command's child, so it cannot be waited for; with --count 1 it can"
        ),
        None => one(args),
    }
}

/// Starts the process, once all is there that it needs.
pub(super) fn start(args: &RestoreArgs, store: &Store, image: Image) -> Result<Restored> {
    let engine = Engine::find().map_err(with_cure)?;
    let options = RestoreOptions {
        lazy: args.lazy,
        passed_on: &args.criu_arg,
    };
    Restored::start(&engine, store, image, options).map_err(with_cure)
}

/// Starts the process with the PIDs that it had.
fn one(args: &RestoreArgs) -> Result<ExitCode> {
    // The program may need its pages: an interrupt is for it, not for its memory.
    let _signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let store = open(&args.store, &args.key)?;
    let image = image(&store, args.at.as_ref())?;
    let number = image.manifest().number;
    let waiting = || Waiting::on("starting the processes", store.progress(), args.progress);
    let started = waiting();
    let restored = start(args, &store, image)?;
    drop(started);
    let (pid, written, running) = (restored.pid(), restored.written(), restored.running());
    if !args.json {
        let rest = match written.lazy_pages {
            0 => String::new(),
            pages => format!(
                "; {} follow as it touches them",
                words::plural(pages, "page")
            ),
        };
        text::print(&format!(
            "checkpoint {number}: process {pid} runs after {}{rest}",
            words::time(running.as_nanos() as f64)
        ))?;
    }
    let finishing = args.lazy.then(waiting);
    let given = restored.finish().map_err(with_cure)?;
    drop(finishing);
    if args.json {
        let running_ns = running.as_nanos() as u64;
        text::print(&document(number, pid, written, running_ns, given).to_string())?;
    } else if args.lazy {
        text::print(&format!(
            "checkpoint {number}: process {pid} has all its pages after {}",
            words::time(given.elapsed.as_nanos() as f64)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn document(
    number: u64,
    pid: u32,
    written: Written,
    running_ns: u64,
    given: Given,
) -> serde_json::Value {
    json!({
        "schema": 1,
        "number": number,
        "pid": pid,
        "pages": written.pages,
        "lazy_pages": written.lazy_pages,
        "given_pages": given.pages,
        "running_ns": running_ns,
        "total_ns": given.elapsed.as_nanos() as u64,
    })
}
