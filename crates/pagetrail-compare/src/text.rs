//! The comparison as tables: `sheets` for any medium, [`write()`] for a terminal or a pipe.

mod kernel;

use std::io::{self, Write};

use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::words;

use crate::condition::Verdict;
use crate::results::{Comparison, Measured, SuiteResult, TestResult};
use crate::score::Score;
use crate::statistics::Estimate;

/// The most characters of a bar.
const BAR_CHARS: usize = 24;

const NOTE_SCORES: &str = "the mean of the median ratios of the tests with its standard deviation; all: each suite counts the same; ~: no \
test differs from noise";

const NOTE_TESTS: &str = "ratio: the median of the times of each round, divided; interval: its confidence interval, by order statistics; ~: \
the interval meets that of the noise, so the difference is within noise; processor: the time of all processors, of which tests of suites \
count the start of their process, too";

const NOTE_SCORES_FEW: &str = "the mean of the median ratios of the tests with its standard deviation; all: each suite counts the same; ?: \
too few rounds to tell";

const NOTE_TESTS_FEW: &str = "ratio: the median of the times of each round, divided; interval: from the least to the greatest; ?: too few \
rounds to tell a difference from noise; six are the fewest";

const NOTE_COUNTS: &str = "medians of a run: processor time of the program and its children in user mode and in the kernel, and of the \
tracker beside it; page faults; how often a thread gave up its processor or had to; rounds of the tracker and pages in them";

/// The line about where and how it was measured.
pub(crate) fn setting(comparison: &Comparison) -> String {
    let tests = || comparison.suites.iter().flat_map(|suite| &suite.tests);
    let runs = tests().map(|test| test.runs).max().unwrap_or(0);
    let confidence = tests().map(|test| test.confidence).next().unwrap_or(0.0);
    let confidence = match confidence > 0.0 {
        true => format!("intervals of {:.1} % confidence", confidence * 100.0),
        false => "no confidence intervals: that takes more rounds".to_owned(),
    };
    format!(
        "Linux {}, {}; times against {}; {} in an order drawn by seed {}; {confidence}",
        comparison.setting.kernel,
        words::plural(comparison.setting.cpus as u64, "CPU"),
        comparison.against,
        words::plural(runs as u64, "round"),
        comparison.seed,
    )
}

/// What was not measured and what is odd, one line each.
pub(crate) fn notices(comparison: &Comparison) -> Vec<String> {
    let absent = comparison.absent.iter();
    let absent = absent.map(|absent| format!("not here: {}: {}", absent.name, absent.reason));
    let notes = comparison.notes.iter().cloned();
    let suites = comparison.suites.iter();
    let tests = suites.flat_map(|suite| suite.tests.iter().map(move |test| (suite, test)));
    let notices = tests.flat_map(|(suite, test)| match suite.tests.len() {
        1 => notices_of(&test.name, test),
        _ => notices_of(&format!("{}/{}", suite.name, test.name), test),
    });
    notes.chain(absent).chain(notices).collect()
}

fn notices_of(name: &str, test: &TestResult) -> Vec<String> {
    let mut lines = Vec::new();
    for measured in &test.environments {
        if let Some(differs) = &measured.differs {
            lines.push(format!(
                "{name} behaves differently in {}: {differs}",
                measured.environment
            ));
        }
    }
    for failure in &test.failures {
        lines.push(format!(
            "{name} fails in {}: {}",
            failure.environment, failure.reason
        ));
    }
    if let Some(ends) = &test.ends {
        lines.push(format!(
            "{name} {ends} in every run that no other line is about"
        ));
    }
    if let Some(what) = &test.unstable {
        lines.push(format!(
            "the {what} of {name} is not the same from run to run, and is not compared"
        ));
    }
    lines
}

/// Whether the first table is that of the scores.
fn has_scores(comparison: &Comparison) -> bool {
    comparison.suites.iter().any(|suite| suite.tests.len() > 1)
}

/// The tables.
pub(crate) fn sheets(comparison: &Comparison) -> Vec<Sheet> {
    let mut sheets = Vec::new();
    if has_scores(comparison) {
        sheets.push(scores(comparison));
    }
    let suites = comparison.suites.iter();
    sheets.extend(suites.map(|suite| times(comparison, suite)));
    let suites = comparison.suites.iter();
    sheets.extend(suites.map(counts));
    let suites = comparison.suites.iter();
    sheets.extend(suites.clone().filter_map(kernel::counters));
    sheets.extend(suites.clone().filter_map(kernel::functions));
    sheets.extend(suites.filter_map(kernel::events));
    sheets
}

/// The scores of all suites and of each, without those that the others are compared with. The first
/// of each has the name.
fn all_scores(comparison: &Comparison) -> Vec<(&str, &Score)> {
    let suites = comparison.suites.iter();
    let suites = suites.map(|suite| (&*suite.name, &suite.scores));
    let mut all = Vec::new();
    for (name, scores) in [("all", &comparison.overall)].into_iter().chain(suites) {
        let others = scores.iter();
        let others = others.filter(|score| score.environment != comparison.against);
        let names = [name].into_iter().chain(std::iter::repeat(""));
        all.extend(names.zip(others));
    }
    all
}

fn scores(comparison: &Comparison) -> Sheet {
    let row = |(name, score): (&str, &Score)| {
        vec![
            name.to_owned(),
            score.environment.clone(),
            format!(
                "{}{}",
                times_as_long(score.ratio),
                mark(score.within_noise, score.too_few_rounds)
            ),
            format!("± {:.3}", score.deviation),
            words::count(score.count as u64),
        ]
    };
    let rows = all_scores(comparison).into_iter().map(row).collect();
    Sheet {
        title: "By subsystem".into(),
        heads: heads(&["suite", "environment", "ratio", "deviation", "of"]),
        labels: 2,
        rows,
        note: match comparison.has_too_few_rounds() {
            true => NOTE_SCORES_FEW,
            false => NOTE_SCORES,
        },
    }
}

/// Draws the scores as bars, for a medium that has characters alone: the longest is as long as the
/// greatest ratio, or as 1 where all are less.
fn draw_scores(sheet: &mut Sheet, comparison: &Comparison) {
    let ratios: Vec<f64> = all_scores(comparison)
        .iter()
        .map(|(_, score)| score.ratio)
        .collect();
    let greatest = ratios.iter().copied().fold(1.0, f64::max);
    for (row, ratio) in sheet.rows.iter_mut().zip(ratios) {
        row.insert(sheet.labels, words::bar(ratio / greatest, BAR_CHARS));
    }
    sheet.heads.insert(sheet.labels, String::new());
    sheet.labels += 1;
}

/// The name of a test, or a program with its arguments as far as a column has room for them.
fn in_a_column(name: &str) -> String {
    const CHARS_MAX: usize = 60;
    const CUT: &str = "...";
    let name = words::printable(name);
    if name.chars().count() <= CHARS_MAX {
        return name.into_owned();
    }
    name.chars().take(CHARS_MAX - CUT.len()).collect::<String>() + CUT
}

fn times(comparison: &Comparison, suite: &SuiteResult) -> Sheet {
    let mut rows = Vec::new();
    for test in &suite.tests {
        for (at, measured) in test.environments.iter().enumerate() {
            let mut row = labels(at, test, measured);
            row.push(words::time(measured.time_ns.median));
            match measured.environment == comparison.against {
                true => row.extend(["noise".into(), format!("{}", Interval(test.noise))]),
                false => row.extend([
                    format!(
                        "{}{}",
                        times_as_long(measured.ratio.median),
                        mark(measured.within_noise, measured.too_few_rounds)
                    ),
                    format!("{}", Interval(measured.ratio)),
                ]),
            }
            row.push(words::time(measured.cpu_ns.median));
            row.push(match measured.environment == comparison.against {
                true => String::new(),
                false => times_as_long(measured.cpu_ratio.median),
            });
            rows.push(row);
        }
    }
    Sheet {
        title: format!("Times: {}", words::printable(&suite.name)),
        heads: heads(&[
            "test",
            "environment",
            "time",
            "ratio",
            "interval",
            "processor",
            "ratio",
        ]),
        labels: 2,
        rows,
        note: match comparison.has_too_few_rounds() {
            true => NOTE_TESTS_FEW,
            false => NOTE_TESTS,
        },
    }
}

fn counts(suite: &SuiteResult) -> Sheet {
    let mut rows = Vec::new();
    for test in &suite.tests {
        for (at, measured) in test.environments.iter().enumerate() {
            let counts = &measured.counts;
            let mut row = labels(at, test, measured);
            row.extend([
                words::time(counts.user_ns),
                words::time(counts.system_ns),
                words::time(counts.tracker_ns),
                whole(counts.minor_faults),
                whole(counts.major_faults),
                whole(counts.switches),
                whole(counts.rounds),
                whole(counts.pages),
            ]);
            rows.push(row);
        }
    }
    Sheet {
        title: format!("Where it goes: {}", words::printable(&suite.name)),
        heads: heads(&[
            "test",
            "environment",
            "user",
            "system",
            "tracker",
            "faults",
            "major",
            "switches",
            "rounds",
            "pages",
        ]),
        labels: 2,
        rows,
        note: NOTE_COUNTS,
    }
}

fn heads(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.into()).collect()
}

fn labels(at: usize, test: &TestResult, measured: &Measured) -> Vec<String> {
    let name = match at {
        0 => in_a_column(&test.name),
        _ => String::new(),
    };
    vec![name, measured.environment.clone()]
}

fn whole(count: f64) -> String {
    words::count(count.round().max(0.0) as u64)
}

/// A ratio as text.
pub(crate) fn times_as_long(ratio: f64) -> String {
    match ratio >= 99.5 {
        true => format!("{}x", words::rate(ratio)),
        false => format!("{ratio:.3}x"),
    }
}

/// The mark after a ratio that is, or may be, no different from noise.
pub(crate) fn mark(within_noise: bool, too_few_rounds: bool) -> &'static str {
    match (too_few_rounds, within_noise) {
        (true, _) => " ?",
        (false, true) => " ~",
        (false, false) => "",
    }
}

/// An interval as text.
struct Interval(Estimate);

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{:.3}, {:.3}]", self.0.low, self.0.high)
    }
}

/// Writes all of it.
///
/// # Errors
///
/// Those of `out`.
pub fn write(comparison: &Comparison, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", setting(comparison))?;
    for line in notices(comparison) {
        writeln!(out, "{}", words::printable(&line))?;
    }
    let mut sheets = sheets(comparison);
    if let [first, ..] = &mut sheets[..]
        && has_scores(comparison)
    {
        draw_scores(first, comparison);
    }
    for (at, sheet) in sheets.iter().enumerate() {
        writeln!(out)?;
        write_sheet(sheet, out)?;
        // Once for all tables of a kind.
        if sheets
            .get(at + 1)
            .is_none_or(|next| next.note != sheet.note)
        {
            writeln!(out, "({})", sheet.note)?;
        }
    }
    for (at, verdict) in verdicts.iter().enumerate() {
        if at == 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", line_of(verdict))?;
    }
    Ok(())
}

/// What became of a condition, as one line.
pub(crate) fn line_of(verdict: &Verdict) -> String {
    let word = if verdict.holds { "FAIL" } else { "ok" };
    format!("{word}  {}: {}", verdict.condition, verdict.reason)
}

/// Writes the document of docs/compare-format.md.
///
/// # Errors
///
/// Those of `out`.
pub fn write_json(
    comparison: &Comparison,
    verdicts: &[Verdict],
    out: &mut dyn Write,
) -> io::Result<()> {
    #[derive(serde::Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        comparison: &'a Comparison,
        conditions: &'a [Verdict],
    }
    let document = Document {
        comparison,
        conditions: verdicts,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn shown(tests: usize) -> String {
        let comparison = testing::comparison(tests);
        let condition: crate::condition::Condition = "vm>1.2x".parse().expect("it is one");
        let verdicts = [condition.judge(&comparison).expect("it is decided")];
        let mut out = Vec::new();
        write(&comparison, &verdicts, &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_program() {
        insta::assert_snapshot!(shown(1));
    }

    #[test]
    fn a_long_command_leaves_room_for_figures() {
        let mut comparison = testing::comparison(1);
        let long = format!("sh -c '{}\u{9b}'", "é".repeat(300));
        comparison.suites[0].tests[0].name = long;
        let mut out = Vec::new();
        write(&comparison, &[], &mut out).expect("a Vec takes all");
        let text = String::from_utf8(out).expect("UTF-8");
        let (_, tables) = text.split_once("Times: ").expect("a table");
        let mut rows = tables.lines().filter(|line| line.starts_with("sh -c"));
        let cut = format!("sh -c '{}...  native", "é".repeat(50));
        assert!(
            rows.clone().count() == 2 && rows.all(|row| row.starts_with(&cut)),
            "{text}"
        );
    }

    #[test]
    fn too_few_rounds_have_a_mark_of_their_own() {
        for tests in [1, 2] {
            let comparison = testing::comparison_of(tests, 3);
            let mut out = Vec::new();
            write(&comparison, &[], &mut out).expect("a Vec takes all");
            let text = String::from_utf8(out).expect("UTF-8");
            assert!(text.contains("x ?") && !text.contains('~'), "{text}");
            assert!(text.contains("?: too few rounds to tell"), "{text}");
        }
    }

    #[test]
    fn what_probes_find_has_tables_of_its_own() {
        let comparison = testing::probed();
        let mut out = Vec::new();
        write(&comparison, &[], &mut out).expect("a Vec takes all");
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.contains("not here: probes: it takes root"), "{text}");
        let row = |part: &str| {
            let line = text.lines().find(|line| line.contains(part));
            let words = line.unwrap_or_default().split_whitespace();
            words.collect::<Vec<_>>().join(" ")
        };
        let row_of_function = row("kvm_mmu_page_fault");
        assert!(row_of_function.contains("12,787 426 1.85 µs"), "{text}");
        assert!(row("exit EPT").ends_with("EPT_VIOLATION 4,096"), "{text}");
        assert!(row("kvm:kvm_page_fault").ends_with("4,096"), "{text}");
        let mut out = Vec::new();
        write_json(&comparison, &[], &mut out).expect("a Vec takes all");
        let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        let environments = &document["suites"][0]["tests"][0]["environments"];
        assert!(environments[0].get("probed").is_none());
        let function = &environments[1]["probed"]["functions"][0];
        assert_eq!(function["samples"], 426);
    }

    #[test]
    fn suites() {
        insta::assert_snapshot!(shown(2));
    }

    #[test]
    fn the_document() {
        let mut out = Vec::new();
        let comparison = testing::comparison(1);
        write_json(&comparison, &[], &mut out).expect("a Vec takes all");
        insta::assert_snapshot!(String::from_utf8(out).expect("UTF-8"));
    }
}
