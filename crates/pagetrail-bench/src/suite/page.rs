//! The suite as one self-contained page of HTML, without scripts.

use std::io::{self, Write};

use super::goals::Goals;
use super::results::{Measured, ProgramMeasured, Suite};
use super::table;
use pagetrail_report::bars::{self, Bar, Group};
use pagetrail_report::html::{Charts, Page, figure, notice_list};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;
use pagetrail_report::words;

/// Writes the page.
pub fn write(suite: &Suite, out: &mut dyn Write) -> io::Result<()> {
    let charts = Charts {
        id: "charts-title",
        title: "Side by side",
        legend: &legend(suite),
        figures: &figures(suite),
        hint: "",
    };
    let tables: String = table::sheets(suite).iter().map(html_table).collect();
    let parts = [
        &notice_list(&table::absences(suite))[..],
        &charts.html(),
        &tables,
    ];
    Page::new("pagetrail bench --suite")
        .styles(&[CHART_STYLE])
        .heading(
            "pagetrail bench",
            "What tracking costs, by workload and technique",
        )
        .subtitle(&table::setting(suite))
        .write(out, &parts)
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

fn figures(suite: &Suite) -> String {
    let mut lengths: Vec<u64> = suite.rows.iter().map(|row| row.round_ms).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut out = String::new();
    for (what, of) in OF_WORKLOADS {
        for &length in &lengths {
            let rows = suite.rows.iter().filter(|row| row.round_ms == length);
            let groups = rows.map(|row| group(&row.name, &row.techniques, |m| m.technique, of));
            let title = format!("{what}, rounds of {length} ms");
            out += &draw(&title, groups.collect());
        }
    }
    for (what, of) in OF_PROGRAMS {
        let rows = suite.programs.iter();
        let groups = rows.map(|row| group(&row.name, &row.techniques, |m| m.technique, of));
        let length = suite.programs.first().map_or(0, |row| row.round_ms);
        let title = format!("{what}: programs, rounds of {length} ms");
        out += &draw(&title, groups.collect());
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

fn draw(title: &str, groups: Vec<Group>) -> String {
    figure(title, bars::svg(&groups, None, title))
}
