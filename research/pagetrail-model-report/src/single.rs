//! One run, for people and as JSON.

use std::io::{self, Write};

use pagetrail_model::Report;
use pagetrail_model::cost::CostTable;
use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::words;
use serde::Serialize;

use crate::outcome::{Counts, Outcome};

/// Rounds that are shown; JSON has them all.
const ROUNDS_SHOWN: usize = 12;

/// The document of `model run --json`.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// The version of its fields.
    pub schema: u32,
    /// The program, in words.
    pub program: String,
    /// The cost table's name.
    pub costs: &'a str,
    /// What the run came to.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl<'a> Document<'a> {
    /// The document of a run, priced.
    pub fn new(program: String, costs: &'a CostTable, report: &Report) -> Self {
        Self {
            schema: 1,
            program,
            costs: costs.name(),
            outcome: Outcome::of(report, costs),
        }
    }
}

/// Writes the tables.
pub fn write(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let outcome = &document.outcome;
    writeln!(out, "{} on {}", outcome.technique, document.program)?;
    if outcome.tracked {
        writeln!(out)?;
        write_sheet(&rounds(outcome), out)?;
        if outcome.rounds.len() > ROUNDS_SHOWN {
            let more = outcome.rounds.len() - ROUNDS_SHOWN;
            writeln!(out, "({more} more: see --json)")?;
        }
    } else {
        writeln!(
            out,
            "The program has no tracker: everything is counted and priced."
        )?;
    }
    writeln!(out)?;
    write_sheet(&bill(document), out)?;
    let sum = outcome.tracker_ns + outcome.tracked_ns;
    writeln!(
        out,
        "\ntracker {}, tracked program {}, together {}{}",
        words::time(outcome.tracker_ns),
        words::time(outcome.tracked_ns),
        match outcome.unpriced.is_empty() {
            true => "",
            false => "at least ",
        },
        words::time(sum)
    )?;
    if outcome.bill.iter().any(|line| line.assumed) {
        writeln!(
            out,
            "* assumed: put in the place of a cost that was not measured"
        )?;
    }
    if !outcome.unpriced.is_empty() {
        let names = outcome.unpriced.join(", ");
        writeln!(out, "no cost is known for {names}")?;
    }
    let formulas = [
        ("2, the tracker's", outcome.formula_tracker_ns),
        ("4, the tracked program's", outcome.formula_tracked_ns),
    ];
    for (which, ns) in formulas {
        if let Some(ns) = ns.filter(|&ns| ns > 0.0) {
            writeln!(
                out,
                "the OoH paper's formula {which} time: {}",
                words::time(ns)
            )?;
        }
    }
    Ok(())
}

fn rounds(outcome: &Outcome) -> Sheet {
    let shown = outcome.rounds.iter().take(ROUNDS_SHOWN);
    let rows = shown.zip(1..).map(|(round, number)| {
        let both = |event| {
            let count = |counts: &Counts| counts.get(event).copied().unwrap_or_default();
            count(&round.monitor) + count(&round.collect)
        };
        let numbers = [
            number,
            round.written,
            round.reported,
            round.missed,
            both("accesses"),
            both("tlb_misses"),
            both("page_faults"),
            both("vm_exits"),
            both("hypercalls"),
        ];
        numbers.map(words::count).to_vec()
    });
    Sheet {
        title: format!("Rounds, in units of {} bytes", outcome.unit_bytes),
        heads: [
            "round",
            "written",
            "reported",
            "missed",
            "accesses",
            "TLB misses",
            "page faults",
            "VM exits",
            "hypercalls",
        ]
        .map(String::from)
        .to_vec(),
        labels: 0,
        rows: rows.collect(),
        note: "",
    }
}

fn bill(document: &Document<'_>) -> Sheet {
    let rows = document.outcome.bill.iter().map(|line| {
        let star = if line.assumed { " *" } else { "" };
        let time = line.cost_ns.map_or("?".into(), words::time);
        vec![
            format!("{}{star}", line.metric),
            line.payer.into(),
            words::count(line.events),
            time,
        ]
    });
    Sheet {
        title: format!("What it costs (costs: {})", document.costs),
        heads: ["metric", "who waits", "events", "together"]
            .map(String::from)
            .to_vec(),
        labels: 2,
        rows: rows.collect(),
        note: "",
    }
}
