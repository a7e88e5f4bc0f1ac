//! Reports: a trail as text, JSON, a page of HTML or a picture.
//!
//! Pure renderers: a [`Trail`] in, bytes out. What is computed from a trail comes from
//! [`pagetrail_trail`]; files, terminals and exit codes are the command's business.

use std::io::{self, Write};

use pagetrail_trail::heatmap::Column;
use pagetrail_trail::{Analysis, Trail};

mod axis;
pub(crate) mod bands;
mod canvas;
pub(crate) mod html;
pub(crate) mod joined;
mod json;
pub(crate) mod palette;
mod png;
mod terminal;
pub(crate) mod words;

pub(crate) use terminal::Style;

/// The forms of a report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    /// Text for people.
    Terminal(Style),
    /// One JSON document.
    Json,
    /// One self-contained page.
    Html,
    /// The heatmap as a picture.
    Png,
}

/// Writes the report on `trail`; the only errors are those of `out`.
pub(crate) fn write(trail: &Trail, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let analysis = Analysis::of(trail);
    match format {
        Format::Terminal(style) => terminal::write(trail, &analysis, style, out),
        Format::Json => json::write(trail, &analysis, out),
        Format::Html => html::write(trail, &analysis, out),
        Format::Png => png::write(trail, &analysis, out),
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
            ] {
                let mut out = Vec::new();
                write(&trail, format, &mut out).expect("a Vec takes all");
                assert!(!out.is_empty(), "{format:?}");
            }
        }
    }
}
