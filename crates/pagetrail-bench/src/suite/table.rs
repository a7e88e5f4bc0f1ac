//! The suite as tables: `sheets` for any medium, [`write()`] for a terminal or a pipe.

use std::io::{self, Write};

use super::goals::{Goals, TurnsSum};
use super::results::{Paired, Suite};
use crate::predicted::Predicted;
use crate::results::Spread;
use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::words;

/// Under the tables.
const NOTE: &str = "overhead: processor time of an operation, or of a program's run, against untracked; faults: all of the \
writer's, written, reported and predicted in pages, all per round; collect: processor time of the tracker; memory: what is \
used to remember pages; calls: those that re-arm beside predicted pages";

/// Under what they come to.
const NOTE_GOALS: &str = "reported / written: over the workloads; against the others: what an operation takes, over what it takes by the best \
other technique, the most over the workloads; programs: mean overhead; collect: over that of pagemap-scan, over all workloads and programs";

/// The tables.
pub(crate) fn sheets(suite: &Suite) -> Vec<Sheet> {
    let mut sheets = Vec::new();
    if !suite.rows.is_empty() {
        sheets.push(workloads(suite));
    }
    if !suite.programs.is_empty() {
        sheets.push(programs(suite));
        sheets.extend(budgets(suite));
    }
    sheets.extend(turns(suite));
    sheets.extend(goals(suite));
    sheets
}

/// One line about where and how it was measured.
pub(crate) fn setting(suite: &Suite) -> String {
    let runs = suite.rows.iter().map(|row| row.runs);
    let runs = runs.chain(suite.programs.iter().map(|row| row.runs));
    let runs = match (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0)) {
        (least, most) if least == most => words::plural(u64::from(least), "run"),
        (least, most) => format!("{least} to {most} runs"),
    };
    let measured = match suite.turns.first() {
        Some(row) if suite.rows.is_empty() => {
            let times = words::plural(u64::from(row.pairs), "time");
            format!("{times} tracked and untracked in turns")
        }
        _ => format!("medians of {runs}"),
    };
    format!(
        "Linux {}, {}, pages of {}; {measured}; a false positive costs {}; every round of a workload checked against the writer",
        suite.kernel,
        words::plural(suite.cpus as u64, "CPU"),
        words::bytes(suite.page_size as f64),
        words::time(suite.false_positive_ns as f64),
    )
}

/// What was not measured, one line each.
pub(crate) fn absences(suite: &Suite) -> Vec<String> {
    let techniques = suite.absent.iter();
    let techniques =
        techniques.map(|(technique, reason)| format!("not here: {technique}: {reason}"));
    let programs = suite.missing.iter();
    let programs = programs.map(|name| format!("not here: {name}"));
    techniques.chain(programs).collect()
}

/// Writes all of it.
pub fn write(suite: &Suite, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", setting(suite))?;
    for line in absences(suite) {
        writeln!(out, "{line}")?;
    }
    for sheet in sheets(suite) {
        writeln!(out)?;
        write_sheet(&sheet, out)?;
        writeln!(out, "({})", sheet.note)?;
    }
    Ok(())
}

/// What follows the figures of both kinds of rows.
const HEADS: [&str; 10] = [
    "faults",
    "written",
    "reported",
    "ratio",
    "collect",
    "predicted",
    "avoided",
    "false pos.",
    "memory",
    "calls",
];

fn heads(what: &str) -> Vec<String> {
    let labels = [what, "round", "technique", "overhead"];
    labels
        .iter()
        .chain(&HEADS)
        .map(|&head| head.into())
        .collect()
}

fn workloads(suite: &Suite) -> Sheet {
    let mut rows = Vec::new();
    for row in &suite.rows {
        for (at, measured) in row.techniques.iter().enumerate() {
            let mut cells = labels(at, &row.name, row.round_ms, measured.technique);
            cells.extend([
                percent(measured.overhead_percent),
                pages(measured.faults_per_round),
                pages(measured.written_per_round),
                pages(measured.reported_per_round),
                format!("{:.2}", measured.reported_per_written.median),
                words::time(measured.collect_us.median * 1e3),
            ]);
            cells.extend(predicted(measured.prediction.as_ref()));
            rows.push(cells);
        }
    }
    Sheet {
        title: "Workloads".into(),
        heads: heads("workload"),
        labels: 3,
        rows,
        note: NOTE,
    }
}

fn programs(suite: &Suite) -> Sheet {
    let mut rows = Vec::new();
    for row in &suite.programs {
        for (at, measured) in row.techniques.iter().enumerate() {
            let faults = measured.faults.median / measured.rounds.median.max(1.0);
            let mut cells = labels(at, &row.name, row.round_ms, measured.technique);
            cells.extend([
                percent(measured.overhead_percent),
                words::count(faults.round() as u64),
                String::new(),
                pages(measured.reported_per_round),
                String::new(),
                words::time(measured.collect_us.median * 1e3),
            ]);
            cells.extend(predicted(measured.prediction.as_ref()));
            rows.push(cells);
        }
    }
    Sheet {
        title: "Programs".into(),
        heads: heads("program"),
        labels: 3,
        rows,
        note: NOTE,
    }
}

/// What tracking within a budget came to, where there was one.
fn budgets(suite: &Suite) -> Option<Sheet> {
    let mut rows = Vec::new();
    for row in &suite.programs {
        for (at, measured) in row.techniques.iter().enumerate() {
            let Some(budget) = &measured.budget else {
                continue;
            };
            let mut cells = labels(at, &row.name, row.round_ms, measured.technique);
            cells.extend([
                percent(measured.overhead_percent),
                percent(budget.cost_percent),
                format!("{:.1}%", budget.allowed_percent),
                words::time(budget.interval_ms.median * 1e6),
                format!("{:.2}", budget.reported_per_written.median),
                format!("{:.0}", budget.rounds_over.median),
            ]);
            rows.push(cells);
        }
    }
    let heads = [
        "program",
        "round",
        "technique",
        "overhead",
        "by estimate",
        "allowed",
        "interval",
        "ratio",
        "rounds over",
    ];
    (!rows.is_empty()).then(|| Sheet {
        title: "Budgets".into(),
        heads: heads.map(String::from).to_vec(),
        labels: 3,
        rows,
        note: "overhead: processor time of a run against untracked; by estimate: what tracking took it to cost, in the mean over a run; \
               round: the shortest; interval: the median round; rounds over: at the longest interval, and still more than allowed",
    })
}

/// Programs tracked and untracked in turns, and what that comes to.
fn turns(suite: &Suite) -> Vec<Sheet> {
    let mut rows = Vec::new();
    for row in &suite.turns {
        for (at, measured) in row.techniques.iter().enumerate() {
            let mut cells = labels(at, &row.name, row.round_ms, measured.technique);
            cells.extend([
                paired(&measured.overhead_percent),
                words::count(measured.faults_per_second.median.round() as u64),
                format!("{:.0}", measured.rounds.median),
                pages(measured.reported_per_round),
                words::time(measured.collect_us.median * 1e3),
                percent(measured.tracker_percent),
            ]);
            cells.extend(match &measured.budget {
                Some(budget) => [
                    percent(budget.cost_percent),
                    words::time(budget.interval_ms.median * 1e6),
                    format!("{:.2}", budget.reported_per_written.median),
                    format!("{:.0}", budget.rounds_over.median),
                ],
                None => Default::default(),
            });
            rows.push(cells);
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let heads = [
        "program",
        "round",
        "technique",
        "overhead",
        "faults/s",
        "rounds",
        "reported",
        "collect",
        "tracker",
        "by estimate",
        "interval",
        "ratio",
        "rounds over",
    ];
    let programs = Sheet {
        title: "In turns".into(),
        heads: heads.map(String::from).to_vec(),
        labels: 3,
        rows,
        note: "overhead: how much longer a unit of work takes, by the clock, in a turn in which the program is tracked than in the turn beside \
               it in which it is not: mean, standard error of the mean; faults: of tracking, without those after the last round of a turn; \
               tracker: its processor time; by estimate: what tracking took it to cost; rounds over: at the longest interval, and still more than allowed",
    };
    let sums = TurnsSum::of(suite);
    let sums = sums.iter().map(|sum| {
        let (worst, name) = (paired(&sum.worst), sum.worst_name);
        vec![
            sum.technique.to_owned(),
            paired(&sum.mean),
            format!("{worst} ({name})"),
        ]
    });
    let all = Sheet {
        title: "All of them in turns".into(),
        heads: ["technique", "mean", "worst"].map(String::from).to_vec(),
        labels: 1,
        rows: sums.collect(),
        note: "overhead, over the programs",
    };
    vec![programs, all]
}

/// A mean and its standard error.
fn paired(of: &Paired) -> String {
    match of.standard_error.is_finite() {
        true => format!("{:.1}% +- {:.1}", of.mean, of.standard_error),
        false => format!("{:.1}%", of.mean),
    }
}

fn goals(suite: &Suite) -> Option<Sheet> {
    let ratio = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    let rows: Vec<_> = Goals::of(suite)
        .into_iter()
        .map(|goals| {
            vec![
                goals.technique.to_owned(),
                ratio(goals.reported_mean),
                ratio(goals.reported_most),
                ratio(goals.against_best_most),
                goals
                    .programs_overhead_percent
                    .map_or_else(String::new, |mean| format!("{mean:.1}%")),
                ratio(goals.collect_median),
                ratio(goals.collect_most),
            ]
        })
        .collect();
    let heads = [
        "technique",
        "reported / written, mean",
        "most",
        "against the others",
        "programs",
        "collect, median",
        "most",
    ];
    (!rows.is_empty()).then(|| Sheet {
        title: "What it comes to".into(),
        heads: heads.map(String::from).to_vec(),
        labels: 1,
        rows,
        note: NOTE_GOALS,
    })
}

fn labels(at: usize, name: &str, round_ms: u64, technique: &str) -> Vec<String> {
    let (name, round) = match at {
        0 => (name.to_owned(), format!("{round_ms} ms")),
        _ => Default::default(),
    };
    vec![name, round, technique.to_owned()]
}

fn predicted(prediction: Option<&Predicted>) -> [String; 5] {
    let Some(prediction) = prediction else {
        return Default::default();
    };
    [
        pages(prediction.predicted_per_round),
        pages(prediction.faults_avoided_per_round),
        pages(prediction.false_positives_per_round),
        words::bytes(prediction.table_bytes as f64),
        pages(prediction.calls_per_round),
    ]
}

fn percent(overhead: Spread) -> String {
    format!("{:.1}%", overhead.median)
}

fn pages(count: Spread) -> String {
    words::count(count.median.round().max(0.0) as u64)
}
