//! [`Progress`]: one line on the terminal with the progress of a recording, erased at its end.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use pagetrail_recorder::Totals;
use pagetrail_report::words;

/// Time before the line appears: short recordings show none.
const QUIET: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(250);

/// The progress line on standard error, shown only on a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    wanted: bool,
    since: Instant,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// Makes a progress line; `wanted` says whether pagetrail may write to the terminal.
    pub(crate) fn new(wanted: bool) -> Self {
        let since = Instant::now();
        Self {
            wanted: wanted && io::stderr().is_terminal(),
            since,
            next: since + QUIET,
            shown: false,
        }
    }

    /// Shows the totals if the line is due.
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
        // A line that wraps could not be erased. The text is ASCII, so bytes are columns.
        let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
        line.truncate(usize::from(width.unwrap_or(80)).saturating_sub(1));
        // A failure to show progress is ignored.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    /// Erases the line.
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
