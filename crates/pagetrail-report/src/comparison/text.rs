//! The comparison as text for a terminal or a pipe.

use std::io::{self, Write};

use super::condition::times;
use super::{Comparison, Line, Measure, Pair, Side, Verdict};
use crate::sheet::{Sheet, write_sheet};
use crate::terminal::{Style, shorten, wrap};
use crate::words;

const LINES_SHOWN: usize = 20;
const NAME_WIDTH: usize = 44;

/// What the columns mean.
pub(super) const NOTE: &str = "Mean, and in parentheses the quartiles of the rounds (of the windows of a \
                    second, for the working set). ~: the quartiles of both recordings overlap, so \
                    the change is within what the program does from round to round.";

pub(super) fn write(
    comparison: &Comparison,
    verdicts: &[Verdict],
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    for line in sides(comparison) {
        writeln!(out, "{line}")?;
    }
    for sheet in sheets(comparison, LINES_SHOWN) {
        writeln!(out)?;
        write_sheet(&sheet, out)?;
    }
    writeln!(out)?;
    for line in wrap(NOTE, style.width.clamp(40, 120)) {
        writeln!(out, "{line}")?;
    }
    for verdict in verdicts {
        writeln!(out, "{}", verdict_line(verdict))?;
    }
    Ok(())
}

/// What became of a condition, as a line.
pub(super) fn verdict_line(verdict: &Verdict) -> String {
    let what = match verdict.holds {
        true => "FAIL",
        false => "ok",
    };
    let condition = words::printable(&verdict.condition);
    format!("{what}: {condition} ({})", verdict.reason)
}

/// A line for each recording.
pub(super) fn sides(comparison: &Comparison) -> Vec<String> {
    let line = |label: &str, side: &Side| {
        format!(
            "{label:<7} {}: {}, {} of {} ms, by {}",
            words::command(&side.header.command),
            words::time(side.seconds * 1e9),
            words::plural(side.rounds, "round"),
            words::count(side.header.interval_ms),
            words::printable(&side.header.technique)
        )
    };
    let mut lines = vec![
        line("before", &comparison.before),
        line("after", &comparison.after),
    ];
    if comparison.before.header.interval_ms != comparison.after.header.interval_ms {
        lines.push(
            "note    their rounds differ in length: a page counts once a round, so pages/s of \
             longer rounds are fewer"
                .into(),
        );
    }
    if comparison.before.has_stacks != comparison.after.has_stacks {
        lines.push("note    only one has call stacks, so functions are not compared".into());
    }
    lines
}

/// The tables: all memory and mappings, then functions.
pub(super) fn sheets(comparison: &Comparison, lines_max: usize) -> Vec<Sheet> {
    let written = words::terms(comparison.access_kind).written;
    let sheet = |title: String, what: &str, lines: Vec<&Line>| {
        sheet(
            title,
            what,
            lines.into_iter().take(lines_max).map(row).collect(),
        )
    };
    let title = |what: &str, all: usize| match all.saturating_sub(lines_max) {
        0 => format!("Pages {written} by {what}"),
        _ => format!("Pages {written} by {what}: the {lines_max} that changed most of {all}"),
    };
    let mappings = std::iter::once(&comparison.total).chain(&comparison.mappings);
    let count = comparison.mappings.len() + 1;
    let mut sheets = vec![sheet(
        title("mapping", count),
        "mapping",
        mappings.collect(),
    )];
    if !comparison.functions.is_empty() {
        let functions = &comparison.functions;
        let title = title("function", functions.len());
        sheets.push(sheet(title, "function", functions.iter().collect()));
    }
    sheets
}

/// A table of figures before and after; the first cell of a row says of what.
pub(super) fn sheet(title: String, what: &str, rows: Vec<Vec<String>>) -> Sheet {
    let heads = [
        what,
        "pages/s before",
        "after",
        "change",
        "working set before",
        "after",
        "change",
    ];
    Sheet {
        title,
        heads: heads.map(str::to_owned).to_vec(),
        labels: 1,
        rows,
        note: NOTE,
    }
}

/// A name that fits into a table.
pub(super) fn short(name: &str) -> String {
    shorten(&words::printable(name), NAME_WIDTH).to_string()
}

fn row(line: &Line) -> Vec<String> {
    let name = match line.file.is_empty() {
        true => line.name.clone(),
        false => format!("{} ({})", line.name, line.file),
    };
    row_of(short(&name), line)
}

/// The figures of a line, below a name.
pub(super) fn row_of(name: String, line: &Line) -> Vec<String> {
    let mut row = vec![name];
    for pair in [&line.written, &line.working_set] {
        row.extend([measure(&pair.before), measure(&pair.after), change(pair)]);
    }
    row
}

fn measure(measure: &Measure) -> String {
    let Measure {
        mean,
        lower_quartile,
        upper_quartile,
    } = *measure;
    match mean > 0.0 {
        false => "-".into(),
        true => format!(
            "{} ({}..{})",
            words::rate(mean),
            words::rate(lower_quartile),
            words::rate(upper_quartile)
        ),
    }
}

fn change(pair: &Pair) -> String {
    let times = times(pair.before.mean, pair.after.mean);
    match pair.before.overlaps(&pair.after) {
        true => format!("~{times}"),
        false => times,
    }
}
