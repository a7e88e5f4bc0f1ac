//! `pagetrail model`: designs that need other hardware, run on a machine in software and priced.
//!
//! The crate `pagetrail-model` does the work. Here are its command line ([`args`]), the cost tables
//! that users write ([`costs`], [`calibrate`]), programs and recordings ([`program`],
//! [`recording`]), and the forms of the results.

pub(crate) mod args;
mod calibrate;
mod compare;
mod costs;
mod measure;
mod measured;
mod outcome;
mod page;
mod program;
mod recording;
mod reproduced;
mod reproduced_chapter;
mod reproduced_chart;
mod reproduced_page;
mod single;

use std::io::{self, BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::{Error, RunError, RunErrorKind};
use serde::Serialize;

use self::args::{
    CompareArgs, CostsArgs, ModelArgs, ModelCommand, ReproduceArgs, RunArgs, TraceCommand,
    TraceRecordArgs,
};
use self::outcome::Outcome;
use self::program::Program;
use self::recording::NoRecorder;
use self::reproduced_chapter::Chapter;
use crate::commands::bench::{clear_progress, progress};
use crate::exit;
use crate::outfile::{Kind, OutFile};
use crate::session::waiting::Waiting;

/// Runs the subcommand.
pub(crate) fn run(args: &ModelArgs) -> Result<ExitCode> {
    match &args.command {
        ModelCommand::Run(args) => one(args),
        ModelCommand::Compare(args) => side_by_side(args),
        ModelCommand::Reproduce(args) => reproduce(args),
        ModelCommand::Costs(args) => print_costs(args),
        ModelCommand::Trace(args) => match &args.command {
            TraceCommand::Record(args) => record(args),
            TraceCommand::Import(args) => {
                recording::import_file(&args.recording, &args.trace, &args.keep)?;
                Ok(ExitCode::SUCCESS)
            }
            TraceCommand::Show(args) => {
                let summary = recording::summary(&args.trace)?;
                output(args.json, &summary, recording::write)?;
                Ok(ExitCode::SUCCESS)
            }
        },
    }
}

fn one(args: &RunArgs) -> Result<ExitCode> {
    let costs = costs::load(&args.program.costs)?;
    let program = Program::new(&args.program, args.size)?;
    let waiting = Waiting::during("running the program on the model");
    let report = program.run(&args.program, args.technique)?;
    drop(waiting);
    let document = single::Document {
        schema: 1,
        program: program.words(),
        costs: costs.name(),
        outcome: Outcome::of(&report, &costs),
    };
    output(args.json, &document, single::write)?;
    if args.json {
        say_unpriced(&document.outcome, &args.program.costs);
    }
    Ok(verdict(std::slice::from_ref(&document.outcome)))
}

fn side_by_side(args: &CompareArgs) -> Result<ExitCode> {
    let costs = costs::load(&args.program.costs)?;
    let mut sizes = args.size.clone();
    sizes.sort_by_key(|size| size.bytes());
    sizes.dedup();
    // A trace has its own size.
    sizes.truncate(if args.program.trace.is_some() {
        1
    } else {
        sizes.len()
    });
    // Before a minute of running, not after.
    let html = open_page(args.html.as_deref())?;
    let mut techniques = args.technique.clone();
    if techniques.is_empty() {
        techniques.extend(TechniqueKind::ALL);
    }
    let mut document = compare::Document {
        schema: 1,
        program: String::new(),
        costs: costs.name(),
        absent: Vec::new(),
        results: Vec::new(),
    };
    let waiting = Waiting::during("running the programs on the model");
    for &size in &sizes {
        let program = Program::new(&args.program, size)?;
        if document.program.is_empty() {
            document.program = program.kind();
        }
        for &technique in &techniques {
            match program.run(&args.program, technique) {
                Ok(report) => document.results.push(Outcome::of(&report, &costs)),
                Err(error) if args.technique.is_empty() && is_unsupported(&error) => {
                    document.absent.push(format!("{error:#}"));
                }
                Err(error) => return Err(error),
            }
        }
    }
    drop(waiting);
    if let Some(html) = html {
        html.write(|out| page::write(&document, out))?;
    }
    output(args.json, &document, compare::write)?;
    Ok(verdict(&document.results))
}

fn reproduce(args: &ReproduceArgs) -> Result<ExitCode> {
    let html = open_page(args.html.as_deref())?;
    let report = args.report.as_deref();
    let report = report.map(|directory| Chapter::open(directory, args.paper.name()));
    let report = report.transpose()?;
    let document = reproduced::make(args, progress());
    clear_progress();
    let document = document?;
    if let Some(html) = html {
        html.write(|out| reproduced_page::write(&document, out))?;
    }
    if let Some(report) = report {
        report.write(&document)?;
    }
    output(args.json, &document, reproduced::write)?;
    Ok(match document.all_hold() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::NEGATIVE),
    })
}

fn print_costs(args: &CostsArgs) -> Result<ExitCode> {
    let table = match &args.bench {
        Some(path) => calibrate::table(path)?,
        None => costs::load(&args.table)?,
    };
    let text = costs::render(&table);
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn record(args: &TraceRecordArgs) -> Result<ExitCode> {
    match recording::record(&args.command, &args.output, &args.keep) {
        Err(error) if error.is::<NoRecorder>() => {
            exit::message(&error.to_string());
            Ok(ExitCode::from(exit::MACHINE))
        }
        outcome => outcome.map(of_program),
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

fn output<T: Serialize>(
    json: bool,
    document: &T,
    write: fn(&T, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match json {
        true => serde_json::to_writer_pretty(&mut out, document)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => write(document, &mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// A table that lacks something is no error, but should not go unnoticed where only JSON is read.
fn say_unpriced(outcome: &Outcome, costs: &Path) {
    if !outcome.unpriced.is_empty() {
        exit::message(&format!(
            "the times are lower bounds: the cost table {} has nothing for {}",
            costs.display(),
            outcome.unpriced.join(", ")
        ));
    }
}

/// A technique that missed a write is a finding.
fn verdict(outcomes: &[Outcome]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for outcome in outcomes {
        let missed = outcome.sum(|round| round.missed);
        if missed > 0 {
            exit::message(&format!("{} missed {missed} writes", outcome.technique));
            code = ExitCode::from(exit::NEGATIVE);
        }
    }
    code
}

fn is_unsupported(error: &anyhow::Error) -> bool {
    let reason = error.downcast_ref::<RunError>().map(|error| &error.reason);
    matches!(reason, Some(RunErrorKind::Machine(Error::Unsupported(_))))
}

fn open_page(path: Option<&Path>) -> Result<Option<OutFile>> {
    path.map(|path| OutFile::open(path, Kind::Page)).transpose()
}
