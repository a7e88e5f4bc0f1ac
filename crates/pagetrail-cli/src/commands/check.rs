//! `pagetrail check`: every technique, and whether it works on this machine.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use pagetrail::{Capabilities, Technique};
use serde::Serialize;

use super::report::style;
use crate::exit;

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The document of `--json`, schema 1. Within a schema number fields are only ever added.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    techniques: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    technique: &'a str,
    status: &'a str,
    /// Why not; null where it works.
    reason: Option<&'a str>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let capabilities = Capabilities::probe();
    let entries = capabilities.iter().map(|(technique, status)| Entry {
        technique: technique.name(),
        status: status.word(),
        reason: status.reason(),
    });
    let document = Document {
        schema: 1,
        techniques: entries.collect(),
    };
    let text = if args.json {
        serde_json::to_string(&document)?
    } else {
        table(&document)
    };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")?;
    // `none` notices nothing, so that it works is no finding.
    let any = Technique::ALL
        .into_iter()
        .any(|technique| technique != Technique::None && capabilities.works(technique));
    Ok(ExitCode::from(if any { 0 } else { exit::NEGATIVE }))
}

fn table(document: &Document<'_>) -> String {
    // Lines are folded for eyes only.
    let arrangement = match io::stdout().is_terminal() {
        true => ContentArrangement::Dynamic,
        false => ContentArrangement::Disabled,
    };
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(arrangement)
        .set_width(u16::try_from(style().width).unwrap_or(u16::MAX))
        .set_header(["technique", "status", "why not"]);
    for entry in &document.techniques {
        table.add_row([
            entry.technique,
            entry.status,
            entry.reason.unwrap_or_default(),
        ]);
    }
    let lines = table.lines();
    // The table pads every cell, also the first.
    let lines: Vec<_> = lines
        .map(|line| {
            line.strip_prefix(' ')
                .unwrap_or(&line)
                .trim_end()
                .to_owned()
        })
        .collect();
    lines.join("\n")
}
