//! The table *technique x {works, fails, not here because ...}* from the rows that tests leave.
//!
//! A test appends one JSON object per line to a file of its own in the directory that
//! `PAGETRAIL_ROWS` names: `{"where":"this machine","subject":"own
//! ranges","technique":"..","status":"works","reason":".."}` with status `works`, `fails` or
//! `absent`, and a reason where it is not `works`. Where it is and there is one all the same, the
//! table shows it instead of the word: for `auto`, the technique that was chosen.
//!
//! A test that ends early leaves a row of another kind: `pagetrail-skips` writes it. A place that
//! cannot be visited has one row, [`unvisited`]; it stands for all that is known elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What a test found out. Where two tests disagree on one cell, the graver one counts: the order
/// of the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    Works,
    Absent,
    Fails,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    status: Status,
    reason: String,
}

/// One line of the table per place and subject, one column per technique.
#[derive(Debug, Default)]
pub struct Table {
    /// In the order in which they were first seen.
    lines: Vec<(String, String)>,
    techniques: Vec<String>,
    cells: BTreeMap<(usize, usize), Cell>,
    /// Tests that ended early, by place and name, and why.
    skipped: BTreeMap<(String, String), String>,
    /// Places that could not be visited, and why.
    unvisited: Vec<(String, String)>,
}

/// The row of a place that could not be visited, with a line break.
pub fn unvisited(place: &str, reason: &str) -> String {
    let row = serde_json::json!({ "where": place, "unvisited": reason });
    format!("{row}\n")
}

impl Table {
    /// Reads every file in `dir`, in the order of their names.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            files.push(entry?.path());
        }
        files.sort();
        let mut table = Self::default();
        for file in files {
            let text = fs::read_to_string(&file)?;
            for (number, line) in text.lines().enumerate() {
                table
                    .add(line)
                    .with_context(|| format!("{}:{}", file.display(), number + 1))?;
            }
        }
        table.fill_unvisited();
        Ok(table)
    }

    /// Adds one row, as a test wrote it.
    fn add(&mut self, row: &str) -> Result<()> {
        let row: Value = serde_json::from_str(row)?;
        let field = |key: &str| row[key].as_str().with_context(|| format!("no \"{key}\""));
        if row.get("skipped").is_some() {
            let test = (field("where")?.to_owned(), field("skipped")?.to_owned());
            self.skipped.insert(test, field("reason")?.to_owned());
            return Ok(());
        }
        if row.get("unvisited").is_some() {
            let place = (field("where")?.to_owned(), field("unvisited")?.to_owned());
            self.unvisited.push(place);
            return Ok(());
        }
        let status = match field("status")? {
            "works" => Status::Works,
            "absent" => Status::Absent,
            "fails" => Status::Fails,
            other => bail!("unknown status \"{other}\""),
        };
        let reason = match status {
            Status::Works => row["reason"].as_str().unwrap_or_default(),
            Status::Absent | Status::Fails => field("reason")?,
        };
        let line = (field("where")?.to_owned(), field("subject")?.to_owned());
        let line = position(&mut self.lines, line);
        let technique = position(&mut self.techniques, field("technique")?.to_owned());
        let cell = Cell {
            status,
            reason: reason.to_owned(),
        };
        let old = self.cells.get(&(line, technique));
        if old.is_none_or(|old| old.status < cell.status) {
            self.cells.insert((line, technique), cell);
        }
        Ok(())
    }

    /// Says, for each place that could not be visited, that nothing of what is known elsewhere is
    /// there.
    fn fill_unvisited(&mut self) {
        let known: Vec<(String, usize)> = self
            .cells
            .keys()
            .map(|&(line, technique)| (self.lines[line].1.clone(), technique))
            .collect();
        for (place, reason) in std::mem::take(&mut self.unvisited) {
            for (subject, technique) in &known {
                let line = position(&mut self.lines, (place.clone(), subject.clone()));
                let cell = self.cells.entry((line, *technique));
                cell.or_insert_with(|| Cell {
                    status: Status::Absent,
                    reason: reason.clone(),
                });
            }
        }
    }

    /// True if some technique failed somewhere.
    pub fn any_fails(&self) -> bool {
        self.cells.values().any(|cell| cell.status == Status::Fails)
    }

    /// How many tests ended early, which their harness has counted as passed.
    pub fn skipped(&self) -> u64 {
        self.skipped.len() as u64
    }

    /// The tests that ended early, with the reasons, a line each.
    pub fn render_skipped(&self) -> String {
        let lines = self
            .skipped
            .iter()
            .map(|((place, test), reason)| match place.as_str() {
                "this machine" => format!("skipped: {test}: {reason}\n"),
                place => format!("skipped in the {place}: {test}: {reason}\n"),
            });
        lines.collect()
    }

    /// The table as text, with its reasons below it.
    pub fn render(&self) -> String {
        if self.cells.is_empty() {
            return "no test has left a row\n".to_owned();
        }
        let mut reasons = Vec::new();
        let mut rows = vec![vec!["where".to_owned(), "subject".to_owned()]];
        rows[0].extend(self.techniques.iter().cloned());
        for (line, (place, subject)) in self.lines.iter().enumerate() {
            let mut row = vec![place.clone(), subject.clone()];
            for technique in 0..self.techniques.len() {
                row.push(match self.cells.get(&(line, technique)) {
                    Some(cell) => cell_text(cell, &mut reasons),
                    None => "-".to_owned(),
                });
            }
            rows.push(row);
        }
        let mut text = align(&rows);
        for (number, reason) in reasons.iter().enumerate() {
            text += &format!("[{}] {reason}\n", number + 1);
        }
        text
    }
}

fn cell_text(cell: &Cell, reasons: &mut Vec<String>) -> String {
    let word = match cell.status {
        Status::Works if cell.reason.is_empty() => return "works".to_owned(),
        Status::Works => return cell.reason.clone(),
        Status::Absent => "not here",
        Status::Fails => "FAILS",
    };
    let reason = position(reasons, cell.reason.clone());
    format!("{word} [{}]", reason + 1)
}

/// Where `item` is in `list`; it is appended if it is not there yet.
fn position<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    match list.iter().position(|other| *other == item) {
        Some(position) => position,
        None => {
            list.push(item);
            list.len() - 1
        }
    }
}

/// Columns as wide as their widest text, two blanks between them.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let texts = rows.iter().filter_map(|row| row.get(column));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(place: &str, technique: &str, status: &str, reason: &str) -> String {
        serde_json::json!({
            "where": place, "subject": "own ranges", "technique": technique,
            "status": status, "reason": reason,
        })
        .to_string()
    }

    #[test]
    fn merges_files_into_one_table() {
        let dir = tempfile::tempdir().unwrap();
        let host = [
            row("this machine", "pagemap-scan", "works", ""),
            row(
                "this machine",
                "soft-dirty",
                "absent",
                "the bit is never set",
            ),
        ];
        let guest = [
            row(
                "Linux 6.1 guest",
                "pagemap-scan",
                "absent",
                "needs Linux 6.7",
            ),
            row(
                "Linux 6.1 guest",
                "soft-dirty",
                "fails",
                "page 7 is missing",
            ),
            row("Linux 6.1 guest", "mprotect", "works", ""),
        ];
        fs::write(dir.path().join("a"), host.join("\n")).unwrap();
        fs::write(dir.path().join("b"), guest.join("\n") + "\n").unwrap();
        let table = Table::read(dir.path()).unwrap();
        assert!(table.any_fails());
        let expected = "\
where            subject     pagemap-scan  soft-dirty    mprotect
this machine     own ranges  works         not here [1]  -
Linux 6.1 guest  own ranges  not here [2]  FAILS [3]     works
[1] the bit is never set
[2] needs Linux 6.7
[3] page 7 is missing
";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn tests_that_end_early_are_counted_once() {
        let mut table = Table::default();
        for (place, reason) in [
            ("this machine", "no KVM"),
            ("this machine", "no KVM"),
            ("Linux 6.1 guest", "no cc"),
        ] {
            let row = serde_json::json!({"where": place, "skipped": "vm, forks", "reason": reason});
            table.add(&row.to_string()).unwrap();
        }
        assert_eq!(table.skipped(), 2);
        let expected = "\
skipped in the Linux 6.1 guest: vm, forks: no cc
skipped: vm, forks: no KVM
";
        assert_eq!(table.render_skipped(), expected);
        assert!(!table.any_fails());
    }

    #[test]
    fn what_works_may_say_how() {
        let mut table = Table::default();
        table
            .add(&row("here", "auto", "works", "pagemap-scan"))
            .unwrap();
        assert!(table.render().contains("own ranges  pagemap-scan"));
    }

    #[test]
    fn the_graver_status_counts() {
        for statuses in [["works", "fails"], ["fails", "works"]] {
            let mut table = Table::default();
            for status in statuses {
                table.add(&row("here", "compare", status, "why")).unwrap();
            }
            assert!(table.any_fails());
        }
    }

    #[test]
    fn a_place_that_cannot_be_visited_has_a_line_too() {
        let mut table = Table::default();
        table
            .add(&row("this machine", "compare", "works", ""))
            .unwrap();
        let row = unvisited("Linux 6.1 guest", "no QEMU");
        table.add(row.trim_end()).unwrap();
        table.fill_unvisited();
        assert!(
            table
                .render()
                .contains("Linux 6.1 guest  own ranges  not here [1]\n[1] no QEMU")
        );
    }

    #[test]
    fn refuses_what_is_no_row() {
        let mut table = Table::default();
        assert!(table.add("").is_err());
        assert!(table.add("{}").is_err());
        assert!(table.add(&row("here", "compare", "perhaps", "")).is_err());
        assert_eq!(table.render(), "no test has left a row\n");
    }
}
