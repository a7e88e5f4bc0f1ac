//! [`Fake`]: a machine whose environments are slower by known factors, with a clock of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use pagetrail_probes::{Count, Found, Function};

use crate::behaviour::{Behaviour, Digest, End};
use crate::environment::Environment;
use crate::method::{Length, Outcome, Plan, PlannedSuite, Runner, compare};
use crate::random::Random;
use crate::results::Setting;
use crate::sample::{Counts, Sample};

/// What a run takes natively.
const RUN: Duration = Duration::from_millis(100);
/// How far a time may be off, as a share.
const NOISE: f64 = 0.03;

/// A machine that makes times up.
#[derive(Debug)]
pub(crate) struct Fake {
    random: Random,
    now: Duration,
    /// The environments in which a program has run, in order.
    pub(crate) runs: Vec<String>,
    slower: Vec<(&'static str, f64)>,
    missing: Vec<(&'static str, &'static str)>,
    /// What it writes there; with nothing, something else each time.
    outputs: Vec<(&'static str, &'static str)>,
    drift: f64,
    failing: Vec<&'static str>,
    failing_from: usize,
    apart: Vec<&'static str>,
    counters: Vec<(&'static str, &'static str, i64)>,
}

impl Fake {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x5eed),
            now: Duration::ZERO,
            runs: Vec::new(),
            slower: Vec::new(),
            missing: Vec::new(),
            outputs: Vec::new(),
            drift: 1.0,
            failing: Vec::new(),
            failing_from: 0,
            apart: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// Runs there take so many times as long.
    pub(crate) fn slow(mut self, environment: &'static str, factor: f64) -> Self {
        self.slower.push((environment, factor));
        self
    }

    pub(crate) fn missing(mut self, environment: &'static str, reason: &'static str) -> Self {
        self.missing.push((environment, reason));
        self
    }

    pub(crate) fn output(mut self, environment: &'static str, output: &'static str) -> Self {
        self.outputs.push((environment, output));
        self
    }

    /// Tests fail there.
    pub(crate) fn failing(mut self, environment: &'static str) -> Self {
        self.failing.push(environment);
        self
    }

    /// They fail only when so much has run.
    pub(crate) fn after(mut self, runs: usize) -> Self {
        self.failing_from = runs;
        self
    }

    /// Nothing that runs there means anything.
    pub(crate) fn apart(mut self, environment: &'static str) -> Self {
        self.apart.push(environment);
        self
    }

    /// KVM counts so many of these there in every run.
    pub(crate) fn counting(
        mut self,
        environment: &'static str,
        counter: &'static str,
        count: i64,
    ) -> Self {
        self.counters.push((environment, counter, count));
        self
    }

    fn kvm(&self, environment: &str) -> BTreeMap<String, i64> {
        let own = self.counters.iter().filter(|(of, ..)| *of == environment);
        own.map(|(_, counter, count)| ((*counter).to_owned(), *count))
            .collect()
    }

    /// Each run takes so many times as long as it would have taken one run earlier.
    pub(crate) fn drifting(mut self, factor: f64) -> Self {
        self.drift = factor;
        self
    }
}

impl Runner for Fake {
    fn run(&mut self, _: &str, _: &str, environment: &Environment) -> Result<Outcome> {
        let name = environment.to_string();
        let of = |(other, _): &&(&str, &'static str)| *other == name;
        if let Some((_, reason)) = self.missing.iter().find(of) {
            return Ok(Outcome::NotHere((*reason).into()));
        }
        let slower = self.slower.iter().find(|(other, _)| *other == name);
        let factor = slower.map_or(1.0, |(_, factor)| *factor);
        if self.failing.contains(&&*name) && self.runs.len() >= self.failing_from {
            return Ok(Outcome::Failed("it is wrong".into()));
        }
        if self.apart.contains(&&*name) {
            return Ok(Outcome::Apart("it means nothing".into()));
        }
        let noise = 1.0 + NOISE * (2.0 * self.random.share() - 1.0);
        let drift = self.drift.powi(self.runs.len() as i32);
        let time = RUN.mul_f64(factor * noise * drift);
        self.now += time;
        let output = match self.outputs.iter().find(of) {
            Some((_, "")) => self.runs.len().to_string(),
            Some((_, output)) => (*output).to_owned(),
            None => "same".to_owned(),
        };
        let kvm = self.kvm(&name);
        self.runs.push(name);
        Ok(Outcome::Ran(Sample {
            time_ns: time.as_nanos() as f64,
            counts: Counts {
                user_ns: time.as_nanos() as f64 / 2.0,
                minor_faults: 1000.0 * factor,
                ..Counts::default()
            },
            behaviour: Behaviour {
                end: End::Exited(0),
                output: Digest::of(output.as_bytes()),
                errors: Digest::of(b""),
                message: String::new(),
            },
            kvm,
        }))
    }

    fn probe(
        &mut self,
        _: &str,
        _: &str,
        environment: &Environment,
    ) -> Result<std::result::Result<Found, String>> {
        let count = |name: &str, count| Count {
            name: name.into(),
            count,
        };
        Ok(match environment {
            Environment::Native => Err("it takes root".into()),
            _ => Ok(Found {
                functions: vec![Function {
                    name: "kvm_mmu_page_fault".into(),
                    calls: 12_787,
                    missed: 0,
                    samples: 426,
                    mean_ns: 1850.5,
                    deviation_ns: 312.0,
                    least_ns: 1200.0,
                    most_ns: 9000.0,
                }],
                exits: vec![count("EPT_VIOLATION", 4096), count("<IO>", 3)],
                events: vec![count("kvm:kvm_page_fault", 4096)],
                timer_ns: 70.0,
            }),
        })
    }

    fn now(&self) -> Duration {
        self.now
    }
}

/// A machine that is always the same.
pub(crate) fn setting() -> Setting {
    Setting {
        kernel: "6.18.1".into(),
        machine: "A processor".into(),
        date: "2026-01-01T00:00:00Z".into(),
        command: vec!["sleep".into(), "<1>".into()],
        cpus: 2,
    }
}

/// A comparison on a fake machine: suites with so many tests each, or one program.
pub(crate) fn comparison(tests: usize) -> crate::results::Comparison {
    comparison_of(tests, 7)
}

/// A comparison of so many tests in so many rounds.
pub(crate) fn comparison_of(tests: usize, rounds: usize) -> crate::results::Comparison {
    made_up(tests, rounds, false)
}

/// A comparison of one program, probed.
pub(crate) fn probed() -> crate::results::Comparison {
    made_up(1, 7, true)
}

fn made_up(tests: usize, rounds: usize, probe: bool) -> crate::results::Comparison {
    let names = |suite: &str| PlannedSuite {
        name: suite.into(),
        tests: (0..tests).map(|test| format!("test {test}")).collect(),
    };
    let environment = |word: &str| word.parse().expect("an environment");
    let plan = Plan {
        against: Environment::Native,
        environments: ["tracked:pagemap-scan", "heap:8", "vm"]
            .map(environment)
            .into(),
        suites: match tests {
            1 => vec![PlannedSuite {
                name: "program".into(),
                tests: vec!["sleep '<1>'".into()],
            }],
            _ => vec![names("memory"), names("<disk>")],
        },
        length: Length::Rounds(rounds),
        seed: 24,
        probe,
    };
    let mut fake = Fake::new(24)
        .slow("vm", 1.3)
        .missing("heap:8", "no <library>")
        .output("vm", "other");
    compare(&plan, setting(), &mut fake, &mut |_| {}).expect("the fake never fails")
}
