//! The heatmap as a picture: what a program wrote, address by time, over its write rate.
//!
//! Drawn at twice the size at which it is usually shown, so that text is crisp on dense screens;
//! dark in any surroundings, because that is where the colour scale was made for.

use std::io::{self, Write};
use std::ops::Range;

use pagetrail_trail::heatmap::Column;
use pagetrail_trail::{Analysis, Heatmap, Trail};

use super::bands::{self, Band};
use super::canvas::{Align, Canvas, Colour, Ink, TEXT_HEIGHT};
use super::words::Terms;
use super::{Part, Recording, axis, pages_written, palette, words};

const WIDTH: usize = 2400;
const HEIGHT: usize = 1400;
const MARGIN: usize = 56;

/// Where the heat is drawn.
const PLOT_X: Range<usize> = 400..WIDTH - MARGIN;
const HEAT_Y: Range<usize> = 178..1080;
/// Where the write rate is drawn.
const RATE_Y: Range<usize> = 1116..1288;

/// A cell is at least this wide and high.
const CELL: usize = 2;
const BAND_LEAST: usize = TEXT_HEIGHT + 6;
const BAND_GAP: usize = 6;

const PAPER: Colour = [0x16, 0x19, 0x1f];
const RULE: Colour = [0x2c, 0x31, 0x3a];
const ACCENT: Colour = [0xf2, 0xa6, 0x5a];
const ACCENT_WASH: Colour = [0x3c, 0x31, 0x29];
const INK: Ink = Ink {
    colour: [0xde, 0xe1, 0xe6],
    bold: false,
};
const SOFT: Ink = Ink {
    colour: [0x8d, 0x94, 0x9e],
    bold: false,
};
const TITLE: Ink = Ink { bold: true, ..INK };

/// Writes the picture.
///
/// Where writes and accesses took turns, it is one of the writes.
pub(crate) fn write(recording: &Recording<'_>, out: &mut dyn Write) -> io::Result<()> {
    draw(&recording.main).encode(out)
}

fn draw(part: &Part<'_>) -> Canvas {
    let (trail, analysis) = (&*part.trail, &part.analysis);
    let terms = words::terms(part.access_kind);
    let mut canvas = Canvas::new(WIDTH, HEIGHT, PAPER);
    head(&mut canvas, trail, analysis);
    legend(&mut canvas, terms);
    let heat = Heatmap::of(trail, HEAT_Y.len() / CELL, PLOT_X.len() / CELL);
    if heat.columns.is_empty() {
        canvas.fill(PLOT_X, HEAT_Y, palette::GROUND);
        let middle = (PLOT_X.start + PLOT_X.end) / 2;
        let y = (HEAT_Y.start + HEAT_Y.end - TEXT_HEIGHT) / 2;
        canvas.text(
            &format!("nothing was {}", terms.written),
            middle,
            y,
            Align::Centre,
            SOFT,
        );
        return canvas;
    }
    let time = TimeAxis::of(&heat.columns);
    draw_bands(&mut canvas, trail, &heat, &time);
    draw_rate(&mut canvas, trail, analysis, &heat, &time);
    canvas
}

fn head(canvas: &mut Canvas, trail: &Trail, analysis: &Analysis) {
    let header = &trail.header;
    let room = WIDTH - 2 * MARGIN;
    let title = cut_end(&words::command(&header.command), room);
    canvas.text(&title, MARGIN, 42, Align::Left, TITLE);
    let page = header.page_size as f64;
    let facts = format!(
        "{}, {} of {} ms; {} different pages ({}), {}/s",
        header.technique,
        words::plural(trail.rounds.len() as u64, "round"),
        header.interval_ms,
        words::count(analysis.distinct_pages),
        words::bytes(analysis.distinct_pages as f64 * page),
        words::bytes(analysis.pages_per_second.mean * page),
    );
    let room = room - LEGEND_WIDTH - 60;
    canvas.text(&cut_end(&facts, room), MARGIN, 96, Align::Left, SOFT);
}

const LEGEND_WIDTH: usize = 560;

fn legend(canvas: &mut Canvas, terms: Terms) {
    let x = WIDTH - MARGIN - LEGEND_WIDTH..WIDTH - MARGIN;
    for (i, at) in x.clone().enumerate() {
        let level = (1 + i * 255 / LEGEND_WIDTH).min(255) as u8;
        canvas.fill(at..at + 1, 92..108, palette::colour(level));
    }
    let labels = [
        ("<=0.1%", Align::Left),
        ("1%", Align::Centre),
        ("10%", Align::Centre),
    ];
    for (i, (label, align)) in labels.into_iter().enumerate() {
        canvas.text(label, x.start + i * LEGEND_WIDTH / 3, 114, align, SOFT);
    }
    canvas.text("100%", x.end, 114, Align::Right, SOFT);
    canvas.text(
        &format!("share of pages {} per round", terms.written),
        x.end,
        42,
        Align::Right,
        SOFT,
    );
}

/// Time from left to right across [`PLOT_X`].
struct TimeAxis<'a> {
    columns: &'a [Column],
    start_ns: u64,
    end_ns: u64,
}

impl<'a> TimeAxis<'a> {
    fn of(columns: &'a [Column]) -> Self {
        let start_ns = columns.first().map_or(0, |column| column.start_ns);
        let end_ns = columns.last().map_or(1, |column| column.end_ns);
        Self {
            columns,
            start_ns,
            end_ns: end_ns.max(start_ns.saturating_add(1)),
        }
    }

    fn x(&self, ns: u64) -> usize {
        let part = ns.saturating_sub(self.start_ns) as f64 / (self.end_ns - self.start_ns) as f64;
        let part = part.min(1.0);
        PLOT_X.start + (part * PLOT_X.len() as f64).round() as usize
    }

    /// The pixels of each column: what the next column begins with ends it, so that no gap shows.
    fn spans(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.columns.iter().enumerate().map(|(i, column)| {
            let end = self
                .columns
                .get(i + 1)
                .map_or(self.end_ns, |next| next.start_ns);
            (i, self.x(column.start_ns)..self.x(end))
        })
    }
}

fn draw_bands(canvas: &mut Canvas, trail: &Trail, heat: &Heatmap, time: &TimeAxis<'_>) {
    let bands = bands::bands(trail, heat);
    let places = bands::heights(&bands, HEAT_Y.len(), BAND_LEAST, BAND_GAP);
    let mut placed: Vec<(&Band, Range<usize>)> = Vec::with_capacity(bands.len());
    for (band, place) in bands.iter().zip(places) {
        let y = HEAT_Y.start + place.start..HEAT_Y.start + place.end;
        canvas.fill(PLOT_X, y.clone(), palette::GROUND);
        draw_cells(canvas, heat, band, y.clone(), time);
        canvas.fill(PLOT_X.start - 12..PLOT_X.start - 10, y.clone(), RULE);
        placed.push((band, y));
    }
    // Where there is no room for all names the tallest bands have theirs.
    placed.sort_by_key(|(_, y)| std::cmp::Reverse(y.len()));
    let mut labelled: Vec<usize> = Vec::new();
    for (band, y) in placed {
        let top = (y.start + y.end - TEXT_HEIGHT) / 2;
        if labelled
            .iter()
            .all(|other| other.abs_diff(top) >= TEXT_HEIGHT)
        {
            let label = cut_start(&band.label, PLOT_X.start - MARGIN - 20);
            canvas.text(&label, PLOT_X.start - 24, top, Align::Right, INK);
            labelled.push(top);
        }
    }
}

/// Where several rows share a pixel it shows the highest, so that no write is lost from sight.
fn draw_cells(
    canvas: &mut Canvas,
    heat: &Heatmap,
    band: &Band,
    y: Range<usize>,
    time: &TimeAxis<'_>,
) {
    let height = y.len();
    for (line, at) in y.enumerate() {
        let first = line * band.rows.len() / height;
        let behind = ((line + 1) * band.rows.len()).div_ceil(height);
        let rows = &band.rows[first..behind.max(first + 1)];
        for (column, x) in time.spans() {
            let cell = rows.iter().map(|&row| heat.cell(row, column));
            let level = palette::level(cell.fold(0.0, f32::max));
            if level > 0 {
                canvas.fill(x, at..at + 1, palette::colour(level));
            }
        }
    }
}

fn draw_rate(
    canvas: &mut Canvas,
    trail: &Trail,
    analysis: &Analysis,
    heat: &Heatmap,
    time: &TimeAxis<'_>,
) {
    let rate = |column: &Column| {
        let seconds = column.end_ns.saturating_sub(column.start_ns).max(1) as f64 / 1e9;
        pages_written(analysis, column) as f64 * trail.header.page_size as f64 / seconds
    };
    let rates: Vec<f64> = heat.columns.iter().map(rate).collect();
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let step = axis::rate_step(highest);
    let top = step * (highest / step).ceil().max(1.0);
    let y = |rate: f64| RATE_Y.end - (rate / top * RATE_Y.len() as f64).round() as usize;

    for (column, x) in time.spans() {
        canvas.fill(x, y(rates[column])..RATE_Y.end, ACCENT_WASH);
    }
    let ticks = (0..=(top / step).round() as u32).map(|i| f64::from(i) * step);
    for tick in ticks {
        canvas.fill(PLOT_X, y(tick)..y(tick) + 2, RULE);
        if tick > 0.0 {
            let label = format!("{}/s", words::bytes(tick));
            let at = y(tick) - TEXT_HEIGHT / 2;
            canvas.text(&label, PLOT_X.start - 24, at, Align::Right, SOFT);
        }
    }
    let at = RATE_Y.end - TEXT_HEIGHT / 2;
    canvas.text("write rate", PLOT_X.start - 24, at, Align::Right, INK);
    time_ticks(canvas, time);

    // The line over the ticks, with its steps.
    let mut before: Option<usize> = None;
    for (column, x) in time.spans() {
        let now = y(rates[column]);
        let (upper, lower) = (
            now.min(before.unwrap_or(now)),
            now.max(before.unwrap_or(now)),
        );
        canvas.fill(x.start..x.start + 3, upper..lower + 3, ACCENT);
        canvas.fill(x, now..now + 3, ACCENT);
        before = Some(now);
    }
}

fn time_ticks(canvas: &mut Canvas, time: &TimeAxis<'_>) {
    let step = axis::time_step(time.end_ns - time.start_ns);
    for tick in time.start_ns.div_ceil(step)..=time.end_ns / step {
        let x = time.x(tick * step);
        canvas.fill(x..x + 2, RATE_Y.end..RATE_Y.end + 12, RULE);
        let label = axis::time_label(tick * step, step);
        let half = Canvas::text_width(&label) / 2;
        let at = x.clamp(PLOT_X.start + half, WIDTH - MARGIN / 2 - half);
        canvas.text(&label, at, RATE_Y.end + 20, Align::Centre, SOFT);
    }
}

/// As much of a text as fits `room` pixels, from its beginning.
fn cut_end(text: &str, room: usize) -> String {
    let fits = room / Canvas::text_width("x");
    if text.chars().count() <= fits {
        return text.into();
    }
    let head: String = text.chars().take(fits.saturating_sub(2)).collect();
    head + ".."
}

/// As much of a text as fits `room` pixels, from its end.
fn cut_start(text: &str, room: usize) -> String {
    let fits = room / Canvas::text_width("x");
    let length = text.chars().count();
    if length <= fits {
        return text.into();
    }
    let tail: String = text.chars().skip(length - fits.saturating_sub(2)).collect();
    format!("..{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    struct Picture {
        width: usize,
        height: usize,
        pixels: Vec<u8>,
    }

    impl Picture {
        fn of(trail: &Trail) -> Self {
            let mut file = Vec::new();
            write(&Recording::of(trail), &mut file).expect("a Vec takes all");
            let decoder = png::Decoder::new(io::Cursor::new(file));
            let mut reader = decoder.read_info().expect("it is a PNG");
            let size = reader.output_buffer_size().expect("it fits memory");
            let mut pixels = vec![0; size];
            let frame = reader.next_frame(&mut pixels).expect("it holds a frame");
            assert_eq!(frame.color_type, png::ColorType::Rgb);
            Self {
                width: frame.width as usize,
                height: frame.height as usize,
                pixels,
            }
        }

        fn at(&self, x: usize, y: usize) -> Colour {
            let at = 3 * (y * self.width + x);
            self.pixels[at..at + 3].try_into().expect("three bytes")
        }

        /// The pixel at a place of the heatmap, both coordinates from 0 to 1.
        fn heat(&self, x: f64, y: f64) -> Colour {
            let part =
                |range: Range<usize>, part: f64| range.start + (range.len() as f64 * part) as usize;
            self.at(part(PLOT_X, x), part(HEAT_Y, y))
        }
    }

    /// One mapping of four pages and two rounds of equal length.
    fn small(written: [(u64, u64); 2]) -> Trail {
        const BASE: u64 = 0x7f00_0000_0000;
        let mut trail = testing::program(2);
        trail.mappings = vec![testing::mapping(testing::pages(BASE, 0, 4), "[heap]", 0)];
        for (round, (first, pages)) in trail.rounds.iter_mut().zip(written) {
            round.start_ns = u64::from(round.index) * 100_000_000;
            round.duration_ns = 100_000_000;
            round.written = [testing::pages(BASE, first, pages)].into_iter().collect();
        }
        trail
    }

    #[test]
    fn each_cell_has_its_colour() {
        // Round 0 writes the upper half, round 1 the lower.
        let picture = Picture::of(&small([(0, 2), (2, 2)]));
        assert_eq!((picture.width, picture.height), (WIDTH, HEIGHT));
        let full = palette::colour(255);
        for (x, y, expected) in [
            (0.01, 0.01, full),
            (0.49, 0.49, full),
            (0.51, 0.01, palette::GROUND),
            (0.99, 0.49, palette::GROUND),
            (0.01, 0.51, palette::GROUND),
            (0.49, 0.99, palette::GROUND),
            (0.51, 0.51, full),
            (0.99, 0.99, full),
        ] {
            assert_eq!(picture.heat(x, y), expected, "at {x}, {y}");
        }
    }

    #[test]
    fn names_and_rate_are_drawn() {
        let picture = Picture::of(&small([(0, 4), (0, 1)]));
        let middle = (HEAT_Y.start + HEAT_Y.end) / 2;
        let label = (MARGIN..PLOT_X.start - 24)
            .flat_map(|x| (middle - 16..middle + 16).map(move |y| (x, y)))
            .filter(|&(x, y)| picture.at(x, y) == INK.colour);
        assert!(label.count() > 20, "the mapping's name is written");
        // Four pages, then one: the line falls.
        let line = |x: usize| RATE_Y.clone().find(|&y| picture.at(x, y) == ACCENT);
        let (first, second) = (line(PLOT_X.start + 100), line(PLOT_X.end - 100));
        assert!(first.expect("drawn") < second.expect("drawn"));
    }

    #[test]
    fn nothing_written_is_a_picture_too() {
        let picture = Picture::of(&Trail::default());
        assert_eq!(picture.heat(0.1, 0.1), palette::GROUND);
    }
}
