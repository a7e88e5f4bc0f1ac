//! Techniques side by side, for people and as JSON.

pub mod page;

use std::io::{self, Write};

use pagetrail_model::cost::CostTable;
use pagetrail_report::sheet::{Sheet, write_sheet};
use pagetrail_report::words;
use serde::Serialize;

use crate::outcome::Outcome;

/// Under the tables of times.
const TIMES: &str = "per round, starting and ending included; a plus: the table has no cost for some of it, which \
 comes on top";
/// Under the table of events.
const EVENTS: &str = "all rounds together; reported and written in units of the technique";

/// The document of `model compare --json`.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// The version of its fields.
    pub schema: u32,
    /// The program, in words.
    pub program: String,
    /// The cost table's name.
    pub costs: &'a str,
    /// Why a technique is not in it.
    pub absent: Vec<String>,
    /// A run per technique and size.
    pub results: Vec<Outcome>,
}

/// Who waits, and how that is called.
pub const PAYERS: [(&str, &str); 2] = [
    ("tracked", "on the tracked program"),
    ("tracker", "on the tracker"),
];

/// What `payer` waits for, per round.
pub fn time(outcome: &Outcome, payer: &str) -> f64 {
    let ns = match payer {
        "tracker" => outcome.tracker_ns,
        _ => outcome.tracked_ns,
    };
    ns / outcome.rounds.len().max(1) as f64
}

/// A plus where that is not all.
pub fn plus(outcome: &Outcome, payer: &str) -> &'static str {
    let mut bill = outcome.bill.iter();
    match bill.any(|line| line.payer == payer && line.cost_ns.is_none()) {
        true => "+",
        false => "",
    }
}

/// Each name once, in order.
fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let names: std::collections::BTreeSet<&str> = names.collect();
    names.into_iter().collect()
}

impl<'a> Document<'a> {
    /// A document without results yet.
    pub fn new(costs: &'a CostTable) -> Self {
        Self {
            schema: 1,
            program: String::new(),
            costs: costs.name(),
            absent: Vec::new(),
            results: Vec::new(),
        }
    }

    /// One line about all of it.
    pub fn setting(&self) -> String {
        format!("{}; costs: {}", self.program, self.costs)
    }

    /// The techniques, each once.
    fn techniques(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for result in &self.results {
            if !names.contains(&result.technique.as_str()) {
                names.push(&result.technique);
            }
        }
        names
    }

    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.results.iter().map(|r| r.size_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// What has no cost, and what has one that was not measured, technique by technique.
    pub fn price_notes(&self) -> Vec<String> {
        let lines = self.techniques().into_iter().flat_map(|technique| {
            let of = || {
                self.results
                    .iter()
                    .filter(move |r| r.technique == technique)
            };
            let unpriced = sorted(of().flat_map(|r| r.unpriced.iter().copied()));
            let assumed = of().flat_map(|r| &r.bill).filter(|line| line.assumed);
            let assumed = sorted(assumed.map(|line| line.metric));
            let line = |what: &str, names: Vec<&str>| {
                (!names.is_empty()).then(|| format!("{technique}: {what} {}", names.join(", ")))
            };
            [
                line("no cost is known for", unpriced),
                line("a cost was assumed, not measured, for", assumed),
            ]
        });
        lines.flatten().collect()
    }

    /// The tables: times by size, and events of the largest size.
    pub fn sheets(&self) -> Vec<Sheet> {
        let times = PAYERS.map(|(payer, whose)| self.times(payer, whose));
        times.into_iter().chain([self.events()]).collect()
    }

    fn times(&self, payer: &str, whose: &str) -> Sheet {
        let sizes = self.sizes();
        let rows = self.techniques().into_iter().map(|technique| {
            let cells = sizes.iter().map(|&size| {
                let mut results = self.results.iter();
                let result = results.find(|r| r.technique == technique && r.size_bytes == size);
                result.map_or("-".into(), |r| words::time(time(r, payer)) + plus(r, payer))
            });
            [technique.to_owned()].into_iter().chain(cells).collect()
        });
        let heads = sizes.iter().map(|&size| words::bytes(size as f64));
        Sheet {
            title: format!("Time {whose}"),
            heads: ["technique".to_owned()].into_iter().chain(heads).collect(),
            labels: 1,
            rows: rows.collect(),
            note: TIMES,
        }
    }

    fn events(&self) -> Sheet {
        let largest = self.sizes().last().copied().unwrap_or_default();
        let results = self.results.iter().filter(|r| r.size_bytes == largest);
        let rows = results.map(|r| {
            let numbers = [
                r.sum(|round| round.written),
                r.sum(|round| round.reported),
                r.count("faults_soft_dirty") + r.count("faults_userfaultfd"),
                r.count("vm_exits"),
                r.count("pml_full_exits"),
                r.count("self_ipis"),
                r.count("hypercalls"),
                r.count("tlb_misses"),
            ];
            let numbers = numbers.map(words::count);
            [r.technique.clone()].into_iter().chain(numbers).collect()
        });
        Sheet {
            title: format!("Events at {}", words::bytes(largest as f64)),
            heads: [
                "technique",
                "written",
                "reported",
                "tracking faults",
                "VM exits",
                "full logs",
                "self-interrupts",
                "hypercalls",
                "TLB misses",
            ]
            .map(String::from)
            .to_vec(),
            labels: 1,
            rows: rows.collect(),
            note: EVENTS,
        }
    }
}

/// Writes the tables.
pub fn write(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", document.setting())?;
    for line in &document.absent {
        writeln!(out, "not here: {line}")?;
    }
    let sheets = document.sheets();
    for (i, sheet) in sheets.iter().enumerate() {
        writeln!(out)?;
        write_sheet(sheet, out)?;
        if sheets.get(i + 1).is_none_or(|next| next.note != sheet.note) {
            writeln!(out, "({})", sheet.note)?;
        }
    }
    for line in document.price_notes() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
