//! The charts of a benchmark: overhead over size, one line per technique.

use super::results::{Figure, Results, Tracked};
use pagetrail_report::lines::{self, Line, Point, Scale};
use pagetrail_report::words;

/// In percent. Noise around zero lies at the floor.
const SCALE: Scale = Scale {
    floor: 1.0,
    least_top: 10.0,
    label: |percent| format!("{}%", words::count(percent as u64)),
    value: |percent| format!("{percent:.1}%"),
};

/// Draws the overhead that `figure` picks; `None` when nothing was measured there.
pub(crate) fn svg(
    results: &Results,
    tracked: Tracked,
    title: &str,
    figure: Figure,
) -> Option<String> {
    let mut drawn: Vec<Line> = Vec::new();
    for measured in results.results.iter().filter(|m| m.tracked == tracked) {
        let overhead = figure(measured);
        let point = Point {
            size: measured.size_bytes,
            value: overhead.median,
            spread: Some((overhead.min, overhead.max)),
        };
        match drawn.iter_mut().find(|l| l.name == measured.technique) {
            Some(line) => line.points.push(point),
            None => drawn.push(Line {
                name: measured.technique.to_owned(),
                class: measured.technique,
                points: vec![point],
            }),
        }
    }
    let title = format!("{title}: overhead in percent by size of memory");
    lines::svg(drawn, &SCALE, &title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use pagetrail_report::lines::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH};

    fn chart(results: &Results) -> Option<String> {
        svg(results, Tracked::Own, "x", |m| {
            m.overhead_on_tracked_percent
        })
    }

    /// All numbers after `name="`.
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
