//! The results as the paper's tables: `sheets` for any medium, [`write()`] for a terminal or a
//! pipe.

use std::io::{self, Write};

use super::definitions;
use super::predicted::Predicted;
use super::results::{Fault, Figure, Measured, Results, Spread, Steps, Tracked};
use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::words;

/// The tables: overheads and steps, for each place of the writer.
pub(crate) fn sheets(results: &Results) -> Vec<Sheet> {
    let of = |tracked| Columns::of(results, tracked);
    let mut sheets = Vec::new();
    for tracked in Tracked::ALL {
        sheets.extend(of(tracked).map(|columns| columns.overheads(tracked)));
    }
    for tracked in Tracked::ALL {
        sheets.extend(of(tracked).map(|columns| columns.steps(tracked)));
    }
    for tracked in Tracked::ALL {
        sheets.extend(of(tracked).and_then(|columns| columns.predicted(tracked)));
    }
    sheets
}

/// One line about where and how it was measured.
pub(crate) fn setting(results: &Results) -> String {
    let runs = match results.runs {
        1 => "a single run".into(),
        runs => format!("medians of {runs} runs"),
    };
    let locked = match &results.not_locked {
        None => "memory locked".into(),
        Some(why) => format!("memory not locked ({why})"),
    };
    format!(
        "Linux {}, {}, pages of {}; {runs}; {locked}; every round checked against the writer",
        results.kernel,
        words::plural(results.cpus as u64, "CPU"),
        words::bytes(results.page_size as f64),
    )
}

/// What was not measured, one line each.
pub(crate) fn absences(results: &Results) -> Vec<String> {
    let lines = results.absent.iter().map(|absent| {
        let where_ = absent.tracked.words();
        format!(
            "not here: {}, {where_}: {}",
            absent.technique, absent.reason
        )
    });
    lines.collect()
}

/// Writes all tables.
pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", setting(results))?;
    for line in absences(results) {
        writeln!(out, "{line}")?;
    }
    let sheets = sheets(results);
    for (i, sheet) in sheets.iter().enumerate() {
        writeln!(out)?;
        write_sheet(sheet, out)?;
        // Once below all tables of a kind.
        if sheets.get(i + 1).is_none_or(|next| next.note != sheet.note) {
            writeln!(out, "({})", sheet.note)?;
        }
    }
    Ok(())
}

/// The results of one place: by technique, then by size.
struct Columns<'a> {
    sizes: Vec<u64>,
    techniques: Vec<(&'a str, Vec<&'a Measured>)>,
}

impl<'a> Columns<'a> {
    fn of(results: &'a Results, tracked: Tracked) -> Option<Self> {
        let mut sizes = Vec::new();
        let mut techniques: Vec<(&str, Vec<&Measured>)> = Vec::new();
        for measured in results.results.iter().filter(|m| m.tracked == tracked) {
            if !sizes.contains(&measured.size_bytes) {
                sizes.push(measured.size_bytes);
            }
            match techniques
                .iter_mut()
                .find(|(t, _)| *t == measured.technique)
            {
                Some((_, row)) => row.push(measured),
                None => techniques.push((measured.technique, vec![measured])),
            }
        }
        (!sizes.is_empty()).then_some(Self { sizes, techniques })
    }

    fn heads(&self, labels: &[&str]) -> Vec<String> {
        let sizes = self.sizes.iter().map(|&size| words::bytes(size as f64));
        labels
            .iter()
            .map(|&label| label.into())
            .chain(sizes)
            .collect()
    }

    fn overheads(&self, tracked: Tracked) -> Sheet {
        let mut rows = Vec::new();
        let kinds: [(&str, Figure); 2] = [
            ("tracked", |m| m.overhead_on_tracked_percent),
            ("tracker", |m| m.overhead_on_tracker_percent),
        ];
        for (kind, overhead) in kinds {
            for (i, (technique, row)) in self.techniques.iter().enumerate() {
                let kind = if i == 0 {
                    format!("on {kind}")
                } else {
                    String::new()
                };
                let values = row.iter().map(|m| percent(overhead(m).median));
                rows.push(
                    [kind, (*technique).into()]
                        .into_iter()
                        .chain(values)
                        .collect(),
                );
            }
        }
        Sheet {
            title: format!("Overhead in %, {} (the paper's Table I)", tracked.words()),
            heads: self.heads(&["", "technique"]),
            labels: 2,
            rows,
            note: definitions::OVERHEAD,
        }
    }

    fn steps(&self, tracked: Tracked) -> Sheet {
        let mut rows = Vec::new();
        let untracked = |i: usize| {
            let passes = self.techniques.iter().filter_map(|(_, row)| row.get(i));
            Spread::of(passes.map(|m| m.untracked_pass_ns.median)).median
        };
        let untracked = (0..self.sizes.len()).map(|i| words::time(untracked(i)));
        let labels = ["untracked".into(), "pass".into()];
        rows.push(labels.into_iter().chain(untracked).collect());
        for (technique, row) in &self.techniques {
            for (i, (step, values)) in steps_of(row).into_iter().enumerate() {
                let technique = if i == 0 { *technique } else { "" };
                rows.push([technique.into(), step].into_iter().chain(values).collect());
            }
        }
        Sheet {
            title: format!("Single steps, {} (the paper's Table IV)", tracked.words()),
            heads: self.heads(&["technique", "step"]),
            labels: 2,
            rows,
            note: definitions::STEPS,
        }
    }

    /// What techniques predicted that do.
    fn predicted(&self, tracked: Tracked) -> Option<Sheet> {
        let figures: [(&str, Cell); 4] = [
            ("pages predicted", |p| mean(p.predicted_per_round)),
            ("faults avoided", |p| mean(p.faults_avoided_per_round)),
            ("false positives", |p| mean(p.false_positives_per_round)),
            ("memory used", |p| words::bytes(p.table_bytes as f64)),
        ];
        let mut rows = Vec::new();
        for (technique, row) in &self.techniques {
            if row.iter().all(|measured| measured.prediction.is_none()) {
                continue;
            }
            for (i, (name, figure)) in figures.into_iter().enumerate() {
                let technique = if i == 0 { *technique } else { "" };
                let prediction = row.iter().map(|measured| measured.prediction.as_ref());
                let values =
                    prediction.map(|prediction| prediction.map(figure).unwrap_or_default());
                rows.push(
                    [technique.into(), name.into()]
                        .into_iter()
                        .chain(values)
                        .collect(),
                );
            }
        }
        (!rows.is_empty()).then(|| Sheet {
            title: format!("Predicted written, per round, {}", tracked.words()),
            heads: self.heads(&["technique", ""]),
            labels: 2,
            rows,
            note: definitions::PREDICTED,
        })
    }
}

/// The steps of one technique that cost anything: name, and a time for each size.
fn steps_of(row: &[&Measured]) -> Vec<(String, Vec<String>)> {
    let times = |figure: fn(&Steps) -> Spread| -> Vec<f64> {
        row.iter().map(|m| figure(&m.steps).median).collect()
    };
    let per_page = |figure: fn(&Fault) -> Spread| -> Vec<f64> {
        let faults = row.iter().filter_map(|m| m.steps.fault.as_ref());
        faults.map(|fault| figure(fault).median).collect()
    };
    let fault = row.iter().find_map(|m| m.steps.fault.as_ref());
    let fault = fault.map(|fault| fault.handled_in).unwrap_or_default();
    let mut steps = vec![
        ("arm".to_owned(), times(|s| s.arm_ns)),
        ("stopped to attach".into(), times(|s| s.attach_stopped_ns)),
        (
            format!("fault in {fault}, per page"),
            per_page(|f| f.ns_per_page),
        ),
        ("collect".into(), times(|s| s.collect_ns)),
        ("stopped to collect".into(), times(|s| s.collect_stopped_ns)),
        ("clean collect".into(), times(|s| s.clean_collect_ns)),
        (
            "take and re-arm, per page".into(),
            per_page(|f| f.take_and_rearm_ns_per_page),
        ),
        ("disarm".into(), times(|s| s.disarm_ns)),
    ];
    steps.retain(|(_, times)| times.iter().any(|&time| time != 0.0));
    let in_words = |times: Vec<f64>| times.into_iter().map(time).collect();
    steps
        .into_iter()
        .map(|(name, times)| (name, in_words(times)))
        .collect()
}

/// A figure of what was predicted, in words.
type Cell = fn(&Predicted) -> String;

fn mean(pages: Spread) -> String {
    words::count(pages.median.round() as u64)
}

/// Differences of times can be below zero by noise.
fn time(ns: f64) -> String {
    match ns <= -0.5 {
        true => format!("-{}", words::time(-ns)),
        false => words::time(ns.max(0.0)),
    }
}

/// A percentage without its sign: `6,034`, `0.4`, `-2.1`.
fn percent(x: f64) -> String {
    let sign = if x <= -0.05 { "-" } else { "" };
    match x.abs() {
        x if x < 0.05 => "0".into(),
        x if x < 9.95 => format!("{sign}{x:.1}"),
        x => format!("{sign}{}", words::count(x.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn tables_as_the_paper_has_them() {
        let mut out = Vec::new();
        write(&testing::results(), &mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }

    #[test]
    fn percents_are_as_exact_as_they_are_small() {
        let given = [0.0, -0.04, 0.44, -2.1, 99.6, 6034.2, -12.0];
        let shown = given.map(percent);
        assert_eq!(shown, ["0", "0", "0.4", "-2.1", "100", "6,034", "-12"]);
    }
}
