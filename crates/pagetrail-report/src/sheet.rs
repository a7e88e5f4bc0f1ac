//! [`Sheet`]: a table of words and numbers, written for a terminal or a pipe and as HTML.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::html::escape;

/// One table: a title, heads, and rows of which the first `labels` cells are text.
pub struct Sheet {
    /// What stands above the table.
    pub title: String,
    /// The heads of its columns.
    pub heads: Vec<String>,
    /// How many columns are text; the others are aligned to the right.
    pub labels: usize,
    /// The rows, as many cells each as there are heads.
    pub rows: Vec<Vec<String>>,
    /// What its words mean.
    pub note: &'static str,
}

/// Writes one table, its note left out.
pub fn write_sheet(sheet: &Sheet, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", sheet.title)?;
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(&sheet.heads)
        .add_rows(&sheet.rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= sheet.labels {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A section with one table.
pub fn html_table(sheet: &Sheet) -> String {
    let cells = |tag: &str, cells: &[String]| -> String {
        let cells = cells.iter().enumerate().map(|(i, cell)| {
            let class = if i < sheet.labels {
                " class=\"label\""
            } else {
                ""
            };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = sheet.rows.iter().map(|row| cells("td", row)).collect();
    format!(
        "<section>\n<div class=\"section-head\"><h2>{}</h2></div>\n<div class=\"scroll\"><table>\n<thead>{}</thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n<p class=\"hint\">{}</p>\n</section>\n",
        escape(&sheet.title),
        cells("th", &sheet.heads),
        escape(sheet.note),
    )
}
