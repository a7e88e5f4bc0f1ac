//! [`Running`]: a test while it is measured, and what its runs come to.

use std::time::Duration;

use pagetrail_probes::Found;

use super::Plan;
use crate::behaviour::{End, Expected};
use crate::environment::Environment;
use crate::results::{Absent, Failure, Measured, TestResult};
use crate::sample::{CountMedians, Sample, kvm_medians};
use crate::statistics::{Estimate, are_too_few, confidence};
use crate::suite::PROGRAM;

/// A test while it is measured.
pub(super) struct Running<'a> {
    pub(super) suite: &'a str,
    pub(super) name: &'a str,
    pub(super) expected: Expected,
    /// Times of a run divided by those of another, in the same environment.
    pub(super) noise: Vec<f64>,
    /// The first is the one that others are compared with.
    pub(super) environments: Vec<Place<'a>>,
    /// Why it has failed there, although it had run before: nothing is left to compare with.
    pub(super) lost: Option<String>,
}

/// A test in an environment while it is measured.
pub(super) struct Place<'a> {
    pub(super) environment: &'a Environment,
    /// What a run takes, from before it to after it.
    pub(super) cost: Duration,
    pub(super) samples: Vec<Sample>,
    pub(super) differs: Option<String>,
    /// Why it is not measured any more.
    pub(super) failed: Option<String>,
    /// What probes have found in a run.
    pub(super) probed: Option<Found>,
}

impl<'a> Place<'a> {
    pub(super) fn new(environment: &'a Environment, cost: Duration) -> Self {
        Self {
            environment,
            cost,
            samples: Vec::new(),
            differs: None,
            failed: None,
            probed: None,
        }
    }
}

impl<'a> Running<'a> {
    pub(super) fn new(suite: &'a str, name: &'a str, first: &Sample) -> Self {
        Self {
            suite,
            name,
            expected: Expected::of(first.behaviour.clone()),
            noise: Vec::new(),
            environments: Vec::new(),
            lost: None,
        }
    }

    /// The line of a test that has failed where others are compared with.
    pub(super) fn loss(&self) -> Option<Absent> {
        let reason = self.lost.as_ref()?;
        Some(Absent {
            name: match self.suite {
                PROGRAM => self.name.to_owned(),
                suite => format!("{suite}/{}", self.name),
            },
            reason: format!("it has failed: {reason}"),
        })
    }

    /// The numbers of the environments in which it is measured.
    pub(super) fn measured(&self) -> impl Iterator<Item = usize> {
        let places = self.environments.iter().enumerate();
        places
            .filter(|(_, place)| place.failed.is_none())
            .map(|(at, _)| at)
    }

    /// The environments in which it has failed.
    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.environments.iter().filter_map(|place| {
            Some(Failure {
                environment: place.environment.to_string(),
                reason: place.failed.clone()?,
            })
        })
    }

    pub(super) fn result(&self, plan: &Plan) -> TestResult {
        let noise = Estimate::of(self.noise.iter().copied());
        let runs = self
            .environments
            .first()
            .map_or(0, |base| base.samples.len());
        TestResult {
            name: self.name.to_owned(),
            runs,
            confidence: confidence(runs),
            noise,
            unstable: self.expected.unstable(),
            ends: match self.expected.end() {
                None | Some(End::Exited(0)) => None,
                Some(end) => Some(end.to_string()),
            },
            failures: self.failures().collect(),
            environments: self
                .measured()
                .map(|at| self.measured_in(&self.environments[at], noise, plan))
                .collect(),
        }
    }

    fn measured_in(&self, place: &Place<'_>, noise: Estimate, plan: &Plan) -> Measured {
        let base = &self.environments[0].samples;
        let pairs = place.samples.iter().zip(base);
        let ratios = pairs.map(|(sample, base)| sample.time_ns / base.time_ns.max(1.0));
        let ratio = Estimate::of(ratios);
        let cpu = |sample: &Sample| sample.counts.user_ns + sample.counts.system_ns;
        let pairs = place.samples.iter().zip(base);
        let cpu_ratios = pairs.map(|(sample, base)| cpu(sample) / cpu(base).max(1.0));
        let mut behaviours = place.samples.iter().map(|sample| &sample.behaviour);
        let differs = || behaviours.find_map(|behaviour| self.expected.difference(behaviour));
        let is_other = *place.environment != plan.against;
        let too_few_rounds = is_other && are_too_few(place.samples.len().min(self.noise.len()));
        Measured {
            environment: place.environment.to_string(),
            class: place.environment.class(),
            time_ns: Estimate::of(place.samples.iter().map(|sample| sample.time_ns)),
            ratio,
            cpu_ns: Estimate::of(place.samples.iter().map(cpu)),
            cpu_ratio: Estimate::of(cpu_ratios),
            within_noise: !is_other || too_few_rounds || within(ratio, noise),
            too_few_rounds,
            differs: place.differs.clone().or_else(differs),
            counts: CountMedians::of(&place.samples),
            kvm: kvm_medians(&place.samples),
            probed: place.probed.clone(),
        }
    }
}

/// Whether a ratio is no different from noise. Two equal programs are 1 apart in the long run, so
/// the noise reaches from there to the ends of its interval.
fn within(ratio: Estimate, noise: Estimate) -> bool {
    let noise = Estimate {
        low: noise.low.min(1.0),
        high: noise.high.max(1.0),
        ..noise
    };
    ratio.overlaps(&noise)
}
