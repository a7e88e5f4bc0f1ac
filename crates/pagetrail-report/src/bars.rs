//! Bars as SVG: groups of bars from the top down. No scripts; colours come from the page's style
//! sheet by the class of a bar, so that they follow light and dark.

use std::fmt::Write as _;

use crate::html::escape;

/// Bars that belong together.
#[derive(Clone, Debug)]
pub struct Group {
    /// What stands to their left.
    pub name: String,
    /// From the top down.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What the bar is, for those who point at it.
    pub name: String,
    /// Its class in the page's style sheet.
    pub class: &'static str,
    /// How long it is.
    pub value: f64,
    /// From where to where the value may reach, as a thin line.
    pub spread: Option<(f64, f64)>,
    /// What stands to its right.
    pub words: String,
}

const WIDTH: f64 = 640.0;
/// Where the bars begin, and how far the longest reaches: to its left are names, to its right its
/// value.
const LEFT: f64 = 132.0;
const RIGHT: f64 = 560.0;
const BAR: f64 = 13.0;
const BETWEEN_GROUPS: f64 = 9.0;

/// Draws the groups; `mark` is a value at which a line stands; `title` is for those who cannot see
/// it. `None` when there is nothing to draw.
pub fn svg(groups: &[Group], mark: Option<f64>, title: &str) -> Option<String> {
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let reach = |bar: &Bar| {
        bar.spread
            .map_or(bar.value, |(_, high)| high.max(bar.value))
    };
    let most = bars().map(reach).max_by(f64::total_cmp)?;
    let most = mark.map_or(most, |mark| most.max(mark));
    let scale = (RIGHT - LEFT) / most.max(f64::MIN_POSITIVE);
    let height = bars().count() as f64 * BAR + groups.len() as f64 * BETWEEN_GROUPS;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
    if let Some(mark) = mark {
        let x = LEFT + mark * scale;
        push(
            &mut out,
            format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{height:.0}\"/>\n"
            ),
        );
    }
    let mut y = BETWEEN_GROUPS / 2.0;
    for group in groups {
        let middle = y + group.bars.len() as f64 * BAR / 2.0 + 4.0;
        let name = escape(&group.name);
        push(
            &mut out,
            format_args!(
                "<text class=\"y\" x=\"{:.0}\" y=\"{middle:.1}\">{name}</text>\n",
                LEFT - 8.0
            ),
        );
        for bar in &group.bars {
            draw(&mut out, bar, &name, y, scale);
            y += BAR;
        }
        y += BETWEEN_GROUPS;
    }
    out += "</svg>\n";
    Some(out)
}

fn draw(out: &mut String, bar: &Bar, group: &str, y: f64, scale: f64) {
    // What is below zero is noise, and drawn as nothing.
    let length = |value: f64| (value.max(0.0) * scale).max(1.0);
    let width = length(bar.value);
    let (class, words) = (bar.class, escape(&bar.words));
    push(
        out,
        format_args!(
            "<g class=\"{class}\"><rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
             <title>{group}, {}: {words}</title></rect></g>\n",
            y + 1.0,
            BAR - 2.0,
            escape(&bar.name),
        ),
    );
    let mut end = width;
    if let Some((low, high)) = bar.spread {
        let middle = y + BAR / 2.0;
        end = end.max(length(high));
        push(
            out,
            format_args!(
                "<line class=\"reach\" x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\"/>\n",
                LEFT + length(low),
                LEFT + length(high),
            ),
        );
    }
    push(
        out,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\">{words}</text>\n",
            LEFT + end + 6.0,
            y + BAR - 2.5,
        ),
    );
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, spread: Option<(f64, f64)>) -> Bar {
        Bar {
            name: "none".into(),
            class: "none",
            value,
            spread,
            words: format!("{value}%"),
        }
    }

    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let attribute = format!(" {attribute}=\"");
        let parts = svg.split(&attribute).skip(1);
        parts
            .map(|part| part.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn the_longest_bar_reaches_to_the_right_and_none_to_the_left() {
        let group = |name: &str, values: [f64; 2]| Group {
            name: name.into(),
            bars: values.map(|value| bar(value, None)).into(),
        };
        let groups = [group("a<b", [50.0, -3.0]), group("c", [100.0, 0.0])];
        let svg = svg(&groups, None, "x").unwrap();
        assert_eq!(numbers(&svg, "width"), [214.0, 1.0, 428.0, 1.0]);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }

    #[test]
    fn spreads_and_marks_are_inside() {
        let group = Group {
            name: "g".into(),
            bars: vec![bar(1.0, Some((0.5, 2.0))), bar(1.5, None)],
        };
        let svg = svg(&[group], Some(1.0), "x").unwrap();
        assert_eq!(numbers(&svg, "width"), [214.0, 321.0]);
        // The mark at 1, then the spread from 0.5 to 2.
        assert_eq!(numbers(&svg, "x1"), [346.0, 239.0]);
        assert_eq!(numbers(&svg, "x2"), [346.0, 560.0]);
    }

    #[test]
    fn nothing_is_no_trouble() {
        assert_eq!(svg(&[], None, "x"), None);
        let zeros = Group {
            name: "z".into(),
            bars: vec![bar(0.0, None)],
        };
        assert!(!svg(&[zeros], None, "x").unwrap().contains("NaN"));
    }
}
