//! `pagetrail model`: designs that need other hardware, run on a machine in software and priced.
//!
//! `pagetrail-model` runs them, and `pagetrail-model-report` makes documents of the runs. Here is
//! the command line: arguments ([`args`]), files, messages, exit codes.

pub(crate) mod args;
mod chapter;
mod programs;
mod traces;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pagetrail_model::reproduce::catalog::Number;
use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::{Error, RunError, RunErrorKind};
use pagetrail_model_report::outcome::Outcome;
use pagetrail_model_report::reproduced::{self, Listener, Request};
use pagetrail_model_report::{calibrate, compare, costs, single};
use serde::Serialize;

use self::args::{CompareArgs, CostsArgs, ModelArgs, ModelCommand, ReproduceArgs, RunArgs};
use self::chapter::Folder;
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
        ModelCommand::Trace(args) => traces::run(&args.command),
    }
}

fn one(args: &RunArgs) -> Result<ExitCode> {
    let costs = costs::load(&args.program.costs)?;
    let program = programs::named(&args.program, args.size)?;
    let waiting = Waiting::during("running the program on the model");
    let report = program.run(programs::conditions(&args.program), args.technique)?;
    drop(waiting);
    let document = single::Document::new(program.words(), &costs, &report);
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
    let mut document = compare::Document::new(&costs);
    let waiting = Waiting::during("running the programs on the model");
    for &size in &sizes {
        let program = programs::named(&args.program, size)?;
        if document.program.is_empty() {
            document.program = program.kind();
        }
        for &technique in &techniques {
            match program.run(programs::conditions(&args.program), technique) {
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
        html.write(|out| compare::page::write(&document, out))?;
    }
    output(args.json, &document, compare::write)?;
    Ok(verdict(&document.results))
}

fn reproduce(args: &ReproduceArgs) -> Result<ExitCode> {
    let html = open_page(args.html.as_deref())?;
    let report = args.report.as_deref();
    let report = report.map(|directory| Folder::open(directory, args.paper.name()));
    let report = report.transpose()?;
    let mut terminal = Terminal(progress());
    let document = reproduced::make(&request(args), &mut terminal);
    clear_progress();
    let document = document?;
    if let Some(html) = html {
        html.write(|out| reproduced::page::write(&document, out))?;
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

fn request(args: &ReproduceArgs) -> Request {
    let table = args.table.map(Number::Table);
    Request {
        paper: args.paper,
        number: table.or(args.figure.map(Number::Figure)),
        recordings: args.measured.clone(),
        measure: args.measure.then(|| args.size.clone()),
    }
}

/// Says on standard error how reproducing gets on.
struct Terminal<P>(P);

impl<P: FnMut(&str)> Listener for Terminal<P> {
    fn step(&mut self, step: &str) {
        self.0(step);
    }

    fn notice(&mut self, line: &str) {
        exit::message(line);
    }
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
