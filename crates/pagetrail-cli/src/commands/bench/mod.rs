//! `pagetrail bench`: checks what is asked for, measures, and writes the tables.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pagetrail::{Capabilities, Technique};
use pagetrail_bench::measure::{self, Plan};
use pagetrail_bench::oracle::Missed;
use pagetrail_bench::{child, infile, memory, metrics, page, suite, table};
use pagetrail_report::size::Size;
use serde::Serialize;

use self::args::BenchArgs;
use crate::exit;
use crate::outfile::{Kind, OutFile};
use crate::session::pace::Share;

pub(crate) mod args;

/// More bytes than any suite has.
const SUITE_BYTES_MAX: u64 = 1 << 20;

/// Runs the subcommand.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    if let Some(size) = args.as_writer {
        child::serve(size)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(workload) = &args.as_workload {
        suite::writer::serve(workload)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &args.suite {
        return run_suite(args, file);
    }
    if args.metrics {
        return run_metrics(args);
    }
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(reason) => {
            exit::message(&reason);
            return Ok(ExitCode::from(exit::MACHINE));
        }
    };
    memory::check(&plan.sizes, &plan.techniques)?;
    // Before minutes of measuring, not after.
    let html = open_page(args)?;
    let Some(results) = believed(measure::run(&plan, progress()))? else {
        return Ok(ExitCode::from(exit::NEGATIVE));
    };
    keep(
        args,
        html,
        &results,
        &|out| page::write(&results, out),
        &|out| table::write(&results, out),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Measures single steps.
fn run_metrics(args: &BenchArgs) -> Result<ExitCode> {
    let sizes = sizes(args);
    memory::check(&sizes, &[])?;
    let found = metrics::run(&sizes, args.runs, progress());
    clear_progress();
    let found = found?;
    let text = |out: &mut dyn Write| metrics::write(&found, out);
    keep(args, None, &found, &|_| Ok(()), &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a suite.
fn run_suite(args: &BenchArgs, file: &Path) -> Result<ExitCode> {
    let text = infile::text(file, "suite", SUITE_BYTES_MAX)?;
    let definition = suite::definition::Definition::parse(&text);
    let mut definition = definition.with_context(|| format!("{} is no suite", file.display()))?;
    if !args.technique.is_empty() {
        definition.techniques.clone_from(&args.technique);
    }
    if let Some(Share(share)) = args.max_overhead {
        definition.max_overhead = Some(share);
    }
    if args.quick {
        definition.shorten()?;
    }
    // Before minutes of measuring, not after.
    let html = open_page(args)?;
    let measured = suite::measure::run(&definition, &args.programs, &mut progress());
    let Some(results) = believed(measured)? else {
        return Ok(ExitCode::from(exit::NEGATIVE));
    };
    keep(
        args,
        html,
        &results,
        &|out| suite::page::write(&results, out),
        &|out| suite::table::write(&results, out),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What was measured; `None`, and a message, where a technique has missed a write.
fn believed<T>(measured: Result<T>) -> Result<Option<T>> {
    clear_progress();
    match measured {
        Err(error) if error.is::<Missed>() => {
            exit::message(&format!("{error:#}"));
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Writes a way to show results.
type Show<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

/// Writes results where they are wanted: as a page, and as a document or tables.
fn keep(
    args: &BenchArgs,
    html: Option<OutFile>,
    results: &impl Serialize,
    page: Show<'_>,
    tables: Show<'_>,
) -> Result<()> {
    if let Some(html) = html {
        html.write(page)?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => serde_json::to_writer_pretty(&mut out, results)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => tables(&mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// What to measure, or why that cannot be done here.
fn plan(args: &BenchArgs) -> Result<Plan, String> {
    let capabilities = Capabilities::probe();
    let mut techniques: Vec<Technique> = Vec::new();
    if args.technique.is_empty() {
        techniques.extend(
            Technique::ALL
                .into_iter()
                .filter(|t| capabilities.works(*t)),
        );
    }
    for &technique in &args.technique {
        if let Some(reason) = capabilities.status(technique).reason() {
            return Err(format!("{technique} does not work here: {reason}"));
        }
        if !techniques.contains(&technique) {
            techniques.push(technique);
        }
    }
    Ok(Plan {
        sizes: sizes(args),
        techniques,
        runs: args.runs,
    })
}

fn sizes(args: &BenchArgs) -> Vec<Size> {
    let mut sizes = args.size.clone();
    sizes.sort_by_key(|size| size.bytes());
    sizes.dedup();
    sizes
}

fn open_page(args: &BenchArgs) -> Result<Option<OutFile>> {
    let html = args.html.as_deref();
    html.map(|path| OutFile::open(path, Kind::Page)).transpose()
}

/// Says on a terminal what is being measured.
pub(crate) fn progress() -> impl FnMut(&str) {
    let wanted = io::stderr().is_terminal();
    move |what| {
        if wanted {
            // Nothing is left to be done where standard error cannot be written.
            let _ = write!(io::stderr(), "\r\x1b[K{what}");
        }
    }
}

/// Erases what [`progress`] has said.
pub(crate) fn clear_progress() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}
