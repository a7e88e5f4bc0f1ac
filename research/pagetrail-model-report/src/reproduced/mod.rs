//! A paper's tables beside the model's and what was measured, for people and as JSON.

mod chapter;
mod chart;
mod measure;
mod measured;
pub mod page;
mod summary;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use pagetrail_model::reproduce::catalog::{Entry, Number, Paper};
use pagetrail_model::reproduce::{self, Source, Table};
use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::size::Size;
use pagetrail_report::words;
use serde::Serialize;

use self::measured::Recordings;

pub use self::chapter::Chapter;

/// What of a paper is reproduced, and what stands beside it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The paper.
    pub paper: Paper,
    /// One table or figure; all where it is `None`.
    pub number: Option<Number>,
    /// Files of recordings, whose values come before those that this crate has; of several that
    /// have a value, the first gives it.
    pub recordings: Vec<PathBuf>,
    /// Whether to measure now what this machine can, and which sizes, of those that the paper has;
    /// all where that is empty.
    pub measure: Option<Vec<Size>>,
}

/// Receives reports of how reproducing gets on.
pub trait Listener {
    /// What is done next.
    fn step(&mut self, step: &str);
    /// A line about something that was left out, and why.
    fn notice(&mut self, line: &str);
}

/// The document of `model reproduce --json`.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The version of its fields.
    pub schema: u32,
    /// The paper's short name.
    pub paper: &'static str,
    /// The paper's title.
    pub title: &'static str,
    /// Its tables and figures, in order.
    pub tables: Vec<Reproduced>,
}

/// A table or figure.
#[derive(Debug, Serialize)]
pub struct Reproduced {
    /// "table 1", "figure 4".
    numbers: Vec<String>,
    name: &'static str,
    about: &'static str,
    /// Why nothing of ours stands beside the paper's values, where nothing does.
    absent: Option<&'static str>,
    verdict: Verdict,
    rows: Vec<Row>,
    statements: Vec<Statement>,
}

#[derive(Debug, Serialize)]
struct Verdict {
    values: usize,
    independent: usize,
    within_10_percent: usize,
    worst: Option<Worst>,
    /// Values of charts, for which the paper prints no number.
    unprinted: usize,
    measured: usize,
    statements: usize,
    failing: usize,
}

#[derive(Debug, Serialize)]
struct Worst {
    what: String,
    difference_percent: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) what: String,
    pub(super) unit: &'static str,
    pub(super) paper: Option<f64>,
    pub(super) model: Option<Modelled>,
    pub(super) measured: Option<Measured>,
    note: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct Modelled {
    pub(super) value: f64,
    difference_percent: Option<f64>,
    how: &'static str,
    because: Option<&'static str>,
    /// Where it was recorded, unless it was made just now.
    recorded: Option<Recorded>,
}

#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) value: f64,
    difference_percent: Option<f64>,
    #[serde(flatten)]
    recorded: Recorded,
}

/// Where a recorded value is from.
#[derive(Debug, Serialize)]
struct Recorded {
    /// "measured", "emulated" or "simulated".
    origin: &'static str,
    machine: String,
    kernel: String,
    date: String,
    command: String,
}

#[derive(Debug, Serialize)]
struct Statement {
    says: &'static str,
    holds: bool,
    numbers: String,
    how: &'static str,
    because: Option<&'static str>,
}

/// The paper's entries that `number` names, or all.
fn entries(paper: Paper, number: Option<Number>) -> Result<Vec<&'static Entry>> {
    let entries = paper.entries().iter();
    let entries: Vec<&Entry> = entries
        .filter(|entry| number.is_none_or(|number| entry.numbers.contains(&number)))
        .collect();
    if let (Some(number), []) = (number, entries.as_slice()) {
        bail!(
            "{number} of {} is not reproduced; there are {}",
            paper.name(),
            numbers(paper).join(", ")
        );
    }
    Ok(entries)
}

/// Reproduces what was asked for. Fails where the paper has no such table, a file is no recording,
/// or measuring fails.
pub fn make(request: &Request, listener: &mut dyn Listener) -> Result<Document> {
    let paper = request.paper;
    let entries = entries(paper, request.number)?;
    // Before a minute of running, not after.
    let mut recordings = Recordings::read(&request.recordings)?;
    let mut tables: Vec<(&Entry, Table)> = Vec::new();
    for entry in entries {
        let names: Vec<String> = entry.numbers.iter().map(Number::to_string).collect();
        listener.step(&format!("{}, {}", paper.name(), names.join(", ")));
        tables.push((entry, entry.make().context("the model cannot run it")?));
    }
    if let Some(sizes) = &request.measure {
        let made: Vec<&Table> = tables.iter().map(|(_, table)| table).collect();
        recordings.measured_now(&measure::all(&made, sizes, listener)?)?;
    }
    let recordings = recordings.with_brought()?;
    let tables = tables.into_iter().map(|(entry, mut table)| {
        table.measure(|quantity| recordings.measurement(quantity));
        reproduced(entry, table)
    });
    Ok(Document {
        schema: 3,
        paper: paper.name(),
        title: paper.title(),
        tables: tables.collect(),
    })
}

fn numbers(paper: Paper) -> Vec<String> {
    let entries = paper.entries().iter();
    let mut names: Vec<String> = entries
        .flat_map(|entry| entry.numbers)
        .map(Number::to_string)
        .collect();
    names.dedup();
    names
}

fn reproduced(entry: &Entry, table: Table) -> Reproduced {
    let statements = table.statements.iter().map(|statement| Statement {
        says: statement.says,
        holds: statement.holds,
        numbers: statement.numbers.clone(),
        how: statement.provenance.name(),
        because: statement.provenance.because(),
    });
    Reproduced {
        numbers: entry.numbers.iter().map(Number::to_string).collect(),
        name: table.name,
        about: table.about,
        absent: table.absent,
        verdict: verdict(table.verdict()),
        statements: statements.collect(),
        rows: table.rows.into_iter().map(row).collect(),
    }
}

fn verdict(verdict: reproduce::Verdict) -> Verdict {
    Verdict {
        values: verdict.values,
        independent: verdict.independent,
        within_10_percent: verdict.within_tenth,
        worst: verdict.worst.map(|(what, difference)| Worst {
            what,
            difference_percent: difference * 100.0,
        }),
        unprinted: verdict.unprinted,
        measured: verdict.measured,
        statements: verdict.statements,
        failing: verdict.failing,
    }
}

fn row(row: reproduce::Row) -> Row {
    let percent = |value| Some(row.difference(value)? * 100.0);
    let model = row.model.as_ref().map(|model| Modelled {
        value: model.value,
        difference_percent: percent(model.value),
        how: model.provenance.name(),
        because: model.provenance.because(),
        recorded: model.source.as_ref().map(recorded),
    });
    let measured = row.measured.as_ref().map(|measured| Measured {
        value: measured.value,
        difference_percent: percent(measured.value),
        recorded: recorded(&measured.source),
    });
    Row {
        model,
        measured,
        what: row.what,
        unit: row.unit,
        paper: row.paper,
        note: row.note,
    }
}

fn recorded(source: &Source) -> Recorded {
    Recorded {
        origin: source.origin.name(),
        machine: source.machine.clone(),
        kernel: source.kernel.clone(),
        date: source.date.clone(),
        command: source.command.clone(),
    }
}

impl Document {
    /// Whether the model bears out all that the paper states.
    pub fn all_hold(&self) -> bool {
        let mut statements = self.tables.iter().flat_map(|table| &table.statements);
        statements.all(|statement| statement.holds)
    }
}

impl Reproduced {
    /// A heading: the numbers in the paper.
    pub(super) fn heading(&self) -> String {
        capital(&self.numbers.join(", "))
    }

    /// Its values.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What the table shows.
    pub(super) fn about(&self) -> &'static str {
        self.about
    }

    /// One line that says what the table comes to.
    pub(super) fn verdict(&self) -> String {
        let Verdict {
            values,
            independent,
            within_10_percent,
            ref worst,
            unprinted,
            measured,
            statements,
            failing,
        } = self.verdict;
        let mut parts = Vec::new();
        parts.extend(self.absent.map(|why| format!("not here: {why}")));
        match (values, independent) {
            (0, _) => {}
            (values, 0) => parts.push(format!(
                "none of the {values} values is independent of the paper's"
            )),
            _ => parts.push(format!(
                "{independent} of {values} values are independent of the paper's, \
                 {within_10_percent} of them within 10%"
            )),
        }
        if let Some(worst) = worst {
            let percent = worst.difference_percent;
            parts.push(format!("the worst is {percent:+.0}% ({})", worst.what));
        }
        let all = self.statements.len();
        if all > 0 {
            let certain = match all - statements {
                0 => String::new(),
                n => format!(" ({n} could not come out otherwise)"),
            };
            let of = words::plural(all as u64, "statement");
            parts.push(format!("of {of} {failing} failed{certain}"));
        }
        if measured > 0 {
            parts.push(format!(
                "{} measured",
                words::plural(measured as u64, "value")
            ));
        }
        if unprinted > 0 {
            parts.push(format!(
                "{} of a chart have no number in the paper",
                words::plural(unprinted as u64, "row")
            ));
        }
        if parts.is_empty() {
            parts.push("nothing was recorded for it yet".to_owned());
        }
        parts.join("; ")
    }

    /// The values as a table, and the notes that its last column numbers.
    pub(super) fn sheet(&self) -> Option<(Sheet, Vec<String>)> {
        if self.rows.is_empty() {
            return None;
        }
        let has_measured = self.rows.iter().any(|row| row.measured.is_some());
        let mut heads = vec!["", "paper", "model", "", "difference", "how"];
        if has_measured {
            heads.extend(["measured", "difference"]);
        }
        heads.push("");
        let mut notes: Vec<String> = Vec::new();
        let rows = self.rows.iter().map(|row| {
            let model = row.model.as_ref();
            let percent =
                |percent: Option<f64>| percent.map_or(String::new(), |p| format!("{p:+.1}%"));
            let mut cells = vec![
                row.what.clone(),
                row.paper.map_or("-".into(), figure),
                model.map_or("-".into(), |model| figure(model.value)),
                row.unit.to_owned(),
                model.map_or(String::new(), |model| percent(model.difference_percent)),
                row.how().to_owned(),
            ];
            if has_measured {
                let measured = row.measured.as_ref();
                cells.push(measured.map_or("-".into(), |measured| figure(measured.value)));
                cells.push(measured.map_or(String::new(), |measured| {
                    percent(measured.difference_percent)
                }));
            }
            let measured = row.measured.as_ref().map(|measured| &measured.recorded);
            let simulated = model.and_then(|model| model.recorded.as_ref());
            let source = measured.or(simulated).map(Recorded::source);
            let because = model.and_then(|model| model.because).map(String::from);
            let said = [because, row.note.map(String::from), source];
            let marks = said
                .into_iter()
                .flatten()
                .map(|note| mark(&mut notes, note));
            cells.push(marks.collect());
            cells
        });
        let sheet = Sheet {
            title: String::new(),
            rows: rows.collect(),
            heads: heads.into_iter().map(String::from).collect(),
            labels: 1,
            note: "",
        };
        Some((sheet, notes))
    }

    /// The paper's statements, one line each.
    pub(super) fn statements(&self) -> impl Iterator<Item = String> {
        self.statements.iter().map(|statement| {
            let verdict = match (statement.holds, statement.because) {
                (true, None) => "holds".to_owned(),
                (true, Some(why)) => format!("holds, as it must ({why})"),
                (false, None) => "FAILS".to_owned(),
                (false, Some(why)) => format!("FAILS ({why})"),
            };
            format!("{verdict}: {}: {}", statement.says, statement.numbers)
        })
    }
}

impl Row {
    /// How the value in the model's column came about, or why there is none.
    fn how(&self) -> &'static str {
        match (&self.model, &self.measured) {
            (Some(model), _) => model.how,
            (None, Some(measured)) => measured.recorded.origin,
            (None, None) => "none",
        }
    }
}

impl Modelled {
    /// How it came about.
    pub(super) fn how(&self) -> &'static str {
        self.how
    }

    /// Why it is not independent of the paper's value, where it is not.
    pub(super) fn because(&self) -> Option<&'static str> {
        self.because
    }
}

impl Measured {
    /// "measured" or "emulated".
    pub(super) fn origin(&self) -> &'static str {
        self.recorded.origin
    }
}

impl Recorded {
    fn source(&self) -> String {
        let Self {
            origin,
            machine,
            kernel,
            date,
            command,
        } = self;
        format!("{origin}: {command}; machine {machine}, {kernel}, date {date}")
    }
}

/// The number of a note, which is added where it is new.
fn mark(notes: &mut Vec<String>, note: String) -> String {
    let known = notes.iter().position(|known| *known == note);
    let number = known.unwrap_or_else(|| {
        notes.push(note);
        notes.len() - 1
    });
    format!("[{}]", number + 1)
}

/// Writes the tables, with the notes below each.
pub fn write(document: &Document, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", document.title)?;
    for (number, beside) in summary::of(document) {
        let [model, measured] = [beside.model_words(), beside.measured_words()];
        writeln!(out, "  {number}: model: {model}; measured: {measured}")?;
    }
    for table in &document.tables {
        writeln!(out, "\n{}: {}", table.heading(), table.about)?;
        writeln!(out, "Verdict: {}.", table.verdict())?;
        if let Some((sheet, notes)) = table.sheet() {
            write_sheet(&sheet, out)?;
            for (note, number) in notes.iter().zip(1..) {
                writeln!(out, "[{number}] {note}")?;
            }
        }
        for statement in table.statements() {
            writeln!(out, "{statement}")?;
        }
    }
    writeln!(out, "\n{LEGEND}")
}

/// What the words of the column "how" mean.
pub(super) const LEGEND: &str = "How a value came about. input: the run is given it. identity: it cannot differ, or is \
arithmetic on the paper's own numbers. fitted: a parameter was chosen to make it agree. modelled: the algorithm ran on a \
machine in software. simulated: a simulator computed it from prices that the paper prints. measured: on a real kernel, as \
the note says. emulated: on a real kernel in a guest with an emulated processor, whose counts are exact and of whose times \
only the order means something.";

/// Four digits that matter.
pub(super) fn figure(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.1 => format!("{x:.3}"),
        _ => format!("{x:.5}"),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A listener that does nothing.
    struct Silent;

    impl Listener for Silent {
        fn step(&mut self, _: &str) {}
        fn notice(&mut self, _: &str) {}
    }

    /// A table of a paper, beside the recordings that the crate has.
    pub(crate) fn table(paper: Paper, number: u8) -> Document {
        of(paper, Number::Table(number))
    }

    /// A figure of a paper, likewise.
    pub(crate) fn figure(paper: Paper, number: u8) -> Document {
        of(paper, Number::Figure(number))
    }

    fn of(paper: Paper, number: Number) -> Document {
        let request = Request {
            paper,
            number: Some(number),
            recordings: Vec::new(),
            measure: None,
        };
        make(&request, &mut Silent).expect("the table is reproduced")
    }
}
