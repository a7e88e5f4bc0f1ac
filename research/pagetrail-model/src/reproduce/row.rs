//! [`Row`]: a value of a paper beside ours; [`Table`] and its [`Verdict`].

use super::provenance::{Modelled, Number, Printed, Provenance};
use crate::cost::Metric;
use crate::technique::TechniqueKind;

/// A value of the model, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// In the row's unit.
    pub value: f64,
    /// How it came about.
    pub provenance: Provenance,
}

/// What a benchmark on a real kernel can measure beside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantity {
    /// Time that a technique adds to a pass of Listing 1 over so many bytes, in per cent.
    OverheadOnTracked(TechniqueKind, u64),
    /// The tracker's time, in per cent of the untracked pass.
    OverheadOnTracker(TechniqueKind, u64),
    /// Time of a tracked pass over that of an untracked one.
    Slowdown(TechniqueKind, u64),
    /// An untracked pass of Listing 1 over memory that it has touched before, in milliseconds.
    UntrackedPass(u64),
    /// What a metric costs for all of a program's memory, in milliseconds.
    Cost(Metric, u64),
}

/// A value that was measured on a real kernel, and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// In the row's unit.
    pub value: f64,
    /// The machine, as far as the recording names it.
    pub machine: String,
    /// Its kernel.
    pub kernel: String,
    /// The day of the recording.
    pub date: String,
    /// What was run.
    pub command: String,
}

/// A value of a paper and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What the value is.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's, or what follows from its numbers where it prints none.
    pub paper: f64,
    /// Ours; `None` where only a measurement can say.
    pub model: Option<Value>,
    /// What was measured on a real kernel.
    pub measured: Option<Measurement>,
    /// What to measure for it.
    pub quantity: Option<Quantity>,
    /// Why the values differ, or what to know of them.
    pub note: Option<&'static str>,
}

impl Row {
    fn new(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        model: Option<Value>,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            paper: paper.0,
            model,
            measured: None,
            quantity: None,
            note: None,
        }
    }

    /// A row whose value is an argument of the run.
    pub(super) fn input(what: impl Into<String>, unit: &'static str, paper: Printed) -> Self {
        let value = Value {
            value: paper.0,
            provenance: Provenance::Input,
        };
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that can only agree with the paper, or disagree where the paper contradicts itself.
    pub(super) fn identity(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        ours: impl Number,
        because: &'static str,
    ) -> Self {
        let value = Value {
            value: ours.value(),
            provenance: Provenance::Identity(because),
        };
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that a parameter of the model was chosen for.
    pub(super) fn fitted(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        ours: Modelled,
        on: &'static str,
    ) -> Self {
        let value = Value {
            value: ours.value(),
            provenance: Provenance::Fitted(on),
        };
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that a run of the model filled.
    pub(super) fn modelled(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        ours: Modelled,
    ) -> Self {
        let value = Value {
            value: ours.value(),
            provenance: Provenance::Modelled,
        };
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that only a measurement can fill.
    pub(super) fn to_measure(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        quantity: Quantity,
    ) -> Self {
        Self::new(what, unit, paper, None).measurable(quantity)
    }

    pub(super) fn note(self, note: &'static str) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }

    pub(super) fn measurable(self, quantity: Quantity) -> Self {
        Self {
            quantity: Some(quantity),
            ..self
        }
    }

    /// How far `value` is from the paper's: 0.1 is 10 % more.
    pub fn difference(&self, value: f64) -> f64 {
        value / self.paper - 1.0
    }

    /// That of the model's value.
    pub fn model_difference(&self) -> Option<f64> {
        Some(self.difference(self.model?.value))
    }
}

/// A statement of a paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What it says.
    pub says: &'static str,
    /// Whether our numbers bear it out.
    pub holds: bool,
    /// These numbers.
    pub numbers: String,
    /// Whether it could have failed.
    pub provenance: Provenance,
}

impl Statement {
    /// A statement about what a run of the model did.
    pub(super) fn modelled(says: &'static str, holds: bool, numbers: String) -> Self {
        Self {
            says,
            holds,
            numbers,
            provenance: Provenance::Modelled,
        }
    }

    /// A statement that our numbers cannot contradict.
    pub(super) fn identity(
        says: &'static str,
        holds: bool,
        numbers: String,
        because: &'static str,
    ) -> Self {
        Self {
            provenance: Provenance::Identity(because),
            ..Self::modelled(says, holds, numbers)
        }
    }
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
    /// Statements, those that fail among them.
    pub statements: Vec<Statement>,
}

/// What a table comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Values of the model.
    pub values: usize,
    /// Rows that could have differed from the paper's.
    pub independent: usize,
    /// Independent rows that are within 10 % of the paper's.
    pub within_tenth: usize,
    /// The independent value that is furthest off, and how far: 0.1 is 10 % more.
    pub worst: Option<(String, f64)>,
    /// Values measured on a real kernel.
    pub measured: usize,
    /// Statements that could have failed.
    pub statements: usize,
    /// Statements that fail.
    pub failing: usize,
}

impl Table {
    /// Fills in what was measured.
    pub fn measure(&mut self, measured: impl Fn(Quantity) -> Option<Measurement>) {
        for row in &mut self.rows {
            row.measured = row.quantity.and_then(&measured);
        }
    }

    /// Counts what agrees, and what could have disagreed.
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict {
            measured: self
                .rows
                .iter()
                .filter(|row| row.measured.is_some())
                .count(),
            failing: self.statements.iter().filter(|s| !s.holds).count(),
            statements: self
                .statements
                .iter()
                .filter(|s| s.provenance.is_independent())
                .count(),
            ..Verdict::default()
        };
        for row in &self.rows {
            let (Some(model), Some(difference)) = (row.model, row.model_difference()) else {
                continue;
            };
            verdict.values += 1;
            if !model.provenance.is_independent() {
                continue;
            }
            verdict.independent += 1;
            verdict.within_tenth += usize::from(difference.abs() <= 0.1);
            let worst = verdict.worst.as_ref();
            if worst.is_none_or(|(_, worst)| difference.abs() > worst.abs()) {
                verdict.worst = Some((row.what.clone(), difference));
            }
        }
        verdict
    }
}
