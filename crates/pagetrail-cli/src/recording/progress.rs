//! [`Progress`]: one line that tells how far a long recording is, and vanishes with it.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::recorder::Totals;
use crate::report::words;

/// Nobody waits long enough to wonder before.
const QUIET: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(250);

/// The line on standard error; shown on a terminal only.
#[derive(Debug)]
pub(crate) struct Progress {
    wanted: bool,
    since: Instant,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// `wanted`: whether the terminal is ours to write on.
    pub(crate) fn new(wanted: bool) -> Self {
        let since = Instant::now();
        Self {
            wanted: wanted && io::stderr().is_terminal(),
            since,
            next: since + QUIET,
            shown: false,
        }
    }

    /// Shows how far it is, when it is time to.
    pub(crate) fn update(&mut self, totals: &Totals) {
        let now = Instant::now();
        if !self.wanted || now < self.next {
            return;
        }
        self.next = now + PERIOD;
        self.shown = true;
        let mut line = format!(
            "{:.1} s, {}, {} pages in the last; Ctrl-C to end",
            (now - self.since).as_secs_f64(),
            words::plural(totals.rounds.into(), "round"),
            words::count(totals.last_pages)
        );
        // A folded line could not be erased. All of it is ASCII.
        let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
        line.truncate(usize::from(width.unwrap_or(80)).saturating_sub(1));
        // Progress that cannot be shown is not worth an error.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    /// Removes the line.
    pub(crate) fn erase(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}
