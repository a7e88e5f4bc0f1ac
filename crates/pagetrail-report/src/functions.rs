//! The table of functions that dirtied pages, for a terminal or a pipe.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::terminal::{Style, shorten};
use super::words;
use super::writers::Writers;

const FUNCTIONS_SHOWN: usize = 15;
const FILES_SHOWN: usize = 4;

/// Writes a line about the samples, and the table.
pub(super) fn table(writers: &Writers, style: Style, out: &mut dyn Write) -> io::Result<()> {
    let all = writers.pages();
    let share = |pages: u64| pages as f64 / all.max(1) as f64;
    let attributed = writers.attributed as f64 / writers.page_writes.max(1) as f64;
    let sampled = match writers.period_max {
        1 => "every page fault was sampled".into(),
        n => format!(
            "down to one of {} page faults was sampled",
            words::count(n.into())
        ),
    };
    let lost = match writers.lost {
        0 => String::new(),
        n => format!("; {} lost", words::plural(n, "sample")),
    };
    writeln!(
        out,
        "{} of page writes are attributed to code; {sampled}{lost}",
        words::percent(attributed)
    )?;
    if !writers.nameless.is_empty() {
        let files = writers.nameless.iter().take(FILES_SHOWN).cloned();
        let more = match writers.nameless.len().saturating_sub(FILES_SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let files = files.collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "no names for code in {}{more}",
            words::printable(&files)
        )?;
    }
    if all == 0 {
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(["function", "file", "pages/s", "share", "with callees"]);
    let width = (style.width - 62).clamp(12, 60);
    for function in writers.functions.iter().take(FUNCTIONS_SHOWN) {
        table.add_row([
            name(&function.name, width),
            shorten(&words::printable(&function.module), 22),
            words::rate(function.own as f64 / writers.seconds.max(1e-9)),
            words::percent(share(function.own)),
            words::percent(share(function.total)),
        ]);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (i, line) in table.lines().enumerate() {
        let line = line.trim_end();
        match i == 0 && style.colour {
            true => writeln!(out, "\x1b[2m{line}\x1b[0m")?,
            false => writeln!(out, "{line}")?,
        }
    }
    if let Some(left) = writers.functions.len().checked_sub(FUNCTIONS_SHOWN + 1) {
        let more = words::plural(left as u64 + 1, "function");
        writeln!(out, "and {more}; --json lists all, --flamegraph draws all")?;
    }
    Ok(())
}

/// A function's name, without its parameters where it is too long with them.
fn name(name: &str, width: usize) -> String {
    let whole = words::printable(name);
    match whole.chars().count() <= width {
        true => whole.into_owned(),
        false => shorten(words::without_parameters(&whole), width),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_table() {
        let writers = Writers::of(&testing::program_with_stacks(20)).expect("sampled");
        let mut out = Vec::new();
        let style = Style {
            width: 100,
            colour: false,
        };
        table(&writers, style, &mut out).expect("a Vec takes all");
        insta::assert_snapshot!(String::from_utf8(out).expect("UTF-8"));
    }
}
