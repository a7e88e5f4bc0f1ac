//! [`Condition`]: what a comparison must not show, as a short expression.
//!
//! ```text
//! condition   = [ suite "/" ] environment operator number "x"
//! operator    = ">" | ">=" | "<" | "<="
//! ```
//!
//! `tracked:pagemap-scan>1.1x` holds if the program takes more than 1.1 times as long there, or the
//! suites do together; `memory/vm>2x` if that suite does. A ratio that is no different from noise
//! never holds, and in a suite it counts as 1. Too few rounds decide nothing.

use std::str::FromStr;

use pagetrail_report::threshold::Threshold;

use crate::environment::Environment;
use crate::results::{Comparison, Measured};
use crate::score::Score;

/// A condition on a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    suite: Option<String>,
    environment: String,
    threshold: Threshold,
}

/// Why an expression is no condition, or cannot be decided; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCondition(String);

/// What became of a condition.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// The condition as it was given.
    pub condition: String,
    /// Whether it holds, which is a failure.
    pub holds: bool,
    /// The figures that it was decided by, as one line.
    pub reason: String,
}

impl FromStr for Condition {
    type Err = BadCondition;

    fn from_str(text: &str) -> Result<Self, BadCondition> {
        let bad = |what: &str| {
            BadCondition(format!(
                "{what}; a condition looks like tracked:pagemap-scan>1.1x or memory/vm>2x"
            ))
        };
        let (left, threshold) = Threshold::split(text).map_err(bad)?;
        if !threshold.is_ratio {
            return Err(bad("it ends with no x: a bound is a multiple"));
        }
        let (suite, environment) = match left.split_once('/') {
            Some((suite, environment)) => (Some(suite.trim()), environment.trim()),
            None => (None, left),
        };
        let environment: Environment = environment
            .parse()
            .map_err(|error| bad(&format!("{error}")))?;
        Ok(Self {
            text: text.into(),
            suite: suite.map(Into::into),
            environment: environment.to_string(),
            threshold,
        })
    }
}

impl Condition {
    /// Whether what it names is measured at all, by the names of environments and of suites.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn check(&self, environments: &[String], suites: &[String]) -> Result<(), BadCondition> {
        let among = |what: &str, name: &String, of: &[String]| match of.contains(name) {
            true => Ok(()),
            false => Err(BadCondition(format!(
                "{}: the {what} {name} is not compared here; there are {}",
                self.text,
                of.join(", ")
            ))),
        };
        among("environment", &self.environment, environments)?;
        match &self.suite {
            Some(suite) => among("suite", suite, suites),
            None => Ok(()),
        }
    }

    /// Decides whether the condition holds.
    ///
    /// # Errors
    ///
    /// What it names was not measured, or in too few rounds.
    pub fn judge(&self, comparison: &Comparison) -> Result<Verdict, BadCondition> {
        let figures =
            self.figures(comparison)
                .ok_or_else(|| match self.reason_of_absence(comparison) {
                    Some(reason) => BadCondition(format!(
                        "{}: {} was not measured: {reason}",
                        self.text, self.environment
                    )),
                    None => BadCondition(format!("{}: it was not measured", self.text)),
                })?;
        if figures.too_few_rounds {
            return Err(BadCondition(format!(
                "{}: {}: too few rounds to tell a difference from noise; take at least 6, or more time",
                self.text, figures.words
            )));
        }
        let beyond = self.threshold.holds(figures.ratio);
        let noise = match (beyond, figures.within_noise) {
            (true, true) => ", which is no different from noise",
            _ => "",
        };
        Ok(Verdict {
            condition: self.text.clone(),
            holds: beyond && !figures.within_noise,
            reason: format!("{}{noise}", figures.words),
        })
    }

    fn figures(&self, comparison: &Comparison) -> Option<Figures> {
        let score = |scores: &[Score]| {
            let mut scores = scores.iter();
            let found = scores.find(|score| score.environment == self.environment)?;
            Some(Figures::of_score(found))
        };
        let suites = &comparison.suites;
        match (&self.suite, suites.as_slice()) {
            (Some(name), _) => {
                let suite = suites.iter().find(|suite| suite.name == *name)?;
                score(&suite.scores)
            }
            (None, [only]) => match only.tests.as_slice() {
                [program] => program.of(&self.environment).map(Figures::of_test),
                _ => score(&only.scores),
            },
            (None, _) => score(&comparison.overall),
        }
    }

    fn reason_of_absence<'a>(&self, comparison: &'a Comparison) -> Option<&'a str> {
        let mut absent = comparison.absent().iter();
        let found = absent.find(|absent| absent.name == self.environment)?;
        Some(&found.reason)
    }
}

/// What a condition is decided by.
struct Figures {
    ratio: f64,
    within_noise: bool,
    too_few_rounds: bool,
    words: String,
}

impl Figures {
    fn of_test(measured: &Measured) -> Self {
        let ratio = measured.ratio;
        Self {
            ratio: ratio.median,
            within_noise: measured.within_noise,
            too_few_rounds: measured.too_few_rounds,
            words: format!("{:.3}x [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high),
        }
    }

    fn of_score(score: &Score) -> Self {
        let words = format!("{:.3}x ± {:.3}", score.ratio, score.deviation);
        let has_noise = score.beyond_noise != score.ratio && !score.within_noise;
        Self {
            // What is noise altogether is named with the ratio that it has.
            ratio: match has_noise {
                true => score.beyond_noise,
                false => score.ratio,
            },
            within_noise: score.within_noise,
            too_few_rounds: score.too_few_rounds,
            words: match has_noise {
                true => format!(
                    "{words}, {:.3}x where noise counts as 1",
                    score.beyond_noise
                ),
                false => words,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::comparison;

    #[test]
    fn the_grammar() {
        let condition: Condition = "memory/vm:record@1s >= 2x".parse().expect("it is one");
        assert_eq!(condition.suite.as_deref(), Some("memory"));
        assert_eq!(condition.environment, "vm:record@1s");
        for (wrong, part) in [
            ("", "it has no > or <"),
            ("vm", "it has no > or <"),
            ("vm>", "it ends with no number"),
            ("vm>1.1", "it ends with no x"),
            (">1x", "'' is no environment"),
            ("xen>1x", "'xen' is no environment"),
            ("memory/>1x", "'' is no environment"),
            ("tracked:magic>1x", "magic"),
        ] {
            let error = wrong.parse::<Condition>().expect_err(wrong).to_string();
            assert!(error.starts_with(part) || error.contains(part), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_is_not_compared_is_said_before_and_what_is_not_here_after() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).into()).collect::<Vec<_>>();
        let check = |text: &str| {
            let condition: Condition = text.parse().expect("it is one");
            condition.check(&names(&["native", "vm"]), &names(&["memory"]))
        };
        assert_eq!(check("vm>1x"), Ok(()));
        assert_eq!(check("memory/vm>1x"), Ok(()));
        let error = check("heap:8>1x")
            .expect_err("it is not compared")
            .to_string();
        assert!(error.contains("heap:8 is not compared here; there are native, vm"));
        let error = check("disk/vm>1x")
            .expect_err("it is not compared")
            .to_string();
        assert!(error.contains("the suite disk"), "{error}");
        let condition: Condition = "heap:8>1x".parse().expect("it is one");
        let error = condition.judge(&comparison(1)).expect_err("it is missing");
        assert_eq!(
            error.to_string(),
            "heap:8>1x: heap:8 was not measured: no <library>"
        );
    }

    #[test]
    fn noise_never_fails() {
        let judge = |text: &str, tests| {
            let condition: Condition = text.parse().expect("it is one");
            condition.judge(&comparison(tests)).expect("it is decided")
        };
        for tests in [1, 3] {
            let slow = judge("vm>1.2x", tests);
            assert!(slow.holds && slow.reason.contains("1.3"), "{slow:?}");
            assert!(!judge("vm>1.5x", tests).holds);
            assert!(judge("vm<1.5x", tests).holds);
            let noise = judge("tracked:pagemap-scan>0.5x", tests);
            assert!(!noise.holds);
            assert!(noise.reason.ends_with(", which is no different from noise"));
        }
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        let condition: Condition = "vm>1.2x".parse().expect("it is one");
        for tests in [1, 3] {
            for rounds in [1, 3, 5] {
                let comparison = crate::testing::comparison_of(tests, rounds);
                let error = condition
                    .judge(&comparison)
                    .expect_err("too few")
                    .to_string();
                assert!(error.contains("too few rounds to tell"), "{error}");
            }
        }
    }

    #[test]
    fn the_noise_of_one_test_does_not_fail_a_suite() {
        let mut comparison = comparison(3);
        let suite = &mut comparison.suites[0];
        for (at, test) in suite.tests.iter_mut().enumerate() {
            let all = test.environments.iter_mut();
            for vm in all.filter(|measured| measured.environment == "vm") {
                (vm.ratio.median, vm.within_noise) = [(1.9, true), (1.06, false), (1.0, true)][at];
            }
        }
        suite.scores = Score::of_suite(&suite.tests);
        let judge = |text: &str| {
            let condition: Condition = text.parse().expect("it is one");
            condition.judge(&comparison).expect("it is decided")
        };
        let verdict = judge("memory/vm>1.1x");
        assert!(!verdict.holds, "{verdict:?}");
        assert!(
            verdict.reason.contains("1.020x where noise counts as 1"),
            "{verdict:?}"
        );
        assert!(judge("memory/vm>1.01x").holds);
    }
}
