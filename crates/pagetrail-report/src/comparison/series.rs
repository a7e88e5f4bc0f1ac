//! [`Series`]: pages of a recording by round and by window, for each mapping or function.

use std::collections::HashMap;

use pagetrail_stacks::Symbolizer;
use pagetrail_trail::{Round, Trail, for_each_part};

use super::WINDOW_NS;
use super::measure::Measure;
use crate::words;
use crate::writers;

/// Name, and file of a function.
type Key = (String, String);

/// What is counted of one mapping or function.
#[derive(Debug, Default)]
struct Counts {
    /// Page writes in all rounds; a sample counts as often as the period says.
    pages: f64,
    /// Page writes per second, of rounds that have any.
    rates: Vec<f64>,
    /// Page writes in the present round, and its position.
    present: (usize, f64),
    /// Different pages in windows that have any.
    sets: Vec<f64>,
    /// Runs of pages in the present window: first, and the one after the last.
    runs: Vec<(u64, u64)>,
}

/// Pages by key.
#[derive(Debug)]
pub(super) struct Series {
    counts: HashMap<Key, Counts>,
    /// Length of each round, in seconds.
    seconds: Vec<f64>,
    /// The window of each round; `None` after the last whole window.
    windows: Vec<Option<usize>>,
    window: Option<usize>,
}

impl Series {
    /// All memory together.
    pub(super) fn of_all(trail: &Trail) -> Self {
        let mut series = Self::new(trail);
        for_each_part(trail, |part| {
            let key = || ("all".to_owned(), String::new());
            series.add(key, part.round, part.first_page, part.pages, 1.0);
        });
        series.finish(trail)
    }

    /// Mappings by name.
    pub(super) fn of_mappings(trail: &Trail) -> Self {
        let mut series = Self::new(trail);
        for_each_part(trail, |part| {
            let name = || match part.mapping {
                Some(index) => words::mapping(&trail.mappings[index]).into_owned(),
                None => "outside all mappings".into(),
            };
            let key = || (name(), String::new());
            series.add(key, part.round, part.first_page, part.pages, 1.0);
        });
        series.finish(trail)
    }

    /// Functions by what they wrote themselves, without their callees.
    pub(super) fn of_functions(trail: &Trail) -> Self {
        let mut series = Self::new(trail);
        let mut symbolizer = Symbolizer::new(&trail.stacks);
        let mut keys = HashMap::new();
        let page = trail.header.page_size.max(1);
        for (position, round) in trail.rounds.iter().enumerate() {
            let Some(attribution) = &round.attribution else {
                continue;
            };
            let weight = attribution.weight(round.written.page_count()).mean();
            for writes in &attribution.writers {
                let key = keys
                    .entry(writes.stack)
                    .or_insert_with(|| writers::innermost(trail, &mut symbolizer, writes.stack));
                for range in writes.pages.ranges() {
                    let first = range.start() / page;
                    let pages = (range.end() - 1) / page - first + 1;
                    series.add(|| key.clone(), position, first, pages, weight);
                }
            }
        }
        series.finish(trail)
    }

    fn new(trail: &Trail) -> Self {
        Self {
            counts: HashMap::new(),
            seconds: trail.rounds.iter().map(seconds).collect(),
            windows: windows(&trail.rounds),
            window: None,
        }
    }

    fn add(&mut self, key: impl Fn() -> Key, round: usize, first: u64, pages: u64, weight: f64) {
        let window = self.windows.get(round).copied().flatten();
        if window != self.window {
            self.end_window();
            self.window = window;
        }
        let counts = self.counts.entry(key()).or_default();
        let weighted = pages as f64 * weight;
        counts.pages += weighted;
        if counts.present.0 != round {
            counts.end_round(&self.seconds);
            counts.present.0 = round;
        }
        counts.present.1 += weighted;
        if window.is_some() {
            counts.runs.push((first, first.saturating_add(pages)));
        }
    }

    fn end_window(&mut self) {
        for counts in self.counts.values_mut() {
            counts.end_window();
        }
    }

    fn finish(mut self, trail: &Trail) -> Self {
        self.end_window();
        for counts in self.counts.values_mut() {
            counts.end_round(&self.seconds);
        }
        debug_assert_eq!(self.seconds.len(), trail.rounds.len());
        self
    }

    /// For each key the pages written per second, and the working set.
    pub(super) fn measures(self) -> Vec<(Key, Measure, Measure)> {
        let all_seconds: f64 = self.seconds.iter().sum();
        let windows = self
            .windows
            .iter()
            .flatten()
            .max()
            .map_or(0, |last| last + 1);
        let rounds = self.seconds.len();
        let counts = self.counts.into_iter();
        counts
            .map(|(key, counts)| {
                let rate = counts.pages / all_seconds.max(f64::MIN_POSITIVE);
                let mean = counts.sets.iter().sum::<f64>() / windows.max(1) as f64;
                let written = Measure::of(rate, counts.rates, rounds);
                (key, written, Measure::of(mean, counts.sets, windows))
            })
            .collect()
    }
}

impl Counts {
    fn end_round(&mut self, seconds: &[f64]) {
        let (round, pages) = std::mem::take(&mut self.present);
        let seconds = seconds.get(round).copied().unwrap_or(0.0);
        if pages > 0.0 && seconds > 0.0 {
            self.rates.push(pages / seconds);
        }
    }

    fn end_window(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.sort_unstable();
        let (mut pages, mut covered) = (0, 0);
        for (first, end) in runs {
            let first = first.max(covered);
            pages += end.saturating_sub(first);
            covered = covered.max(end);
        }
        if pages > 0 {
            self.sets.push(pages as f64);
        }
    }
}

fn seconds(round: &Round) -> f64 {
    round.duration_ns as f64 / 1e9
}

/// The window of each round: as many rounds as last a second or more. A recording that is shorter
/// is one window; else the rounds after the last whole window are in none.
fn windows(rounds: &[Round]) -> Vec<Option<usize>> {
    let mut windows = Vec::with_capacity(rounds.len());
    let (mut window, mut ns, mut first) = (0, 0_u64, 0);
    for (position, round) in rounds.iter().enumerate() {
        windows.push(Some(window));
        ns = ns.saturating_add(round.duration_ns);
        if ns >= WINDOW_NS {
            (window, ns, first) = (window + 1, 0, position + 1);
        }
    }
    if window > 0 {
        windows[first..].fill(None);
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_last_a_second() {
        let rounds = |lengths: &[u64]| -> Vec<Round> {
            let round = |ms: &u64| Round {
                duration_ns: ms * 1_000_000,
                ..Round::default()
            };
            lengths.iter().map(round).collect()
        };
        let of = |lengths: &[u64]| windows(&rounds(lengths));
        assert_eq!(of(&[400, 400]), [Some(0), Some(0)]);
        assert_eq!(
            of(&[400, 600, 1500, 500]),
            [Some(0), Some(0), Some(1), None]
        );
        assert_eq!(of(&[]), []);
    }
}
