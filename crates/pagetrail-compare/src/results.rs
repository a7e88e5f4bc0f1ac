//! [`Comparison`]: what was found; serialized, it is the document of docs/compare-format.md.

use std::collections::BTreeMap;

use pagetrail_probes::Found;
use serde::Serialize;

use crate::sample::CountMedians;
use crate::score::Score;
use crate::statistics::Estimate;

/// The number of the document's schema.
const SCHEMA: u32 = 1;

/// Where and when it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The kernel's version.
    pub kernel: String,
    /// The processor's name.
    pub machine: String,
    /// When it began, as RFC 3339 has it.
    pub date: String,
    /// What was run.
    pub command: Vec<String>,
    /// Processors that all runs may use.
    pub cpus: usize,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    schema: u32,
    #[serde(flatten)]
    pub(crate) setting: Setting,
    /// The environment that others are compared with.
    pub(crate) against: String,
    pub(crate) seed: u64,
    /// What was not measured, and why.
    pub(crate) absent: Vec<Absent>,
    /// What else there is to say of environments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    pub(crate) suites: Vec<SuiteResult>,
    /// Over the suites; empty where there is one.
    pub(crate) overall: Vec<Score>,
}

/// An environment, or a test, that was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// Its name.
    pub name: String,
    /// Why it was not measured.
    pub reason: String,
}

/// The tests of a suite; a single program is a suite of one.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteResult {
    pub(crate) name: String,
    pub(crate) tests: Vec<TestResult>,
    pub(crate) scores: Vec<Score>,
}

/// A test in all environments.
#[derive(Clone, Debug, Serialize)]
pub struct TestResult {
    pub(crate) name: String,
    /// Runs in each environment.
    pub(crate) runs: usize,
    /// How confident its intervals are, as a share.
    pub(crate) confidence: f64,
    /// The time in the environment that others are compared with, divided by that of another run
    /// there: what a ratio is although nothing is different.
    pub(crate) noise: Estimate,
    /// What of its end and its output is not the same from run to run, and therefore not compared.
    pub(crate) unstable: Option<String>,
    /// How it ends, unless that is exit code 0 or not always the same.
    pub(crate) ends: Option<String>,
    /// Where it has failed.
    pub(crate) failures: Vec<Failure>,
    pub(crate) environments: Vec<Measured>,
}

/// An environment in which a test has failed, so that its times mean nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub(crate) environment: String,
    pub(crate) reason: String,
}

/// A test in one environment.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub(crate) environment: String,
    /// The class of its bar; not in the document.
    #[serde(skip)]
    pub(crate) class: &'static str,
    pub(crate) time_ns: Estimate,
    /// Of the times of each round.
    pub(crate) ratio: Estimate,
    /// Processor time of the program and its children.
    pub(crate) cpu_ns: Estimate,
    /// Of the processor times of each round.
    pub(crate) cpu_ratio: Estimate,
    /// Whether the ratio is no different from noise, as far as is known.
    pub(crate) within_noise: bool,
    /// Whether the rounds are too few to tell a difference from noise.
    pub(crate) too_few_rounds: bool,
    /// How the program behaves differently here.
    pub(crate) differs: Option<String>,
    pub(crate) counts: CountMedians,
    /// Medians of what KVM has counted of the virtual machine in a run, where it could be read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kvm: BTreeMap<String, f64>,
    /// What probes have found in one more run, where that was asked for and could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probed: Option<Found>,
}

impl Comparison {
    pub(crate) fn new(
        setting: Setting,
        against: String,
        seed: u64,
        absent: Vec<Absent>,
        suites: Vec<SuiteResult>,
    ) -> Self {
        let overall = match suites.len() {
            0 | 1 => Vec::new(),
            _ => Score::overall(&suites),
        };
        Self {
            schema: SCHEMA,
            setting,
            against,
            seed,
            absent,
            notes: Vec::new(),
            suites,
            overall,
        }
    }

    /// With lines about environments.
    pub(crate) fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    /// Whether a program fails or behaves differently in an environment than in the one that it is
    /// compared with.
    pub fn has_differences(&self) -> bool {
        let mut tests = self.suites.iter().flat_map(|suite| &suite.tests);
        tests.any(|test| {
            let mut all = test.environments.iter();
            !test.failures.is_empty() || all.any(|measured| measured.differs.is_some())
        })
    }

    /// Whether the rounds are too few to tell a difference from noise.
    pub(crate) fn has_too_few_rounds(&self) -> bool {
        let tests = self.suites.iter().flat_map(|suite| &suite.tests);
        let mut all = tests.flat_map(|test| &test.environments);
        all.any(|measured| measured.too_few_rounds)
    }

    /// Whether anything was compared with the environment that is the measure.
    pub fn has_ratios(&self) -> bool {
        let tests = self.suites.iter().flat_map(|suite| &suite.tests);
        let mut all = tests.flat_map(|test| &test.environments);
        all.any(|measured| measured.environment != self.against)
    }

    /// What was not measured.
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }
}

impl TestResult {
    /// The result in an environment.
    pub(crate) fn of(&self, environment: &str) -> Option<&Measured> {
        let mut all = self.environments.iter();
        all.find(|measured| measured.environment == environment)
    }
}
