//! Bars of what probes have found: exits of virtual machines by reason, and the time of functions.
//! A suite's tests are added up; each by itself is in the tables.

use pagetrail_probes::Found;
use pagetrail_report::bars::{Bar, Group};
use pagetrail_report::words;

use crate::results::SuiteResult;

/// Longer names reach beyond the picture; tables have them whole.
const NAME_MAX: usize = 20;

/// Exits by reason, the most frequent first.
pub(super) fn exits(suite: &SuiteResult) -> Vec<Group> {
    groups(
        suite,
        |found| {
            let exits = found.exits.iter();
            exits
                .map(|exit| (exit.name.as_str(), exit.count as f64))
                .collect()
        },
        |count| words::count(count as u64),
    )
}

/// The time of all calls of functions, the longest first: the calls, times the mean of those that
/// were timed.
pub(super) fn functions(suite: &SuiteResult) -> Vec<Group> {
    groups(
        suite,
        |found| {
            let timed = found.functions.iter().filter(|timed| timed.samples > 0);
            timed
                .map(|timed| {
                    let time = timed.calls as f64 * timed.mean_ns.max(0.0);
                    (timed.name.as_str(), time)
                })
                .collect()
        },
        words::time,
    )
}

/// A group for each name that `values` has in any environment, with a bar for each that has it.
fn groups<'s>(
    suite: &'s SuiteResult,
    values: impl Fn(&'s Found) -> Vec<(&'s str, f64)>,
    shown: impl Fn(f64) -> String,
) -> Vec<Group> {
    let mut named: Vec<(&str, Vec<Bar>)> = Vec::new();
    for measured in suite.tests.iter().flat_map(|test| &test.environments) {
        let Some(found) = &measured.probed else {
            continue;
        };
        for (name, value) in values(found) {
            let at = named.iter().position(|(other, _)| *other == name);
            let at = at.unwrap_or_else(|| {
                named.push((name, Vec::new()));
                named.len() - 1
            });
            let bars = &mut named[at].1;
            match bars.iter_mut().find(|bar| bar.name == measured.environment) {
                Some(bar) => bar.value += value,
                None => bars.push(Bar {
                    name: measured.environment.clone(),
                    class: measured.class,
                    value,
                    spread: None,
                    words: String::new(),
                }),
            }
        }
    }
    let most = |bars: &[Bar]| bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    named.sort_by(|(_, one), (_, other)| most(other).total_cmp(&most(one)));
    let groups = named.into_iter().map(|(name, mut bars)| {
        for bar in &mut bars {
            bar.words = shown(bar.value);
        }
        Group {
            name: shortened(name),
            bars,
        }
    });
    groups.collect()
}

fn shortened(name: &str) -> String {
    let name = words::printable(name);
    match name.char_indices().nth(NAME_MAX) {
        None => name.into_owned(),
        Some(_) => {
            let kept: String = name.chars().take(NAME_MAX - 1).collect();
            format!("{kept}…")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn tests_of_a_suite_add_up_and_the_most_comes_first() {
        let mut comparison = testing::probed();
        let suite = &mut comparison.suites[0];
        let again = suite.tests[0].clone();
        suite.tests.push(again);
        let exits = exits(suite);
        let names: Vec<&str> = exits.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["EPT_VIOLATION", "<IO>"]);
        assert_eq!(exits[0].bars[0].value, 8192.0);
        assert_eq!(exits[0].bars[0].words, "8,192");
        assert!(exits[0].bars.iter().any(|bar| bar.name == "vm"));
        let functions = functions(suite);
        let time = 2.0 * 12_787.0 * 1850.5;
        assert!((functions[0].bars[0].value - time).abs() < 1.0);
    }

    #[test]
    fn long_names_are_cut_and_short_ones_are_not() {
        assert_eq!(shortened("kvm_mmu_page_fault"), "kvm_mmu_page_fault");
        assert_eq!(
            shortened("paging64_walk_addr_generic"),
            "paging64_walk_addr_…"
        );
    }
}
