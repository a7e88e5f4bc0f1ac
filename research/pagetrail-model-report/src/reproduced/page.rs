//! `model reproduce` as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use pagetrail_report::html::{Page, escape};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;

use super::{Document, LEGEND, Reproduced, chart};

/// Writes the page.
pub fn write(document: &Document, out: &mut dyn Write) -> io::Result<()> {
    let tables: String = document.tables.iter().map(section).collect();
    Page::new("pagetrail model reproduce")
        .styles(&[CHART_STYLE, include_str!("../style.css")])
        .heading("pagetrail model reproduce", document.title)
        .subtitle(LEGEND)
        .write(out, &[&tables])
}

/// A table with its verdict, notes and statements.
fn section(table: &Reproduced) -> String {
    let (sheet, notes) = table.sheet().unzip();
    let values = sheet.as_ref().map(html_table).unwrap_or_default();
    let picture = chart::svg(table).unwrap_or_default();
    let picture = picture.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    let item = |text: &str| format!("<li>{}</li>\n", escape(text));
    let notes: String = notes.iter().flatten().map(|note| item(note)).collect();
    let statements: String = table.statements().map(|line| item(&line)).collect();
    format!(
        "<section>\n<div class=\"section-head\"><h2>{}</h2></div>\n<p>{}</p>\n<p><strong>{}.</strong></p>\n{picture}{values}\
         <ol class=\"hint\">\n{notes}</ol>\n<ul>\n{statements}</ul>\n</section>\n",
        escape(&table.heading()),
        escape(table.about()),
        escape(&table.verdict()),
    )
}

#[cfg(test)]
mod tests {
    use pagetrail_model::reproduce::catalog::Paper;
    use pagetrail_report::testing::assert_self_contained;

    use super::*;
    use crate::reproduced::testing;

    #[test]
    fn a_page_has_every_verdict_note_and_statement() {
        let document = testing::table(Paper::Xen, 13);
        let mut out = Vec::new();
        write(&document, &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert_self_contained(&page);
        assert!(!page.contains("<script"));
        for part in [
            "fitted",
            "modelled",
            "are independent of the paper",
            "holds, as it must",
            "<svg",
        ] {
            assert!(page.contains(part), "no {part}");
        }
    }
}
