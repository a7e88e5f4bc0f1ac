//! [`ProcessRow`]: the processes of a recording with their totals, as a table and for JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use pagetrail_trail::{Analysis, End, Event, Origin, ProcessTrail, Trail, TreeTrail};
use serde::Serialize;

use crate::shared::SharedPages;
use crate::sheet::{Sheet, write_sheet};
use crate::words;

/// Rows of the table at most.
const ROWS_MAX: usize = 40;
/// Characters of a command line in the table at most.
const COMMAND_CHARS_MAX: usize = 48;
/// Levels of indentation at most: a chain of processes may be of any length.
const DEPTH_MAX: usize = 12;

/// The processes of a recording.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// In the order of their numbers; none if there is only one.
    pub rows: Vec<ProcessRow>,
    /// How many others began and ended between two rounds, so that nothing of them is recorded.
    pub short_lives: u64,
    /// Memory that several of them wrote.
    pub shared: Option<SharedPages>,
}

/// One process of a recording, with its totals.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ProcessRow {
    /// Its number, from 0 in the order in which processes appeared.
    pub number: u32,
    /// Its PID.
    pub pid: u32,
    /// The number of its parent, if that is recorded.
    pub parent: Option<u32>,
    /// How it came into the recording: `root`, `present` or `new`.
    pub origin: &'static str,
    /// Its command line; after an `execve(2)` the last one.
    pub command: String,
    /// When it was attached to, in milliseconds since the recording began.
    pub appeared_ms: f64,
    /// When its end was noticed; `None` if it outlived the recording.
    pub ended_ms: Option<f64>,
    /// How it ended, in words.
    pub end: String,
    /// Its rounds.
    pub rounds: usize,
    /// Dirty pages, summed over its rounds.
    pub page_writes: u64,
    /// The part of them reported only because the mapping or the process was new.
    pub newly_mapped_page_writes: u64,
    /// Different pages that were dirty.
    pub distinct_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

impl ProcessRow {
    fn of(number: usize, process: &ProcessTrail) -> Self {
        let trail = &process.trail;
        let analysis = Analysis::of(trail);
        Self {
            number: number as u32,
            pid: trail.header.pid,
            parent: process.parent,
            origin: match process.origin {
                Origin::Root => "root",
                Origin::Present => "present",
                _ => "new",
            },
            command: command(trail),
            appeared_ms: process.appeared_ns as f64 / 1e6,
            ended_ms: process.ended_ns.map(|ns| ns as f64 / 1e6),
            end: match &trail.end {
                Some(End::Detached) => "runs on".into(),
                _ => words::end(trail),
            },
            rounds: trail.rounds.len(),
            page_writes: analysis.page_writes,
            newly_mapped_page_writes: analysis.newly_mapped_page_writes,
            distinct_pages: analysis.distinct_pages,
            page_size: trail.header.page_size,
        }
    }

    /// The name of its program: the last part of the path in its command line.
    pub fn name(&self) -> &str {
        let program = self.command.split(' ').next().unwrap_or_default();
        program.rsplit('/').next().unwrap_or_default()
    }
}

/// The command line of a process; after an `execve(2)` the last one.
fn command(trail: &Trail) -> String {
    let events = trail.rounds.iter().flat_map(|round| &round.events);
    let mut executed = events.filter_map(|event| match event {
        Event::Exec(command) => Some(command.clone()),
        _ => None,
    });
    executed
        .next_back()
        .unwrap_or_else(|| words::command(&trail.header.command))
}

impl Processes {
    /// The processes of a recording with their totals.
    pub fn of(tree: &TreeTrail) -> Self {
        let processes = tree.processes.iter().enumerate();
        Self {
            rows: processes
                .map(|(number, process)| ProcessRow::of(number, process))
                .collect(),
            short_lives: tree.short_lives,
            shared: SharedPages::of(tree),
        }
    }

    /// Writes a line about memory that several processes wrote, if there is any.
    pub fn write_shared(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let bytes = |pages: u64| words::bytes(pages as f64 * shared.page_size as f64);
        writeln!(
            out,
            "{} processes share memory and wrote {} of it; counted in each, it is {} of the distinct",
            words::count(shared.processes as u64),
            bytes(shared.distinct_pages),
            bytes(shared.distinct_pages_of_each),
        )
    }

    /// Writes a line about processes of which nothing is recorded, if there are any.
    pub fn write_short_lives(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.short_lives {
            0 => Ok(()),
            n => writeln!(
                out,
                "{} more began and ended between two rounds, unrecorded",
                words::count(n)
            ),
        }
    }
}

/// Writes the processes as a table: children after and below their parents, with the sums.
pub fn write_table(rows: &[ProcessRow], out: &mut dyn Write) -> io::Result<()> {
    let shown = most_written(rows);
    let total: u64 = rows.iter().map(|row| row.page_writes).sum();
    let head = [
        "process",
        "PID",
        "from",
        "to",
        "page writes",
        "of new memory",
        "distinct",
        "share",
    ];
    let mut sheet = Sheet {
        title: format!(
            "{} processes, {} in all",
            words::count(rows.len() as u64),
            words::plural(total, "page write")
        ),
        heads: head.map(String::from).to_vec(),
        labels: 1,
        rows: Vec::new(),
        note: "",
    };
    for (row, depth) in in_tree_order(rows) {
        if shown.contains(&row.number) {
            sheet.rows.push(cells(row, depth, total));
        }
    }
    write_sheet(&sheet, out)?;
    match rows.len() - shown.len() {
        0 => Ok(()),
        left => writeln!(out, "and {left} that wrote less; --json lists all"),
    }
}

fn cells(row: &ProcessRow, depth: usize, total: u64) -> Vec<String> {
    let command = words::printable(&row.command);
    let mut short: String = command.chars().take(COMMAND_CHARS_MAX).collect();
    if short.len() < command.len() {
        short.push('…');
    }
    let time = |ms: f64| words::time(ms * 1e6);
    vec![
        format!("{}{short}", "  ".repeat(depth.min(DEPTH_MAX))),
        row.pid.to_string(),
        time(row.appeared_ms),
        row.ended_ms.map_or_else(|| "end".into(), time),
        words::count(row.page_writes),
        words::count(row.newly_mapped_page_writes),
        words::bytes(row.distinct_pages as f64 * row.page_size as f64),
        words::percent(row.page_writes as f64 / total.max(1) as f64),
    ]
}

/// The numbers of the processes that wrote most, and of the first.
fn most_written(rows: &[ProcessRow]) -> BTreeSet<u32> {
    let mut by_writes: Vec<&ProcessRow> = rows.iter().skip(1).collect();
    by_writes.sort_by_key(|row| (std::cmp::Reverse(row.page_writes), row.number));
    let most = by_writes.iter().take(ROWS_MAX - 1).map(|row| row.number);
    rows.iter()
        .take(1)
        .map(|row| row.number)
        .chain(most)
        .collect()
}

/// All rows with their depth, children after their parents. A parent has a lower number than its
/// children, as the trail's reader checks, so that no chain is a circle.
fn in_tree_order(rows: &[ProcessRow]) -> Vec<(&ProcessRow, usize)> {
    let mut children = vec![Vec::new(); rows.len()];
    let mut stack = Vec::new();
    for row in rows.iter().rev() {
        match row.parent {
            Some(parent) => children[parent as usize].push(row),
            None => stack.push((row, 0)),
        }
    }
    let mut ordered = Vec::with_capacity(rows.len());
    while let Some((row, depth)) = stack.pop() {
        ordered.push((row, depth));
        let below = &children[row.number as usize];
        stack.extend(below.iter().map(|child| (*child, depth + 1)));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn tree(parents: &[Option<u32>]) -> TreeTrail {
        let processes = parents.iter().enumerate().map(|(number, parent)| {
            let mut trail = testing::program(2 + number as u32 % 3);
            trail.header.pid = 100 + number as u32;
            ProcessTrail {
                parent: *parent,
                appeared_ns: number as u64 * 1_000_000,
                trail,
                ..ProcessTrail::default()
            }
        });
        TreeTrail {
            processes: processes.collect(),
            short_lives: 0,
        }
    }

    fn text(tree: &TreeTrail) -> String {
        let mut out = Vec::new();
        write_table(&Processes::of(tree).rows, &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn children_stand_below_their_parents() {
        let text = text(&tree(&[None, Some(0), None, Some(1), Some(0)]));
        let pids: Vec<&str> = text
            .lines()
            .skip(2)
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("10")))
            .collect();
        assert_eq!(pids, ["100", "101", "103", "104", "102"], "{text}");
        assert!(text.starts_with("5 processes, "), "{text}");
    }

    #[test]
    fn of_many_processes_those_that_wrote_most_are_shown() {
        let mut parents = vec![None];
        parents.extend((0..99).map(Some));
        let text = text(&tree(&parents));
        assert_eq!(text.lines().count(), 2 + ROWS_MAX + 1, "{text}");
        assert!(text.contains("and 60 that wrote less"), "{text}");
        assert!(text.contains(" 100 "), "the first is shown: {text}");
    }

    #[test]
    fn the_last_program_names_a_process() {
        let mut tree = tree(&[None]);
        tree.processes[0].trail.rounds[1]
            .events
            .push(Event::Exec("/usr/bin/sort -r".into()));
        let rows = Processes::of(&tree).rows;
        assert_eq!(
            (rows[0].name(), &*rows[0].command),
            ("sort", "/usr/bin/sort -r")
        );
    }
}
