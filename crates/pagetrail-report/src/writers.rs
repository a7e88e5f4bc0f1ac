//! [`Writers`]: the functions that dirtied pages, counted over a recording, and its call stacks as
//! text.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::rc::Rc;

use pagetrail_stacks::Symbolizer;
use pagetrail_trail::Trail;

use super::words::printable;

/// What a stack has on top where the kernel wrote.
const KERNEL: &str = "[kernel]";

/// Which code dirtied pages. Pages are counted once per round, times the sample period.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    /// Functions by the pages that they dirtied themselves, most first.
    pub(crate) functions: Vec<FunctionWrites>,
    /// Stacks, outermost first, beginning with the thread's name, and their pages.
    pub(crate) stacks: Vec<(Vec<String>, u64)>,
    /// Pages dirtied in the rounds that were sampled.
    pub(crate) page_writes: u64,
    /// How many of those a sample attributes to a stack.
    pub(crate) attributed: u64,
    /// The longest sample period.
    pub(crate) period_max: u32,
    pub(crate) lost: u64,
    pub(crate) seconds: f64,
    /// Files without names for their code.
    pub(crate) nameless: Vec<String>,
}

/// The pages of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionWrites {
    pub(crate) name: String,
    /// The file's name without its directories.
    pub(crate) module: String,
    /// Pages that it dirtied itself.
    pub(crate) own: u64,
    /// Pages that it or functions called by it dirtied.
    pub(crate) total: u64,
}

impl Writers {
    /// Counts, and finds names in the files of this machine; `None` if stacks were not sampled.
    pub fn of(trail: &Trail) -> Option<Self> {
        let mut writers = Self::default();
        let mut pages_of = BTreeMap::<(u32, u32), u64>::new();
        let mut is_sampled = false;
        for round in &trail.rounds {
            let Some(attribution) = &round.attribution else {
                continue;
            };
            is_sampled = true;
            writers.seconds += round.duration_ns as f64 / 1e9;
            writers.page_writes = writers
                .page_writes
                .saturating_add(round.written.page_count());
            writers.attributed = writers.attributed.saturating_add(attribution.page_count());
            writers.lost = writers.lost.saturating_add(attribution.lost);
            writers.period_max = writers.period_max.max(attribution.period);
            let weight = attribution.weight(round.written.page_count());
            for writes in &attribution.writers {
                let pages = writes.pages.page_count();
                let pages = weight.of(pages);
                let sum = pages_of.entry((writes.stack, writes.thread)).or_default();
                *sum = sum.saturating_add(pages);
            }
        }
        if !is_sampled {
            return None;
        }
        let mut symbolizer = Symbolizer::new(&trail.stacks);
        let mut functions = BTreeMap::<(String, String), (u64, u64)>::new();
        for ((stack, thread), pages) in pages_of {
            let names = names(trail, &mut symbolizer, stack);
            let mut seen = HashSet::new();
            for (depth, function) in names.iter().enumerate() {
                let is_first = seen.insert(function);
                let counts = functions.entry(function.clone()).or_default();
                if depth == 0 {
                    counts.0 = counts.0.saturating_add(pages);
                }
                if is_first {
                    counts.1 = counts.1.saturating_add(pages);
                }
            }
            writers
                .stacks
                .push((outermost_first(trail, thread, names), pages));
        }
        writers.functions = sorted(functions);
        writers.stacks = merged(writers.stacks);
        writers.nameless = symbolizer.nameless().into_iter().map(Into::into).collect();
        Some(writers)
    }

    /// Adds those of another process.
    pub(crate) fn add(&mut self, other: Self) {
        let mut functions = BTreeMap::<(String, String), (u64, u64)>::new();
        for function in self.functions.drain(..).chain(other.functions) {
            let counts = functions
                .entry((function.name, function.module))
                .or_default();
            counts.0 = counts.0.saturating_add(function.own);
            counts.1 = counts.1.saturating_add(function.total);
        }
        self.functions = sorted(functions);
        self.stacks.extend(other.stacks);
        self.stacks = merged(std::mem::take(&mut self.stacks));
        self.page_writes = self.page_writes.saturating_add(other.page_writes);
        self.attributed = self.attributed.saturating_add(other.attributed);
        self.period_max = self.period_max.max(other.period_max);
        self.lost = self.lost.saturating_add(other.lost);
        self.seconds = self.seconds.max(other.seconds);
        self.nameless.extend(other.nameless);
        self.nameless.sort_unstable();
        self.nameless.dedup();
    }

    /// Pages of all stacks.
    pub(crate) fn pages(&self) -> u64 {
        let pages = self.stacks.iter().map(|(_, pages)| *pages);
        pages.fold(0, u64::saturating_add)
    }

    /// Writes stacks line by line, as flame graph tools read them: `thread;outer;inner PAGES`.
    pub(crate) fn write_folded(&self, out: &mut dyn Write) -> io::Result<()> {
        for (stack, pages) in &self.stacks {
            let frames = stack.iter().map(|name| name.replace(';', ":"));
            let line = frames.collect::<Vec<_>>().join(";");
            writeln!(out, "{} {pages}", printable(&line))?;
        }
        Ok(())
    }
}

/// Names and files of the functions of a stack, innermost first; at least one.
fn names(trail: &Trail, symbolizer: &mut Symbolizer<'_>, number: u32) -> Vec<(String, String)> {
    let mut names = Vec::new();
    let Some(stack) = trail.stacks.stacks.get(number as usize) else {
        return vec![("[unknown]".into(), String::new())];
    };
    for frame in &stack.frames {
        let functions = symbolizer.frame(*frame).iter();
        names.extend(functions.map(|f| (f.label(), f.module_name().to_owned())));
    }
    if stack.in_kernel || names.is_empty() {
        let top = if stack.in_kernel { KERNEL } else { "[unknown]" };
        names.insert(0, (top.into(), String::new()));
    }
    names
}

/// The stacks of a recording as text, each made once.
pub(crate) struct Stacks<'a> {
    trail: &'a Trail,
    symbolizer: Symbolizer<'a>,
    texts: HashMap<u32, Rc<str>>,
}

impl<'a> Stacks<'a> {
    pub(crate) fn of(trail: &'a Trail) -> Self {
        Self {
            trail,
            symbolizer: Symbolizer::new(&trail.stacks),
            texts: HashMap::new(),
        }
    }

    /// The functions of a stack, outermost first: `outer;inner`.
    pub(crate) fn folded(&mut self, stack: u32) -> Rc<str> {
        if let Some(text) = self.texts.get(&stack) {
            return text.clone();
        }
        let names = names(self.trail, &mut self.symbolizer, stack);
        let frames = names.iter().rev().map(|(name, _)| name.replace(';', ":"));
        let text: Rc<str> = frames.collect::<Vec<_>>().join(";").into();
        self.texts.insert(stack, text.clone());
        text
    }
}

/// The functions of a stack, outermost first, after the thread's name.
pub(crate) fn path(
    trail: &Trail,
    symbolizer: &mut Symbolizer<'_>,
    stack: u32,
    thread: u32,
) -> Vec<String> {
    let names = names(trail, symbolizer, stack);
    outermost_first(trail, thread, names)
}

fn outermost_first(trail: &Trail, thread: u32, names: Vec<(String, String)>) -> Vec<String> {
    let functions = names.into_iter().rev().map(|(name, _)| name);
    let thread = std::iter::once(thread_name(trail, thread));
    thread.chain(functions).collect()
}

/// Name and file of the function that wrote, the innermost of a stack.
pub(crate) fn innermost(
    trail: &Trail,
    symbolizer: &mut Symbolizer<'_>,
    stack: u32,
) -> (String, String) {
    let names = names(trail, symbolizer, stack);
    names.into_iter().next().unwrap_or_default()
}

fn thread_name(trail: &Trail, id: u32) -> String {
    // After an execve(2) it has a new name.
    let mut threads = trail.stacks.threads.iter().rev();
    let named = threads.find(|thread| thread.id == id);
    match named {
        Some(thread) if !thread.name.is_empty() => thread.name.clone(),
        _ => format!("thread {id}"),
    }
}

/// Functions by their own and all pages, most first.
fn sorted(functions: BTreeMap<(String, String), (u64, u64)>) -> Vec<FunctionWrites> {
    let functions = functions.into_iter();
    let mut functions: Vec<_> = functions
        .map(|((name, module), (own, total))| FunctionWrites {
            name,
            module,
            own,
            total,
        })
        .collect();
    functions.sort_by_key(|function| std::cmp::Reverse((function.own, function.total)));
    functions
}

/// Stacks whose names are alike, as of threads with one name, as one.
fn merged(stacks: Vec<(Vec<String>, u64)>) -> Vec<(Vec<String>, u64)> {
    let mut sums = BTreeMap::<Vec<String>, u64>::new();
    for (stack, pages) in stacks {
        let sum = sums.entry(stack).or_default();
        *sum = sum.saturating_add(pages);
    }
    sums.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn functions_are_counted_once_per_stack_and_weighted_by_the_period() {
        let writers = Writers::of(&testing::program_with_stacks(2)).expect("sampled");
        let functions = writers.functions.iter();
        let functions: Vec<_> = functions
            .map(|f| (f.name.as_str(), f.module.as_str(), f.own, f.total))
            .collect();
        assert_eq!(
            functions,
            [
                ("recurse", "jit", 12, 12),
                ("[kernel]", "", 2, 2),
                ("start", "jit", 0, 14)
            ]
        );
        assert_eq!((writers.attributed, writers.period_max), (8, 2));
        assert!(writers.page_writes > writers.attributed);
        let mut folded = Vec::new();
        writers.write_folded(&mut folded).expect("a Vec takes all");
        assert_eq!(
            String::from_utf8(folded).expect("UTF-8"),
            "life;start;[kernel] 2\nlife;start;recurse;recurse 12\n"
        );
        assert_eq!(writers.pages(), 14);
        assert!(Writers::of(&testing::program(2)).is_none());
    }
}
