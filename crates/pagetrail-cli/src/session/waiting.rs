//! [`Waiting`]: what is said on standard error while a long step runs: how far it is, how fast, and
//! how long the rest takes.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use pagetrail_checkpoint::{Advance, Progress};
use pagetrail_report::words;
use serde_json::{Value, json};

/// Time before the line appears: short steps show none.
const QUIET: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(1);

/// Whether other programs learn how far it is.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ProgressArgs {
    /// Write to standard error how far it is, how fast, and how long the rest takes: a line of JSON
    /// each second, and one at the end; on a terminal a line shows it without
    #[arg(long)]
    pub(crate) progress: bool,
}

/// A line on standard error, if that is a terminal, that says what is being done and how far it is,
/// erased at the end; or lines of JSON.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Begins; `what` is done until this is dropped, as in "verifying the store".
    pub(crate) fn during(what: &'static str) -> Self {
        Self::on(what, &Arc::default(), ProgressArgs::default())
    }

    /// Begins with work of which is known how far it is.
    pub(crate) fn on(what: &'static str, progress: &Arc<Progress>, args: ProgressArgs) -> Self {
        let progress = Arc::clone(progress);
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new();
        let thread = match args.progress {
            true => thread.spawn(move || tell_programs(&progress, &ended)),
            false if io::stderr().is_terminal() => {
                thread.spawn(move || show(what, &progress, &ended))
            }
            false => return Self(None),
        };
        Self(thread.ok().map(|thread| (end, thread)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

/// Whether it goes on for so long.
fn goes_on(ended: &Receiver<()>, time: Duration) -> bool {
    ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

/// Keeps the line of a terminal. A failure to show it is ignored.
fn show(what: &str, progress: &Progress, ended: &Receiver<()>) {
    let since = Instant::now();
    let (mut after, mut is_shown) = (QUIET, false);
    while goes_on(ended, after) {
        let mut line = line(what, since.elapsed(), progress.look());
        // A line that wraps could not be erased. The text is ASCII, so bytes are columns.
        let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
        line.truncate(usize::from(width.unwrap_or(80)).saturating_sub(1));
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
        (after, is_shown) = (PERIOD, true);
    }
    if is_shown {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

fn line(what: &str, elapsed: Duration, advance: Option<Advance>) -> String {
    let mut line = format!("{what}: {} s", elapsed.as_secs());
    let Some(advance) = advance else {
        return line;
    };
    let bytes = |bytes: u64| words::bytes(bytes as f64);
    line += &format!("; {}: {}", advance.step, bytes(advance.done_bytes));
    if let Some(total) = advance.total_bytes {
        line += &format!(" of {}", bytes(total));
    }
    if let Some(rate) = advance.bytes_per_second() {
        line += &format!(", {}/s", words::bytes(rate));
    }
    if let Some(left) = advance.time_left() {
        line += &format!(", {} s left", left.as_secs_f64().ceil());
    }
    line
}

/// Writes lines of JSON. A failure to write them is ignored.
fn tell_programs(progress: &Progress, ended: &Receiver<()>) {
    while goes_on(ended, PERIOD) {
        let _ = writeln!(io::stderr(), "{}", document(progress.look(), false));
    }
    let _ = writeln!(io::stderr(), "{}", document(progress.look(), true));
}

fn document(advance: Option<Advance>, is_over: bool) -> Value {
    json!({
        "schema": 1,
        "step": advance.map(|advance| advance.step),
        "done_bytes": advance.map_or(0, |advance| advance.done_bytes),
        "total_bytes": advance.and_then(|advance| advance.total_bytes),
        "bytes_per_second": advance.and_then(|advance| advance.bytes_per_second()).map(f64::round),
        "left_ms": advance.and_then(|advance| advance.time_left()).map(|left| left.as_millis() as u64),
        "is_over": is_over,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_as_much_as_is_known() {
        let elapsed = Duration::from_secs(7);
        assert_eq!(line("verifying", elapsed, None), "verifying: 7 s");
        let progress = Progress::default();
        progress.begin("checking pages", 0);
        let nothing = line("verifying", elapsed, progress.look());
        assert_eq!(nothing, "verifying: 7 s; checking pages: 0 B");
        progress.begin("checking pages", 3 << 20);
        let begun = line("verifying", elapsed, progress.look());
        assert_eq!(begun, "verifying: 7 s; checking pages: 0 B of 3 MiB");
    }
}
