//! [`Functions`]: which functions dirtied the pages of the rounds in view.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

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

/// Functions by round; pages are counted times the sample period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    table: StackTable,
    /// Name and file of the innermost function of a stack.
    names: HashMap<u32, (String, String)>,
    /// Pages by stack, the newest round last.
    rounds: VecDeque<Vec<(u32, u64)>>,
}

impl Functions {
    /// Adds a round of so many page writes, and the stacks that are new in it.
    pub(crate) fn push_round(
        &mut self,
        attribution: &Attribution,
        page_writes: u64,
        new: StackTable,
    ) {
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
        self.name(&stacks);
        self.rounds.push_back(stacks);
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

    /// Names the functions of stacks that have no name yet.
    fn name(&mut self, stacks: &[(u32, u64)]) {
        let new = stacks.iter().map(|(stack, _)| *stack);
        let new: Vec<u32> = new
            .filter(|stack| !self.names.contains_key(stack))
            .take(NEW_NAMES_MAX)
            .collect();
        let mut symbolizer = Symbolizer::new(&self.table);
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
            self.names.insert(number, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail_report::testing;

    #[test]
    fn functions_of_the_rounds_in_view() {
        let trail = testing::program_with_stacks(6);
        let mut functions = Functions::default();
        let mut table = trail.stacks.clone();
        for round in &trail.rounds {
            let attribution = round.attribution.as_ref().expect("sampled");
            let page_writes = round.written.page_count();
            functions.push_round(attribution, page_writes, std::mem::take(&mut table));
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
