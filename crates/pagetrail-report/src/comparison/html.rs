//! The comparison as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use super::{Comparison, Verdict, text};
use crate::html::{STYLE_SHEET, escape, fill, notice_list};
use crate::sheet::html_table;
use crate::words;

/// Rows of a table at most, so that the page stays small.
const LINES_MAX: usize = 500;

pub(super) fn write(
    comparison: &Comparison,
    verdicts: &[Verdict],
    out: &mut dyn Write,
) -> io::Result<()> {
    fill(
        include_str!("../html/comparison.html"),
        out,
        |name| match name {
            "css" => STYLE_SHEET.into(),
            "command" => {
                let command = words::command(&comparison.after.header.command);
                escape(&command).into_owned().into()
            }
            "sides" => {
                let lines = text::sides(comparison).into_iter();
                let lines = lines.chain(verdicts.iter().map(text::verdict_line));
                notice_list(&lines.collect::<Vec<_>>()).into()
            }
            "tables" => {
                let sheets = text::sheets(comparison, LINES_MAX);
                sheets.iter().map(html_table).collect::<String>().into()
            }
            other => unreachable!("the template names {other}"),
        },
    )
}
