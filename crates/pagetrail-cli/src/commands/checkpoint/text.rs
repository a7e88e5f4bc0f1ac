//! Checkpoints in words and tables.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use pagetrail::Overhead;
use pagetrail_checkpoint::{Label, Manifest, MappingDiff, Process};

use pagetrail_report::words;

/// How many processes of a dump are named.
const SPACES_NAMED: usize = 3;

/// One that has just been taken.
pub(super) fn taken(manifest: &Manifest) -> String {
    let cost = &manifest.cost;
    format!(
        "checkpoint {} ({}): {} copied in {}, {} new to the store ({}), paused {}, took {}",
        manifest.number,
        kind(manifest),
        words::plural(cost.copied_pages, "page"),
        words::plural(u64::from(cost.rounds) + 1, "round"),
        words::count(cost.stored_pages),
        words::bytes(manifest.bytes_in_store() as f64),
        words::time(cost.pause_ns as f64),
        words::time(cost.total_ns as f64)
    )
}

/// What a checkpoint has cost the process.
pub(super) fn overhead(overhead: &Overhead) -> String {
    format!(
        "cost {:.1}% of its time, next in {}",
        overhead.share * 100.0,
        words::time(overhead.next.as_nanos() as f64)
    )
}

/// Says that the budget is not kept, or is again.
pub(super) fn budget(overhead: &Overhead) -> String {
    let allowed = overhead.allowed * 100.0;
    match overhead.is_kept {
        true => format!("checkpoints cost the process no more than {allowed:.1}% again"),
        false => format!(
            "checkpoints cost the process more than {allowed:.1}% of its time even at the longest \
             interval, {}; they are taken at that",
            words::time(overhead.next.as_nanos() as f64)
        ),
    }
}

/// One that CRIU has just made.
pub(crate) fn by_criu(manifest: &Manifest) -> String {
    let cost = &manifest.cost;
    format!(
        "checkpoint {} ({}): {}, {} received, {} new to the store ({}), took {}",
        manifest.number,
        kind(manifest),
        spaces(manifest),
        words::plural(cost.copied_pages, "page"),
        words::count(cost.stored_pages),
        words::bytes(manifest.bytes_in_store() as f64),
        words::time(cost.total_ns as f64)
    )
}

/// What CRIU has dumped: its processes and shared memory.
fn spaces(manifest: &Manifest) -> String {
    let mut names: Vec<&str> = manifest.mappings.iter().map(|m| m.name.as_str()).collect();
    names.retain(|name| !name.starts_with("CRIU"));
    // Processes before shared memory.
    names.sort_unstable();
    names.dedup();
    match names.split_at_checked(SPACES_NAMED) {
        Some((named, rest)) if !rest.is_empty() => {
            format!("{} and {} more", named.join(", "), rest.len())
        }
        _ => names.join(", "),
    }
}

fn kind(manifest: &Manifest) -> String {
    match manifest.parent {
        Some(parent) => format!("over {}", parent.number),
        None => "base".into(),
    }
}

/// The command line of a process. Some programs fill what follows their names with blanks.
pub(super) fn command(process: &Process) -> String {
    let words = process.command.join(" ");
    words::printable(words.trim_end()).into_owned()
}

/// A mapping's name, or what it is.
fn name(mapping: &str) -> String {
    match mapping {
        "" => "anonymous".into(),
        name => words::printable(name).into_owned(),
    }
}

/// The list of `log`.
pub(super) fn log(manifests: &[&Manifest]) -> String {
    let mut header = vec!["number", "taken", "kind", "of", "pages", "stored", "pause"];
    let has_labels = manifests.iter().any(|manifest| manifest.label.is_some());
    if has_labels {
        header.push("label");
    }
    let mut table = plain_table(&header);
    for manifest in manifests {
        let of = match &manifest.process {
            Some(process) => format!("{} {}", process.pid, command(process)),
            None if manifest.is_by_criu() => format!("CRIU: {}", spaces(manifest)),
            None => "own regions".into(),
        };
        let mut row = vec![
            manifest.number.to_string(),
            time(manifest.taken_unix_ns),
            kind(manifest),
            shortened(&of, 40),
            words::count(manifest.changed_pages()),
            words::bytes(manifest.bytes_in_store() as f64),
            words::time(manifest.cost.pause_ns as f64),
        ];
        row.extend(manifest.label.as_ref().map(Label::to_string));
        table.add_row(row);
    }
    lines(&table)
}

/// All of a checkpoint.
pub(super) fn show(manifest: &Manifest, contents: u64) -> String {
    let mut out = vec![format!(
        "checkpoint {}, taken {}, {}",
        manifest.number,
        time(manifest.taken_unix_ns),
        match manifest.parent {
            Some(parent) => format!("an increment over {}", parent.number),
            None => "a base".into(),
        }
    )];
    out.extend(
        manifest
            .label
            .as_ref()
            .map(|label| format!("label: {label}")),
    );
    out.push(format!(
        "memory: {} with contents of {} saved; {} differ from before",
        words::bytes(contents as f64),
        words::bytes(manifest.saved_bytes() as f64),
        words::plural(manifest.changed_pages(), "page")
    ));
    out.push(match manifest.is_by_criu() {
        true => by_criu(manifest),
        false => taken(manifest),
    });
    if let Some(process) = &manifest.process {
        out.push(format!(
            "process {}: {} ({})",
            process.pid,
            command(process),
            words::printable(&process.executable)
        ));
        let mut table = plain_table(&["thread", "name", "instruction", "stack"]);
        for thread in &process.threads {
            let register = |at: usize| {
                let bytes = thread
                    .held
                    .registers
                    .first()?
                    .bytes
                    .get(8 * at..8 * at + 8)?;
                let value = u64::from_le_bytes(bytes.try_into().ok()?);
                Some(format!("{value:#x}"))
            };
            table.add_row([
                thread.held.tid.to_string(),
                words::printable(&thread.name).into_owned(),
                register(16).unwrap_or_default(),
                register(19).unwrap_or_default(),
            ]);
        }
        out.push(match process.threads.is_empty() {
            true => "no registers: the source of its writes did not have them".into(),
            false => format!("\n{}", lines(&table)),
        });
        let mut table = plain_table(&["descriptor", "position", "leads to"]);
        for descriptor in &process.descriptors {
            table.add_row([
                descriptor.number.to_string(),
                descriptor.position.to_string(),
                words::printable(&descriptor.target).into_owned(),
            ]);
        }
        out.push(format!("\n{}", lines(&table)));
    }
    let mut table = plain_table(&["mapping", "size", "rights", "saved", "name"]);
    for mapping in &manifest.mappings {
        table.add_row([
            mapping.range.to_string(),
            words::bytes(mapping.range.bytes() as f64),
            mapping.permissions.to_string(),
            match (mapping.saved, mapping.own_writes_only) {
                (false, _) => "-",
                (true, false) => "yes",
                (true, true) => "own writes",
            }
            .into(),
            name(&mapping.name),
        ]);
    }
    out.push(format!("\n{}", lines(&table)));
    out.join("\n")
}

/// The differences of `diff`, in so many bytes that are saved.
pub(super) fn diff(diffs: &[MappingDiff], saved: u64) -> String {
    if diffs.is_empty() {
        return "no difference".into();
    }
    let mut table = plain_table(&["mapping", "pages differ", "bytes", "", "name"]);
    let (mut pages, mut bytes) = (0, 0);
    for diff in diffs {
        let only = match diff.present {
            (true, false) => "gone",
            (false, true) => "new",
            _ => "",
        };
        pages += diff.pages.page_count();
        bytes += diff.pages.bytes();
        table.add_row([
            diff.range.to_string(),
            words::count(diff.pages.page_count()),
            words::bytes(diff.pages.bytes() as f64),
            only.into(),
            name(&diff.name),
        ]);
    }
    format!(
        "{}\n{} ({}) of {} differ, {}",
        lines(&table),
        words::plural(pages, "page"),
        words::bytes(bytes as f64),
        words::bytes(saved as f64),
        words::percent(bytes as f64 / saved.max(1) as f64)
    )
}

/// Writes a document, or text, to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

pub(super) fn time(unix_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(unix_ns);
    humantime::format_rfc3339_millis(time).to_string()
}

fn shortened(text: &str, columns: usize) -> String {
    match text.char_indices().nth(columns) {
        Some((at, _)) => format!("{}..", &text[..at]),
        None => text.to_owned(),
    }
}

pub(super) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn lines(table: &Table) -> String {
    // The table pads every cell, also the first.
    let lines = table.lines().map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}
