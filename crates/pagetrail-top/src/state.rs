//! The state of the live view: the last rounds and the numbers computed from them.

use std::cmp::Reverse;

use pagetrail_trail::analysis::MappingCounts;
use pagetrail_trail::{Analysis, End, Header, Mapping, OverheadCounts, Round, Trail};

use super::functions::{FunctionLine, FunctionRound, Functions};
use pagetrail_report::joined;

/// Rounds in view: at the usual interval the last twelve seconds.
const ROUNDS_MAX: usize = 120;
/// Largest number of ranges in view. Beyond it fewer rounds are kept, so that a round is analysed
/// in a fraction of the 50 ms in which a key should be answered, even if the program writes every
/// other page.
const RANGES_MAX: usize = 50_000;

/// The order of the mappings in the live view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Most pages written in the last round first.
    LastRound,
    /// Most page writes in all rounds in view first.
    Window,
    /// By address.
    Address,
}

impl Sort {
    /// The name that the view shows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LastRound => "last round",
            Self::Window => "rounds in view",
            Self::Address => "address",
        }
    }
}

/// A mapping with dirty pages in view, joined with its neighbours of the same name.
pub(crate) struct Line<'a> {
    /// The mapping with the lowest addresses.
    pub(crate) mapping: &'a Mapping,
    /// Pages written in the last round.
    pub(crate) last_pages: u64,
    /// Writes in the rounds in view.
    pub(crate) counts: MappingCounts,
}

/// The state of the live view of one process: its last rounds, and the numbers computed from them.
#[derive(Clone, Debug)]
pub struct TopState {
    trail: Trail,
    /// Mappings that vanished but are still in view.
    past: Vec<Mapping>,
    analysis: Analysis,
    /// Pages written in the last round, per mapping.
    last_pages: Vec<u64>,
    sort: Sort,
    /// Whether rounds came since the numbers were computed.
    is_stale: bool,
    /// Functions, where they are sampled.
    functions: Option<Functions>,
    /// Whether the table is of functions.
    shows_functions: bool,
}

impl TopState {
    /// A view without rounds yet.
    pub fn new(header: Header) -> Self {
        Self {
            trail: Trail {
                header,
                ..Trail::default()
            },
            past: Vec::new(),
            analysis: Analysis::default(),
            last_pages: Vec::new(),
            sort: Sort::LastRound,
            is_stale: false,
            functions: None,
            shows_functions: false,
        }
    }

    /// Says that functions are sampled, and shows them.
    pub fn show_functions(&mut self) {
        self.functions = Some(Functions::default());
        self.shows_functions = true;
    }

    /// Changes between the table of mappings and that of functions, where there is one.
    pub fn switch_table(&mut self) {
        self.shows_functions = self.functions.is_some() && !self.shows_functions;
    }

    /// Adds what functions wrote in the round that comes next.
    pub fn push_functions(&mut self, round: FunctionRound) {
        if let Some(functions) = &mut self.functions {
            functions.push_round(round);
        }
    }

    /// Whether functions are sampled.
    pub(crate) fn has_functions(&self) -> bool {
        self.functions.is_some()
    }

    /// The functions in view, if the table is of functions.
    pub(crate) fn function_lines(&self) -> Option<Vec<FunctionLine>> {
        let functions = self.functions.as_ref().filter(|_| self.shows_functions);
        functions.map(Functions::lines)
    }

    /// Adds the next round, with the mappings that are there, and those that vanished since the
    /// round before.
    pub fn push_round(&mut self, round: Round, present: Vec<Mapping>, gone: Vec<Mapping>) {
        self.trail.rounds.push(round);
        self.forget();
        let rounds = &self.trail.rounds;
        let first_in_view = rounds.first().map_or(0, |round| round.index);
        self.past.extend(gone);
        self.past
            .retain(|mapping| mapping.last_round.is_none_or(|last| last >= first_in_view));
        self.trail.mappings.clone_from(&self.past);
        self.trail.mappings.extend(present);
        self.is_stale = true;
    }

    /// Computes what the view shows. Only the process in view needs it.
    pub fn refresh(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.trail.mappings = joined::grouped(&self.trail.mappings);
        let last = Trail {
            header: self.trail.header.clone(),
            mappings: self.trail.mappings.clone(),
            rounds: self.trail.rounds.last().cloned().into_iter().collect(),
            ..Trail::default()
        };
        let counts = Analysis::of(&last).mappings;
        self.last_pages = counts.iter().map(|counts| counts.page_writes).collect();
        self.analysis = Analysis::of(&self.trail);
    }

    /// Pages written in the last round, and per second in it.
    pub(crate) fn last_round(&self) -> (u64, f64) {
        let Some(round) = self.trail.rounds.last() else {
            return (0, 0.0);
        };
        let pages = round.written.page_count();
        let seconds = round.duration_ns as f64 / 1e9;
        (pages, pages as f64 / seconds.max(f64::MIN_POSITIVE))
    }

    /// Records how the target ended.
    pub fn finish(&mut self, end: End) {
        self.trail.end = Some(end);
    }

    /// Changes to the next order.
    pub fn next_sort(&mut self) {
        self.sort = match self.sort {
            Sort::LastRound => Sort::Window,
            Sort::Window => Sort::Address,
            Sort::Address => Sort::LastRound,
        };
    }

    /// The order of [`Self::lines`].
    pub(crate) fn sort(&self) -> Sort {
        self.sort
    }

    /// The rounds in view as a trail of their own.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// What tracking cost in the rounds in view, where it is held against a budget.
    pub(crate) fn overhead(&self) -> Option<OverheadCounts> {
        OverheadCounts::of(&self.trail.rounds, self.trail.header.page_size)
    }

    /// The numbers of the rounds in view.
    pub(crate) fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// The mappings in which something in view was written, in order.
    pub(crate) fn lines(&self) -> Vec<Line<'_>> {
        let joined = joined::touched(&self.trail, &self.analysis, None);
        let mut lines: Vec<_> = joined
            .into_iter()
            .map(|joined| {
                let last_pages = joined
                    .members
                    .iter()
                    .filter_map(|i| self.last_pages.get(*i));
                Line {
                    mapping: joined.first,
                    last_pages: last_pages.sum(),
                    counts: joined.counts,
                }
            })
            .collect();
        lines.sort_by_key(|line| {
            let most = match self.sort {
                Sort::LastRound => line.last_pages,
                Sort::Window => line.counts.page_writes,
                Sort::Address => 0,
            };
            (Reverse(most), line.mapping.range)
        });
        lines
    }

    fn forget(&mut self) {
        let rounds = &mut self.trail.rounds;
        let mut ranges = 0;
        let kept = rounds.iter().rev().take(ROUNDS_MAX).take_while(|round| {
            ranges += round.written.ranges().len();
            ranges <= RANGES_MAX
        });
        // The last round is kept, whatever its size.
        let behind = rounds.len() - kept.count().max(1).min(rounds.len());
        rounds.drain(..behind);
        if let Some(functions) = &mut self.functions {
            functions.keep(rounds.len());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use pagetrail_report::testing;

    use super::*;

    /// The view of a made-up recording after its last round.
    pub(crate) fn watched(rounds: u32) -> TopState {
        let trail = testing::program(rounds);
        let mut state = TopState::new(trail.header.clone());
        for round in &trail.rounds {
            state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        }
        state.refresh();
        state
    }

    #[test]
    fn keeps_the_last_rounds() {
        let state = watched(200);
        let rounds = &state.trail().rounds;
        assert_eq!(rounds.len(), ROUNDS_MAX);
        assert_eq!(rounds.last().map(|round| round.index), Some(199));
        assert_eq!(state.analysis().rounds.len(), ROUNDS_MAX);
    }

    #[test]
    fn keeps_fewer_rounds_of_many_ranges() {
        let trail = testing::program(1);
        let mut state = TopState::new(trail.header.clone());
        let mut round = trail.rounds[0].clone();
        round.written = (0..RANGES_MAX as u64 / 2)
            .map(|i| testing::pages(0x7f00_0000_0000, 2 * i, 1))
            .collect();
        for index in 0..4 {
            round.index = index;
            state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        }
        assert_eq!(state.trail().rounds.len(), 2);
    }

    #[test]
    fn sorts_by_what_is_asked_for() {
        let mut state = watched(60);
        let names = |state: &TopState| -> Vec<String> {
            let lines = state.lines();
            lines.iter().map(|line| line.mapping.name.clone()).collect()
        };
        let lines = state.lines();
        assert!(lines.is_sorted_by_key(|line| Reverse(line.last_pages)));
        let sum: u64 = lines.iter().map(|line| line.last_pages).sum();
        let last = state.analysis().rounds.last().expect("there are rounds");
        assert_eq!(sum, last.written_pages);
        state.next_sort();
        let lines = state.lines();
        assert!(lines.is_sorted_by_key(|line| Reverse(line.counts.page_writes)));
        state.next_sort();
        assert_eq!(names(&state)[0], "/usr/bin/interpreter");
        state.next_sort();
        assert_eq!(state.sort(), Sort::LastRound);
    }
}
