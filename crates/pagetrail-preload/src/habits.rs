//! [`Habits`]: finds pages that are dirty in every round and predicts them for a while, so that
//! they cost no faults. Pure: sets in, sets out.
//!
//! Pages that were dirty in two rounds in a row, in runs that are worth a system call of their own,
//! are predicted dirty and left unprotected, which makes them show as soft-dirty. After some rounds
//! they are armed for one round as a check. Dirty again, they are predicted for twice as long;
//! otherwise they stay armed like all other pages.

use pagetrail::{PageRange, PageSet};

/// A shorter run costs as much to go around as to fault.
const RUN_PAGES_MIN: u64 = 2;
/// Runs to go around; more would make clears long.
const RUNS_MAX: usize = 128;
/// Rounds after which the first level is checked, each next one after twice as many.
const ROUNDS_MIN: u32 = 4;
const LEVELS: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct Habits {
    rounds: u32,
    /// Written in the last round.
    last: PageSet,
    /// Predicted written, by how often that was true already.
    levels: [PageSet; LEVELS],
    /// Armed at the last clear, to be checked at the next.
    asked: [PageSet; LEVELS],
    /// All levels.
    predicted: PageSet,
}

impl Habits {
    /// Begins a clear: takes the pages to be checked out of the predicted ones; true if there are
    /// any.
    pub(crate) fn begin(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        let mut changed = false;
        for level in self.due() {
            changed |= !self.levels[level].is_empty();
        }
        if changed {
            self.predicted.clear();
            for level in 0..LEVELS {
                if !self.is_due(level) {
                    self.predicted.union_with(&self.levels[level]);
                }
            }
        }
        changed
    }

    /// Ends a clear that found `written` and armed it, except for predicted pages; true if the
    /// predicted pages change.
    pub(crate) fn end(&mut self, mut written: PageSet) -> bool {
        let mut changed = false;
        let mut again = self.last.intersection(&written);
        for level in (0..LEVELS).rev() {
            let asked = std::mem::take(&mut self.asked[level]);
            if asked.is_empty() {
                continue;
            }
            let yes = asked.intersection(&written);
            again = again.difference(&asked);
            self.levels[(level + 1).min(LEVELS - 1)].union_with(&yes);
            changed |= !yes.is_empty();
        }
        for level in 0..LEVELS {
            if self.is_due(level) {
                // Whether these pages were written is not known: they were not armed before.
                self.asked[level] = std::mem::take(&mut self.levels[level]);
                written = written.difference(&self.asked[level]);
                again = again.difference(&self.asked[level]);
            }
        }
        changed |= !again.is_empty();
        self.levels[0].union_with(&again);
        self.last = written;
        if changed {
            let mut all = PageSet::new();
            for level in &self.levels {
                all.union_with(level);
            }
            self.predicted = worth(&all);
            for level in &mut self.levels {
                *level = level.intersection(&self.predicted);
            }
        }
        changed
    }

    /// What the next sweep leaves alone.
    pub(crate) fn predicted(&self) -> &PageSet {
        &self.predicted
    }

    fn due(&self) -> impl Iterator<Item = usize> + '_ {
        (0..LEVELS).filter(|level| self.is_due(*level))
    }

    fn is_due(&self, level: usize) -> bool {
        self.rounds.is_multiple_of(ROUNDS_MIN << level)
    }
}

/// The runs that are worth going around.
fn worth(set: &PageSet) -> PageSet {
    let bytes_min = RUN_PAGES_MIN * pagetrail::page_size();
    let mut runs: Vec<PageRange> = set.ranges().to_vec();
    runs.retain(|run| run.bytes() >= bytes_min);
    if runs.len() > RUNS_MAX {
        runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.bytes()));
        runs.truncate(RUNS_MAX);
    }
    runs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;

    /// A program that writes `pages` in every round; how many faults each of `rounds` takes.
    fn faults(habits: &mut Habits, pages: &PageSet, rounds: usize) -> Vec<u64> {
        let round = |_| {
            // Armed is what the last sweep has not left alone.
            let armed_before = pages.difference(habits.predicted());
            habits.begin();
            // What is asked from now on was not armed, and shows as written in any case.
            let found = pages.difference(habits.predicted());
            habits.end(found);
            armed_before.page_count()
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn what_is_written_in_every_round_soon_costs_next_to_nothing() {
        let mut habits = Habits::default();
        let pages = set(&[(10, 110)]);
        let taken = faults(&mut habits, &pages, 600);
        assert_eq!(taken[..2], [100, 100]);
        assert!(taken[400..].iter().sum::<u64>() <= 4 * 100, "{taken:?}");
    }

    #[test]
    fn what_is_no_longer_written_is_asked_and_dropped() {
        let mut habits = Habits::default();
        faults(&mut habits, &set(&[(10, 110)]), 300);
        assert_eq!(habits.predicted(), &set(&[(10, 110)]));
        // Twice the longest pause at most.
        faults(&mut habits, &PageSet::new(), 130);
        assert!(habits.predicted().is_empty(), "{habits:?}");
    }

    #[test]
    fn single_pages_and_single_rounds_are_not_worth_it() {
        let mut habits = Habits::default();
        faults(&mut habits, &set(&[(10, 11), (20, 21)]), 20);
        assert!(habits.predicted().is_empty());
        for round in 0..20 {
            let pages = [set(&[(30, 40)]), set(&[(50, 60)])];
            faults(&mut habits, &pages[round % 2], 1);
        }
        assert!(habits.predicted().is_empty());
    }

    #[test]
    fn there_is_a_limit_to_the_runs() {
        let runs: Vec<(u64, u64)> = (0..1000).map(|n| (n * 10, n * 10 + 2 + n % 3)).collect();
        let found = worth(&set(&runs));
        assert_eq!(found.ranges().len(), RUNS_MAX);
        let longest = 4 * pagetrail::page_size();
        assert!(found.ranges().iter().all(|run| run.bytes() == longest));
    }
}
