//! The comparison as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use super::{Comparison, Verdict, text};
use crate::html::{Page, notice_list};
use crate::sheet::html_table;
use crate::words;

/// Rows of a table at most, so that the page stays small.
const LINES_MAX: usize = 500;

pub(super) fn write(
    comparison: &Comparison,
    verdicts: &[Verdict],
    out: &mut dyn Write,
) -> io::Result<()> {
    let command = words::command(&comparison.after.header.command);
    let lines = text::sides(comparison).into_iter();
    let lines = lines.chain(verdicts.iter().map(text::verdict_line));
    let tables: String = text::sheets(comparison, LINES_MAX)
        .iter()
        .map(html_table)
        .collect();
    write_page(&command, &lines.collect::<Vec<_>>(), &tables, out)
}

/// Writes the page of a comparison of `command`: `sides` says what is compared.
pub(super) fn write_page(
    command: &str,
    sides: &[String],
    tables: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    Page::new(&format!("{command} - before and after"))
        .heading("pagetrail report: before and after", command)
        .write(out, &[&notice_list(sides), tables])
}
