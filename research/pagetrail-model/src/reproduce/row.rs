//! [`Row`]: a value of a paper beside ours; [`Table`] and its [`Verdict`].

use super::claim::Claim;
use super::provenance::{Modelled, Number, Printed, Provenance};
use super::recording::{Origin, Pick, Recording};
use crate::cost::Metric;
use crate::technique::TechniqueKind;

/// A value of the model, and how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// In the row's unit.
    pub value: f64,
    /// How it came about.
    pub provenance: Provenance,
    /// Where it was recorded, unless the run made it just now.
    pub source: Option<Source>,
}

/// What a benchmark can say beside a row.
#[derive(Clone, Debug, PartialEq)]
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
    /// What a metric costs for all of a program's memory, or once, in milliseconds.
    Cost(Metric, u64),
    /// The share of the reverse mapping in what ring copy, pagemap walk and it take, in per cent.
    ReverseMappingShare(u64),
    /// The accuracy of formulas 1 and 2 in per cent: the tracker's time of a technique on a writer
    /// in another process, estimated from the steps of one in the own process.
    TrackerFormula(TechniqueKind, u64),
    /// The accuracy of formulas 3 and 4: the time of a tracked pass and its tracker, likewise.
    TrackedFormula(TechniqueKind, u64),
    /// A figure of a recording as it stands there.
    Figure(Pick),
}

/// Where a recorded value is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// How it came about there.
    pub origin: Origin,
    /// The machine, as far as the recording names it.
    pub machine: String,
    /// Its kernel.
    pub kernel: String,
    /// The day of the recording.
    pub date: String,
    /// What was run.
    pub command: String,
}

/// A value that was recorded, and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// In the row's unit.
    pub value: f64,
    /// Where it is from.
    pub source: Source,
}

/// A value of a paper and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What the value is.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's, or what follows from its numbers; `None` where it draws a chart without
    /// numbers.
    pub paper: Option<f64>,
    /// Ours; `None` where only a recording can say.
    pub model: Option<Value>,
    /// What was measured on a real kernel.
    pub measured: Option<Measurement>,
    /// What to look up in recordings for it.
    pub quantity: Option<Quantity>,
    /// What of a recorded value was chosen to agree with the paper's.
    fitted_on: Option<&'static str>,
    /// Why the values differ, or what to know of them.
    pub note: Option<&'static str>,
}

impl Row {
    fn new(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        model: Option<(f64, Provenance)>,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            paper: paper.into().map(|printed| printed.0),
            model: model.map(|(value, provenance)| Value {
                value,
                provenance,
                source: None,
            }),
            measured: None,
            quantity: None,
            fitted_on: None,
            note: None,
        }
    }

    /// A row whose value is an argument of the run.
    pub(super) fn input(what: impl Into<String>, unit: &'static str, paper: Printed) -> Self {
        Self::new(what, unit, paper, Some((paper.0, Provenance::Input)))
    }

    /// A row that can only agree with the paper, or disagree where the paper contradicts itself.
    pub(super) fn identity(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        ours: impl Number,
        because: &'static str,
    ) -> Self {
        let value = (ours.value(), Provenance::Identity(because));
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that a parameter of the model was chosen for.
    pub(super) fn fitted(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        ours: Modelled,
        on: &'static str,
    ) -> Self {
        let value = (ours.value(), Provenance::Fitted(on));
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that a run of the model filled.
    pub(super) fn modelled(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        ours: Modelled,
    ) -> Self {
        let value = (ours.value(), Provenance::Modelled);
        Self::new(what, unit, paper, Some(value))
    }

    /// A row that only a benchmark can fill.
    pub(super) fn to_measure(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        quantity: Quantity,
    ) -> Self {
        Self::new(what, unit, paper, None).measurable(quantity)
    }

    /// A row with a figure of a recording, as measured or as simulated as that is.
    pub(super) fn recorded(
        what: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<Printed>>,
        pick: Pick,
    ) -> Self {
        Self::to_measure(what, unit, paper, Quantity::Figure(pick))
    }

    /// A row with a figure of a recording that a price there was chosen for.
    pub(super) fn calibrated(
        what: impl Into<String>,
        unit: &'static str,
        paper: Printed,
        pick: Pick,
        on: &'static str,
    ) -> Self {
        Self {
            fitted_on: Some(on),
            ..Self::recorded(what, unit, paper, pick)
        }
    }

    /// A row of a paper that nothing of ours stands beside; its table says why.
    pub(super) fn paper_alone(what: impl Into<String>, unit: &'static str, paper: Printed) -> Self {
        Self::new(what, unit, paper, None)
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

    /// Shows a recorded value. What a simulator computed stands where the model's values do.
    fn fill(&mut self, found: Measurement) {
        if found.source.origin != Origin::Simulated {
            self.measured = Some(found);
            return;
        }
        let provenance = self
            .fitted_on
            .map_or(Provenance::Simulated, Provenance::Fitted);
        self.model = Some(Value {
            value: found.value,
            provenance,
            source: Some(found.source),
        });
    }

    /// How far `value` is from the paper's: 0.1 is 10 % more.
    pub fn difference(&self, value: f64) -> Option<f64> {
        let paper = self.paper.filter(|&paper| paper != 0.0)?;
        Some(value / paper - 1.0)
    }

    /// How far the model's value is from the paper's.
    pub fn model_difference(&self) -> Option<f64> {
        self.difference(self.model.as_ref()?.value)
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Its number in the paper.
    pub name: &'static str,
    /// What it shows, and how the model gets there.
    pub about: &'static str,
    /// Why nothing of ours stands beside the paper's values, where nothing does.
    pub absent: Option<&'static str>,
    /// Values.
    pub rows: Vec<Row>,
    /// Statements, those that fail among them.
    pub statements: Vec<Statement>,
    /// Statements about what is to be measured.
    pub claims: Vec<Claim>,
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
    /// Rows of charts, for which the paper prints no number.
    pub unprinted: usize,
    /// Values measured on a real kernel.
    pub measured: usize,
    /// Statements that could have failed.
    pub statements: usize,
    /// Statements that fail.
    pub failing: usize,
}

impl Table {
    /// Fills in what was recorded, and checks what the paper says of that; for once.
    pub fn measure(&mut self, recorded: impl Fn(&Quantity) -> Option<Measurement>) {
        for row in &mut self.rows {
            if let Some(found) = row.quantity.as_ref().and_then(&recorded) {
                row.fill(found);
            }
        }
        let claims = self.claims.iter();
        let checked = claims.filter_map(|claim| claim.statement(&self.rows));
        self.statements.extend(checked);
    }

    /// The recordings that its rows look up.
    pub fn recordings(&self) -> Vec<Recording> {
        let quantities = self.rows.iter().filter_map(|row| row.quantity.as_ref());
        let mut recordings: Vec<Recording> = quantities.flat_map(Quantity::recordings).collect();
        recordings.sort_unstable();
        recordings.dedup();
        recordings
    }

    /// Counts what agrees, and what could have disagreed.
    pub fn verdict(&self) -> Verdict {
        let count = |wanted: fn(&Row) -> bool| self.rows.iter().filter(|row| wanted(row)).count();
        let mut verdict = Verdict {
            measured: count(|row| row.measured.is_some()),
            unprinted: count(|row| row.paper.is_none()),
            failing: self.statements.iter().filter(|s| !s.holds).count(),
            statements: self
                .statements
                .iter()
                .filter(|s| s.provenance.is_independent())
                .count(),
            ..Verdict::default()
        };
        for row in &self.rows {
            let (Some(model), Some(difference)) = (&row.model, row.model_difference()) else {
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

impl Quantity {
    /// The memory of the program that it is about.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::OverheadOnTracked(_, bytes)
            | Self::OverheadOnTracker(_, bytes)
            | Self::Slowdown(_, bytes)
            | Self::UntrackedPass(bytes)
            | Self::Cost(_, bytes)
            | Self::ReverseMappingShare(bytes)
            | Self::TrackerFormula(_, bytes)
            | Self::TrackedFormula(_, bytes) => Some(*bytes),
            Self::Figure(_) => None,
        }
    }

    /// The recordings that can say it, the best first.
    pub fn recordings(&self) -> Vec<Recording> {
        match self {
            Self::Figure(pick) => vec![pick.recording],
            Self::ReverseMappingShare(_) => vec![Recording::Metrics],
            Self::Cost(..) => vec![Recording::Bench, Recording::Metrics, Recording::BenchGuest],
            Self::OverheadOnTracked(..)
            | Self::OverheadOnTracker(..)
            | Self::Slowdown(..)
            | Self::UntrackedPass(_)
            | Self::TrackerFormula(..)
            | Self::TrackedFormula(..) => vec![Recording::Bench, Recording::BenchGuest],
        }
    }
}
