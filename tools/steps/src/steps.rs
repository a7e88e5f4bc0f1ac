//! Runs named steps one after another: a heading, a time, and what became of each.
//!
//! A step that fails does not stop the ones after it: one run shows everything that is wrong.

use std::error::Error;
use std::fmt;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

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
    seconds: Vec<(String, f64)>,
    not_here: Vec<(String, String)>,
}

impl Steps {
    /// Runs one step.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        println!("== {name}");
        let start = Instant::now();
        let outcome = step().unwrap_or_else(|error| match error.downcast_ref::<NotHere>() {
            Some(reason) => Outcome::NotHere(reason.to_string()),
            None => {
                println!("{error:#}");
                Outcome::Failed
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        self.seconds.push((name.to_owned(), seconds));
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
        self.seconds.extend(others.seconds);
        self.not_here.extend(others.not_here);
    }

    /// The names of the steps, in their order.
    pub fn names(&self) -> Vec<&str> {
        self.seconds.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Lists the steps with their times, and names those that did not pass; true if none failed.
    pub fn finish(self) -> bool {
        for (name, seconds) in &self.seconds {
            println!("{seconds:>8.1} s  {name}");
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
