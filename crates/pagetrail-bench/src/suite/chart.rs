//! Bars as SVG: a group for each workload or program, a bar for each technique. No scripts; colours
//! come from the page's style sheet by the technique's name.

use std::fmt::Write as _;

use pagetrail_report::html::escape;

/// What is drawn for a workload or program.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// Technique, value, and its words.
    pub(super) bars: Vec<(&'static str, f64, String)>,
}

const WIDTH: f64 = 640.0;
/// Where the bars begin, and how far the longest reaches: to its left are names, to its right its
/// value.
const LEFT: f64 = 132.0;
const RIGHT: f64 = 560.0;
const BAR: f64 = 13.0;
const BETWEEN_GROUPS: f64 = 9.0;

/// Draws the groups, from the top down; `title` is for those who cannot see it. `None` when there
/// is nothing to draw.
pub(super) fn svg(groups: &[Group], title: &str) -> Option<String> {
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let most = bars().map(|(_, value, _)| *value).max_by(f64::total_cmp)?;
    let scale = (RIGHT - LEFT) / most.max(f64::MIN_POSITIVE);
    let height = bars().count() as f64 * BAR + groups.len() as f64 * BETWEEN_GROUPS;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
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
        for (technique, value, text) in &group.bars {
            // What is below zero is noise, and drawn as nothing.
            let width = (value.max(0.0) * scale).max(1.0);
            push(
                &mut out,
                format_args!(
                    "<g class=\"{technique}\"><rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
                 <title>{name}, {technique}: {text}</title></rect></g>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{text}</text>\n",
                    y + 1.0,
                    BAR - 2.0,
                    LEFT + width + 6.0,
                    y + BAR - 2.5,
                ),
            );
            y += BAR;
        }
        y += BETWEEN_GROUPS;
    }
    out += "</svg>\n";
    Some(out)
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_reaches_to_the_right_and_none_to_the_left() {
        let group = |name: &str, values: [f64; 2]| Group {
            name: name.into(),
            bars: values
                .map(|value| ("none", value, format!("{value}%")))
                .into(),
        };
        let svg = svg(&[group("a<b", [50.0, -3.0]), group("c", [100.0, 0.0])], "x").unwrap();
        let widths: Vec<&str> = svg
            .split(" width=\"")
            .skip(1)
            .map(|part| part.split('"').next().unwrap())
            .collect();
        assert_eq!(widths, ["214.0", "1.0", "428.0", "1.0"]);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }

    #[test]
    fn nothing_is_no_trouble() {
        assert_eq!(svg(&[], "x"), None);
        let zeros = Group {
            name: "z".into(),
            bars: vec![("none", 0.0, "0".into())],
        };
        assert!(!svg(&[zeros], "x").unwrap().contains("NaN"));
    }
}
