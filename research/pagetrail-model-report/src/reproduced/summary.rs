//! What stands beside each table and figure of a paper, in a word or two for each number.

use std::collections::{BTreeMap, BTreeSet};

use super::{Document, Reproduced, Row, capital};

/// What stands beside one number of a paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Beside {
    /// How values, or the numbers that statements rest on, came about: "modelled", "input".
    pub(super) model: BTreeSet<&'static str>,
    /// Values that were measured on a real kernel, and how many of these on an emulated processor.
    pub(super) measured: usize,
    pub(super) emulated: usize,
    /// Why there is nothing.
    pub(super) absent: Option<&'static str>,
}

impl Beside {
    /// The model's part in words.
    pub(super) fn model_words(&self) -> String {
        match self.model.len() {
            0 => "-".to_owned(),
            _ => self.model.iter().copied().collect::<Vec<_>>().join(", "),
        }
    }

    /// What was measured, in words, or why nothing was.
    pub(super) fn measured_words(&self) -> String {
        let Self {
            measured, emulated, ..
        } = *self;
        match (measured - emulated, emulated) {
            (0, 0) => self.absent.unwrap_or("-").to_owned(),
            (real, 0) => format!("{real} values"),
            (0, emulated) => format!("{emulated} values, emulated"),
            (real, emulated) => format!("{real} values, and {emulated} emulated"),
        }
    }
}

/// Each number of the paper that the document has, in the document's order.
pub(super) fn of(document: &Document) -> Vec<(String, Beside)> {
    let mut order: Vec<&str> = Vec::new();
    let mut found: BTreeMap<&str, Beside> = BTreeMap::new();
    for table in &document.tables {
        for number in &table.numbers {
            if !order.contains(&number.as_str()) {
                order.push(number);
            }
            add(found.entry(number).or_default(), table, number);
        }
    }
    order.sort_by_key(|name| key(name));
    order
        .into_iter()
        .filter_map(|name| Some((capital(name), found.remove(name)?)))
        .collect()
}

/// Tables before figures, each by its number.
fn key(name: &str) -> (bool, u32) {
    let number = name.rsplit(' ').next();
    let number = number.and_then(|number| number.parse().ok());
    (name.starts_with("figure"), number.unwrap_or(0))
}

fn add(beside: &mut Beside, table: &Reproduced, number: &str) {
    let shared = table.numbers.len() > 1;
    let is_numbered = |row: &Row| table.numbers.iter().any(|other| is_of(row, other));
    // A table for several figures says of its rows which they are of, where that is not all.
    let split = shared && table.rows.iter().any(is_numbered);
    let rows: Vec<&Row> = table
        .rows
        .iter()
        .filter(|row| !split || is_of(row, number))
        .collect();
    for row in &rows {
        beside
            .model
            .extend(row.model.as_ref().map(|model| model.how));
        let origin = row.measured.as_ref().map(|measured| measured.origin());
        beside.measured += usize::from(origin.is_some());
        beside.emulated += usize::from(origin == Some("emulated"));
    }
    // Statements that were checked against measured values are counted with these.
    let statements = table.statements.iter().map(|statement| statement.how);
    if !split || !rows.is_empty() {
        beside
            .model
            .extend(statements.filter(|how| *how != "measured"));
    }
    if beside.absent.is_none() {
        beside.absent = table.absent;
    }
}

/// Whether a row says that it is of a figure: "7: memory write", "figure 8, baby".
fn is_of(row: &Row, name: &str) -> bool {
    let Some(number) = name.strip_prefix("figure ") else {
        return false;
    };
    let what = row.what.strip_prefix("figure ").unwrap_or(&row.what);
    let rest = what.strip_prefix(number);
    rest.is_some_and(|rest| rest.starts_with([':', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduced::testing;
    use pagetrail_model::reproduce::catalog::Paper;

    #[test]
    fn each_number_has_what_its_own_rows_have() {
        let document = testing::table(Paper::Ooh, 2);
        let found = of(&document);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "Table 2");
        assert_eq!(found[0].1.model_words(), "input");
        let document = testing::table(Paper::Xen, 1);
        let [(_, first)] = of(&document).try_into().unwrap();
        assert!(first.model.is_empty() && first.measured_words().contains("words"));
        let document = testing::figure(Paper::Ooh, 7);
        let found = of(&document);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Figure 7", "Figure 8", "Figure 9"]);
        let [seven, eight, nine] = [0, 1, 2].map(|i: usize| &found[i].1);
        // The model prints ratios of figure 8 alone.
        assert!(seven.model.is_empty() && nine.model.is_empty());
        assert_eq!(eight.model_words(), "modelled");
        for one in [seven, eight, nine] {
            assert!(one.measured >= one.emulated && one.emulated > 0);
        }
        assert!(eight.measured > seven.measured);
    }
}
