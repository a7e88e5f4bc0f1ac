//! A chart as SVG: a figure over size, both logarithmic, one line per name. No scripts; colours
//! come from the page's style sheet by the class of a line, so that it follows light and dark.

use std::fmt::Write as _;

use crate::size::Size;

/// The look of charts, and the colours of the library's techniques, for a page's style sheet.
pub const CHART_STYLE: &str = include_str!("lines/chart.css");

/// Width of a chart, in units of its view box.
pub const WIDTH: f64 = 640.0;
/// Height of a chart.
pub const HEIGHT: f64 = 340.0;
/// Margin that holds the labels of values.
pub const LEFT: f64 = 92.0;
/// Margin that holds the names of lines.
pub const RIGHT: f64 = 104.0;
/// Margin above the grid.
pub const TOP: f64 = 14.0;
/// Margin that holds the labels of sizes.
pub const BOTTOM: f64 = 34.0;
/// Between two labels at the ends of lines.
const LABEL_STEP: f64 = 15.0;

/// A figure at a size in bytes, and from where to where it reached if it was measured more than
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Where the point lies to the right, in bytes.
    pub size: u64,
    /// Its figure.
    pub value: f64,
    /// The least and the most that was measured.
    pub spread: Option<(f64, f64)>,
}

impl Point {
    fn most(&self) -> f64 {
        self.spread.map_or(self.value, |(_, most)| most)
    }
}

/// A line: its name stands at its end, its class has the colour.
#[derive(Clone, Debug)]
pub struct Line {
    /// What stands at its end.
    pub name: String,
    /// Its class in the page's style sheet.
    pub class: &'static str,
    /// Its points, in any order.
    pub points: Vec<Point>,
}

/// How values become places and words.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The least value that can be distinguished; what is below lies there, too.
    pub floor: f64,
    /// The scale reaches up to here at least.
    pub least_top: f64,
    /// At a line of the grid.
    pub label: fn(f64) -> String,
    /// At a point.
    pub value: fn(f64) -> String,
}

/// Draws the lines; `None` when there is no point. `title` is for those who cannot see it.
pub fn svg(mut lines: Vec<Line>, scale: &Scale, title: &str) -> Option<String> {
    lines.retain(|line| !line.points.is_empty());
    lines
        .iter_mut()
        .for_each(|line| line.points.sort_by_key(|p| p.size));
    let points = || lines.iter().flat_map(|line| &line.points);
    let sizes = (
        points().map(|p| p.size).min()?,
        points().map(|p| p.size).max()?,
    );
    let most = points().map(Point::most).fold(scale.least_top, f64::max);
    let places = Places {
        sizes,
        scale,
        decades: (most / scale.floor).log10().ceil(),
    };
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n");
    grid(&places, &mut points().map(|p| p.size), &mut out);
    for line in &lines {
        draw(&places, line, &mut out);
    }
    labels(&places, &lines, &mut out);
    out += "</svg>\n";
    Some(out)
}

/// From values to places.
struct Places<'a> {
    sizes: (u64, u64),
    scale: &'a Scale,
    decades: f64,
}

impl Places<'_> {
    fn x(&self, size: u64) -> f64 {
        let (least, most) = (self.sizes.0 as f64, self.sizes.1 as f64);
        let share = if least < most {
            (size as f64 / least).ln() / (most / least).ln()
        } else {
            0.5
        };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let floor = self.scale.floor;
        let share = (value.max(floor) / floor).log10() / self.decades;
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

fn grid(places: &Places<'_>, sizes: &mut dyn Iterator<Item = u64>, out: &mut String) {
    let right = WIDTH - RIGHT;
    for decade in 0..=places.decades as i32 {
        let value = places.scale.floor * 10f64.powi(decade);
        let (y, sign) = (places.y(value), if decade == 0 { "≤" } else { "" });
        let label = (places.scale.label)(value);
        push(
            out,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"y\" x=\"{:.0}\" y=\"{:.1}\">{sign}{label}</text>\n",
                LEFT - 8.0,
                y + 4.0,
            ),
        );
    }
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut free = f64::MIN;
    for size in sizes {
        let x = places.x(size);
        push(
            out,
            format_args!(
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{:.1}\"/>",
                HEIGHT - BOTTOM
            ),
        );
        let label = Size::shown(size);
        let half = label.len() as f64 * 3.6;
        if x - half >= free {
            push(
                out,
                format_args!(
                    "<text class=\"x\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>\n",
                    HEIGHT - 12.0
                ),
            );
            free = x + half + 4.0;
        }
    }
}

fn draw(places: &Places<'_>, line: &Line, out: &mut String) {
    let Line { name, class, .. } = line;
    let place = |point: &Point| (places.x(point.size), places.y(point.value));
    let corners: Vec<String> = line
        .points
        .iter()
        .map(place)
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    push(
        out,
        format_args!(
            "<g class=\"{class}\"><polyline points=\"{}\"/>",
            corners.join(" ")
        ),
    );
    let words = places.scale.value;
    for point in &line.points {
        let (x, y) = place(point);
        let mut reach = String::new();
        if let Some((least, most)) = point.spread {
            reach = format!(" (from {} to {})", words(least), words(most));
            let (low, high) = (places.y(least), places.y(most));
            push(
                out,
                format_args!("<path class=\"spread\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>"),
            );
        }
        push(
            out,
            format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{name}, {}: {}{reach}</title></circle>",
                Size::shown(point.size),
                words(point.value),
            ),
        );
    }
    out.push_str("</g>\n");
}

/// The names at the ends of their lines, pushed apart where they would cover one another.
fn labels(places: &Places<'_>, lines: &[Line], out: &mut String) {
    let end = |line: &Line| line.points.last().map(|p| places.y(p.value));
    let mut ends: Vec<_> = lines.iter().filter_map(|l| Some((end(l)?, l))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::MIN;
    for (y, _) in &mut ends {
        *y = y.max(free);
        free = *y + LABEL_STEP;
    }
    let mut free = HEIGHT - BOTTOM;
    for (y, line) in ends.iter_mut().rev() {
        *y = y.min(free);
        free = *y - LABEL_STEP;
        let x = WIDTH - RIGHT + 10.0;
        push(
            out,
            format_args!(
                "<text class=\"{}\" x=\"{x}\" y=\"{:.1}\">{}</text>\n",
                line.class,
                *y + 4.0,
                line.name
            ),
        );
    }
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}
