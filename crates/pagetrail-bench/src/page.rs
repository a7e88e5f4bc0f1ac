//! The results as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use super::results::{Figure, Results, Tracked};
use super::table;
use super::{chart, definitions};
use pagetrail_report::html::{Charts, Page, figure, notice_list};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;

/// What the charts show.
const FIGURES: [(&str, Figure); 2] = [
    ("on tracked", |m| m.overhead_on_tracked_percent),
    ("on tracker", |m| m.overhead_on_tracker_percent),
];

/// Writes the page.
pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    let charts = Charts {
        id: "charts-title",
        title: "Overhead over size of memory",
        legend: "",
        figures: &figures(results),
        hint: &format!(
            "Both axes are logarithmic; thin lines reach from the least to the most of all runs; {}.",
            definitions::OVERHEAD
        ),
    };
    let parts = [
        &notice_list(&table::absences(results))[..],
        &charts.html(),
        &tables(results),
    ];
    Page::new("pagetrail bench")
        .styles(&[CHART_STYLE])
        .heading(
            "pagetrail bench",
            "What tracking costs, by technique and size",
        )
        .subtitle(&table::setting(results))
        .write(out, &parts)
}

fn figures(results: &Results) -> String {
    let mut out = String::new();
    for tracked in Tracked::ALL {
        for (what, of) in FIGURES {
            let title = format!("Overhead {what}, {}", tracked.words());
            out += &figure(&title, chart::svg(results, tracked, &title, of));
        }
    }
    out
}

fn tables(results: &Results) -> String {
    table::sheets(results).iter().map(html_table).collect()
}

#[cfg(test)]
mod tests {
    use pagetrail_report::testing::assert_self_contained;

    use super::*;
    use crate::testing;

    #[test]
    fn needs_nothing_but_itself_and_escapes_reasons() {
        let mut out = Vec::new();
        write(&testing::results(), &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert_self_contained(&page);
        assert!(!page.contains("<script") && !page.contains("<soft-dirty>"));
        assert!(page.contains("&lt;soft-dirty&gt;"));
        assert_eq!(page.matches("<svg").count(), 4);
    }
}
