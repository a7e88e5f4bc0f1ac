//! The report as plain text for a terminal or a pipe.
//!
//! Reads without colour too: colour repeats what the shades of the heatmap say, and makes names
//! dim, where [`Style::colour`] allows it.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use pagetrail_trail::Heatmap;

use super::facts::facts;
use super::{Part, Recording, bands, functions, joined, palette, words};

/// How to write for the reader's terminal.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns to fill at most.
    pub width: usize,
    /// Whether to use ANSI colours.
    pub colour: bool,
}

/// Lines of the heatmap at most; mappings beyond that are merged by the grid.
const HEAT_LINES: usize = 24;
/// Below this the table would lose columns, above it lines are hard to follow.
const WIDTH_MIN: usize = 80;
const WIDTH_MAX: usize = 160;
const LABEL_WIDTH: usize = 22;
const MAPPINGS_SHOWN: usize = 20;
const NOTICES_SHOWN: usize = 12;

/// Writes the report.
pub(crate) fn write(
    recording: &Recording<'_>,
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let style = Style {
        width: style.width.clamp(WIDTH_MIN, WIDTH_MAX),
        ..style
    };
    for fact in facts(recording) {
        entry(fact.label, &fact.line, style, out)?;
    }
    let parts = std::iter::once(&recording.main).chain(&recording.accesses);
    if parts.clone().any(|part| part.analysis.page_writes > 0) {
        writeln!(out)?;
        table(recording, style, out)?;
    }
    if let Some(writers) = recording.writers {
        writeln!(out)?;
        functions::table(writers, style, out)?;
    }
    for part in parts.filter(|part| part.analysis.page_writes > 0) {
        writeln!(out)?;
        heatmap(part, style, out)?;
    }
    let notices = words::notices(recording.whole);
    if !notices.is_empty() {
        writeln!(out)?;
        for line in notices.iter().take(NOTICES_SHOWN) {
            entry("note", line, style, out)?;
        }
        if let Some(left) = notices.len().checked_sub(NOTICES_SHOWN + 1) {
            let more = words::plural(left as u64 + 1, "more note");
            entry("", &format!("and {more}; --html lists all"), style, out)?;
        }
    }
    Ok(())
}

/// A name and a text, wrapped with a hanging indent.
fn entry(name: &str, text: &str, style: Style, out: &mut dyn Write) -> io::Result<()> {
    const INDENT: usize = 13;
    let (on, off) = if style.colour && !name.is_empty() {
        ("\x1b[2m", "\x1b[0m")
    } else {
        ("", "")
    };
    let mut lines = wrap(text, style.width - INDENT).into_iter();
    let first = lines.next().unwrap_or_default();
    writeln!(out, "{on}{name:<INDENT$}{off}{first}")?;
    lines.try_for_each(|line| writeln!(out, "{:INDENT$}{line}", ""))
}

/// Breaks at spaces; a word longer than a line stays whole, so that paths can be copied.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + word.trim_end().chars().count() > width {
            last.truncate(last.trim_end().len());
            lines.push(word.to_owned());
        } else {
            last.push_str(word);
        }
    }
    lines
}

fn table(recording: &Recording<'_>, style: Style, out: &mut dyn Write) -> io::Result<()> {
    let analysis = &recording.main.analysis;
    let accesses = recording.accesses.as_ref().map(|part| &part.analysis);
    let mut written = joined::touched(recording.whole, analysis, accesses);
    written.sort_by_key(|joined| {
        let counts = &joined.counts;
        let pages = (counts.page_writes, joined.accessed_pages);
        (std::cmp::Reverse(pages), joined.first.range)
    });
    let mut table = Table::new();
    let mut heads = vec![
        "mapping", "address", "size", "pages/s", "distinct", "share", "",
    ];
    if accesses.is_some() {
        // In place of the bars.
        heads.pop();
        heads.insert(5, "accessed");
    }
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(&heads);
    let label_width = (style.width - 62).clamp(12, 48);
    for joined in written.iter().take(MAPPINGS_SHOWN) {
        let counts = &joined.counts;
        let mut row = vec![
            shorten(&label(joined), label_width),
            format!("{:#x}", joined.first.range.start()),
            words::bytes(joined.bytes as f64),
            words::rate(counts.pages_per_second),
            words::count(counts.distinct_pages),
            words::percent(counts.share),
            words::bar(counts.share, 8),
        ];
        if accesses.is_some() {
            row.pop();
            row.insert(5, words::count(joined.accessed_pages));
        }
        table.add_row(row);
    }
    let outside = &analysis.unmapped;
    let accessed_outside = accesses.map(|all| all.unmapped.distinct_pages);
    if outside.page_writes > 0 || accessed_outside.is_some_and(|pages| pages > 0) {
        let mut row = vec![
            "outside all mappings".into(),
            String::new(),
            String::new(),
            words::rate(outside.pages_per_second),
            words::count(outside.distinct_pages),
            words::percent(outside.share),
            words::bar(outside.share, 8),
        ];
        if let Some(pages) = accessed_outside {
            row.pop();
            row.insert(5, words::count(pages));
        }
        table.add_row(row);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= 2 && !heads[i].is_empty() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (i, line) in table.lines().enumerate() {
        let line = line.trim_end();
        if i == 0 && style.colour {
            writeln!(out, "\x1b[2m{line}\x1b[0m")?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    if written.len() > MAPPINGS_SHOWN {
        let left = (written.len() - MAPPINGS_SHOWN) as u64;
        let more = words::plural(left, "mapping");
        let less = words::terms(recording.main.access_kind).written;
        writeln!(out, "and {more} {less} less; --json and --html list all")?;
    }
    Ok(())
}

/// The name of joined mappings, and in how many places they lie.
pub(super) fn label(joined: &joined::Joined<'_>) -> String {
    let name = words::mapping(joined.first);
    match joined.gaps {
        0 => name.into_owned(),
        gaps => format!("{name}, {} places", words::count(gaps as u64 + 1)),
    }
}

/// The end of a name says more than its beginning.
pub(super) fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(length - width + 1).collect();
    format!("…{tail}")
}

fn heatmap(part: &Part<'_>, style: Style, out: &mut dyn Write) -> io::Result<()> {
    let trail = &*part.trail;
    let heat = Heatmap::of(trail, HEAT_LINES, style.width - LABEL_WIDTH - 2);
    for band in bands::bands(trail, &heat) {
        for (i, &row) in band.rows.iter().enumerate() {
            let label = if i == 0 {
                shorten(&band.label, LABEL_WIDTH)
            } else {
                String::new()
            };
            write!(out, "{label:>LABEL_WIDTH$} ▏")?;
            heat_line(heat.row(row), style, out)?;
        }
    }
    let width = heat.columns.len();
    let (Some(first), Some(last)) = (heat.columns.first(), heat.columns.last()) else {
        return Ok(());
    };
    let start = words::time(first.start_ns as f64);
    let end = words::time(last.end_ns as f64);
    let start = if first.start_ns == 0 {
        "0".into()
    } else {
        start
    };
    let room = width.saturating_sub(start.chars().count());
    writeln!(out, "{:LABEL_WIDTH$}  {start}{end:>room$}", "")?;
    let each = heat.columns.iter().map(|column| column.rounds).max();
    let rounds = words::plural(each.unwrap_or(1) as u64, "round");
    let row = heat.rows.iter().map(|row| row.pages).max().unwrap_or(1);
    writeln!(
        out,
        "{:LABEL_WIDTH$}  share {}: {}",
        "",
        words::terms(part.access_kind).written,
        legend(style)
    )?;
    writeln!(
        out,
        "{:LABEL_WIDTH$}  one character: up to {}, {rounds}",
        "",
        words::plural(row, "page")
    )
}

fn heat_line(cells: &[f32], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let levels = cells.iter().map(|&share| palette::level(share));
    let mut line = String::new();
    let mut painted = None;
    for level in levels {
        if level == 0 {
            line.push(' ');
            continue;
        }
        if style.colour {
            let colour = palette::ansi_256(level);
            if painted != Some(colour) {
                line.push_str(&format!("\x1b[38;5;{colour}m"));
                painted = Some(colour);
            }
        }
        line.push_str(palette::shade(level));
    }
    let reset = if painted.is_some() { "\x1b[0m" } else { "" };
    writeln!(out, "{}{reset}", line.trim_end())
}

fn legend(style: Style) -> String {
    let parts = palette::steps().map(|(level, share)| {
        let name = match share {
            _ if share < 0.095 => format!("{:.1}%", share * 100.0),
            _ => format!("{:.0}%", share * 100.0),
        };
        if style.colour {
            let colour = palette::ansi_256(level);
            format!("\x1b[38;5;{colour}m{}\x1b[0m {name}", palette::shade(level))
        } else {
            format!("{} {name}", palette::shade(level))
        }
    });
    parts.join(" ").replacen(' ', " to ", 1)
}

#[cfg(test)]
mod tests {
    use pagetrail::AccessKind;
    use pagetrail_trail::Trail;

    use super::*;
    use crate::testing;

    fn report(trail: &Trail, style: Style) -> String {
        let mut out = Vec::new();
        write(&Recording::of(trail), style, &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("the report is UTF-8")
    }

    const PLAIN: Style = Style {
        width: 100,
        colour: false,
    };

    #[test]
    fn a_program() {
        insta::assert_snapshot!(report(&testing::program(120), PLAIN));
    }

    #[test]
    fn accesses_beside_writes() {
        insta::assert_snapshot!(report(&testing::program_in_turns(120), PLAIN));
    }

    #[test]
    fn accesses_alone() {
        let trail = testing::program_in_turns(60).only(AccessKind::Accesses);
        insta::assert_snapshot!(report(&trail, PLAIN));
    }

    #[test]
    fn what_tracking_cost_of_its_budget() {
        let text = report(&testing::program_within_budget(60), PLAIN);
        // Lines are wrapped.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("60 rounds of 100 ms or longer"), "{text}");
        assert!(text.contains("overhead about 2.6% of 3.0% allowed; interval 10"));
        let over =
            "reported per page written; not to be kept at the longest interval in 6 of 60 rounds";
        assert!(text.contains(over), "{text}");
        let before = report(&testing::program(60), PLAIN);
        assert!(!before.contains("overhead") && !before.contains("or longer"));
    }

    #[test]
    fn narrow_and_short() {
        let style = Style { width: 80, ..PLAIN };
        insta::assert_snapshot!(report(&testing::program(5), style));
    }

    #[test]
    fn long_lists_are_cut() {
        let mut trail = testing::program(20);
        for i in 0..30 {
            let range = testing::pages(0x7f30_0000_0000, 2 * i, 1);
            trail.rounds[9].written.insert(range);
            trail.mappings.push(testing::mapping(range, "", 0));
            let untracked = testing::mapping(testing::pages(0x7f40_0000_0000, 2 * i, 1), "", 0);
            trail.mappings.push(pagetrail_trail::Mapping {
                untracked: Some("why".into()),
                ..untracked
            });
        }
        let text = report(&trail, PLAIN);
        assert!(text.contains("and 16 mappings written less"), "{text}");
        assert!(text.contains("and 20 more notes"), "{text}");
    }

    #[test]
    fn nothing_written() {
        let mut trail = testing::program(2);
        for round in &mut trail.rounds {
            round.written.clear();
            round.newly_mapped.clear();
        }
        trail.end = None;
        insta::assert_snapshot!(report(&trail, PLAIN));
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        let trail = testing::program(120);
        let style = Style {
            colour: true,
            ..PLAIN
        };
        let painted = report(&trail, style);
        let mut stripped = String::new();
        let mut rest = painted.as_str();
        while let Some((before, escape)) = rest.split_once("\x1b[") {
            stripped.push_str(before);
            rest = escape.split_once('m').expect("every escape is a colour").1;
        }
        stripped.push_str(rest);
        let trimmed = |text: &str| {
            text.lines()
                .map(str::trim_end)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(trimmed(&stripped), trimmed(&report(&trail, PLAIN)));
        assert!(painted.contains("\x1b[38;5;"));
    }

    #[test]
    fn lines_keep_to_the_width() {
        for width in [WIDTH_MIN, 100, 120, WIDTH_MAX] {
            let style = Style { width, ..PLAIN };
            for trail in [testing::program(120), testing::program_in_turns(120)] {
                for line in report(&trail, style).lines() {
                    assert!(line.chars().count() <= width, "{width}: {line}");
                }
            }
        }
    }
}
