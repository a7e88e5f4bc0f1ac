//! The results as one self-contained page of HTML, without scripts.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::results::{Figure, Results, Tracked};
use super::table::{self, Sheet};
use super::{chart, definitions};
use crate::report::html::{STYLE_SHEET, escape, fill, notice_list};

/// What the charts show.
const FIGURES: [(&str, Figure); 2] = [
    ("on tracked", |m| m.overhead_on_tracked_percent),
    ("on tracker", |m| m.overhead_on_tracker_percent),
];

/// The look of charts, and the colours of the library's techniques.
pub(crate) const CHART_STYLE: &str = include_str!("page/page.css");

/// Writes the page.
pub(crate) fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    fill(include_str!("page/page.html"), out, |name| match name {
        "css" => STYLE_SHEET.into(),
        "bench-css" => CHART_STYLE.into(),
        "setting" => escape(&table::setting(results)).into_owned().into(),
        "notices" => notice_list(&table::absences(results)).into(),
        "charts" => charts(results).into(),
        "overhead" => definitions::OVERHEAD.into(),
        "tables" => tables(results).into(),
        other => unreachable!("the template names {other}"),
    })
}

fn charts(results: &Results) -> String {
    let mut out = String::new();
    for tracked in Tracked::ALL {
        for (what, figure) in FIGURES {
            let title = format!("Overhead {what}, {}", tracked.words());
            if let Some(svg) = chart::svg(results, tracked, &title, figure) {
                writeln!(
                    out,
                    "<figure><figcaption>{title}</figcaption>\n{svg}</figure>"
                )
                .expect("a String takes all");
            }
        }
    }
    out
}

fn tables(results: &Results) -> String {
    table::sheets(results).iter().map(html_table).collect()
}

/// A section with one table.
pub(crate) fn html_table(sheet: &Sheet) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing;

    #[test]
    fn needs_nothing_but_itself_and_escapes_reasons() {
        let mut out = Vec::new();
        write(&testing::results(), &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        for foreign in [
            "http://",
            "https://",
            "src=",
            "href=",
            "@import",
            "url(",
            "{{",
            "<script",
            "<soft-dirty>",
        ] {
            assert!(!page.contains(foreign), "found {foreign}");
        }
        assert!(page.contains("&lt;soft-dirty&gt;"));
        assert_eq!(page.matches("<svg").count(), 4);
    }
}
