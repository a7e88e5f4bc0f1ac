//! Reports: a trail as text, JSON, a page of HTML or a picture.
//!
//! Pure renderers: a [`Trail`] in, bytes out. What is computed from a trail comes from
//! [`pagetrail_trail`]; files, terminals and exit codes are the command's business.

use std::io::{self, Write};

use pagetrail_trail::{Analysis, Trail};

mod axis;
pub(crate) mod bands;
mod canvas;
mod html;
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
