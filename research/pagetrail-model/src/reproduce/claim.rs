//! [`Claim`]: a statement of a paper about values that only recordings have. It becomes a
//! [`Statement`] once they are there.

use super::provenance::Provenance;
use super::row::{Row, Statement};

/// A statement that is checked against what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// What it says.
    pub says: &'static str,
    check: Check,
}

/// How the values of rows are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Check {
    /// No value of a row whose name has this is above the limit.
    AtMost(&'static str, f64),
    /// Of rows that differ in one word alone, the one with the first word has the smaller value.
    Less(&'static str, &'static str),
}

impl Claim {
    /// No measured value of a row whose name has `of` is above `limit`.
    pub(super) fn at_most(says: &'static str, of: &'static str, limit: f64) -> Self {
        let check = Check::AtMost(of, limit);
        Self { says, check }
    }

    /// A row whose name has `less` has a smaller value than the one that has `more` in its place.
    pub(super) fn less(says: &'static str, less: &'static str, more: &'static str) -> Self {
        let check = Check::Less(less, more);
        Self { says, check }
    }

    /// The statement, unless nothing was measured for it.
    pub(super) fn statement(&self, rows: &[Row]) -> Option<Statement> {
        let value = |row: &Row| Some(row.measured.as_ref()?.value);
        let (count, against): (usize, Vec<String>) = match self.check {
            Check::AtMost(of, limit) => {
                let measured = rows.iter().filter(|row| row.what.contains(of));
                let measured = measured.filter_map(|row| Some((row, value(row)?)));
                let measured: Vec<(&Row, f64)> = measured.collect();
                let above = measured.iter().filter(|(_, value)| *value > limit);
                let above = above.map(|(row, value)| format!("{} {value:.3}", row.what));
                (measured.len(), above.collect())
            }
            Check::Less(less, more) => {
                let first = rows.iter().filter(|row| row.what.contains(less));
                let pairs = first.filter_map(|row| {
                    let beside = row.what.replacen(less, more, 1);
                    let beside = rows.iter().find(|other| other.what == beside)?;
                    Some((row, value(row)?, value(beside)?))
                });
                let pairs: Vec<(&Row, f64, f64)> = pairs.collect();
                let against = pairs.iter().filter(|(_, less, more)| less >= more);
                let against =
                    against.map(|(row, less, more)| format!("{} {less:.3}, {more:.3}", row.what));
                (pairs.len(), against.collect())
            }
        };
        if count == 0 {
            return None;
        }
        let numbers = match against.len() {
            0 => format!("in all of {count} measured cases"),
            n => format!(
                "not in {n} of {count} measured cases: {}",
                against.join("; ")
            ),
        };
        Some(Statement {
            says: self.says,
            holds: against.is_empty(),
            numbers,
            provenance: Provenance::Measured,
        })
    }
}
