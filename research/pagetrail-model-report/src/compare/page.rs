//! `model compare` as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use pagetrail_report::html::{Charts, Page, figure, notice_list};
use pagetrail_report::lines::{self, CHART_STYLE, Line, Point, Scale};
use pagetrail_report::sheet::html_table;
use pagetrail_report::words;

use super::{Document, PAYERS, plus, time};

/// In nanoseconds, per round.
const SCALE: Scale = Scale {
    floor: 1e3,
    least_top: 1e6,
    label: words::time,
    value: words::time,
};

/// Writes the page.
pub fn write(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let charts = Charts {
        id: "charts-title",
        title: "Time over size of memory",
        legend: "",
        figures: &figures(document),
        hint: "Modelled, not measured: events counted on a machine in software, times the costs named above. \
               A plus: some of it has no known cost and comes on top. Both axes are logarithmic.",
    };
    let tables: String = document.sheets().iter().map(html_table).collect();
    let parts = [&notices(document)[..], &charts.html(), &tables];
    Page::new("pagetrail model compare")
        .styles(&[CHART_STYLE, include_str!("../style.css")])
        .heading(
            "pagetrail model compare",
            "What tracking would cost, by technique and size",
        )
        .subtitle(&document.setting())
        .write(out, &parts)
}

fn notices(document: &Document<'_>) -> String {
    let absent = document.absent.iter().cloned();
    let lines: Vec<String> = absent.chain(document.price_notes()).collect();
    notice_list(&lines)
}

fn figures(document: &Document<'_>) -> String {
    let mut out = String::new();
    for (payer, whose) in PAYERS {
        let title = format!("Time {whose}, per round");
        out += &figure(
            &title,
            lines::svg(lines_of(document, payer), &SCALE, &title),
        );
    }
    out
}

/// A line per technique; the name has a plus where the costs of some of it are not known.
fn lines_of(document: &Document<'_>, payer: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in &document.results {
        let name = result.technique.clone() + plus(result, payer);
        let point = Point {
            size: result.size_bytes,
            value: time(result, payer),
            spread: None,
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                class: class(&result.technique),
                points: vec![point],
            }),
        }
    }
    lines
}

/// The class that has the technique's colour.
fn class(technique: &str) -> &'static str {
    match technique {
        "soft-dirty" => "soft-dirty",
        "userfaultfd" => "userfaultfd",
        "spml" => "spml",
        "epml" => "epml",
        "shadow" => "shadow",
        "oracle" => "oracle",
        _ => "lu",
    }
}
