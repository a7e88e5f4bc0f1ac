//! [`Comparison`]: two recordings side by side, before and after a change, by mapping and by
//! function.
//!
//! Mappings are the same if they have the same name: addresses change from run to run, so memory
//! without a name is one row. Each figure has its spread between rounds, because a recording of a
//! program is one sample of what the program does.

mod condition;
mod html;
mod json;
mod measure;
mod series;
mod text;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use pagetrail::AccessKind;
use pagetrail_trail::{Header, Trail};

pub use condition::{BadCondition, Condition, Verdict};
pub use measure::Measure;
pub use tree::{ProcessPair, TreeComparison};

use self::series::Series;
use super::Style;

/// Time in which the different pages of a working set are counted.
const WINDOW_NS: u64 = 1_000_000_000;

/// Two recordings that cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomparable {
    /// They have pages of different sizes, in bytes.
    PageSizes(u64, u64),
    /// One has the pages written, the other only those accessed.
    AccessKinds,
    /// One of them has no rounds.
    Empty,
}

impl std::error::Error for Incomparable {}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageSizes(a, b) => write!(f, "one has pages of {a} bytes, the other of {b}"),
            Self::AccessKinds => f.write_str("one has pages written, the other pages accessed"),
            Self::Empty => f.write_str("one of them has no rounds"),
        }
    }
}

/// A figure before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pair {
    /// In the first recording.
    pub before: Measure,
    /// In the second recording.
    pub after: Measure,
}

/// What is compared: all memory, a mapping, or a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The mapping's or function's name; `anonymous` for memory without one.
    pub name: String,
    /// The file that holds the function; empty for a mapping.
    pub file: String,
    /// Pages written (or accessed) per second.
    pub written: Pair,
    /// Different pages written in a second.
    pub working_set: Pair,
}

/// Two recordings side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    before: Side,
    after: Side,
    access_kind: AccessKind,
    page_size: u64,
    total: Line,
    mappings: Vec<Line>,
    /// Functions, where both recordings have call stacks.
    functions: Vec<Line>,
}

/// What is said of one recording.
#[derive(Clone, Debug, Default, PartialEq)]
struct Side {
    header: Header,
    rounds: u64,
    seconds: f64,
    has_stacks: bool,
}

impl Comparison {
    /// Compares two recordings. Functions are named by the files of this machine.
    pub fn of(before: &Trail, after: &Trail) -> Result<Self, Incomparable> {
        let sizes = (before.header.page_size, after.header.page_size);
        if sizes.0 != sizes.1 {
            return Err(Incomparable::PageSizes(sizes.0, sizes.1));
        }
        let kind = main_kind(before);
        if kind != main_kind(after) {
            return Err(Incomparable::AccessKinds);
        }
        let (before, after) = (before.only(kind), after.only(kind));
        if before.rounds.is_empty() || after.rounds.is_empty() {
            return Err(Incomparable::Empty);
        }
        let sides = [&before, &after].map(Side::of);
        let has_stacks = sides.iter().all(|side| side.has_stacks);
        let [before_side, after_side] = sides;
        let mappings = lines(Series::of_mappings(&before), Series::of_mappings(&after));
        let functions = match has_stacks {
            true => lines(Series::of_functions(&before), Series::of_functions(&after)),
            false => Vec::new(),
        };
        let total = lines(Series::of_all(&before), Series::of_all(&after));
        Ok(Self {
            before: before_side,
            after: after_side,
            access_kind: kind,
            page_size: sizes.0,
            total: total.into_iter().next().unwrap_or_default(),
            mappings,
            functions,
        })
    }

    /// All memory.
    pub fn total(&self) -> &Line {
        &self.total
    }

    /// Mappings by name, those that changed most first.
    pub fn mappings(&self) -> &[Line] {
        &self.mappings
    }

    /// Functions, those that changed most first; none unless both recordings have call stacks.
    pub fn functions(&self) -> &[Line] {
        &self.functions
    }

    /// Writes the comparison as text.
    pub fn write_text(
        &self,
        verdicts: &[Verdict],
        style: Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        text::write(self, verdicts, style, out)
    }

    /// Writes the comparison as one JSON document and a newline.
    pub fn write_json(&self, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
        json::write(self, verdicts, out)
    }

    /// Writes the comparison as one self-contained page.
    pub fn write_html(&self, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
        html::write(self, verdicts, out)
    }
}

impl Side {
    fn of(trail: &Trail) -> Self {
        let ns = trail.rounds.iter().map(|round| round.duration_ns as f64);
        Self {
            header: trail.header.clone(),
            rounds: trail.rounds.len() as u64,
            seconds: ns.sum::<f64>() / 1e9,
            has_stacks: trail.rounds.iter().any(|round| round.attribution.is_some()),
        }
    }
}

/// Writes, unless there are only accesses.
fn main_kind(trail: &Trail) -> AccessKind {
    let mut kinds = trail.rounds.iter().map(|round| round.access_kind);
    match trail.rounds.is_empty() || kinds.any(|kind| kind == AccessKind::Writes) {
        true => AccessKind::Writes,
        false => AccessKind::Accesses,
    }
}

/// Pairs series by their keys.
fn lines(before: Series, after: Series) -> Vec<Line> {
    let mut pairs = BTreeMap::<(String, String), Line>::new();
    for (series, is_after) in [(before, false), (after, true)] {
        for (key, written, working_set) in series.measures() {
            let line = pairs.entry(key).or_default();
            let set = |pair: &mut Pair, measure| match is_after {
                true => pair.after = measure,
                false => pair.before = measure,
            };
            set(&mut line.written, written);
            set(&mut line.working_set, working_set);
        }
    }
    let mut lines: Vec<_> = pairs
        .into_iter()
        .map(|((name, file), line)| Line { name, file, ..line })
        .collect();
    let change = |line: &Line| (line.written.after.mean - line.written.before.mean).abs();
    lines.sort_by(|a, b| change(b).total_cmp(&change(a)));
    lines
}

#[cfg(test)]
mod tests;
