//! Tables of what the kernel has counted and timed: KVM's counters, functions, exits, tracepoints.

use std::collections::BTreeSet;

use pagetrail_probes::Found;
use pagetrail_report::sheet::Sheet;
use pagetrail_report::words;

use super::{heads, labels};
use crate::results::SuiteResult;

const NOTE_FUNCTIONS: &str = "of one more run, by all of its threads: calls, each counted; times of the timed ones, without what timing costs; what \
a function calls is part of its time, and so are the probes of what is timed there";

const NOTE_EVENTS: &str = "of one more run, by all of its threads: exits of virtual machines by reason, tracepoints by name";

const NOTE_COUNTERS: &str = "medians of a run: what KVM counts of the whole virtual machine, by its own names; of counters that may fall \
(pages_4k), by how much they have changed";

/// KVM's counters, a column for each environment that has them.
pub(super) fn counters(suite: &SuiteResult) -> Option<Sheet> {
    let measured = || suite.tests.iter().flat_map(|test| &test.environments);
    let with = measured().filter(|measured| !measured.kvm.is_empty());
    let mut environments: Vec<&str> = Vec::new();
    for measured in with {
        if !environments.contains(&measured.environment.as_str()) {
            environments.push(&measured.environment);
        }
    }
    let mut rows = Vec::new();
    for test in &suite.tests {
        let names = test.environments.iter().flat_map(|place| place.kvm.keys());
        let names: BTreeSet<&String> = names.collect();
        for (at, name) in names.into_iter().enumerate() {
            let label = match at {
                0 => super::in_a_column(&test.name),
                _ => String::new(),
            };
            let mut row = vec![label, words::printable(name).into_owned()];
            row.extend(environments.iter().map(|environment| {
                let counters = test.of(environment).map(|place| &place.kvm);
                let counters = counters.filter(|counters| !counters.is_empty());
                counters.map_or_else(String::new, |counters| {
                    signed(*counters.get(name).unwrap_or(&0.0))
                })
            }));
            rows.push(row);
        }
    }
    let mut columns = vec!["test", "counter"];
    columns.extend(&environments);
    (!rows.is_empty()).then(|| Sheet {
        title: format!("Counters of KVM: {}", words::printable(&suite.name)),
        heads: heads(&columns),
        labels: 2,
        rows,
        note: NOTE_COUNTERS,
    })
}

fn signed(count: f64) -> String {
    let size = words::count(count.abs().round() as u64);
    match count <= -0.5 {
        true => format!("-{size}"),
        false => size,
    }
}

/// Functions that were timed, if any were.
pub(super) fn functions(suite: &SuiteResult) -> Option<Sheet> {
    let mut rows = Vec::new();
    let mut timer_ns = 0.0;
    for (labels, found) in probed(suite) {
        timer_ns = found.timer_ns;
        for (at, function) in found.functions.iter().enumerate() {
            let mut row = if at == 0 {
                labels.clone()
            } else {
                vec![String::new(); 2]
            };
            row.extend([
                function.name.clone(),
                words::count(function.calls),
                words::count(function.samples),
            ]);
            let times = [
                function.mean_ns,
                function.deviation_ns,
                function.least_ns,
                function.most_ns,
            ];
            row.extend(times.map(|time| match function.samples {
                0 => String::new(),
                _ => words::time(time.max(0.0)),
            }));
            rows.push(row);
        }
    }
    (!rows.is_empty()).then(|| Sheet {
        title: format!(
            "Functions: {} (the timer takes {})",
            words::printable(&suite.name),
            words::time(timer_ns)
        ),
        heads: heads(&[
            "test",
            "environment",
            "function",
            "calls",
            "timed",
            "mean",
            "deviation",
            "least",
            "most",
        ]),
        labels: 3,
        rows,
        note: NOTE_FUNCTIONS,
    })
}

/// Exits and tracepoints, if there were any.
pub(super) fn events(suite: &SuiteResult) -> Option<Sheet> {
    let mut rows = Vec::new();
    for (labels, found) in probed(suite) {
        let exits = found.exits.iter();
        let exits = exits.map(|exit| (format!("exit {}", exit.name), exit.count));
        let events = found.events.iter();
        let events = events.map(|event| (event.name.clone(), event.count));
        for (at, (name, count)) in exits.chain(events).enumerate() {
            let mut row = if at == 0 {
                labels.clone()
            } else {
                vec![String::new(); 2]
            };
            row.extend([words::printable(&name).into_owned(), words::count(count)]);
            rows.push(row);
        }
    }
    (!rows.is_empty()).then(|| Sheet {
        title: format!("Exits and events: {}", words::printable(&suite.name)),
        heads: heads(&["test", "environment", "what", "count"]),
        labels: 3,
        rows,
        note: NOTE_EVENTS,
    })
}

/// What was found by probes, with the labels of its rows.
fn probed(suite: &SuiteResult) -> impl Iterator<Item = (Vec<String>, &Found)> {
    suite.tests.iter().flat_map(|test| {
        let places = test.environments.iter();
        let probed = places.filter_map(|measured| Some((measured, measured.probed.as_ref()?)));
        let rows = probed.enumerate();
        rows.map(move |(at, (measured, found))| (labels(at, test, measured), found))
    })
}
