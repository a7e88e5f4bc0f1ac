//! [`TreeComparison`]: two recordings of several processes, compared process by process.
//!
//! A process of the first recording is the same as one of the second if both have the same command
//! line, and are as many-th with it in the order in which processes appeared: PIDs change from run
//! to run. Of those that are left, titles are the same if their beginnings are. What
//! has no partner is listed, and compared with nothing.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};

use pagetrail_trail::{Trail, TreeTrail};
use serde::Serialize;

use super::condition::{BadCondition, Condition, Verdict};
use super::{Comparison, Incomparable, Style, html, json, text};
use crate::processes::{ProcessRow, Processes};
use crate::sheet::{Sheet, html_table, write_sheet};
use crate::terminal::wrap;
use crate::words;

/// Lines about processes without a partner at most.
const ALONE_MAX: usize = 10;
/// Rows of a table at most.
const ROWS_MAX: usize = 40;
const ROWS_OF_PAGE_MAX: usize = 500;
/// Words of a title that say which process it is.
const TITLE_WORDS: usize = 4;

/// A process that both recordings have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessPair {
    /// The process in the first recording.
    pub before: ProcessRow,
    /// The process in the second recording.
    pub after: ProcessRow,
    /// What has changed.
    pub comparison: Comparison,
}

/// Two recordings of several processes, side by side.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TreeComparison {
    /// Processes that both have, those that changed most first.
    pub pairs: Vec<ProcessPair>,
    /// Processes of the first recording that the second has not, or without a round in one.
    pub only_before: Vec<ProcessRow>,
    /// Processes of the second recording that the first has not, or without a round in one.
    pub only_after: Vec<ProcessRow>,
}

impl TreeComparison {
    /// Compares two recordings. Functions are named by the files of this machine.
    ///
    /// # Errors
    ///
    /// They have pages of different sizes, or one the pages written and the other those accessed.
    pub fn of(before: &TreeTrail, after: &TreeTrail) -> Result<Self, Incomparable> {
        let mut left_before = Processes::of(before).rows;
        let mut left_after = Processes::of(after).rows;
        let mut compared = Self::default();
        // By the whole command line first, then by titles without what a process does just now.
        for key in [whole_command, title] {
            for (first, second) in partners(before, &mut left_before, after, &mut left_after, key) {
                let trails = trail_of(before, &first).zip(trail_of(after, &second));
                let comparison = trails.map_or(Err(Incomparable::Empty), |(before, after)| {
                    Comparison::of(before, after)
                });
                match comparison {
                    Ok(comparison) => compared.pairs.push(ProcessPair {
                        before: first,
                        after: second,
                        comparison,
                    }),
                    // Some live for less than a round.
                    Err(Incomparable::Empty) => {
                        compared.only_before.push(first);
                        compared.only_after.push(second);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        compared.only_before.extend(left_before);
        compared.only_before.sort_by_key(|row| row.number);
        compared.only_after.extend(left_after);
        compared.only_after.sort_by_key(|row| row.number);
        let change = |pair: &ProcessPair| {
            let written = pair.comparison.total().written;
            (written.after.mean - written.before.mean).abs()
        };
        compared
            .pairs
            .sort_by(|a, b| change(b).total_cmp(&change(a)));
        Ok(compared)
    }

    /// Leaves only the processes with a PID in one of the recordings, or of a program's name.
    pub fn retain(&mut self, wanted: &str) {
        let pid = wanted.parse::<u32>().ok();
        let is_wanted = |row: &ProcessRow| match pid {
            Some(pid) => row.pid == pid,
            None => row.name() == wanted,
        };
        self.pairs
            .retain(|pair| is_wanted(&pair.before) || is_wanted(&pair.after));
        self.only_before.retain(is_wanted);
        self.only_after.retain(is_wanted);
    }

    /// Decides for each process that both have whether a condition holds. One that names a mapping
    /// or a function is judged where it is.
    ///
    /// # Errors
    ///
    /// No process has what it names; no process is in both recordings.
    pub fn judge(&self, condition: &Condition) -> Result<Vec<Verdict>, BadCondition> {
        let (mut verdicts, mut refused) = (Vec::new(), None);
        for pair in &self.pairs {
            match condition.judge(&pair.comparison) {
                Ok(verdict) => verdicts.push(Verdict {
                    reason: format!("process {}: {}", label(pair), verdict.reason),
                    ..verdict
                }),
                Err(error) => refused = Some(error),
            }
        }
        match (verdicts.is_empty(), refused) {
            (false, _) => Ok(verdicts),
            (true, Some(error)) => Err(error),
            (true, None) => Err(BadCondition::new("no process is in both recordings")),
        }
    }

    /// Writes the comparison as text.
    pub fn write_text(
        &self,
        verdicts: &[Verdict],
        style: Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for line in self.lines() {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        write_sheet(&self.sheet(ROWS_MAX), out)?;
        writeln!(out)?;
        for line in wrap(text::NOTE, style.width.clamp(40, 120)) {
            writeln!(out, "{line}")?;
        }
        for verdict in verdicts {
            writeln!(out, "{}", text::verdict_line(verdict))?;
        }
        Ok(())
    }

    /// Writes the comparison as one JSON document and a newline.
    pub fn write_json(&self, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Document<'a> {
            comparison_schema: u32,
            processes: Vec<PairView<'a>>,
            only_before: &'a [ProcessRow],
            only_after: &'a [ProcessRow],
            conditions: Vec<json::ConditionView<'a>>,
        }
        #[derive(Serialize)]
        struct PairView<'a> {
            command: &'a str,
            before: &'a ProcessRow,
            after: &'a ProcessRow,
            comparison: json::Document<'a>,
        }
        let pairs = self.pairs.iter().map(|pair| PairView {
            command: &pair.before.command,
            before: &pair.before,
            after: &pair.after,
            comparison: json::document(&pair.comparison, &[]),
        });
        let document = Document {
            comparison_schema: json::SCHEMA,
            processes: pairs.collect(),
            only_before: &self.only_before,
            only_after: &self.only_after,
            conditions: json::conditions(verdicts),
        };
        serde_json::to_writer(&mut *out, &document)?;
        out.write_all(b"\n")
    }

    /// Writes the comparison as one self-contained page.
    pub fn write_html(&self, verdicts: &[Verdict], out: &mut dyn Write) -> io::Result<()> {
        let first = self.pairs.first();
        let command = first.map(|pair| words::printable(&pair.after.command));
        let verdicts = verdicts.iter().map(text::verdict_line);
        let lines = self.lines().into_iter().chain(verdicts);
        let mut tables = html_table(&self.sheet(ROWS_OF_PAGE_MAX));
        for pair in self.pairs.iter().take(ROWS_MAX) {
            for mut sheet in text::sheets(&pair.comparison, ROWS_MAX) {
                sheet.title = format!("Process {}: {}", label(pair), sheet.title);
                tables += &html_table(&sheet);
            }
        }
        let lines = lines.collect::<Vec<_>>();
        html::write_page(&command.unwrap_or_default(), &lines, &tables, out)
    }

    /// What is said before the table.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} in both recordings, by command line and order",
            match self.pairs.len() {
                1 => "1 process is".into(),
                count => format!("{} processes are", words::count(count as u64)),
            }
        )];
        for (rows, which) in [(&self.only_before, "before"), (&self.only_after, "after")] {
            for row in rows.iter().take(ALONE_MAX) {
                lines.push(format!(
                    "only {which}: process {} {}, {}",
                    row.pid,
                    text::short(&row.command),
                    words::plural(row.page_writes, "page write")
                ));
            }
            if rows.len() > ALONE_MAX {
                let more = words::count((rows.len() - ALONE_MAX) as u64);
                lines.push(format!("only {which}: {more} more; --json lists all"));
            }
        }
        lines
    }

    fn sheet(&self, rows_max: usize) -> Sheet {
        let title = match self.pairs.len().saturating_sub(rows_max) {
            0 => "Pages by process".into(),
            _ => format!(
                "Pages by process: the {rows_max} that changed most of {}",
                self.pairs.len()
            ),
        };
        let rows = self.pairs.iter().take(rows_max);
        let rows = rows.map(|pair| text::row_of(label(pair), pair.comparison.total()));
        text::sheet(title, "process", rows.collect())
    }
}

/// Takes those with the same key, in the order in which they appeared, out of both lists.
fn partners(
    before: &TreeTrail,
    left_before: &mut Vec<ProcessRow>,
    after: &TreeTrail,
    left_after: &mut Vec<ProcessRow>,
    key: fn(&TreeTrail, &ProcessRow) -> Option<String>,
) -> Vec<(ProcessRow, ProcessRow)> {
    let mut by_key = HashMap::<String, VecDeque<ProcessRow>>::new();
    for row in std::mem::take(left_after) {
        match key(after, &row) {
            Some(key) => by_key.entry(key).or_default().push_back(row),
            None => left_after.push(row),
        }
    }
    let mut found = Vec::new();
    for row in std::mem::take(left_before) {
        let same = key(before, &row).and_then(|key| by_key.get_mut(&key)?.pop_front());
        match same {
            Some(same) => found.push((row, same)),
            None => left_before.push(row),
        }
    }
    left_after.extend(by_key.into_values().flatten());
    found
}

fn trail_of<'a>(tree: &'a TreeTrail, row: &ProcessRow) -> Option<&'a Trail> {
    let process = tree.processes.get(row.number as usize);
    process.map(|process| &process.trail)
}

fn whole_command(_: &TreeTrail, row: &ProcessRow) -> Option<String> {
    Some(row.command.clone())
}

/// The beginning of a title, which a process has written in the place of its command line: one word
/// that has blanks. Servers say at its end what they do just now (`postgres: user database host
/// COMMIT`).
fn title(tree: &TreeTrail, row: &ProcessRow) -> Option<String> {
    let [title] = &trail_of(tree, row)?.header.command[..] else {
        return None;
    };
    let mut words = title.split_whitespace();
    let beginning: Vec<&str> = words.by_ref().take(TITLE_WORDS).collect();
    (beginning.len() == TITLE_WORDS).then(|| beginning.join(" "))
}

/// A pair in a table: both PIDs and the command line.
fn label(pair: &ProcessPair) -> String {
    let (before, after) = (pair.before.pid, pair.after.pid);
    format!("{before}, {after} {}", text::short(&pair.before.command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use pagetrail_trail::ProcessTrail;

    fn process(pid: u32, command: &str, trail: Trail) -> ProcessTrail {
        let mut trail = trail;
        trail.header.pid = pid;
        trail.header.command = vec![command.into()];
        ProcessTrail {
            trail,
            ..ProcessTrail::default()
        }
    }

    fn tree(processes: Vec<ProcessTrail>) -> TreeTrail {
        TreeTrail {
            processes,
            short_lives: 0,
        }
    }

    /// The made-up program, with every other round only.
    fn less() -> Trail {
        let mut trail = testing::program(40);
        for round in trail.rounds.iter_mut().step_by(2) {
            round.written = Default::default();
        }
        trail
    }

    fn compared() -> TreeComparison {
        let whole = || testing::program(40);
        let before = tree(vec![
            process(1, "/usr/bin/master", whole()),
            process(2, "worker", whole()),
            process(3, "worker", less()),
            process(4, "helper", whole()),
            process(
                5,
                "brief",
                Trail {
                    rounds: Vec::new(),
                    ..whole()
                },
            ),
        ]);
        let after = tree(vec![
            process(11, "/usr/bin/master", whole()),
            process(12, "worker", whole()),
            process(13, "worker", whole()),
            process(14, "worker", whole()),
            process(15, "brief", whole()),
        ]);
        TreeComparison::of(&before, &after).expect("comparable")
    }

    #[test]
    fn processes_are_the_same_by_command_line_and_order() {
        let compared = compared();
        let pids = |pair: &ProcessPair| (pair.before.pid, pair.after.pid);
        let mut pairs: Vec<_> = compared.pairs.iter().map(pids).collect();
        // The one that changed comes first.
        assert_eq!(pairs[0], (3, 13));
        pairs.sort_unstable();
        assert_eq!(pairs, [(1, 11), (2, 12), (3, 13)]);
        let alone = |rows: &[ProcessRow]| rows.iter().map(|row| row.pid).collect::<Vec<_>>();
        assert_eq!(alone(&compared.only_before), [4, 5]);
        assert_eq!(alone(&compared.only_after), [14, 15]);
    }

    /// As those of PostgreSQL, which say at the end what a process does just now.
    #[test]
    fn titles_are_the_same_by_their_beginning() {
        let whole = || testing::program(10);
        let before = tree(vec![
            process(1, "postgres: user base [local] COMMIT", whole()),
            process(2, "postgres: user base [local] UPDATE waiting", whole()),
            process(3, "postgres: walwriter", whole()),
        ]);
        let after = tree(vec![
            process(11, "postgres: walwriter", whole()),
            process(12, "postgres: user base [local] idle", whole()),
            process(13, "postgres: user base [local] COMMIT", whole()),
            process(14, "postgres: other base [local] idle", whole()),
        ]);
        let compared = TreeComparison::of(&before, &after).expect("comparable");
        let pids = |pair: &ProcessPair| (pair.before.pid, pair.after.pid);
        let mut pairs: Vec<_> = compared.pairs.iter().map(pids).collect();
        pairs.sort_unstable();
        assert_eq!(pairs, [(1, 13), (2, 12), (3, 11)]);
        assert_eq!(compared.only_after[0].pid, 14);
        assert!(compared.only_before.is_empty());
    }

    #[test]
    fn conditions_are_judged_for_each_process() {
        let mut compared = compared();
        let judge = |compared: &TreeComparison, text: &str| -> Result<Vec<bool>, BadCondition> {
            let verdicts = compared.judge(&text.parse()?)?;
            Ok(verdicts.iter().map(|verdict| verdict.holds).collect())
        };
        assert_eq!(
            judge(&compared, "written>1.1x"),
            Ok(vec![true, false, false])
        );
        assert_eq!(judge(&compared, "written>10x"), Ok(vec![false; 3]));
        assert_eq!(
            judge(&compared, "written:[heap]>1.1x").map(|all| all.len()),
            Ok(3)
        );
        assert!(judge(&compared, "written:absent>1x").is_err());
        compared.retain("master");
        assert_eq!(judge(&compared, "written>1.1x"), Ok(vec![false]));
        compared.retain("4");
        assert!(judge(&compared, "written>1.1x").is_err());
    }

    #[test]
    fn each_form_has_all_processes() {
        let compared = compared();
        let condition: Condition = "written>1.1x".parse().expect("it is one");
        let verdicts = compared.judge(&condition).expect("it is judged");
        let style = Style {
            width: 100,
            colour: false,
        };
        let mut out = Vec::new();
        compared
            .write_text(&verdicts, style, &mut out)
            .expect("a Vec takes all");
        let text = String::from_utf8(out).expect("UTF-8");
        for part in [
            "3 processes are in both recordings",
            "only before: process 4 helper",
            "only after: process 14 worker",
            "3, 13 worker",
            "FAIL: written>1.1x (process 3, 13 worker: ",
            "ok: written>1.1x (process 1, 11 /usr/bin/master: ",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let mut out = Vec::new();
        compared
            .write_json(&verdicts, &mut out)
            .expect("a Vec takes all");
        let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(document["processes"][0]["before"]["pid"], 3);
        assert_eq!(
            document["processes"][0]["comparison"]["total"]["name"],
            "all"
        );
        assert_eq!(document["conditions"][0]["fails"], true);
        let mut out = Vec::new();
        compared
            .write_html(&verdicts, &mut out)
            .expect("a Vec takes all");
        let page = String::from_utf8(out).expect("UTF-8");
        assert!(
            page.contains("Process 3, 13 worker: Pages written by mapping"),
            "{page}"
        );
    }
}
