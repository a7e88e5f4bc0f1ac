//! [`PrivateMemory`]: what processes have to themselves of the memory that they shared with their
//! parent after `fork(2)`, and which code copied it.
//!
//! A page is copied at the first write to it, by either process. So the first round in which a
//! process wrote a page that it still shared is the one that copied it, and the call stack of that
//! write is the code that did.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pagetrail::{AccessKind, PageSet};
use pagetrail_trail::{Analysis, Attribution, ProcessTrail, Round, StackWrites, Trail, TreeTrail};
use serde::Serialize;

use crate::functions;
use crate::joined;
use crate::processes::Processes;
use crate::sheet::{Sheet, write_sheet};
use crate::terminal::Style;
use crate::words;
use crate::writers::Writers;

/// Rows of a table at most.
const ROWS_MAX: usize = 40;
const COMMAND_CHARS_MAX: usize = 40;

/// What one process has to itself, in pages.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PrivateRow {
    /// Its number in the recording.
    pub number: u32,
    /// Its PID.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// When it was attached to, in milliseconds since the recording began.
    pub appeared_ms: f64,
    /// Pages that both processes had at the same address when it was attached to.
    pub inherited_pages: u64,
    /// The part of them that was no longer shared by then.
    pub apart_pages: u64,
    /// Pages that it copied in the recording, by writing them while they were shared.
    pub copied_pages: u64,
    /// Pages that are no longer shared because the parent wrote them in the recording, and the
    /// process did not.
    pub left_by_parent_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

impl PrivateRow {
    fn private_pages(&self) -> u64 {
        self.apart_pages + self.copied_pages + self.left_by_parent_pages
    }
}

/// The processes of a recording that have memory of their parents.
#[derive(Clone, Debug, Default)]
pub struct PrivateMemory {
    /// The processes, that with most private memory first.
    rows: Vec<PrivateRow>,
    /// Names of mappings, and pages that were copied there.
    mappings: Vec<(String, u64)>,
    /// Which code copied pages, where it was sampled.
    writers: Option<Writers>,
}

impl PrivateMemory {
    /// Finds what was copied by all processes, or by the one with the number `only`; `None` if
    /// nothing is known of what any of them inherited.
    pub fn of(tree: &TreeTrail, only: Option<usize>) -> Option<Self> {
        let facts = Processes::of(tree).rows;
        let mut found = Self::default();
        let mut mappings = BTreeMap::<String, u64>::new();
        for (number, process) in tree.processes.iter().enumerate() {
            if process.inherited.pages.is_empty() || only.is_some_and(|only| only != number) {
                continue;
            }
            let copies = copies(process);
            let own = written(&copies.rounds);
            let left = left_by_parent(tree, process).difference(&own);
            let inherited = &process.inherited;
            let fact = &facts[number];
            found.rows.push(PrivateRow {
                number: fact.number,
                pid: fact.pid,
                command: fact.command.clone(),
                appeared_ms: fact.appeared_ms,
                inherited_pages: inherited.pages.page_count(),
                apart_pages: inherited.pages.difference(&inherited.shared).page_count(),
                copied_pages: own.page_count(),
                left_by_parent_pages: left.page_count(),
                page_size: fact.page_size,
            });
            let counts = Analysis::of(&copies).mappings;
            for (mapping, counts) in copies.mappings.iter().zip(&counts) {
                if counts.page_writes > 0 {
                    *mappings
                        .entry(words::mapping(mapping).into_owned())
                        .or_default() += counts.page_writes;
                }
            }
            if let Some(writers) = Writers::of(&copies) {
                found
                    .writers
                    .get_or_insert_with(Writers::default)
                    .add(writers);
            }
        }
        if found.rows.is_empty() {
            return None;
        }
        found.rows.sort_by_key(|row| {
            let private = std::cmp::Reverse(row.private_pages());
            (private, row.number)
        });
        found.mappings = mappings.into_iter().collect();
        found
            .mappings
            .sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
        Some(found)
    }

    /// Writes it as text: processes, mappings, functions.
    pub fn write_text(&self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        write_sheet(&self.sheet_of_processes(), out)?;
        if let left @ 1.. = self.rows.len().saturating_sub(ROWS_MAX) {
            writeln!(out, "and {left} with less; --json lists all")?;
        }
        if !self.mappings.is_empty() {
            writeln!(out)?;
            write_sheet(&self.sheet_of_mappings(), out)?;
        }
        match &self.writers {
            Some(writers) if writers.attributed > 0 => {
                writeln!(out, "\nwhich code copied pages")?;
                functions::table(writers, style, out)
            }
            Some(_) => Ok(()),
            None => writeln!(
                out,
                "\nwhich code copied them is not known: record call stacks, too"
            ),
        }
    }

    fn sheet_of_processes(&self) -> Sheet {
        let all: u64 = self.rows.iter().map(PrivateRow::private_pages).sum();
        let page = self.rows.first().map_or(0, |row| row.page_size);
        let heads = [
            "process",
            "PID",
            "attached",
            "inherited",
            "apart by then",
            "copied since",
            "by the parent",
            "private",
        ];
        Sheet {
            title: format!(
                "private since fork: {} in {}",
                words::bytes(all as f64 * page as f64),
                match self.rows.len() {
                    1 => "1 process".into(),
                    n => format!("{} processes", words::count(n as u64)),
                }
            ),
            heads: heads.map(String::from).to_vec(),
            labels: 1,
            rows: self.rows.iter().take(ROWS_MAX).map(cells).collect(),
            note: "",
        }
    }

    fn sheet_of_mappings(&self) -> Sheet {
        let page = self.rows.first().map_or(0, |row| row.page_size);
        let all: u64 = self.mappings.iter().map(|(_, pages)| *pages).sum();
        let rows = self.mappings.iter().take(ROWS_MAX).map(|(name, pages)| {
            vec![
                name.clone(),
                words::bytes(*pages as f64 * page as f64),
                words::percent(*pages as f64 / all.max(1) as f64),
            ]
        });
        Sheet {
            title: "copied since, by mapping".into(),
            heads: ["mapping", "copied", "share"].map(String::from).to_vec(),
            labels: 1,
            rows: rows.collect(),
            note: "",
        }
    }

    /// Writes it as one JSON document and a newline.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let mappings = self.mappings.iter().map(|(name, pages)| Copied {
            name,
            file: "",
            pages: *pages,
        });
        let functions = self.writers.iter().flat_map(|writers| &writers.functions);
        let functions = functions.map(|function| Copied {
            name: &function.name,
            file: &function.module,
            pages: function.own,
        });
        let document = Document {
            schema: 2,
            private_since_fork: &self.rows,
            mappings: mappings.collect(),
            functions: functions.collect(),
        };
        serde_json::to_writer(&mut *out, &document)?;
        out.write_all(b"\n")
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    private_since_fork: &'a [PrivateRow],
    mappings: Vec<Copied<'a>>,
    /// Pages are counted times the sample period.
    functions: Vec<Copied<'a>>,
}

#[derive(Serialize)]
struct Copied<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    pages: u64,
}

fn cells(row: &PrivateRow) -> Vec<String> {
    let bytes = |pages: u64| words::bytes(pages as f64 * row.page_size as f64);
    let command = words::printable(&row.command);
    let mut short: String = command.chars().take(COMMAND_CHARS_MAX).collect();
    if short.len() < command.len() {
        short.push('…');
    }
    vec![
        short,
        row.pid.to_string(),
        words::time(row.appeared_ms * 1e6),
        bytes(row.inherited_pages),
        bytes(row.apart_pages),
        bytes(row.copied_pages),
        bytes(row.left_by_parent_pages),
        words::percent(row.private_pages() as f64 / row.inherited_pages.max(1) as f64),
    ]
}

/// A recording of a process that holds its copies alone: each page that it shared, in the first
/// round in which it was written. A program that was executed since has nothing to copy, and memory
/// that was mapped anew at the same place is no copy.
fn copies(process: &ProcessTrail) -> Trail {
    let mut left = process.inherited.shared.clone();
    let mut trail = process.trail.only(AccessKind::Writes);
    joined::name_from_the_start(&mut trail.mappings);
    for round in &mut trail.rounds {
        if executes(round) {
            left = PageSet::new();
        }
        left = left.difference(&round.newly_mapped);
        round.written = round.written.intersection(&left);
        round.newly_mapped = PageSet::new();
        left = left.difference(&round.written);
        let copied = &round.written;
        if let Some(attribution) = &mut round.attribution {
            *attribution = of_pages(attribution, copied);
        }
    }
    trail
}

/// The part of an attribution that is about some pages.
fn of_pages(attribution: &Attribution, pages: &PageSet) -> Attribution {
    let writers = attribution.writers.iter().map(|writes| StackWrites {
        stack: writes.stack,
        thread: writes.thread,
        pages: writes.pages.intersection(pages),
    });
    Attribution {
        period: attribution.period,
        lost: attribution.lost,
        writers: writers.filter(|writes| !writes.pages.is_empty()).collect(),
    }
}

/// What the parent has written of a process's shared memory since it was attached to. A round of
/// the parent that began before does not count: what it wrote may have been copied at the fork.
/// Once either has executed a program, they share nothing any more.
fn left_by_parent(tree: &TreeTrail, process: &ProcessTrail) -> PageSet {
    let parent = process.parent.and_then(|parent| {
        let parent = tree.processes.get(parent as usize)?;
        Some((parent.appeared_ns, parent.trail.only(AccessKind::Writes)))
    });
    let Some((began_ns, parent)) = parent else {
        return PageSet::new();
    };
    let rounds = parent.rounds.iter();
    let since = rounds
        .filter(|round| began_ns.saturating_add(round.start_ns) >= process.appeared_ns)
        .take_while(|round| !executes(round))
        .take_while(|round| began_ns.saturating_add(middle_ns(round)) < shared_until_ns(process));
    let mut pages = PageSet::new();
    for round in since {
        pages.union_with(&round.written.intersection(&process.inherited.shared));
    }
    pages
}

/// When the process executed a program, since the recording began: no earlier than the round began
/// that says so.
fn shared_until_ns(process: &ProcessTrail) -> u64 {
    let mut rounds = process.trail.rounds.iter();
    let executed = rounds.find(|round| executes(round));
    executed.map_or(u64::MAX, |round| {
        process.appeared_ns.saturating_add(round.start_ns)
    })
}

/// Rounds of two processes begin and end at about the same time, one shortly before the other; by
/// their middles it is plain which of them are the same.
fn middle_ns(round: &Round) -> u64 {
    round.start_ns.saturating_add(round.duration_ns / 2)
}

fn written(rounds: &[Round]) -> PageSet {
    let mut pages = PageSet::new();
    rounds
        .iter()
        .for_each(|round| pages.union_with(&round.written));
    pages
}

fn executes(round: &Round) -> bool {
    let mut events = round.events.iter();
    events.any(|event| matches!(event, pagetrail_trail::Event::Exec(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, pages};
    use pagetrail_trail::{Inherited, Mapping};

    const BASE: u64 = 0x10_0000;

    fn set(ranges: &[(u64, u64)]) -> PageSet {
        let ranges = ranges.iter();
        ranges
            .map(|(first, count)| pages(BASE, *first, *count))
            .collect()
    }

    /// A process with rounds of 100 ns that wrote these pages.
    fn process(parent: Option<u32>, appeared_ns: u64, rounds: &[&[(u64, u64)]]) -> ProcessTrail {
        let mut trail = testing::program(0);
        trail.mappings = vec![Mapping {
            name: "[heap]".into(),
            ..testing::mapping(pages(BASE, 0, 100), "[heap]", 0)
        }];
        let rounds = rounds.iter().enumerate();
        trail.rounds = rounds
            .map(|(index, written)| Round {
                index: index as u32,
                start_ns: index as u64 * 100,
                duration_ns: 100,
                written: set(written),
                ..Round::default()
            })
            .collect();
        ProcessTrail {
            parent,
            appeared_ns,
            trail,
            ..ProcessTrail::default()
        }
    }

    fn tree() -> TreeTrail {
        let mut child = process(Some(0), 100, &[&[(1, 1)], &[(10, 3)], &[(11, 4)]]);
        child.inherited = Inherited {
            pages: set(&[(0, 50)]),
            shared: set(&[(5, 45)]),
        };
        let parent = process(None, 0, &[&[(40, 1)], &[(20, 2)], &[(12, 1), (60, 9)]]);
        TreeTrail {
            processes: vec![parent, child],
            short_lives: 0,
        }
    }

    #[test]
    fn pages_are_private_once_either_process_writes_them() {
        let private = PrivateMemory::of(&tree(), None).expect("there is a child");
        let [row] = &private.rows[..] else {
            panic!("one child")
        };
        let counts = (
            row.inherited_pages,
            row.apart_pages,
            row.copied_pages,
            row.left_by_parent_pages,
        );
        // 10 to 14 by itself; 20 and 21 by the parent, which wrote 40 before the child was seen,
        // and 12 as the child did.
        assert_eq!(counts, (50, 5, 5, 2));
        assert_eq!(private.mappings, [("[heap]".to_owned(), 5)]);
        assert!(PrivateMemory::of(&tree(), Some(0)).is_none());
        assert!(PrivateMemory::of(&tree(), Some(1)).is_some());
    }

    #[test]
    fn a_program_that_is_executed_copies_nothing() {
        let mut tree = tree();
        let round = &mut tree.processes[1].trail.rounds[1];
        round.events = vec![pagetrail_trail::Event::Exec("/bin/true".into())];
        let private = PrivateMemory::of(&tree, None).expect("there is a child");
        assert_eq!(private.rows[0].copied_pages, 0);
    }

    #[test]
    fn the_parent_leaves_nothing_to_a_process_once_either_has_executed_a_program() {
        let left_with = |execute: &dyn Fn(&mut TreeTrail)| {
            let mut tree = tree();
            // The parent's last round, 200 to 300, is the child's second.
            assert_eq!(tree.processes[1].trail.rounds[1].start_ns + 100, 200);
            execute(&mut tree);
            let private = PrivateMemory::of(&tree, None).expect("there is a child");
            private.rows[0].left_by_parent_pages
        };
        let executes = |process: usize, round: usize| {
            move |tree: &mut TreeTrail| {
                let round = &mut tree.processes[process].trail.rounds[round];
                round.events = vec![pagetrail_trail::Event::Exec("/bin/true".into())];
            }
        };
        assert_eq!(left_with(&|_| ()), 2);
        // 20 and 21 were written in the round in which the child's first one was recorded.
        assert_eq!(left_with(&executes(1, 0)), 0);
        assert_eq!(left_with(&executes(1, 1)), 2);
        assert_eq!(left_with(&executes(1, 2)), 2);
        assert_eq!(left_with(&executes(0, 1)), 0);
        assert_eq!(left_with(&executes(0, 2)), 2);
    }

    #[test]
    fn memory_that_is_mapped_anew_at_the_same_place_is_no_copy() {
        let mut tree = tree();
        tree.processes[1].trail.rounds[1].newly_mapped = set(&[(10, 2)]);
        let private = PrivateMemory::of(&tree, None).expect("there is a child");
        // 12 to 14: 11 was written once more after that.
        assert_eq!(private.rows[0].copied_pages, 3);
    }

    #[test]
    fn the_code_that_copied_is_counted_and_no_later_writer() {
        let mut tree = tree();
        let stacks = testing::program_with_stacks(1).stacks;
        let child = &mut tree.processes[1].trail;
        child.stacks = stacks;
        let writes = |stack, first, count| StackWrites {
            stack,
            thread: 4711,
            pages: set(&[(first, count)]),
        };
        for (round, writers) in [
            (1, vec![writes(0, 10, 3)]),
            (2, vec![writes(1, 11, 2), writes(0, 13, 2)]),
        ] {
            child.rounds[round].attribution = Some(Attribution {
                period: 1,
                lost: 0,
                writers,
            });
        }
        let private = PrivateMemory::of(&tree, None).expect("there is a child");
        let writers = private.writers.as_ref().expect("sampled");
        let functions = writers.functions.iter();
        let functions: Vec<_> = functions.map(|f| (f.name.as_str(), f.own)).collect();
        assert_eq!(functions, [("recurse", 5), ("start", 0)]);
        let mut out = Vec::new();
        let style = Style {
            width: 100,
            colour: false,
        };
        private
            .write_text(style, &mut out)
            .expect("a Vec takes all");
        insta::assert_snapshot!(String::from_utf8(out).expect("UTF-8"));
        let mut out = Vec::new();
        private.write_json(&mut out).expect("a Vec takes all");
        let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(value["private_since_fork"][0]["copied_pages"], 5);
        assert_eq!(value["functions"][0]["pages"], 5);
    }
}
