//! [`Progress`]: which run is next, and for how long the rest will take.

use std::fmt;
use std::time::Duration;

/// Which run is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The suite and the test, or the program.
    pub test: String,
    /// The environment.
    pub environment: String,
    /// What the run is for.
    pub phase: Phase,
    /// How long this run and all after it will take; `None` while nobody knows.
    pub remaining: Option<Duration>,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Caches are filled; its time does not count.
    WarmUp,
    /// The noise of this machine is measured.
    Noise {
        /// The pair of runs.
        run: usize,
        /// How many there are.
        of: usize,
    },
    /// Environments are compared.
    Round {
        /// The round.
        run: usize,
        /// How many there are.
        of: usize,
    },
    /// Probes find where its time goes; its time does not count.
    Probed,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase {
            Phase::WarmUp => write!(f, "warm-up"),
            Phase::Noise { run, of } => write!(f, "noise, {run} of {of}"),
            Phase::Probed => write!(f, "probed"),
            Phase::Round { run, of } => write!(f, "round {run} of {of}"),
        }?;
        write!(f, ": {} in {}", self.test, self.environment)?;
        match self.remaining {
            Some(remaining) => {
                let seconds = Duration::from_secs(remaining.as_secs_f64().ceil() as u64);
                write!(f, "; {} left", humantime::format_duration(seconds))
            }
            None => Ok(()),
        }
    }
}
