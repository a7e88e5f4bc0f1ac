//! A chart as SVG: overhead over size, both logarithmic, one line per technique. No scripts; colours come from the
//! page's style sheet, so that it follows light and dark.

use std::fmt::Write as _;

use super::results::{Figure, Results, Spread, Tracked};
use super::size::Size;
use crate::report::words;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 104.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 34.0;
/// The least overhead that the scale tells apart, in percent; noise around zero is at the bottom with it.
const FLOOR: f64 = 1.0;
/// Between two labels at the ends of lines.
const LABEL_STEP: f64 = 15.0;

/// A point of a line: size in bytes, overhead in percent.
type Point = (u64, Spread);

struct Line<'a> {
    technique: &'a str,
    points: Vec<Point>,
}

/// Draws the overhead that `figure` picks; `None` when nothing was measured there.
pub(crate) fn svg(
    results: &Results,
    tracked: Tracked,
    title: &str,
    figure: Figure,
) -> Option<String> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for measured in results.results.iter().filter(|m| m.tracked == tracked) {
        let point = (measured.size_bytes, figure(measured));
        match lines.iter_mut().find(|l| l.technique == measured.technique) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                technique: measured.technique,
                points: vec![point],
            }),
        }
    }
    lines
        .iter_mut()
        .for_each(|line| line.points.sort_by_key(|p| p.0));
    let points = || lines.iter().flat_map(|line| &line.points);
    let sizes = (points().map(|p| p.0).min()?, points().map(|p| p.0).max()?);
    let most = points().map(|p| p.1.max).fold(10.0 * FLOOR, f64::max);
    let scale = Scale {
        sizes,
        decades: (most / FLOOR).log10().ceil(),
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}: overhead in percent by size of memory\">\n"
    );
    grid(&scale, &mut points().map(|p| p.0), &mut out);
    for line in &lines {
        draw(&scale, line, &mut out);
    }
    labels(&scale, &lines, &mut out);
    out += "</svg>\n";
    Some(out)
}

/// From values to places.
struct Scale {
    sizes: (u64, u64),
    decades: f64,
}

impl Scale {
    fn x(&self, size: u64) -> f64 {
        let (least, most) = (self.sizes.0 as f64, self.sizes.1 as f64);
        let share = if least < most {
            (size as f64 / least).ln() / (most / least).ln()
        } else {
            0.5
        };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, percent: f64) -> f64 {
        let share = (percent.max(FLOOR) / FLOOR).log10() / self.decades;
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

fn grid(scale: &Scale, sizes: &mut dyn Iterator<Item = u64>, out: &mut String) {
    let right = WIDTH - RIGHT;
    for decade in 0..=scale.decades as i32 {
        let percent = FLOOR * 10f64.powi(decade);
        let (y, sign) = (scale.y(percent), if decade == 0 { "≤" } else { "" });
        let label = words::count(percent as u64);
        push(
            out,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"y\" x=\"{:.0}\" y=\"{:.1}\">{sign}{label}%</text>\n",
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
        let x = scale.x(size);
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

fn draw(scale: &Scale, line: &Line<'_>, out: &mut String) {
    let technique = line.technique;
    let place = |(size, percent): &Point| (scale.x(*size), scale.y(percent.median));
    let places: Vec<String> = line
        .points
        .iter()
        .map(place)
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    push(
        out,
        format_args!(
            "<g class=\"{technique}\"><polyline points=\"{}\"/>",
            places.join(" ")
        ),
    );
    for point in &line.points {
        let (x, y) = place(point);
        let Spread { median, min, max } = point.1;
        push(
            out,
            format_args!(
                "<path class=\"spread\" d=\"M{x:.1} {:.1}V{:.1}\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\">\
             <title>{technique}, {}: {median:.1}% (from {min:.1} to {max:.1})</title></circle>",
                scale.y(min),
                scale.y(max),
                Size::shown(point.0),
            ),
        );
    }
    out.push_str("</g>\n");
}

/// The techniques' names at the ends of their lines, pushed apart where they would cover one another.
fn labels(scale: &Scale, lines: &[Line<'_>], out: &mut String) {
    let end = |line: &Line<'_>| line.points.last().map(|p| scale.y(p.1.median));
    let mut ends: Vec<_> = lines
        .iter()
        .filter_map(|l| Some((end(l)?, l.technique)))
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::MIN;
    for (y, _) in &mut ends {
        *y = y.max(free);
        free = *y + LABEL_STEP;
    }
    let mut free = HEIGHT - BOTTOM;
    for (y, technique) in ends.iter_mut().rev() {
        *y = y.min(free);
        free = *y - LABEL_STEP;
        let x = WIDTH - RIGHT + 10.0;
        push(
            out,
            format_args!(
                "<text class=\"{technique}\" x=\"{x}\" y=\"{:.1}\">{technique}</text>\n",
                *y + 4.0
            ),
        );
    }
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing;

    fn chart(results: &Results) -> Option<String> {
        svg(results, Tracked::Own, "x", |m| {
            m.overhead_on_tracked_percent
        })
    }

    /// All numbers behind `name="`.
    fn numbers(svg: &str, name: &str) -> Vec<f64> {
        let attribute = format!(" {name}=\"");
        let parts = svg.split(&attribute).skip(1);
        parts
            .map(|part| part.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn every_point_is_inside_and_higher_where_it_costs_more() {
        let svg = chart(&testing::results()).unwrap();
        let (x, y) = (numbers(&svg, "cx"), numbers(&svg, "cy"));
        assert_eq!(x.len(), 6);
        assert!(
            x.iter().all(|x| (LEFT..=WIDTH - RIGHT).contains(x)),
            "{x:?}"
        );
        assert!(
            y.iter().all(|y| (TOP..=HEIGHT - BOTTOM).contains(y)),
            "{y:?}"
        );
        // The first three are of pagemap-scan, the others of compare, below the floor.
        assert!(y[..3].iter().all(|y| *y < HEIGHT / 2.0), "{y:?}");
        assert!(y[3..].iter().all(|y| *y == HEIGHT - BOTTOM), "{y:?}");
    }

    #[test]
    fn one_size_and_no_size_are_no_trouble() {
        let mut results = testing::results();
        results.results.truncate(1);
        assert!(!chart(&results).unwrap().contains("NaN"));
        results.results.clear();
        assert!(chart(&results).is_none());
    }
}
