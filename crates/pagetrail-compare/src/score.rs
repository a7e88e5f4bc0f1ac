//! [`Score`]: what the tests of a suite come to in an environment, as the Xen study combines them:
//! the mean of the tests' median ratios, with its deviation.

use serde::Serialize;

use crate::results::{Measured, SuiteResult, TestResult};

/// The score of an environment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Score {
    pub(crate) environment: String,
    #[serde(skip)]
    pub(crate) class: &'static str,
    /// The mean of the ratios.
    pub(crate) ratio: f64,
    /// Their standard deviation; 0 of one.
    pub(crate) deviation: f64,
    /// How many there are.
    pub(crate) count: usize,
    /// Whether each of them is no different from noise.
    pub(crate) within_noise: bool,
    /// The mean in which each ratio that is no different from noise counts as 1.
    pub(crate) beyond_noise: f64,
    /// Whether the rounds of any are too few to tell a difference from noise.
    pub(crate) too_few_rounds: bool,
}

/// What a test, or a suite, adds to a score.
#[derive(Clone, Copy)]
struct Part<'a> {
    environment: &'a str,
    class: &'static str,
    ratio: f64,
    within_noise: bool,
    beyond_noise: f64,
    too_few_rounds: bool,
}

impl Score {
    /// The scores of a suite's tests, one for each environment.
    pub(crate) fn of_suite(tests: &[TestResult]) -> Vec<Self> {
        let all = tests.iter().flat_map(|test| &test.environments);
        combine(all.map(Part::of_test))
    }

    /// The scores of all suites, one for each environment: each suite counts the same, however many
    /// tests it has.
    pub(crate) fn overall(suites: &[SuiteResult]) -> Vec<Self> {
        let all = suites.iter().flat_map(|suite| &suite.scores);
        combine(all.map(Part::of_suite))
    }
}

impl<'a> Part<'a> {
    fn of_test(measured: &'a Measured) -> Self {
        let ratio = measured.ratio.median;
        Self {
            environment: &measured.environment,
            class: measured.class,
            ratio,
            within_noise: measured.within_noise,
            beyond_noise: if measured.within_noise { 1.0 } else { ratio },
            too_few_rounds: measured.too_few_rounds,
        }
    }

    fn of_suite(score: &'a Score) -> Self {
        Self {
            environment: &score.environment,
            class: score.class,
            ratio: score.ratio,
            within_noise: score.within_noise,
            beyond_noise: score.beyond_noise,
            too_few_rounds: score.too_few_rounds,
        }
    }
}

fn combine<'a>(all: impl Iterator<Item = Part<'a>>) -> Vec<Score> {
    let all: Vec<Part<'_>> = all.collect();
    let mut scores: Vec<Score> = Vec::new();
    for part in &all {
        let environment = part.environment;
        if scores.iter().any(|score| score.environment == environment) {
            continue;
        }
        let own = || all.iter().filter(|own| own.environment == environment);
        let count = own().count();
        let mean = |of: fn(&Part<'_>) -> f64| own().map(of).sum::<f64>() / count as f64;
        let ratio = mean(|part| part.ratio);
        let squares = own().map(|part| (part.ratio - ratio).powi(2));
        let deviation = (squares.sum::<f64>() / (count - 1).max(1) as f64).sqrt();
        scores.push(Score {
            environment: environment.to_owned(),
            class: part.class,
            ratio,
            deviation,
            count,
            within_noise: own().all(|part| part.within_noise),
            beyond_noise: mean(|part| part.beyond_noise),
            too_few_rounds: own().any(|part| part.too_few_rounds),
        });
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(environment: &str, ratio: f64, within_noise: bool) -> Part<'_> {
        Part {
            environment,
            class: "vm",
            ratio,
            within_noise,
            beyond_noise: if within_noise { 1.0 } else { ratio },
            too_few_rounds: false,
        }
    }

    #[test]
    fn a_score_is_the_mean_with_its_deviation() {
        let all = [
            part("vm", 1.0, true),
            part("heap:8", 1.5, false),
            part("vm", 2.0, false),
            part("vm", 3.0, false),
        ];
        let scores = combine(all.into_iter());
        assert_eq!(scores.len(), 2);
        let vm = &scores[0];
        assert_eq!((vm.ratio, vm.deviation, vm.count), (2.0, 1.0, 3));
        assert!(!vm.within_noise);
        let heap = &scores[1];
        assert_eq!((heap.ratio, heap.deviation, heap.count), (1.5, 0.0, 1));
        assert!(combine([part("vm", 1.0, true)].into_iter())[0].within_noise);
    }

    #[test]
    fn what_is_within_noise_counts_as_1_for_a_decision() {
        let all = [part("vm", 1.4, true), part("vm", 1.2, false)];
        let vm = &combine(all.into_iter())[0];
        assert!((vm.ratio - 1.3).abs() < 1e-9 && (vm.beyond_noise - 1.1).abs() < 1e-9);
        let suites = [vm.clone(), vm.clone()];
        let overall = &combine(suites.iter().map(Part::of_suite))[0];
        assert!((overall.beyond_noise - 1.1).abs() < 1e-9);
        let few = Part {
            too_few_rounds: true,
            ..part("vm", 2.0, true)
        };
        assert!(combine([part("vm", 1.0, false), few].into_iter())[0].too_few_rounds);
    }
}
