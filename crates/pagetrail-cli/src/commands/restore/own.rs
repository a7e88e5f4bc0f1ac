//! A process started anew without CRIU, by `pagetrail-restore`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use pagetrail::Ended;
use pagetrail_checkpoint::{Image, Progress};
use pagetrail_criu::lineage;
use pagetrail_report::words;
use pagetrail_restore::{
    Error, Missing, Pager, PidChoice, RestoreOptions, Restored, Stdio, check_lazily, restore,
    restore_lazily,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde_json::json;

use super::args::{MissingArg, StdioArg};
use super::copies;
use crate::commands::checkpoint::text;
use crate::commands::criu::args::RestoreArgs;
use crate::exit;
use crate::session::signals::{Addressee, Signals};
use crate::session::waiting::Waiting;

/// Starts the process of an image.
pub(super) fn run(args: &RestoreArgs, mut image: Image) -> Result<ExitCode> {
    let (number, id) = (image.manifest().number, image.manifest().id);
    if !args.criu_arg.is_empty() {
        bail!("checkpoint {number} was taken without CRIU; --criu-arg is for those of CRIU");
    }
    if args.count.is_some() && args.lazy {
        bail!(
            "checkpoint {number} was taken without CRIU; its copies share their pages, which --lazy would give to \
             each of them"
        );
    }
    let own = &args.own;
    let options = RestoreOptions {
        pid: match own.any_pid {
            true => PidChoice::Any,
            false => PidChoice::Same,
        },
        stdio: match own.stdio {
            StdioArg::Inherit => Stdio::Inherit,
            StdioArg::Null => Stdio::Null,
        },
        on_missing: match own.on_missing {
            MissingArg::Fail => Missing::Fail,
            MissingArg::Null => Missing::Null,
        },
        allow_changed_files: own.allow_changed_files,
        foreground: args.wait && args.count.is_none(),
        keep_touches: true,
    };
    if let Some(count) = args.count {
        return copies::run(args, image, &options, count);
    }
    // The keyboard's signals are for the program, which is in the foreground then. One that lacks
    // pages needs this process.
    let _signals = match args.wait || args.lazy {
        true => Some(Signals::take(Addressee::Us).context("cannot handle signals")?),
        false => None,
    };
    let is_lazy = args.lazy && is_lazy_possible(number)?;
    let progress = Arc::clone(image.progress());
    if !is_lazy {
        progress.begin("reading pages", image.pages().bytes());
    }
    let starting = Waiting::on("starting the process", &progress, args.progress);
    let (restored, pager) = match is_lazy {
        true => {
            let (restored, pager) = restore_lazily(image, &options).map_err(plain)?;
            (restored, Some(pager))
        }
        false => (restore(&mut image, &options).map_err(plain)?, None),
    };
    drop(starting);
    lineage::note(restored.pid, number, id);
    for lost in &restored.lost {
        exit::message(lost);
    }
    tell(args, number, &restored, pager, &progress)?;
    match args.wait {
        true => Ok(exit::of_program(end_of(restored.pid)?)),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// Whether the program can get its pages as it touches them; says why not.
fn is_lazy_possible(number: u64) -> Result<bool> {
    match check_lazily() {
        Ok(()) => Ok(true),
        Err(error @ Error::NotLazily(_)) => {
            let line = format!("checkpoint {number} is restored with all its pages: {error}");
            exit::message(&line);
            Ok(false)
        }
        Err(error) => Err(plain(error)),
    }
}

/// Says what runs; with a pager, also when the program has all its pages.
fn tell(
    args: &RestoreArgs,
    number: u64,
    restored: &Restored,
    pager: Option<Pager>,
    progress: &Arc<Progress>,
) -> Result<()> {
    let pid = restored.pid;
    let lacking = pager.as_ref().map_or(0, Pager::lacking_pages);
    let say = |line: &str| match args.wait {
        // Standard output is the program's.
        true => {
            exit::message(line);
            Ok(())
        }
        false => text::print(line),
    };
    let mut said = Ok(());
    if !args.json {
        let rest = match lacking {
            0 => String::new(),
            pages => format!(
                "; {} follow as it touches them",
                words::plural(pages, "page")
            ),
        };
        said = say(&format!(
            "checkpoint {number}: process {pid} runs after {}, with {} and {}{rest}",
            words::time(restored.elapsed.as_nanos() as f64),
            words::plural(restored.threads as u64, "thread"),
            words::plural(restored.pages, "page"),
        ));
    }
    // A program in the foreground has the terminal.
    let is_shown = pager.is_some() && (!args.wait || args.progress.progress);
    let waiting = is_shown.then(|| Waiting::on("giving pages", progress, args.progress));
    let given = match pager {
        Some(pager) => Some(pager.finish().map_err(plain)?),
        None => None,
    };
    drop(waiting);
    // The program has its pages all the same.
    said?;
    if args.json {
        let mut document = json!({
            "schema": 1,
            "number": number,
            "pid": pid,
            "threads": restored.threads,
            "pages": restored.pages,
            "lost": restored.lost,
            "running_ns": restored.elapsed.as_nanos() as u64,
        });
        if let Some(given) = given {
            document["lazy_pages"] = lacking.into();
            document["given_pages"] = given.pages.into();
            document["faults"] = given.faults.into();
            let total = restored.elapsed + given.elapsed;
            document["total_ns"] = (total.as_nanos() as u64).into();
        }
        return text::print(&document.to_string());
    }
    if let Some(given) = given {
        say(&format!(
            "checkpoint {number}: process {pid} has all its pages after {}; it waited for {}",
            words::time((restored.elapsed + given.elapsed).as_nanos() as f64),
            words::plural(given.faults, "page"),
        ))?;
    }
    Ok(())
}

/// Waits for the end of the program.
fn end_of(pid: u32) -> Result<Option<Ended>> {
    let pid = Pid::from_raw(pid as i32);
    loop {
        let waited = match waitpid(pid, WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            waited => waited.context("cannot wait for the program")?,
        };
        let Some((_, status)) = waited else { continue };
        let exited = status.exit_status().map(Ended::Exited);
        let ended = exited.or_else(|| status.terminating_signal().map(Ended::Killed));
        if ended.is_some() {
            return Ok(ended);
        }
    }
}

/// The error with its cause first, and the way out that the command has.
pub(super) fn plain(error: Error) -> anyhow::Error {
    match error {
        Error::Store(error) => crate::commands::checkpoint::plain(error),
        Error::Process(error) => error.into(),
        error @ Error::LacksPages(_) => {
            anyhow::anyhow!("{error}; verify says what else is damaged")
        }
        Error::NoPrivilege { .. } | Error::PidTaken { .. } => {
            anyhow::anyhow!("{error}; --any-pid gives it another")
        }
        Error::Changed(_) => {
            anyhow::anyhow!("{error}; --allow-changed-files restores all the same")
        }
        Error::Missing(_) => anyhow::anyhow!("{error}; --on-missing null makes it /dev/null"),
        error => error.into(),
    }
}
