//! Which functions dirtied the pages of the rounds in view: [`FunctionNames`] names them where
//! rounds are collected, since that reads files, and [`Functions`] counts them where they are
//! shown.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};

use pagetrail_stacks::Symbolizer;
use pagetrail_trail::{Attribution, StackTable};

/// Stacks that are named in one round at most: reading a file's symbols takes time. Others are
/// named in the next rounds.
const NEW_NAMES_MAX: usize = 50;
/// What stands for a function that is not named yet.
const UNNAMED: (&str, &str) = ("..", "");

/// A function with dirty pages in view.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FunctionLine {
    /// The function's name.
    pub(crate) name: String,
    /// The file's name without its directories.
    pub(crate) file: String,
    /// Pages that it dirtied in the last round.
    pub(crate) last_pages: u64,
    /// Pages that it dirtied in the rounds in view.
    pub(crate) pages: u64,
}

/// Names the functions of call stacks: for the side that collects, because it reads files.
#[derive(Clone, Debug, Default)]
pub struct FunctionNames {
    table: StackTable,
    /// Stacks that have a name.
    named: HashSet<u32>,
}

/// What functions wrote in a round: made by [`FunctionNames::round`] for
/// [`TopState::push_functions`](crate::TopState::push_functions).
#[derive(Clone, Debug, Default)]
pub struct FunctionRound {
    /// Pages by stack, times the sample period; most first.
    stacks: Vec<(u32, u64)>,
    /// Name and file of the innermost function of stacks that had no name before.
    names: Vec<(u32, Name)>,
}

/// A function's name, and its file's without the directories.
type Name = (String, String);

impl FunctionNames {
    /// Adds up a round of so many page writes, with the stacks that are new in it.
    pub fn round(
        &mut self,
        attribution: &Attribution,
        page_writes: u64,
        new: StackTable,
    ) -> FunctionRound {
        self.table.append(new);
        let mut stacks = HashMap::<u32, u64>::new();
        let weight = attribution.weight(page_writes);
        for writes in &attribution.writers {
            let pages = writes.pages.page_count();
            let pages = weight.of(pages);
            let sum = stacks.entry(writes.stack).or_default();
            *sum = sum.saturating_add(pages);
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        stacks.sort_by_key(|(stack, pages)| (Reverse(*pages), *stack));
        let names = self.name(&stacks);
        FunctionRound { stacks, names }
    }

    /// The names of stacks that had none.
    fn name(&mut self, stacks: &[(u32, u64)]) -> Vec<(u32, Name)> {
        let new = stacks.iter().map(|(stack, _)| *stack);
        let new: Vec<u32> = new
            .filter(|stack| !self.named.contains(stack))
            .take(NEW_NAMES_MAX)
            .collect();
        let mut symbolizer = Symbolizer::new(&self.table);
        let mut names = Vec::new();
        for number in new {
            let Some(stack) = self.table.stacks.get(number as usize) else {
                continue;
            };
            let name = match (stack.in_kernel, stack.frames.first()) {
                (true, _) => ("[kernel]".to_owned(), String::new()),
                (false, Some(frame)) => match symbolizer.frame(*frame).first() {
                    Some(function) => (function.label(), function.module_name().to_owned()),
                    None => continue,
                },
                (false, None) => ("[unknown]".to_owned(), String::new()),
            };
            self.named.insert(number);
            names.push((number, name));
        }
        names
    }
}

/// Functions by round; pages are counted times the sample period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    names: HashMap<u32, Name>,
    /// Pages by stack, the newest round last.
    rounds: VecDeque<Vec<(u32, u64)>>,
}

impl Functions {
    /// Adds a round.
    pub(crate) fn push_round(&mut self, round: FunctionRound) {
        self.names.extend(round.names);
        self.rounds.push_back(round.stacks);
    }

    /// Forgets all but so many rounds.
    pub(crate) fn keep(&mut self, rounds: usize) {
        let behind = self.rounds.len().saturating_sub(rounds);
        self.rounds.drain(..behind);
    }

    /// The functions in view, those that dirtied most in the last round first.
    pub(crate) fn lines(&self) -> Vec<FunctionLine> {
        let mut counts = HashMap::<(&str, &str), (u64, u64)>::new();
        for (age, round) in self.rounds.iter().rev().enumerate() {
            for (stack, pages) in round {
                let name = self.names.get(stack);
                let key = name.map_or(UNNAMED, |(name, file)| (name.as_str(), file.as_str()));
                let (last, all) = counts.entry(key).or_default();
                *all = all.saturating_add(*pages);
                if age == 0 {
                    *last = last.saturating_add(*pages);
                }
            }
        }
        let mut lines: Vec<_> = counts
            .into_iter()
            .map(|((name, file), (last_pages, pages))| FunctionLine {
                name: name.into(),
                file: file.into(),
                last_pages,
                pages,
            })
            .collect();
        lines.sort_by(|a, b| {
            let most = |line: &FunctionLine| Reverse((line.last_pages, line.pages));
            most(a).cmp(&most(b)).then_with(|| a.name.cmp(&b.name))
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail_report::testing;

    #[test]
    fn functions_of_the_rounds_in_view() {
        let trail = testing::program_with_stacks(6);
        let (mut names, mut functions) = (FunctionNames::default(), Functions::default());
        let mut table = trail.stacks.clone();
        for round in &trail.rounds {
            let attribution = round.attribution.as_ref().expect("sampled");
            let page_writes = round.written.page_count();
            let new = std::mem::take(&mut table);
            functions.push_round(names.round(attribution, page_writes, new));
        }
        let seen = |functions: &Functions| -> Vec<(String, u64, u64)> {
            let lines = functions.lines().into_iter();
            lines.map(|l| (l.name, l.last_pages, l.pages)).collect()
        };
        // Rounds with a period of 2 and of 1 take turns.
        assert_eq!(
            seen(&functions),
            [("recurse".into(), 2, 36), ("[kernel]".into(), 0, 6)]
        );
        functions.keep(1);
        assert_eq!(seen(&functions), [("recurse".into(), 2, 2)]);
        functions.keep(0);
        assert!(functions.lines().is_empty());
    }
}
