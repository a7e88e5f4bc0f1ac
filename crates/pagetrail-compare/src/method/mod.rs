//! The method: which run is when, and what the runs come to.
//!
//! 1. Each test runs once in each environment. These times do not count; they say how long the rest
//!    will take, whether an environment is here at all, and how the program behaves.
//! 2. The noise is measured: pairs of runs in the environment that others are compared with.
//! 3. In each round, each test runs once in each environment, in an order that is drawn anew, so
//!    that what changes on the machine meanwhile meets all of them. A ratio is one of two times of
//!    the same round.
//!
//! 4. Where it is asked for, each test runs once more in each environment under probes, which cost
//!    time: this run is none of those that count.
//!
//! A ratio whose confidence interval meets that of the noise is no different from noise.

use std::time::Duration;

use anyhow::Result;
use pagetrail_probes::Found;
use serde::{Deserialize, Serialize};

use self::running::{Place, Running};
use crate::environment::Environment;
use crate::progress::{Phase, Progress};
use crate::random::Random;
use crate::results::{Absent, Comparison, Setting, SuiteResult};
use crate::sample::Sample;
use crate::score::Score;
#[cfg(doc)]
use crate::statistics::are_too_few;
use crate::suite::PROGRAM;

mod running;
#[cfg(test)]
mod tests;

/// The fewest rounds, however short a time is given: fewer tell no difference from noise
/// ([`are_too_few`]).
const ROUNDS_MIN: usize = 6;
/// The most rounds.
pub const ROUNDS_MAX: usize = 1000;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many rounds.
    Rounds(usize),
    /// As many rounds as fit into this time, but no fewer than six.
    Time(Duration),
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The environment that others are compared with.
    pub against: Environment,
    /// The others, without it.
    pub environments: Vec<Environment>,
    /// Suites, or one program.
    pub suites: Vec<PlannedSuite>,
    /// How long.
    pub length: Length,
    /// The order of runs follows from it.
    pub seed: u64,
    /// Whether one more run in each environment is probed.
    pub probe: bool,
}

/// The tests of a suite.
#[derive(Clone, Debug)]
pub struct PlannedSuite {
    /// Its name.
    pub name: String,
    /// The names of its tests.
    pub tests: Vec<String>,
}

/// What runs programs; in tests of the method, what makes times up.
pub trait Runner {
    /// Runs a test of a suite in an environment once.
    ///
    /// # Errors
    ///
    /// Whatever ends the whole comparison.
    fn run(&mut self, suite: &str, test: &str, environment: &Environment) -> Result<Outcome>;

    /// Runs a test of a suite in an environment once more, and finds out where its time in the
    /// kernel goes; the inner error is why that cannot be found.
    ///
    /// # Errors
    ///
    /// Whatever ends the whole comparison.
    fn probe(
        &mut self,
        suite: &str,
        test: &str,
        environment: &Environment,
    ) -> Result<Result<Found, String>>;

    /// The time since some instant.
    fn now(&self) -> Duration;

    /// What there is to say of environments, when all has run: a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What became of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The program ran.
    Ran(Sample),
    /// The environment, or the test, is not here; the reason.
    NotHere(String),
    /// This test means nothing in this environment, where others can be measured; the reason.
    Apart(String),
    /// The test has failed there, so that its time means nothing; the reason.
    Failed(String),
}

/// Compares; `say` hears of every run before it begins.
///
/// # Errors
///
/// Those of the runner.
pub fn compare(
    plan: &Plan,
    setting: Setting,
    runner: &mut dyn Runner,
    say: &mut dyn FnMut(&Progress),
) -> Result<Comparison> {
    let mut session = Session {
        plan,
        runner,
        say,
        random: Random::new(plan.seed),
        tests: Vec::new(),
        absent: Vec::new(),
    };
    session.warm_up()?;
    // What has nothing to be compared with takes no more time.
    session.tests.retain(|test| test.environments.len() > 1);
    let rounds = session.rounds();
    session.measure_noise(rounds)?;
    session.measure(rounds)?;
    if plan.probe {
        session.probe()?;
    }
    let notes = session.runner.notes();
    let Session {
        tests, mut absent, ..
    } = session;
    absent.extend(tests.iter().filter_map(Running::loss));
    let suites = plan.suites.iter().map(|suite| {
        let left = tests.iter().filter(|test| test.lost.is_none());
        let own = left.filter(|test| test.suite == suite.name);
        let tests: Vec<_> = own.map(|test| test.result(plan)).collect();
        SuiteResult {
            name: suite.name.clone(),
            scores: Score::of_suite(&tests),
            tests,
        }
    });
    let suites = suites.filter(|suite| !suite.tests.is_empty()).collect();
    let against = plan.against.to_string();
    let comparison = Comparison::new(setting, against, plan.seed, absent, suites);
    Ok(comparison.with_notes(notes))
}

struct Session<'a> {
    plan: &'a Plan,
    runner: &'a mut dyn Runner,
    say: &'a mut dyn FnMut(&Progress),
    random: Random,
    tests: Vec<Running<'a>>,
    absent: Vec<Absent>,
}

/// The number of a test, and that of one of its environments.
type Slot = (usize, usize);

impl<'a> Session<'a> {
    fn warm_up(&mut self) -> Result<()> {
        let plan = self.plan;
        let suites = plan.suites.iter();
        let all = suites.flat_map(|suite| suite.tests.iter().map(move |test| (suite, test)));
        let mut missing: Vec<&Environment> = Vec::new();
        for (suite, test) in all {
            let named = match suite.name.as_str() {
                PROGRAM => test.clone(),
                _ => format!("{}/{test}", suite.name),
            };
            let mut running: Option<Running<'a>> = None;
            for environment in std::iter::once(&plan.against).chain(&plan.environments) {
                if missing.contains(&environment) {
                    continue;
                }
                (self.say)(&Progress {
                    test: named.clone(),
                    environment: environment.to_string(),
                    phase: Phase::WarmUp,
                    remaining: None,
                });
                let before = self.runner.now();
                let outcome = self.runner.run(&suite.name, test, environment)?;
                let cost = self.runner.now().saturating_sub(before);
                match (outcome, &mut running) {
                    (Outcome::Ran(sample), running) => running
                        .get_or_insert_with(|| Running::new(&suite.name, test, &sample))
                        .environments
                        .push(Place::new(environment, cost)),
                    // Where nothing else can be compared with it, nothing is.
                    (
                        Outcome::NotHere(reason) | Outcome::Apart(reason) | Outcome::Failed(reason),
                        None,
                    ) => {
                        let name = match environment {
                            Environment::Native => named.clone(),
                            other => format!("{named} in {other}"),
                        };
                        self.absent.push(Absent { name, reason });
                        break;
                    }
                    (Outcome::NotHere(reason), Some(_)) => {
                        missing.push(environment);
                        let name = environment.to_string();
                        self.absent.push(Absent { name, reason });
                    }
                    (Outcome::Apart(reason), Some(_)) => {
                        let name = format!("{}/{test} in {environment}", suite.name);
                        self.absent.push(Absent { name, reason });
                    }
                    (Outcome::Failed(reason), Some(running)) => {
                        let mut place = Place::new(environment, cost);
                        place.failed = Some(reason);
                        running.environments.push(place);
                    }
                }
            }
            self.tests.extend(running);
        }
        Ok(())
    }

    /// How many rounds there are.
    fn rounds(&self) -> usize {
        let time = match self.plan.length {
            Length::Rounds(rounds) => return rounds.clamp(1, ROUNDS_MAX),
            Length::Time(time) => time,
        };
        // Before each round there is a pair of runs that measure the noise.
        let round = self.cost(&self.slots()) + self.cost(&self.pairs());
        let left = time.saturating_sub(self.runner.now());
        let fits = left.as_secs_f64() / round.as_secs_f64().max(1e-9);
        (fits as usize).clamp(ROUNDS_MIN, ROUNDS_MAX)
    }

    /// Every test in every environment.
    fn slots(&self) -> Vec<Slot> {
        let tests = self.tests.iter().enumerate();
        let tests = tests.filter(|(_, running)| running.lost.is_none());
        tests
            .flat_map(|(test, running)| running.measured().map(move |at| (test, at)))
            .collect()
    }

    /// Every test twice in the environment that others are compared with.
    fn pairs(&self) -> Vec<Slot> {
        (0..self.tests.len())
            .flat_map(|test| [(test, 0); 2])
            .collect()
    }

    fn cost(&self, slots: &[Slot]) -> Duration {
        let costs = slots
            .iter()
            .map(|(test, at)| self.tests[*test].environments[*at].cost);
        costs.sum()
    }

    fn measure_noise(&mut self, rounds: usize) -> Result<()> {
        let pairs = self.pairs();
        let later = self.cost(&self.slots()) * rounds as u32;
        for run in 1..=rounds {
            for test in 0..self.tests.len() {
                let left = self.cost(&pairs[2 * test..]);
                let remaining = later + self.cost(&pairs) * (rounds - run) as u32 + left;
                let phase = Phase::Noise { run, of: rounds };
                let mut times = Vec::new();
                while times.len() < 2 && self.tests[test].lost.is_none() {
                    match self.run((test, 0), phase, remaining)? {
                        Ok(sample) => times.push(sample.time_ns),
                        Err(reason) => self.tests[test].lost = Some(reason),
                    }
                }
                if let [first, second] = times[..] {
                    self.tests[test].noise.push(first / second.max(1.0));
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self, rounds: usize) -> Result<()> {
        for run in 1..=rounds {
            let mut slots = Vec::new();
            // A test's runs stay together, so that a ratio is one of neighbours.
            for test in 0..self.tests.len() {
                if self.tests[test].lost.is_some() {
                    continue;
                }
                let measured = self.tests[test].measured();
                let mut own: Vec<Slot> = measured.map(|at| (test, at)).collect();
                self.random.shuffle(&mut own);
                slots.extend(own);
            }
            for (done, slot) in slots.iter().enumerate() {
                let later = self.cost(&slots) * (rounds - run) as u32;
                let remaining = later + self.cost(&slots[done..]);
                let (test, at) = *slot;
                if self.tests[test].lost.is_some() {
                    continue;
                }
                let sample = self.run(*slot, Phase::Round { run, of: rounds }, remaining);
                let running = &mut self.tests[test];
                match sample? {
                    Ok(sample) => running.environments[at].samples.push(sample),
                    Err(reason) if at > 0 => running.environments[at].failed = Some(reason),
                    Err(reason) => running.lost = Some(reason),
                }
            }
        }
        Ok(())
    }

    fn probe(&mut self) -> Result<()> {
        let slots = self.slots();
        for (done, (test, at)) in slots.iter().copied().enumerate() {
            let remaining = self.cost(&slots[done..]);
            let running = &mut self.tests[test];
            let place = &mut running.environments[at];
            (self.say)(&Progress {
                test: running.name.to_owned(),
                environment: place.environment.to_string(),
                phase: Phase::Probed,
                remaining: Some(remaining),
            });
            let (suite, name) = (running.suite, running.name);
            match self.runner.probe(suite, name, place.environment)? {
                Ok(found) => place.probed = Some(found),
                Err(reason) => {
                    let name = "probes".to_owned();
                    if self.absent.iter().all(|absent| absent.reason != reason) {
                        self.absent.push(Absent { name, reason });
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs a test in one of its environments; the inner error is why its time means nothing.
    fn run(
        &mut self,
        (test, at): Slot,
        phase: Phase,
        remaining: Duration,
    ) -> Result<Result<Sample, String>> {
        let running = &mut self.tests[test];
        let place = &mut running.environments[at];
        (self.say)(&Progress {
            test: running.name.to_owned(),
            environment: place.environment.to_string(),
            phase,
            remaining: Some(remaining),
        });
        let before = self.runner.now();
        let outcome = self
            .runner
            .run(running.suite, running.name, place.environment)?;
        let cost = self.runner.now().saturating_sub(before);
        // The mean of what it took and of what was expected: later runs count more.
        place.cost = (place.cost + cost) / 2;
        let sample = match outcome {
            Outcome::Ran(sample) => sample,
            Outcome::NotHere(reason) | Outcome::Apart(reason) | Outcome::Failed(reason) => {
                return Ok(Err(reason));
            }
        };
        let differs = match at {
            0 => running.expected.again(&sample.behaviour),
            // Judged at the end, when it is known what is the same in every run.
            _ => None,
        };
        place.differs = place.differs.take().or(differs);
        Ok(Ok(sample))
    }
}
