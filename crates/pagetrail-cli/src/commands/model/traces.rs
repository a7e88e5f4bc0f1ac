//! `model trace`: traces are recorded from a program under Valgrind, imported, and looked at.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::Result;
use pagetrail_model::trace::lackey::LackeyOptions;
use pagetrail_model_report::traces::{self, NoRecorder, Recorded};
use pagetrail_report::words;

use super::args::{KeepArgs, TraceCommand, TraceImportArgs, TraceRecordArgs};
use crate::exit;
use crate::session::waiting::Waiting;

/// Runs one of the subcommands.
pub(super) fn run(command: &TraceCommand) -> Result<ExitCode> {
    match command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Import(args) => import(args),
        TraceCommand::Show(args) => {
            let summary = traces::summary(&args.trace)?;
            super::output(args.json, &summary, traces::write)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn record(args: &TraceRecordArgs) -> Result<ExitCode> {
    let started =
        || exit::message("recording by Valgrind: the program runs up to 1000 times slower");
    let options = options(&args.keep);
    match traces::record(&args.command, &args.output, options, started) {
        Err(error) if error.is::<NoRecorder>() => {
            exit::message(&error.to_string());
            Ok(ExitCode::from(exit::MACHINE))
        }
        Err(error) => Err(error),
        Ok(Recorded::Ended(status)) => Ok(of_program(status)),
        Ok(Recorded::AtLimit) => {
            exit::message(&format!(
                "ended the program after {} loads and stores; a larger --limit records more",
                words::count(args.keep.limit)
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn import(args: &TraceImportArgs) -> Result<ExitCode> {
    let waiting = Waiting::during("importing the recording");
    let is_complete = traces::import_file(&args.recording, &args.trace, options(&args.keep));
    drop(waiting);
    if !is_complete? {
        exit::message(&format!(
            "the trace has the first {} loads and stores; a larger --limit takes more",
            words::count(args.keep.limit)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn options(keep: &KeepArgs) -> LackeyOptions {
    LackeyOptions {
        round_every: keep.round_every,
        once_per_round: !keep.all,
        limit: keep.limit,
        ..LackeyOptions::default()
    }
}

/// A program's own exit status, as a shell gives it.
fn of_program(status: ExitStatus) -> ExitCode {
    exit::of_program(match (status.code(), status.signal()) {
        (Some(code), _) => Some(pagetrail::Ended::Exited(code)),
        (_, Some(signal)) => Some(pagetrail::Ended::Killed(signal)),
        _ => None,
    })
}
