//! The papers' tables again: each value of the paper beside the model's.
//!
//! One file per paper, one function per table or figure. A [`Row`] whose values differ by more than
//! 10% says why in one line; a test holds us to that. What the papers only state in words is a
//! [`Claim`].

pub mod catalog;
pub mod flexible;
pub mod ooh;
pub mod ooh_programs;
pub mod xen;
pub mod xen_counts;

/// A value of a paper and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What the value is.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's.
    pub paper: f64,
    /// The model's.
    pub ours: f64,
    /// Why they differ, or where ours is not independent of the paper's.
    pub why: Option<&'static str>,
}

impl Row {
    fn new(what: impl Into<String>, unit: &'static str, paper: f64, ours: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            paper,
            ours,
            why: None,
        }
    }

    fn why(self, why: &'static str) -> Self {
        Self {
            why: Some(why),
            ..self
        }
    }

    /// How far ours is from the paper's: 0.1 is 10% more.
    pub fn difference(&self) -> f64 {
        self.ours / self.paper - 1.0
    }
}

/// A statement of a paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it says.
    pub says: &'static str,
    /// Whether the model's numbers bear it out.
    pub holds: bool,
    /// These numbers.
    pub numbers: String,
}

/// A table or figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its number in the paper.
    pub name: &'static str,
    /// What it shows, and how the model gets there.
    pub about: &'static str,
    /// Values.
    pub rows: Vec<Row>,
    /// Statements.
    pub claims: Vec<Claim>,
}

#[cfg(test)]
mod tests;
