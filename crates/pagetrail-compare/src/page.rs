//! The comparison as one self-contained page of HTML, without scripts: bars by subsystem first,
//! then those of what probes have found, tables below.

mod probed;

use std::io::{self, Write};

use pagetrail_report::bars::{self, Bar, Group};
use pagetrail_report::html::{Charts, Page, escape, figure, notice_list};
use pagetrail_report::lines::CHART_STYLE;
use pagetrail_report::sheet::html_table;
use pagetrail_report::words;

use crate::condition::Verdict;
use crate::results::{Comparison, SuiteResult};
use crate::score::Score;
use crate::text;

/// Writes the page.
///
/// # Errors
///
/// Those of `out`.
pub fn write(comparison: &Comparison, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
    let mut notices = text::notices(comparison);
    notices.extend(verdicts.iter().map(text::line_of));
    let charts = Charts {
        id: "charts-title",
        title: "Times as long",
        legend: &legend(comparison),
        figures: &figures(comparison),
        hint: "Thin lines are confidence intervals, by subsystem standard deviations; the line across is at 1, \
               and ~ marks what is no different from noise.",
    };
    let tables: String = text::sheets(comparison).iter().map(html_table).collect();
    let parts = [
        &notice_list(&notices)[..],
        &charts.html(),
        &where_it_goes(comparison),
        &tables,
    ];
    let command = words::command(&comparison.setting.command);
    Page::new(&format!("{command} - pagetrail compare"))
        .styles(&[CHART_STYLE, include_str!("page/page.css")])
        .heading("pagetrail compare", &command)
        .subtitle(&text::setting(comparison))
        .write(out, &parts)
}

/// All environments that were measured, with their classes.
fn environments(comparison: &Comparison) -> Vec<(&str, &'static str)> {
    let mut all = Vec::new();
    for score in comparison.suites.iter().flat_map(|suite| &suite.scores) {
        let environment = (score.environment.as_str(), score.class);
        if !all.contains(&environment) {
            all.push(environment);
        }
    }
    all
}

fn legend(comparison: &Comparison) -> String {
    let all = environments(comparison).into_iter();
    all.map(|(name, class)| format!("<span class=\"{class}\">{}</span>", escape(name)))
        .collect()
}

fn figures(comparison: &Comparison) -> String {
    let mut out = String::new();
    let has_suites = comparison.suites.iter().any(|suite| suite.tests.len() > 1);
    if has_suites {
        let mut groups = Vec::new();
        if !comparison.overall.is_empty() {
            groups.push(scores("all", &comparison.overall));
        }
        let suites = comparison.suites.iter();
        groups.extend(suites.map(|suite| scores(&suite.name, &suite.scores)));
        out += &draw("By subsystem", &groups, Some(1.0));
    }
    for suite in &comparison.suites {
        let title = match has_suites {
            true => suite.name.as_str(),
            false => "Time of a run",
        };
        out += &draw(title, &tests(suite), Some(1.0));
    }
    out
}

/// The section of what probes have found; nothing where they found nothing.
fn where_it_goes(comparison: &Comparison) -> String {
    let mut figures = String::new();
    for suite in &comparison.suites {
        let title = |what: &str| match comparison.suites.len() {
            1 => what.to_owned(),
            _ => format!("{what}: {}", words::printable(&suite.name)),
        };
        let exits = title("Exits by reason");
        figures += &draw(&exits, &probed::exits(suite), None);
        let functions = title("Time of functions");
        figures += &draw(&functions, &probed::functions(suite), None);
    }
    if figures.is_empty() {
        return figures;
    }
    let charts = Charts {
        id: "probed-title",
        title: "In the kernel",
        legend: &legend(comparison),
        figures: &figures,
        hint: "Of one more run of each test, under probes. The time of a function is that of all its calls, each taken \
               to be as long as the mean of those that were timed; a function's time is part of its caller's.",
    };
    charts.html()
}

/// The bars of a suite's scores.
fn scores(name: &str, scores: &[Score]) -> Group {
    let bars = scores.iter().map(|score| Bar {
        name: score.environment.clone(),
        class: score.class,
        value: score.ratio,
        spread: Some((score.ratio - score.deviation, score.ratio + score.deviation)),
        words: words_of(score.ratio, score.within_noise, score.too_few_rounds),
    });
    Group {
        name: name.into(),
        bars: bars.collect(),
    }
}

/// The bars of each of its tests.
fn tests(suite: &SuiteResult) -> Vec<Group> {
    let groups = suite.tests.iter().map(|test| {
        let bars = test.environments.iter().map(|measured| Bar {
            name: measured.environment.clone(),
            class: measured.class,
            value: measured.ratio.median,
            spread: Some((measured.ratio.low, measured.ratio.high)),
            words: words_of(
                measured.ratio.median,
                measured.within_noise,
                measured.too_few_rounds,
            ),
        });
        Group {
            name: match suite.tests.len() {
                1 => String::new(),
                _ => test.name.clone(),
            },
            bars: bars.collect(),
        }
    });
    groups.collect()
}

fn words_of(ratio: f64, within_noise: bool, too_few_rounds: bool) -> String {
    let mark = text::mark(within_noise && ratio != 1.0, too_few_rounds);
    format!("{}{mark}", text::times_as_long(ratio))
}

fn draw(title: &str, groups: &[Group], mark: Option<f64>) -> String {
    figure(title, bars::svg(groups, mark, title))
}

#[cfg(test)]
mod tests {
    use pagetrail_report::testing::assert_self_contained;

    use super::*;
    use crate::testing;

    fn page(tests: usize) -> String {
        let mut out = Vec::new();
        write(&testing::comparison(tests), &[], &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn needs_nothing_but_itself_and_escapes_names() {
        for tests in [1, 3] {
            let page = page(tests);
            assert_self_contained(&page);
            for foreign in ["<script", "NaN", "<library>", "<1>", "<disk>"] {
                assert!(!page.contains(foreign), "found {foreign}");
            }
            assert!(page.contains("&lt;library&gt;") && page.contains("&lt;1&gt;"));
        }
    }

    #[test]
    fn bars_by_subsystem_come_first_and_tables_below() {
        let suites = page(3);
        // All suites, then each.
        assert_eq!(suites.matches("<svg").count(), 3);
        let place = |text: &str| suites.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(place("By subsystem</figcaption>") < place("memory</figcaption>"));
        assert!(place("memory</figcaption>") < place("<table>"));
        assert!(!suites.contains("In the kernel<"));
        let program = page(1);
        assert_eq!(program.matches("<svg").count(), 1);
        // Three environments are here, one of them the measure.
        assert_eq!(program.matches("<rect").count(), 3);
        assert!(program.contains("<g class=\"vm\">"));
    }

    #[test]
    fn what_probes_find_is_drawn_and_has_tables() {
        let mut out = Vec::new();
        write(&testing::probed(), &[], &mut out).expect("a Vec takes all");
        let page = String::from_utf8(out).expect("UTF-8");
        // The time of a run, exits, functions.
        assert_eq!(page.matches("<svg").count(), 3);
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(place("Time of a run</figcaption>") < place("Exits by reason</figcaption>"));
        assert!(place("Exits by reason</figcaption>") < place("<table>"));
        assert!(place("Time of functions</figcaption>") < place("<table>"));
        assert!(page.contains("EPT_VIOLATION, vm: 4,096</title>"));
        assert!(page.contains("&lt;IO&gt;") && !page.contains("<IO>"));
        // No line across at 1, which is for ratios.
        assert_eq!(page.matches("class=\"grid\"").count(), 1);
    }
}
