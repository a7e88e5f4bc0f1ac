//! [`Condition`]: what a comparison must not show, as a short expression.
//!
//! ```text
//! condition = figure [ ":" name ] operator number [ "x" ]
//! figure    = "written" | "working-set"
//! operator  = ">" | ">=" | "<" | "<="
//! ```
//!
//! `written>1.1x` holds if the second recording has more than 1.1 times the pages written per
//! second of the first; `working-set:[heap]>2000` if the different pages that it writes in a second
//! in the mapping `[heap]` are more than 2000. A name is that of a mapping, in full or its file's
//! name, or of a function. It may hold operators: the last one counts.

use std::fmt;
use std::str::FromStr;

use super::measure::ratio;
use super::{Comparison, Line, Pair};
use crate::threshold::Threshold;
use crate::words;

/// A condition on a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    figure: Figure,
    name: Option<String>,
    threshold: Threshold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Written,
    WorkingSet,
}

/// Why an expression is no condition; one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCondition(String);

impl std::error::Error for BadCondition {}

impl fmt::Display for BadCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BadCondition {
    pub(super) fn new(what: &str) -> Self {
        Self(what.into())
    }
}

/// What became of a condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The condition as it was given.
    pub condition: String,
    /// Whether it holds, which is a failure.
    pub holds: bool,
    /// The figures that it was decided by, as one line.
    pub reason: String,
}

impl FromStr for Condition {
    type Err = BadCondition;

    fn from_str(text: &str) -> Result<Self, BadCondition> {
        let bad = |what: &str| {
            Err(BadCondition(format!(
                "{what}; a condition looks like written>1.1x or working-set:[heap]>2000"
            )))
        };
        let (left, threshold) = match Threshold::split(text) {
            Ok(parts) => parts,
            Err(what) => return bad(what),
        };
        let (figure, name) = match left.split_once(':') {
            Some((figure, name)) => (figure.trim(), Some(name.trim())),
            None => (left.trim(), None),
        };
        let figure = match figure {
            "written" => Figure::Written,
            "working-set" => Figure::WorkingSet,
            _ => return bad("it begins with neither written nor working-set"),
        };
        if name.is_some_and(str::is_empty) {
            return bad("it has no name after the colon");
        }
        Ok(Self {
            text: text.into(),
            figure,
            name: name.map(Into::into),
            threshold,
        })
    }
}

impl Condition {
    /// Decides whether the condition holds; an error if neither recording has what it names.
    pub fn judge(&self, comparison: &Comparison) -> Result<Verdict, BadCondition> {
        let line = match &self.name {
            None => comparison.total(),
            Some(name) => find(comparison, name)?,
        };
        let Pair { before, after } = match self.figure {
            Figure::Written => line.written,
            Figure::WorkingSet => line.working_set,
        };
        let value = match self.threshold.is_ratio {
            true => ratio(before.mean, after.mean),
            // Pages, per second for `written`.
            false => after.mean,
        };
        let holds = self.threshold.holds(value);
        let unit = match self.figure {
            Figure::Written => "pages/s",
            Figure::WorkingSet => "pages in a second",
        };
        Ok(Verdict {
            condition: self.text.clone(),
            holds,
            reason: format!(
                "{} before, {} {unit} after: {}",
                words::rate(before.mean),
                words::rate(after.mean),
                times(before.mean, after.mean)
            ),
        })
    }
}

/// How many times as much, as text.
pub(super) fn times(before: f64, after: f64) -> String {
    match ratio(before, after) {
        ratio if ratio.is_infinite() => "new".into(),
        ratio if ratio >= 99.5 => format!("{}x", words::rate(ratio)),
        ratio => format!("{ratio:.2}x"),
    }
}

/// The mapping or function of a name.
fn find<'a>(comparison: &'a Comparison, name: &str) -> Result<&'a Line, BadCondition> {
    let all = || comparison.mappings.iter().chain(&comparison.functions);
    if let Some(line) = all().find(|line| line.name == name) {
        return Ok(line);
    }
    let file = |line: &&Line| {
        line.name
            .rsplit_once('/')
            .is_some_and(|(_, file)| file == name)
    };
    let mut files = all().filter(file);
    match (files.next(), files.next()) {
        (Some(line), None) => Ok(line),
        (None, _) => Err(BadCondition(format!(
            "neither recording wrote in a mapping or by a function that is named {}",
            words::printable(name)
        ))),
        _ => Err(BadCondition(format!(
            "several files are named {}; give the whole path",
            words::printable(name)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar() {
        let parse = |text: &str| text.parse::<Condition>();
        let condition = parse("written>1.1x").expect("it is one");
        assert_eq!(
            (condition.threshold.number, condition.threshold.is_ratio),
            (1.1, true)
        );
        assert_eq!(condition.name, None);
        let condition = parse("working-set:[heap] <= 2000").expect("it is one");
        assert_eq!(
            (condition.threshold.number, condition.threshold.is_ratio),
            (2000.0, false)
        );
        assert_eq!(condition.name.as_deref(), Some("[heap]"));
        assert!(condition.threshold.holds(2000.0) && !condition.threshold.holds(2000.5));
        let condition = parse("written:std::vector<int>::push>2x").expect("it is one");
        assert_eq!(condition.name.as_deref(), Some("std::vector<int>::push"));
        for wrong in [
            "",
            ">",
            "written",
            "written>",
            "written>x",
            "written>1.1y",
            "written>1e3",
            "written>-1",
            "written>nan",
            "written>inf",
            "written>.",
            "writes>1x",
            "written:>1x",
            "written>>",
            "written=1x",
            "written>1xx",
            ":>1",
            "written>1.1.1x",
            "\u{1b}[2J>1",
        ] {
            let error = parse(wrong).expect_err(wrong);
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        assert!(parse(&"<".repeat(100_000)).is_err());
    }
}
