//! `pagetrail restore`: a process started anew from a checkpoint that CRIU made.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagetrail_checkpoint::Image;
use pagetrail_checkpoint::criu::{Written, regular_files};
use pagetrail_criu::{Engine, Lazy, Scratch, lineage, reason};
use pagetrail_report::words;
use serde_json::json;

use super::args::RestoreArgs;
use super::{copies, first};
use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::{open, plain, text};
use crate::session::signals::{Addressee, Signals};

/// The file in which CRIU says the process that it started.
const PID_FILE: &str = "pagetrail.pid";
/// The PID of the first process of a namespace, with which all others end.
const FIRST_PID: u32 = 1;
/// Without this a checkpoint cannot be restored from the store alone.
const INVENTORY: &str = "inventory.img";
/// Images of files that have no name any more, and of mounts of their own: paths say nothing then.
const NAMELESS: &[&str] = &["remap-fpath", "mountpoints-", "ghost-file"];

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

/// A process that runs, and what it still needs.
pub(super) struct Started {
    pub(super) pid: u32,
    number: u64,
    written: Written,
    began: Instant,
    pub(super) running: Duration,
    lazy: Option<Lazy>,
    scratch: Scratch,
}

impl Started {
    /// Waits until the process has all its pages; says how many were given.
    pub(super) fn finish(self) -> Result<u64> {
        match self.lazy {
            Some(lazy) => Ok(lazy.finish(self.scratch.path())?),
            None => Ok(0),
        }
    }
}

/// Starts the process, once all is there that it needs.
pub(super) fn start(args: &RestoreArgs) -> Result<Started> {
    let engine = Engine::find()?;
    let store = open(&args.store, &args.key)?;
    let mut image = image(&store, args.at.as_ref())?;
    let number = image.manifest().number;
    let names = check_kind(&mut image)?;
    check_pids(&image)?;
    let began = Instant::now();
    let scratch = Scratch::new()?;
    let written = image
        .export_criu(scratch.path(), args.lazy)
        .map_err(plain)?;
    if !names
        .iter()
        .any(|name| NAMELESS.iter().any(|prefix| name.starts_with(prefix)))
    {
        check_files(scratch.path())?;
    }
    let mut pids = image.criu_processes();
    let has_namespace = pids.contains(&FIRST_PID);
    if has_namespace {
        pids.clear();
    }
    let mut lazy = match args.lazy {
        true => Some(Lazy::start(&engine, scratch.path(), &store, number, &pids)?),
        false => None,
    };
    let mut command = engine.command("restore", scratch.path());
    command.args(["--restore-detached", "--pidfile", PID_FILE]);
    command.args(args.lazy.then_some("--lazy-pages"));
    command.args(&args.criu_arg);
    let status = command.status().context("cannot run CRIU")?;
    if !status.success() {
        let reason = reason("restore", scratch.path());
        drop(lazy);
        bail!("CRIU cannot restore checkpoint {number}: {reason}");
    }
    let running = began.elapsed();
    let pid = fs::read_to_string(scratch.path().join(PID_FILE)).unwrap_or_default();
    let pid: u32 = pid.trim().parse().unwrap_or(0);
    if let Some(lazy) = &mut lazy {
        if has_namespace {
            pids.push(pid);
        }
        lazy.watch(&pids)?;
    }
    lineage::note(pid, image.manifest());
    Ok(Started {
        pid,
        number,
        written,
        began,
        running,
        lazy,
        scratch,
    })
}

/// Starts the process with the PIDs that it had.
fn one(args: &RestoreArgs) -> Result<ExitCode> {
    // The program may need its pages: an interrupt is for it, not for its memory.
    let _signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let started = start(args)?;
    let (pid, number, written) = (started.pid, started.number, started.written);
    let (began, running) = (started.began, started.running);
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
    let given = started.finish()?;
    if args.json {
        let document = json!({
            "schema": 1,
            "number": number,
            "pid": pid,
            "pages": written.pages,
            "lazy_pages": written.lazy_pages,
            "given_pages": given,
            "running_ns": running.as_nanos() as u64,
            "total_ns": began.elapsed().as_nanos() as u64,
        });
        text::print(&document.to_string())?;
    } else if args.lazy {
        text::print(&format!(
            "checkpoint {number}: process {pid} has all its pages after {}",
            words::time(began.elapsed().as_nanos() as f64)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses checkpoints that hold no more than pages; gives the names of the other files.
pub(super) fn check_kind(image: &mut Image) -> Result<Vec<String>> {
    let number = image.manifest().number;
    match image.criu_files().map_err(plain)? {
        None => bail!(
            "checkpoint {number} was not made to start a process from; take one with checkpoint --restorable"
        ),
        Some(names) if !names.iter().any(|name| name == INVENTORY) => bail!(
            "checkpoint {number} has the pages alone, which came through page-server; export --criu writes \
             them to the directory of CRIU's other files"
        ),
        Some(names) => Ok(names),
    }
}

/// Refuses to restore processes whose PIDs are taken.
fn check_pids(image: &Image) -> Result<()> {
    let pids = image.criu_processes();
    if pids.contains(&FIRST_PID) {
        // They have a PID namespace of their own.
        return Ok(());
    }
    for pid in pids {
        if Path::new(&format!("/proc/{pid}")).exists() {
            bail!(
                "checkpoint {} needs PID {pid}, which {} has; end that, or start a copy in a PID namespace of its own: \
                 restore --count 1",
                image.manifest().number,
                holder(pid)
            );
        }
    }
    Ok(())
}

/// Who has a PID.
fn holder(pid: u32) -> &'static str {
    // The state follows the name, which may hold anything (`proc_pid_stat(5)`).
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    match rest.trim_start().starts_with('Z') {
        true => "a process that has ended, for which its parent has not waited,",
        false => "another process",
    }
}

/// Refuses files that are not what they were: CRIU compares their sizes.
fn check_files(directory: &Path) -> Result<()> {
    let image = fs::read(directory.join("files.img")).unwrap_or_default();
    for file in regular_files(&image).unwrap_or_default() {
        let name = words::printable(&file.name).into_owned();
        match fs::metadata(&file.name) {
            Err(error) => bail!("the program had {name} open, which cannot be opened now: {error}"),
            Ok(now) => {
                let then = file.bytes.unwrap_or(now.len());
                ensure!(
                    now.len() == then,
                    "the program had {name} open, which has changed since: it has {} bytes now and had {then}",
                    now.len()
                );
            }
        }
    }
    Ok(())
}
