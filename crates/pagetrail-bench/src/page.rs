//! The results as one self-contained page of HTML, without scripts.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::results::{Figure, Results, Tracked};
use super::table;
use super::{chart, definitions};
use pagetrail_report::html::{STYLE_SHEET, escape, fill, notice_list};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;

/// What the charts show.
const FIGURES: [(&str, Figure); 2] = [
    ("on tracked", |m| m.overhead_on_tracked_percent),
    ("on tracker", |m| m.overhead_on_tracker_percent),
];

/// Writes the page.
pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

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
