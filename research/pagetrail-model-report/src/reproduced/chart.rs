//! A table of a paper as a picture: bars of the paper's value, the model's and a measured one, row
//! by row. Colours are in the picture itself, so that it can stand alone.

use std::fmt::Write as _;

use pagetrail_report::html::escape;

use super::{Reproduced, Row, figure};

const WIDTH: f64 = 900.0;
/// Where bars begin, and where the longest ends.
const LEFT: f64 = 380.0;
const RIGHT: f64 = 720.0;
const BAR: f64 = 11.0;
const GAP: f64 = 8.0;
const TOP: f64 = 46.0;
/// Values of one unit that lie further apart than this have a logarithmic axis.
const FAR_APART: f64 = 50.0;
/// Characters of a label that fit beside the bars.
const LABEL: usize = 58;

const PAPER: &str = "#73777f";
const MODEL: &str = "#1f6fb2";
const RECORDED: &str = "#b3541e";
const TEXT: &str = "#33363b";

/// One bar.
struct Bar {
    value: f64,
    colour: &'static str,
    /// Pale, where it could not have come out otherwise.
    is_independent: bool,
    words: String,
}

/// Draws the table; `None` where it has no values.
pub(super) fn svg(table: &Reproduced) -> Option<String> {
    let rows: Vec<(&Row, Vec<Bar>)> = table
        .rows()
        .iter()
        .map(|row| (row, bars(row)))
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    if rows.is_empty() {
        return None;
    }
    let height = rows.iter().map(|(_, bars)| bars.len() as f64 * BAR + GAP);
    let height = TOP + height.sum::<f64>() + GAP;
    let heading = table.heading();
    let title = escape(&heading);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         style=\"font-family:sans-serif;font-size:11px\">\n<title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" style=\"fill:#fff\"/>\n"
    );
    let legend = [
        (PAPER, "paper"),
        (MODEL, "model or simulator (pale: could not differ)"),
        (RECORDED, "measured"),
    ];
    for ((colour, words), x) in legend.into_iter().zip([LEFT, LEFT + 70.0, LEFT + 340.0]) {
        bar(&mut out, (x, 12.0), 10.0, colour, true);
        text(&mut out, (x + 14.0, 21.0), "start", words);
    }
    let axis_of = |unit: &str| {
        let of_unit = rows.iter().filter(|(other, _)| other.unit == unit);
        Axis::of(of_unit.flat_map(|(_, bars)| bars.iter().map(|bar| bar.value)))
    };
    let mut units: Vec<&str> = rows.iter().map(|(row, _)| row.unit).collect();
    units.sort_unstable();
    units.dedup();
    units.retain(|unit| axis_of(unit).is_logarithmic);
    if !units.is_empty() {
        let words = match units.join(", ") {
            names if names.is_empty() => "logarithmic".to_owned(),
            names => format!("logarithmic: {names}"),
        };
        text(&mut out, (LEFT, 37.0), "start", &escape(&words));
    }
    let mut y = TOP;
    for (row, bars) in &rows {
        let axis = axis_of(row.unit);
        let label: String = row.what.chars().take(LABEL).collect();
        text(
            &mut out,
            (LEFT - 8.0, y + BAR - 2.0),
            "end",
            &escape(&label),
        );
        for one in bars {
            let (from, to) = (axis.at(axis.base), axis.at(one.value));
            let (x, width) = (from.min(to), (to - from).abs().max(1.0));
            bar(
                &mut out,
                (x, y + 1.0),
                width,
                one.colour,
                one.is_independent,
            );
            let beside = (from.max(to) + 5.0, y + BAR - 2.0);
            text(&mut out, beside, "start", &escape(&one.words));
            y += BAR;
        }
        y += GAP;
    }
    out += "</svg>\n";
    Some(out)
}

fn bars(row: &Row) -> Vec<Bar> {
    let words = |value: f64, how: &str| format!("{} {}{how}", figure(value), row.unit);
    let paper = row.paper.map(|value| Bar {
        value,
        colour: PAPER,
        is_independent: true,
        words: words(value, ""),
    });
    let model = row.model.as_ref().map(|model| Bar {
        value: model.value,
        colour: MODEL,
        is_independent: model.because().is_none(),
        words: words(model.value, &format!(" ({})", model.how())),
    });
    let measured = row.measured.as_ref().map(|measured| Bar {
        value: measured.value,
        colour: RECORDED,
        is_independent: true,
        words: words(measured.value, &format!(" ({})", measured.origin())),
    });
    let bars = [paper, model, measured].into_iter().flatten();
    bars.filter(|bar| bar.value.is_finite()).collect()
}

/// From values to places.
struct Axis {
    base: f64,
    top: f64,
    is_logarithmic: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > 0.0 && high / low > FAR_APART {
            return Self {
                base: low / 2.0,
                top: high,
                is_logarithmic: true,
            };
        }
        Self {
            base: 0.0,
            top: high.max(-low).max(f64::MIN_POSITIVE),
            is_logarithmic: false,
        }
    }

    /// Where a value is drawn; what lies below zero is drawn a third as long, to the left.
    fn at(&self, value: f64) -> f64 {
        let share = match self.is_logarithmic {
            true => (value / self.base).ln() / (self.top / self.base).ln(),
            false => value / self.top,
        };
        LEFT + (RIGHT - LEFT) * share.max(share / 3.0)
    }
}

fn bar(out: &mut String, (x, y): (f64, f64), width: f64, colour: &str, is_solid: bool) {
    let opacity = if is_solid { 1.0 } else { 0.4 };
    let height = BAR - 2.0;
    writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" \
         style=\"fill:{colour};opacity:{opacity}\"/>"
    )
    .expect("a String takes all");
}

/// `words` are escaped.
fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"fill:{TEXT};text-anchor:{anchor}\">{words}</text>"
    )
    .expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_as_long_as_its_values() {
        let linear = Axis::of([1.0, 10.0].into_iter());
        assert_eq!((linear.at(0.0), linear.at(10.0)), (LEFT, RIGHT));
        let logarithmic = Axis::of([1.0, 1000.0].into_iter());
        assert!(logarithmic.at(1.0) > LEFT && logarithmic.at(1000.0) <= RIGHT + 0.1);
        assert!(logarithmic.at(10.0) > LEFT + (RIGHT - LEFT) / 4.0);
        let signed = Axis::of([-90.0, 30.0].into_iter());
        assert!(signed.at(-90.0) < LEFT && signed.at(30.0) > LEFT);
        for nothing in [vec![], vec![0.0], vec![-1.0]] {
            assert!(Axis::of(nothing.into_iter()).at(0.0).is_finite());
        }
    }
}
