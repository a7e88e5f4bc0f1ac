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
}

impl Score {
    /// Of the tests of a suite, by environment.
    pub(crate) fn of_suite(tests: &[TestResult]) -> Vec<Self> {
        let of = |measured: &Measured| (measured.ratio.median, measured.within_noise);
        let all = tests.iter().flat_map(|test| &test.environments);
        combine(all.map(|measured| (measured.environment.as_str(), measured.class, of(measured))))
    }

    /// Of suites, by environment: each suite counts the same, however many tests it has.
    pub(crate) fn overall(suites: &[SuiteResult]) -> Vec<Self> {
        let all = suites.iter().flat_map(|suite| &suite.scores);
        combine(all.map(|score| {
            let of = (score.ratio, score.within_noise);
            (score.environment.as_str(), score.class, of)
        }))
    }
}

fn combine<'a>(
    all: impl Iterator<Item = (&'a str, &'static str, (f64, bool))> + Clone,
) -> Vec<Score> {
    let mut scores: Vec<Score> = Vec::new();
    for (environment, class, _) in all.clone() {
        if scores.iter().any(|score| score.environment == environment) {
            continue;
        }
        let own = all.clone().filter(|(name, ..)| *name == environment);
        let ratios: Vec<f64> = own.clone().map(|(_, _, (ratio, _))| ratio).collect();
        let count = ratios.len();
        let mean = ratios.iter().sum::<f64>() / count as f64;
        let squares = ratios.iter().map(|ratio| (ratio - mean).powi(2));
        let deviation = (squares.sum::<f64>() / (count - 1).max(1) as f64).sqrt();
        scores.push(Score {
            environment: environment.to_owned(),
            class,
            ratio: mean,
            deviation,
            count,
            within_noise: own.clone().all(|(_, _, (_, within_noise))| within_noise),
        });
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_mean_with_its_deviation() {
        let of = |name, ratio, noise| (name, "vm", (ratio, noise));
        let all = [
            of("vm", 1.0, true),
            of("heap:8", 1.5, false),
            of("vm", 2.0, false),
            of("vm", 3.0, false),
        ];
        let scores = combine(all.into_iter());
        assert_eq!(scores.len(), 2);
        let vm = &scores[0];
        assert_eq!((vm.ratio, vm.deviation, vm.count), (2.0, 1.0, 3));
        assert!(!vm.within_noise);
        let heap = &scores[1];
        assert_eq!((heap.ratio, heap.deviation, heap.count), (1.5, 0.0, 1));
        assert!(combine([of("vm", 1.0, true)].into_iter())[0].within_noise);
    }
}
