//! A process started anew without CRIU, by `pagetrail-restore`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pagetrail::Ended;
use pagetrail_checkpoint::Image;
use pagetrail_report::words;
use pagetrail_restore::{Error, Missing, PidChoice, RestoreOptions, Restored, Stdio, restore};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde_json::json;

use super::args::{MissingArg, StdioArg};
use crate::commands::checkpoint::text;
use crate::commands::criu::args::RestoreArgs;
use crate::exit;
use crate::session::signals::{Addressee, Signals};

/// Starts the process of an image.
pub(super) fn run(args: &RestoreArgs, mut image: Image) -> Result<ExitCode> {
    let number = image.manifest().number;
    if args.lazy || args.count.is_some() || !args.criu_arg.is_empty() {
        bail!(
            "checkpoint {number} was taken without CRIU; --lazy, --count and --criu-arg are for those of CRIU"
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
        foreground: args.wait,
    };
    // The keyboard's signals are for the program, which is in the foreground then.
    let _signals = match args.wait {
        true => Some(Signals::take(Addressee::Us).context("cannot handle signals")?),
        false => None,
    };
    let restored = restore(&mut image, &options).map_err(plain)?;
    for lost in &restored.lost {
        exit::message(lost);
    }
    tell(args, number, &restored)?;
    match args.wait {
        true => Ok(exit::of_program(end_of(restored.pid)?)),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn tell(args: &RestoreArgs, number: u64, restored: &Restored) -> Result<()> {
    if args.json {
        let document = json!({
            "schema": 1,
            "number": number,
            "pid": restored.pid,
            "threads": restored.threads,
            "pages": restored.pages,
            "lost": restored.lost,
            "running_ns": restored.elapsed.as_nanos() as u64,
        });
        return text::print(&document.to_string());
    }
    let line = format!(
        "checkpoint {number}: process {} runs after {}, with {} and {}",
        restored.pid,
        words::time(restored.elapsed.as_nanos() as f64),
        words::plural(restored.threads as u64, "thread"),
        words::plural(restored.pages, "page"),
    );
    match args.wait {
        // Standard output is the program's.
        true => exit::message(&line),
        false => text::print(&line)?,
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
fn plain(error: Error) -> anyhow::Error {
    match error {
        Error::Store(error) => crate::commands::checkpoint::plain(error),
        Error::Process(error) => error.into(),
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
