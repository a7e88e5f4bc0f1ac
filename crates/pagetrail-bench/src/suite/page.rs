//! The suite as one self-contained page of HTML, without scripts.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::goals::Goals;
use super::results::{Measured, ProgramMeasured, Suite};
use super::table;
use pagetrail_report::bars::{self, Bar, Group};
use pagetrail_report::html::{STYLE_SHEET, escape, fill, notice_list};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;
use pagetrail_report::words;

/// Writes the page.
pub fn write(suite: &Suite, out: &mut dyn Write) -> io::Result<()> {
    fill(include_str!("page/page.html"), out, |name| match name {
        "css" => STYLE_SHEET.into(),
        "bench-css" => CHART_STYLE.into(),
        "setting" => escape(&table::setting(suite)).into_owned().into(),
        "notices" => notice_list(&table::absences(suite)).into(),
        "legend" => legend(suite).into(),
        "charts" => charts(suite).into(),
        "tables" => {
            let sheets = table::sheets(suite);
            sheets.iter().map(html_table).collect::<String>().into()
        }
        other => unreachable!("the template names {other}"),
    })
}

fn legend(suite: &Suite) -> String {
    let goals = Goals::of(suite);
    let names = goals.iter().map(|goals| goals.technique);
    names
        .map(|name| format!("<span class=\"{name}\">{name}</span>"))
        .collect()
}

/// A value and its words.
type Figure<M> = fn(&M) -> (f64, String);

const OF_WORKLOADS: [(&str, Figure<Measured>); 3] = [
    ("Overhead on the program", |m| {
        percent(m.overhead_percent.median)
    }),
    ("Pages reported / pages written", |m| {
        let ratio = m.reported_per_written.median;
        (ratio, format!("{ratio:.2}"))
    }),
    ("Collect time", |m| time(m.collect_us.median)),
];

const OF_PROGRAMS: [(&str, Figure<ProgramMeasured>); 2] = [
    ("Overhead on the program", |m| {
        percent(m.overhead_percent.median)
    }),
    ("Collect time", |m| time(m.collect_us.median)),
];

fn percent(value: f64) -> (f64, String) {
    (value, format!("{value:.1}%"))
}

fn time(us: f64) -> (f64, String) {
    (us, words::time(us * 1e3))
}

fn charts(suite: &Suite) -> String {
    let mut lengths: Vec<u64> = suite.rows.iter().map(|row| row.round_ms).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut out = String::new();
    for (what, figure) in OF_WORKLOADS {
        for &length in &lengths {
            let rows = suite.rows.iter().filter(|row| row.round_ms == length);
            let groups = rows.map(|row| group(&row.name, &row.techniques, |m| m.technique, figure));
            draw(
                &format!("{what}, rounds of {length} ms"),
                groups.collect(),
                &mut out,
            );
        }
    }
    for (what, figure) in OF_PROGRAMS {
        let rows = suite.programs.iter();
        let groups = rows.map(|row| group(&row.name, &row.techniques, |m| m.technique, figure));
        let length = suite.programs.first().map_or(0, |row| row.round_ms);
        draw(
            &format!("{what}: programs, rounds of {length} ms"),
            groups.collect(),
            &mut out,
        );
    }
    out
}

fn group<M>(name: &str, of: &[M], technique: fn(&M) -> &'static str, figure: Figure<M>) -> Group {
    let bars = of.iter().map(|measured| {
        let (value, words) = figure(measured);
        Bar {
            name: technique(measured).to_owned(),
            class: technique(measured),
            value,
            spread: None,
            words,
        }
    });
    Group {
        name: name.into(),
        bars: bars.collect(),
    }
}

fn draw(title: &str, groups: Vec<Group>, out: &mut String) {
    if let Some(svg) = bars::svg(&groups, None, title) {
        writeln!(
            out,
            "<figure><figcaption>{title}</figcaption>\n{svg}</figure>"
        )
        .expect("a String takes all");
    }
}
