//! Runs named steps one after another: a heading, times, and what became of each.
//!
//! A step that fails does not stop the ones after it: one run shows everything that is wrong.

use std::error::Error;
use std::fmt;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::processor;

/// The error of what cannot be done on this machine: why, and the cure. A step takes it as
/// [`Outcome::NotHere`]; elsewhere it makes exit status 3.
#[derive(Debug)]
pub struct NotHere(String);

impl NotHere {
    /// The error, with its reason and the cure in one line.
    pub fn error(reason: &str) -> anyhow::Error {
        Self(reason.to_owned()).into()
    }
}

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotHere {}

/// What became of a step that could be carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Passed,
    /// It ran, and found something wrong; the details are already printed.
    Failed,
    /// It could not run here; the text says why, and the cure.
    NotHere(String),
}

impl Outcome {
    /// Passed when `fine`.
    pub fn of(fine: bool) -> Self {
        if fine { Self::Passed } else { Self::Failed }
    }
}

/// The steps run so far.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Steps {
    failed: Vec<String>,
    times: Vec<Time>,
    not_here: Vec<(String, String)>,
}

/// What a step took.
#[derive(Debug, Serialize, Deserialize)]
struct Time {
    step: String,
    /// From its beginning to its end.
    elapsed_s: f64,
    /// Of processors, by it and the processes that have ended below it.
    processor_s: f64,
}

impl Steps {
    /// Runs one step.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        println!("== {name}");
        let (start, used) = (Instant::now(), processor::used());
        let outcome = step().unwrap_or_else(|error| match error.downcast_ref::<NotHere>() {
            Some(reason) => Outcome::NotHere(reason.to_string()),
            None => {
                println!("{error:#}");
                Outcome::Failed
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        self.times.push(Time {
            step: name.to_owned(),
            elapsed_s: seconds,
            processor_s: processor::used().saturating_sub(used).as_secs_f64(),
        });
        match outcome {
            Outcome::Passed => println!("== {name}: fine ({seconds:.1} s)\n"),
            Outcome::Failed => {
                println!("== {name}: FAILED ({seconds:.1} s)\n");
                self.failed.push(name.to_owned());
            }
            Outcome::NotHere(reason) => {
                println!("== {name}: not here: {reason} ({seconds:.1} s)\n");
                self.not_here.push((name.to_owned(), reason));
            }
        }
    }

    /// Adds steps that ran beside these.
    pub fn add(&mut self, others: Self) {
        self.failed.extend(others.failed);
        self.times.extend(others.times);
        self.not_here.extend(others.not_here);
    }

    /// The names of the steps, in their order.
    pub fn names(&self) -> Vec<&str> {
        self.times.iter().map(|time| time.step.as_str()).collect()
    }

    /// Lists the steps with their times, and names those that did not pass; true if none failed.
    pub fn finish(self) -> bool {
        println!(" elapsed  processors");
        for time in &self.times {
            let (elapsed, processor) = (time.elapsed_s, time.processor_s);
            println!("{elapsed:>8.1} s {processor:>8.1} s  {}", time.step);
        }
        for (name, reason) in &self.not_here {
            println!("not here: {name}: {reason}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
        self.failed.is_empty()
    }
}
