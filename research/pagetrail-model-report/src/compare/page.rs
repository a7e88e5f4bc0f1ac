//! `model compare` as one self-contained page of HTML, without scripts.

use std::fmt::Write as _;
use std::io::{self, Write};

use pagetrail_report::html::{STYLE_SHEET, escape, fill, notice_list};
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
    fill(include_str!("page.html"), out, |name| match name {
        "css" => STYLE_SHEET.into(),
        "chart-css" => CHART_STYLE.into(),
        "model-css" => include_str!("../style.css").into(),
        "setting" => escape(&document.setting()).into_owned().into(),
        "notices" => notices(document).into(),
        "charts" => charts(document).into(),
        "tables" => document
            .sheets()
            .iter()
            .map(html_table)
            .collect::<String>()
            .into(),
        other => unreachable!("the template names {other}"),
    })
}

fn notices(document: &Document<'_>) -> String {
    let absent = document.absent.iter().cloned();
    let lines: Vec<String> = absent.chain(document.price_notes()).collect();
    notice_list(&lines)
}

fn charts(document: &Document<'_>) -> String {
    let mut out = String::new();
    for (payer, whose) in PAYERS {
        let title = format!("Time {whose}, per round");
        if let Some(svg) = lines::svg(lines_of(document, payer), &SCALE, &title) {
            writeln!(
                out,
                "<figure><figcaption>{title}</figcaption>\n{svg}</figure>"
            )
            .expect("a String takes all");
        }
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
