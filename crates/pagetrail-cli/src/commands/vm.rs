//! `pagetrail vm`: programs as guests of a virtual machine, and what KVM offers here.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pagetrail_vm::Settings;
use pagetrail_vm::check::{self, Report};
use serde::Serialize;

use crate::bench::size::Size;
use crate::exit;
use crate::tracking::subpage;
use crate::vm::args::{CheckArgs, RunArgs, VmArgs, VmCommand};

/// Runs the subcommand.
pub(crate) fn run(args: &VmArgs) -> Result<ExitCode> {
    match &args.command {
        VmCommand::Run(args) => become_guest(args),
        VmCommand::Check(args) => tell(args),
    }
}

/// Comes back only with what went wrong.
fn become_guest(args: &RunArgs) -> Result<ExitCode> {
    let mut settings = Settings::default();
    settings.accesses = args.accesses;
    settings.memory_bytes_max = args.memory.map(Size::bytes);
    if let Some(parts) = &args.parts {
        let variables = subpage::variables(parts)?;
        settings.variables = variables.map(|(name, value)| (name.into(), value)).into();
    }
    match args.rounds {
        Some(fd) => pagetrail_vm::recorded_guest(&args.command, &settings, fd)?,
        None => pagetrail_vm::become_guest(&args.command, &settings)?,
    };
    Ok(ExitCode::SUCCESS)
}

/// The document of `--json`, schema 1. Within a schema number fields are only ever added.
#[derive(Serialize)]
struct Document {
    schema: u32,
    virtualization: Option<&'static str>,
    nested_paging: Option<bool>,
    page_modification_logging: Option<bool>,
    ring_pages: usize,
    memslots: u32,
    physical_bits: u8,
    /// How a guest's writes were told of; null where none ran.
    guest: Option<&'static str>,
    /// Why none ran.
    reason: Option<String>,
    /// Whether it was told what a guest read.
    accesses: bool,
    /// Why not.
    accesses_reason: Option<String>,
}

/// What guests of a few instructions came to.
struct Tried {
    writes: pagetrail_vm::Result<&'static str>,
    accesses: pagetrail_vm::Result<()>,
}

fn tell(args: &CheckArgs) -> Result<ExitCode> {
    let report = check::report()?;
    let tried = Tried {
        writes: check::try_guest(),
        accesses: check::try_accesses(),
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
    }
}

fn lines(report: &Report, tried: &Tried) -> String {
    let told = |told: Option<bool>| match told {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => "not known".to_owned(),
    };
    let rows = [
        (
            "virtualization",
            report.virtualization.unwrap_or("not known").to_owned(),
        ),
        ("nested paging", told(report.nested_paging)),
        (
            "page-modification logging",
            told(report.page_modification_logging),
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
            "what a guest reads",
            match &tried.accesses {
                Ok(()) => "told by accessed bits in its page tables".to_owned(),
                Err(error) => format!("not told: {error}"),
            },
        ),
        (
            "a guest",
            match &tried.writes {
                Ok(by) => format!("ran; what it wrote was told exactly, by {by}"),
                Err(error) => format!("did not run: {error}"),
            },
        ),
    ];
    let lines: Vec<_> = rows
        .iter()
        .map(|(what, told)| format!("{what:<26} {told}"))
        .collect();
    lines.join("\n")
}
