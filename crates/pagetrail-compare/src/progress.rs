//! [`Progress`]: which run is next, and for how long the rest will take.

use std::fmt;
use std::time::Duration;

use pagetrail_report::words::printable;

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

impl Progress {
    /// The progress in one line of so many characters at most. A long test is shortened, so that
    /// the time that remains stays in sight.
    pub fn within(&self, columns: usize) -> String {
        let whole = printable(&self.to_string()).into_owned();
        let surplus = whole.chars().count().saturating_sub(columns);
        if surplus == 0 {
            return whole;
        }
        const CUT: &str = "...";
        let test = printable(&self.test).into_owned();
        let kept = test.chars().count().saturating_sub(surplus + CUT.len());
        let shortened = Self {
            test: test.chars().take(kept).collect::<String>() + CUT,
            ..self.clone()
        };
        shortened.to_string().chars().take(columns).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_program_leaves_the_time_in_sight() {
        let progress = Progress {
            test: format!("sh -c '{}\u{1b}'", "x".repeat(300)),
            environment: "tracked:pagemap-scan".into(),
            phase: Phase::Round { run: 2, of: 7 },
            remaining: Some(Duration::from_millis(61_500)),
        };
        assert!(progress.within(1000).chars().count() > 300);
        let line = progress.within(80);
        assert_eq!(line.chars().count(), 80, "{line}");
        assert!(line.starts_with("round 2 of 7: sh -c 'xx"), "{line}");
        assert!(
            line.ends_with("x... in tracked:pagemap-scan; 1m 2s left"),
            "{line}"
        );
        assert!(!line.contains('\u{1b}'));
        assert_eq!(progress.within(10), "round 2 of");
        assert_eq!(progress.within(0), "");
    }
}
