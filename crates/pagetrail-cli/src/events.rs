//! The events of the libraries, as lines on standard error.
//!
//! An event may come while the target is stopped, and the target may be who reads our standard
//! error: so a line is only written where that cannot block, else it is dropped and counted.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use pagetrail_report::words::printable;

/// The variable that names a level.
const VARIABLE: &str = "PAGETRAIL_LOG";
/// The levels, from few events to many.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// What is reported unasked: what a user should know.
const UNASKED: LevelFilter = LevelFilter::WARN;
/// A pipe that polls as writable takes as many bytes without blocking: `PIPE_BUF`, pipe(7).
const LINE_BYTES_MAX: usize = 4096;

/// True while a screen is drawn on the terminal, which lines would disturb.
static MUTED: AtomicBool = AtomicBool::new(false);

/// Reports events from now on: by the flag `-v`, given `verbose` times, and by `PAGETRAIL_LOG`; the
/// greater counts.
pub(crate) fn report(verbose: u8) -> Result<()> {
    let named = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let level = level(verbose, named.as_deref())?;
    let lines = Lines {
        level,
        pid: std::process::id(),
        dropped: AtomicU64::new(0),
    };
    // It fails where there is one already, which nothing here sets.
    let _ = tracing::subscriber::set_global_default(lines);
    Ok(())
}

/// Drops events that a terminal would get, until the value is dropped.
pub(crate) fn mute_on_terminal() -> Muted {
    MUTED.store(io::stderr().is_terminal(), Ordering::Relaxed);
    Muted
}

/// Events that a terminal would get are dropped while this is there.
#[must_use]
pub(crate) struct Muted;

impl Drop for Muted {
    fn drop(&mut self) {
        MUTED.store(false, Ordering::Relaxed);
    }
}

fn level(verbose: u8, named: Option<&str>) -> Result<LevelFilter> {
    let by_flag = match verbose {
        0 => None,
        1 => Some(LevelFilter::INFO),
        2 => Some(LevelFilter::DEBUG),
        _ => Some(LevelFilter::TRACE),
    };
    let by_variable = match named.filter(|name| !name.is_empty()) {
        None => None,
        Some(name) => match LEVELS
            .iter()
            .find(|(level, _)| name.eq_ignore_ascii_case(level))
        {
            Some((_, level)) => Some(*level),
            None => bail!(
                "{VARIABLE} is {name}, which is no level; there are {}",
                LEVELS.map(|(name, _)| name).join(", ")
            ),
        },
    };
    Ok(by_flag.max(by_variable).unwrap_or(UNASKED))
}

/// A subscriber that knows events only.
struct Lines {
    level: LevelFilter,
    /// Who reports: a child that is forked from this process is silent.
    pid: u32,
    /// Lines for which there was no room.
    dropped: AtomicU64,
}

impl Lines {
    fn write(&self, line: &str) {
        if self.pid != std::process::id() || MUTED.load(Ordering::Relaxed) {
            return;
        }
        let mut err = io::stderr().lock();
        if !takes_a_line(&err) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let text = cut(line, self.dropped.swap(0, Ordering::Relaxed));
        // Nothing is left to be done where standard error cannot be written.
        let _ = err.write_all(text.as_bytes());
    }
}

/// Whether a line can be written to standard error now.
fn takes_a_line(err: &io::StderrLock<'_>) -> bool {
    let mut fds = [PollFd::new(err, PollFlags::OUT)];
    let at_once = rustix::event::Timespec::try_from(Duration::ZERO).ok();
    let ready = poll(&mut fds, at_once.as_ref()).is_ok_and(|ready| ready == 1);
    ready && fds[0].revents().contains(PollFlags::OUT)
}

/// The line with its end, and with the number of those `dropped` before it, of at most
/// [`LINE_BYTES_MAX`].
fn cut(line: &str, dropped: u64) -> String {
    let note = match dropped {
        0 => String::new(),
        dropped => format!(" (after {dropped} dropped)"),
    };
    let line = printable(line);
    let room = LINE_BYTES_MAX - note.len() - 1;
    let mut end = line.len().min(room);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{note}\n", &line[..end])
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.level
            && metadata.target().starts_with("pagetrail")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // No span is enabled; the number must only not be zero.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut words = Words::default();
        event.record(&mut words);
        let Words { message, fields } = words;
        self.write(&format!("pagetrail: {level}: {message}{fields}"));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event's message, and its fields as ` name=value`.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greater_of_flag_and_variable_counts() {
        let of = |verbose, name| level(verbose, name).expect("a level");
        assert_eq!(of(0, None), LevelFilter::WARN);
        assert_eq!(of(0, Some("")), LevelFilter::WARN);
        assert_eq!(of(0, Some("off")), LevelFilter::OFF);
        assert_eq!(of(0, Some("Debug")), LevelFilter::DEBUG);
        assert_eq!(of(1, None), LevelFilter::INFO);
        assert_eq!(of(2, Some("error")), LevelFilter::DEBUG);
        assert_eq!(of(1, Some("trace")), LevelFilter::TRACE);
        assert_eq!(of(9, None), LevelFilter::TRACE);
        let error = level(0, Some("loud")).expect_err("no level").to_string();
        assert!(error.contains("loud") && error.contains("warn"), "{error}");
    }

    #[test]
    fn lines_are_short_enough_and_name_what_was_dropped() {
        assert_eq!(cut("a\nb", 0).lines().count(), 1);
        assert_eq!(cut("a", 3), "a (after 3 dropped)\n");
        let long = cut(&"ä".repeat(5000), u64::MAX);
        assert!(long.len() <= LINE_BYTES_MAX && long.ends_with(" dropped)\n"));
    }
}
