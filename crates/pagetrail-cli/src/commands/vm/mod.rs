//! `pagetrail vm`: runs programs as guests of a virtual machine, and reports what KVM offers.

pub(crate) mod args;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pagetrail_report::size::Size;
use pagetrail_vm::Settings;
use pagetrail_vm::check::{Report, report, try_accesses, try_guest, try_units};
use serde::Serialize;

use self::args::{CheckArgs, RunArgs, VmArgs, VmCommand};
use crate::exit;
use crate::session::subpage;

/// Runs the subcommand.
pub(crate) fn run(args: &VmArgs) -> Result<ExitCode> {
    match &args.command {
        VmCommand::Run(args) => become_guest(args),
        VmCommand::Check(args) => check(args),
    }
}

/// Becomes the program. Returns only with an error.
fn become_guest(args: &RunArgs) -> Result<ExitCode> {
    let mut settings = Settings::default();
    settings.accesses = args.accesses;
    settings.follow = args.follow;
    settings.memory_bytes_max = args.memory.map(Size::bytes);
    if let Some(subpages) = &args.subpages {
        let variables = subpage::variables(subpages)?;
        settings.variables = variables.map(|(name, value)| (name.into(), value)).into();
    }
    match args.rounds {
        Some(fd) => pagetrail_vm::recorded_guest(&args.command, &settings, fd)?,
        None => pagetrail_vm::become_guest(&args.command, &settings)?,
    };
    Ok(ExitCode::SUCCESS)
}

/// The document of `--json`, schema 1. Within a schema number, fields are only added.
#[derive(Serialize)]
struct Document {
    schema: u32,
    virtualization: Option<&'static str>,
    nested_paging: Option<bool>,
    page_modification_logging: Option<bool>,
    ring_pages: usize,
    memslots: u32,
    physical_bits: u8,
    /// How KVM logged the trial guest's dirty pages (`ring`, `bitmap`); null where no guest ran.
    guest: Option<&'static str>,
    /// Why no guest ran.
    reason: Option<String>,
    /// Whether accessed pages can be tracked.
    accesses: bool,
    /// Why accessed pages cannot be tracked.
    accesses_reason: Option<String>,
    /// Whether sub-pages can be merged.
    units: bool,
    /// Why sub-pages cannot be merged.
    units_reason: Option<String>,
}

/// The results of the trial guests.
struct Tried {
    writes: pagetrail_vm::Result<&'static str>,
    accesses: pagetrail_vm::Result<()>,
    units: pagetrail_vm::Result<()>,
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let report = report()?;
    let tried = Tried {
        writes: try_guest(),
        accesses: try_accesses(),
        units: try_units(),
    };
    let ran = tried.writes.is_ok();
    let text = match args.json {
        true => serde_json::to_string(&document(&report, &tried))?,
        false => lines(&report, &tried),
    };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")?;
    Ok(ExitCode::from(if ran { 0 } else { exit::NEGATIVE }))
}

fn document(report: &Report, tried: &Tried) -> Document {
    let reason = |error: &pagetrail_vm::Error| error.to_string();
    Document {
        schema: 1,
        virtualization: report.virtualization,
        nested_paging: report.nested_paging,
        page_modification_logging: report.page_modification_logging,
        ring_pages: report.ring_pages,
        memslots: report.memslots,
        physical_bits: report.physical_bits,
        guest: tried.writes.as_ref().ok().copied(),
        reason: tried.writes.as_ref().err().map(reason),
        accesses: tried.accesses.is_ok(),
        accesses_reason: tried.accesses.as_ref().err().map(reason),
        units: tried.units.is_ok(),
        units_reason: tried.units.as_ref().err().map(reason),
    }
}

fn lines(report: &Report, tried: &Tried) -> String {
    let shown = |fact: Option<bool>| match fact {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => "not known".to_owned(),
    };
    let rows = [
        (
            "virtualization",
            report.virtualization.unwrap_or("not known").to_owned(),
        ),
        ("nested paging", shown(report.nested_paging)),
        (
            "page-modification logging",
            shown(report.page_modification_logging),
        ),
        (
            "ring of dirty pages",
            match report.ring_pages {
                0 => "no; bitmaps instead".to_owned(),
                pages => format!("{pages} pages"),
            },
        ),
        ("memslots", report.memslots.to_string()),
        (
            "guest-physical addresses",
            format!("{} bits", report.physical_bits),
        ),
        (
            "accessed pages",
            match &tried.accesses {
                Ok(()) => "yes, by accessed bits in page tables".to_owned(),
                Err(error) => format!("no: {error}"),
            },
        ),
        (
            "merged sub-pages",
            match &tried.units {
                Ok(()) => "yes".to_owned(),
                Err(error) => format!("no: {error}"),
            },
        ),
        (
            "trial guest",
            match &tried.writes {
                Ok(by) => format!("ran; its dirty pages were reported exactly, by {by}"),
                Err(error) => format!("did not run: {error}"),
            },
        ),
    ];
    let lines: Vec<_> = rows
        .iter()
        .map(|(fact, value)| format!("{fact:<26} {value}"))
        .collect();
    lines.join("\n")
}
