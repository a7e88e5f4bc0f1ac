//! Reports: a trail as text, JSON, a page of HTML or a picture.
//!
//! Pure renderers: a [`Trail`] in, bytes out. What is computed from a trail comes from
//! [`pagetrail_trail`]; files, terminals and exit codes are the command's business. What other
//! reports share stands here, too: numbers as words ([`words`], [`size`], [`duration`]), colours
//! ([`palette`]), charts ([`lines`]), tables ([`sheet`]) and the look of pages ([`html`]).

use std::borrow::Cow;
use std::io::{self, Write};

use pagetrail::AccessKind;
use pagetrail_trail::heatmap::Column;
use pagetrail_trail::{Analysis, Trail};

mod axis;
pub mod bands;
pub mod bars;
mod canvas;
mod chrome_trace;
pub mod comparison;
pub mod duration;
mod facts;
mod flame;
mod functions;
pub mod html;
pub mod joined;
mod json;
pub mod lines;
pub mod palette;
mod parquet;
mod png;
mod pprof;
pub mod private;
pub mod processes;
pub mod shared;
pub mod sheet;
pub mod size;
mod terminal;
#[cfg(feature = "test-equipment")]
pub mod testing;
pub mod threshold;
pub mod words;
pub mod writers;

pub use terminal::Style;

use processes::{ProcessRow, Processes};
use shared::SharedPages;
use writers::Writers;

/// The forms of a report.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Format {
    /// Text for people.
    Terminal(Style),
    /// One JSON document.
    Json,
    /// One self-contained page.
    Html,
    /// The heatmap as a picture.
    Png,
    /// The call stacks as a flame graph.
    FlameGraph,
    /// The call stacks as text.
    Folded,
    /// The call stacks as a profile for pprof.
    Pprof,
    /// A table of the pages written, as an Apache Parquet file.
    Parquet,
    /// The rounds as a trace for Perfetto and Chrome (JSON).
    ChromeTrace,
}

/// Writes the report on `trail`; the only errors are those of `out`.
pub fn write(trail: &Trail, format: Format, out: &mut dyn Write) -> io::Result<()> {
    write_with(trail, None, format, out)
}

/// Writes the report on `trail` and the code that wrote, if that was sampled.
pub fn write_with(
    trail: &Trail,
    writers: Option<&Writers>,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_process(trail, writers, &Processes::default(), format, out)
}

/// Writes several processes of a recording, each with the time at which it was attached to, in ns
/// since the recording began; formats that hold one process alone get the first.
///
/// # Errors
///
/// Those of `out`.
pub fn write_all(
    processes: &[(u64, &Trail)],
    format: Format,
    out: &mut dyn Write,
) -> io::Result<()> {
    match (format, processes.first()) {
        (Format::Parquet, _) => parquet::write(processes, out),
        (Format::ChromeTrace, _) => chrome_trace::write(processes, out),
        (Format::Html, _) => {
            let trails = processes.iter().map(|(_, trail)| Recording::of(trail));
            html::write_all(&trails.collect::<Vec<_>>(), out)
        }
        (_, Some((_, trail))) => write(trail, format, out),
        (_, None) => Ok(()),
    }
}

/// Writes the report on one process of a recording of several; `processes` are all of them, for the
/// JSON document.
///
/// # Errors
///
/// Those of `out`.
pub fn write_process(
    trail: &Trail,
    writers: Option<&Writers>,
    processes: &Processes,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Parquet | Format::ChromeTrace => return write_all(&[(0, trail)], format, out),
        _ => {}
    }
    if let Format::FlameGraph | Format::Folded | Format::Pprof = format {
        let none = Writers::default();
        let writers = writers.unwrap_or(&none);
        return match format {
            Format::Folded => writers.write_folded(out),
            Format::Pprof => pprof::write(writers, trail.header.started_unix_ms, out),
            _ => flame::write(writers, &words::command(&trail.header.command), out),
        };
    }
    let recording = Recording {
        writers,
        processes: &processes.rows,
        short_lives: processes.short_lives,
        shared: processes.shared,
        ..Recording::of(trail)
    };
    match format {
        Format::Terminal(style) => terminal::write(&recording, style, out),
        Format::Json => json::write(&recording, out),
        Format::Html => html::write(&recording, out),
        _ => png::write(&recording, out),
    }
}

/// A trail to be reported: its rounds by what they noticed.
pub(crate) struct Recording<'a> {
    /// All of it.
    pub(crate) whole: &'a Trail,
    /// Its writes; its accesses where it noticed nothing else.
    pub(crate) main: Part<'a>,
    /// Its accesses, where they were noticed in turns with writes, or at once.
    pub(crate) accesses: Option<Part<'a>>,
    /// Whether writes and accesses are of the same time.
    pub(crate) is_at_once: bool,
    /// Which code wrote, if that was sampled.
    pub(crate) writers: Option<&'a Writers>,
    /// All processes of the recording, if there are several.
    pub(crate) processes: &'a [ProcessRow],
    /// Processes of which nothing is recorded.
    pub(crate) short_lives: u64,
    /// Memory that several processes wrote.
    pub(crate) shared: Option<SharedPages>,
}

/// The rounds of one kind.
pub(crate) struct Part<'a> {
    pub(crate) access_kind: AccessKind,
    pub(crate) trail: Cow<'a, Trail>,
    pub(crate) analysis: Analysis,
}

impl<'a> Recording<'a> {
    pub(crate) fn of(whole: &'a Trail) -> Self {
        let has = |access_kind| {
            whole
                .rounds
                .iter()
                .any(|round| round.access_kind == access_kind)
        };
        let part = |access_kind, trail: Cow<'a, Trail>| Part {
            access_kind,
            analysis: Analysis::of(&trail),
            trail,
        };
        let mut pairs = whole.rounds.iter().zip(whole.rounds.iter().skip(1));
        let is_at_once = pairs.any(|(before, round)| round.covers_same_interval(before));
        let in_turns = |access_kind| part(access_kind, Cow::Owned(whole.only(access_kind)));
        match (has(AccessKind::Writes), has(AccessKind::Accesses)) {
            (true, true) => Self {
                whole,
                main: in_turns(AccessKind::Writes),
                accesses: Some(in_turns(AccessKind::Accesses)),
                is_at_once,
                writers: None,
                processes: &[],
                short_lives: 0,
                shared: None,
            },
            (_, accesses) => Self {
                whole,
                main: part(
                    match accesses {
                        true => AccessKind::Accesses,
                        false => AccessKind::Writes,
                    },
                    Cow::Borrowed(whole),
                ),
                accesses: None,
                is_at_once,
                writers: None,
                processes: &[],
                short_lives: 0,
                shared: None,
            },
        }
    }

    /// How long all rounds together lasted, in nanoseconds.
    pub(crate) fn duration_ns(&self) -> f64 {
        let beside = self.accesses.as_ref().filter(|_| !self.is_at_once);
        (self.main.analysis.seconds + beside.map_or(0.0, |part| part.analysis.seconds)) * 1e9
    }

    /// How long nothing was tracked, in nanoseconds.
    pub(crate) fn blind_ns(&self) -> u64 {
        let beside = self.accesses.as_ref();
        let beside = beside.map_or(0, |part| part.analysis.costs.blind_ns_sum);
        self.main.analysis.costs.blind_ns_sum + beside
    }
}

/// Page writes in a column of a heat grid, all mappings together.
fn pages_written(analysis: &Analysis, column: &Column) -> u64 {
    let rounds = analysis.rounds.iter().skip(column.first_round);
    let pages = rounds.take(column.rounds).map(|round| round.written_pages);
    pages.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use pagetrail::PageRange;

    use super::*;
    use crate::testing;

    /// A file may hold any numbers; whatever they are, there is a report.
    #[test]
    fn no_trail_is_too_strange() {
        let range = |start, end| PageRange::new(start, end).expect("not empty");
        let style = Style {
            width: 0,
            colour: true,
        };
        for page_size in [1, 4096, 1 << 63] {
            let mut trail = testing::program(4);
            trail.header.page_size = page_size;
            trail.header.command = Vec::new();
            trail.header.interval_ms = u64::MAX;
            trail.header.attach_stopped_ns = u64::MAX;
            trail.mappings[0].range = range(0, u64::MAX);
            trail.rounds[0].written = [range(5, 6), range(u64::MAX - 5, u64::MAX)]
                .into_iter()
                .collect();
            // Backwards, without length, and for ever.
            trail.rounds[1].start_ns = u64::MAX;
            trail.rounds[2].duration_ns = 0;
            trail.rounds[3].duration_ns = u64::MAX;
            trail.rounds[3].index = 2;
            for format in [
                Format::Terminal(style),
                Format::Json,
                Format::Html,
                Format::Png,
                Format::Parquet,
                Format::ChromeTrace,
            ] {
                for access_kind in [AccessKind::Writes, AccessKind::Accesses] {
                    trail.rounds[3].access_kind = access_kind;
                    let mut out = Vec::new();
                    write(&trail, format, &mut out).expect("a Vec takes all");
                    assert!(!out.is_empty(), "{format:?}");
                }
            }
        }
    }
}
