//! A paper's tables beside the model's, for people and as JSON.

use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use pagetrail_model::reproduce::Table;
use pagetrail_model::reproduce::catalog::{Entry, Number, Paper};
use serde::Serialize;

use super::args::ReproduceArgs;
use crate::bench::table::{Sheet, write_sheet};

/// Differences up to here need no explanation.
const EXPLAINED_FROM: f64 = 0.1;

/// The document of `model reproduce --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) schema: u32,
    pub(crate) paper: &'static str,
    pub(crate) title: &'static str,
    pub(crate) tables: Vec<Reproduced>,
}

/// A table or figure.
#[derive(Debug, Serialize)]
pub(crate) struct Reproduced {
    /// "table 1", "figure 4".
    numbers: Vec<String>,
    name: &'static str,
    about: &'static str,
    rows: Vec<Row>,
    claims: Vec<Claim>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    paper: f64,
    model: f64,
    difference_percent: f64,
    why: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Claim {
    says: &'static str,
    holds: bool,
    numbers: String,
}

/// Reproduces what was asked for.
pub(crate) fn make(args: &ReproduceArgs) -> Result<Document> {
    let wanted = match (args.table, args.figure) {
        (Some(number), _) => Some(Number::Table(number)),
        (_, Some(number)) => Some(Number::Figure(number)),
        _ => None,
    };
    let paper = args.paper;
    let entries = paper.entries().iter();
    let entries: Vec<&Entry> = entries
        .filter(|entry| wanted.is_none_or(|wanted| entry.numbers.contains(&wanted)))
        .collect();
    if let (Some(wanted), []) = (wanted, entries.as_slice()) {
        bail!(
            "{wanted} of {} is not reproduced; there are {}",
            paper.name(),
            numbers(paper).join(", ")
        );
    }
    let tables = entries.into_iter().map(|entry| {
        let table = entry.make().context("the model cannot run it")?;
        Ok(reproduced(entry, table))
    });
    Ok(Document {
        schema: 1,
        paper: paper.name(),
        title: paper.title(),
        tables: tables.collect::<Result<_>>()?,
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
    let rows = table.rows.into_iter().map(|row| {
        let difference = row.difference();
        Row {
            what: row.what,
            unit: row.unit,
            paper: row.paper,
            model: row.ours,
            difference_percent: difference * 100.0,
            why: row.why.filter(|_| difference.abs() > EXPLAINED_FROM),
        }
    });
    let claims = table.claims.into_iter().map(|claim| Claim {
        says: claim.says,
        holds: claim.holds,
        numbers: claim.numbers,
    });
    Reproduced {
        numbers: entry.numbers.iter().map(Number::to_string).collect(),
        name: table.name,
        about: table.about,
        rows: rows.collect(),
        claims: claims.collect(),
    }
}

impl Document {
    /// Whether the model bears out all that the paper states.
    pub(crate) fn all_hold(&self) -> bool {
        let mut claims = self.tables.iter().flat_map(|table| &table.claims);
        claims.all(|claim| claim.holds)
    }
}

/// Writes the tables, the reasons below each.
pub(crate) fn write(document: &Document, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", document.title)?;
    for table in &document.tables {
        writeln!(
            out,
            "\n{}: {}",
            capital(&table.numbers.join(", ")),
            table.about
        )?;
        let mut reasons: Vec<&str> = Vec::new();
        let rows = table.rows.iter().map(|row| {
            let mark = row.why.map_or(String::new(), |why| {
                let known = reasons.iter().position(|&reason| reason == why);
                let number = known.unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                });
                format!("[{}]", number + 1)
            });
            vec![
                row.what.clone(),
                figure(row.paper),
                figure(row.model),
                row.unit.to_owned(),
                format!("{:+.1}%", row.difference_percent),
                mark,
            ]
        });
        let sheet = Sheet {
            title: String::new(),
            heads: ["", "paper", "model", "", "difference", ""]
                .map(String::from)
                .to_vec(),
            labels: 1,
            rows: rows.collect(),
            note: "",
        };
        if !sheet.rows.is_empty() {
            write_sheet(&sheet, out)?;
        }
        for (reason, number) in reasons.iter().zip(1..) {
            writeln!(out, "[{number}] {reason}")?;
        }
        for claim in &table.claims {
            let verdict = if claim.holds { "holds" } else { "FAILS" };
            writeln!(out, "{verdict}: {}: {}", claim.says, claim.numbers)?;
        }
    }
    Ok(())
}

/// Four digits that matter.
fn figure(x: f64) -> String {
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
