//! The OoH paper's table V: which metrics of table IV a technique involves, when, and for whom.
//!
//! Each technique runs Listing 1 on two sizes of memory; the bills of both, of the whole run and of
//! what the program did under tracking, say all six rows.

use std::collections::BTreeSet;

use super::{Modelled, Printed, Row, Statement, Table};
use crate::cost::{Bill, CostTable, Metric, Payer, price};
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{Events, Report, RunConfig, RunError, run};

/// Memory of the two runs; the larger one decides all rows but those about growth.
const BYTES: [u64; 2] = [10 << 20, 100 << 20];
/// What grows at least so much as memory grows tenfold depends on it.
const GROWTH: f64 = 3.0;
/// Another process gets the processor after so many accesses.
const SWITCH_EVERY: u64 = 500;

/// Numbers of metrics, in order.
type Numbers = BTreeSet<u8>;

/// What the paper says of a technique, a row of table V each.
struct Influence {
    kind: TechniqueKind,
    rows: [&'static [u8]; 6],
}

const PAPER: [Influence; 4] = [
    Influence {
        kind: TechniqueKind::SoftDirty,
        rows: [
            &[1, 5, 15, 16],
            &[5, 15, 16],
            &[5],
            &[5, 16],
            &[5, 15, 16],
            &[5, 15, 16],
        ],
    },
    Influence {
        kind: TechniqueKind::Userfaultfd,
        rows: [
            &[1, 2, 5, 6],
            &[2, 5, 6],
            &[5, 6],
            &[5, 6],
            &[2, 5, 6],
            &[5, 6],
        ],
    },
    Influence {
        kind: TechniqueKind::Spml,
        rows: [
            &[1, 3, 4, 9, 11, 13, 14, 16, 17, 18],
            &[14, 16, 17, 18],
            &[13, 14],
            &[16, 17],
            &[14, 16, 17, 18],
            &[13, 14],
        ],
    },
    Influence {
        kind: TechniqueKind::Epml,
        rows: [
            &[1, 3, 4, 7, 8, 10, 12, 18],
            &[18],
            &[7, 8],
            &[10, 12],
            &[18],
            &[7, 8],
        ],
    },
];

/// The rows of table V, the statement that each makes, and why ours differ from it.
const ROWS: [(&str, &str, &str); 6] = [
    (
        "metrics involved",
        "these metrics, and no others, are involved (M3 and M4 aside)",
        "M3 and M4 are the system calls around the hypercalls M9 to M12; the model counts the inner ones only",
    ),
    (
        "that depend on the memory tracked",
        "these metrics, and no others, depend on the memory tracked",
        GROWTH_WHY,
    ),
    (
        "in the monitoring phase",
        "these metrics, and no others, are involved while the program runs",
        "the paper leaves out M1: a fault is a switch to the kernel, and so is the interrupt for a full log",
    ),
    (
        "most costly",
        "these are the two most costly metrics",
        "a switch to the kernel for each fault (M1, 0.315 us) costs more than the kernel's part of the fault (M5)",
    ),
    (
        "that limit the tracker's scaling",
        "these metrics, and no others, make the tracker's work grow with memory",
        "the paper adds to the tracker's metrics those that hold up the program meanwhile (M5, M6, M14); ours are what \
         the tracker pays itself",
    ),
    (
        "that limit the program's scaling",
        "these metrics, and no others, make the program pay more with more memory",
        "ours has M1 for each fault and full log; the paper's /proc has the tracker's M15 and M16 as well",
    ),
];

const GROWTH_WHY: &str = "the paper asks whether one event costs more with more memory, ours whether all of a run's do: \
                          a switch for each fault or full log (M1), and what the module and the hypercalls do at each \
                          switch of processes (M7, M8, M13), are cheap, and grow with memory all the same";

/// Two runs of a technique.
struct Runs {
    /// All of tracking.
    whole: [Bill; 2],
    /// While the program ran.
    monitor: Bill,
}

impl Runs {
    fn of(kind: TechniqueKind) -> Result<Self, RunError> {
        let table = CostTable::ooh_paper();
        let report = |bytes| -> Result<Report, RunError> {
            let listing = Workload {
                kind: WorkloadKind::Listing1,
                bytes,
                rounds: 1,
                seed: 0,
            };
            let config = RunConfig {
                switch_every: Some(SWITCH_EVERY),
                ..RunConfig::new(kind)
            };
            run(&config, listing.ops())
        };
        let reports = [report(BYTES[0])?, report(BYTES[1])?];
        let bill = |report: &Report, events: &Events| price(events, report.tracked_bytes, &table);
        Ok(Self {
            whole: [0, 1].map(|i: usize| bill(&reports[i], &reports[i].tracking())),
            monitor: bill(&reports[1], &reports[1].monitor()),
        })
    }

    /// Metrics whose cost grows with memory, as far as `payer` pays it.
    fn growing(&self, payer: Option<Payer>) -> Numbers {
        let [small, large] = &self.whole;
        let grows = |&metric: &Metric| {
            let [before, after] = [small, large].map(|bill| amount(bill, metric, payer));
            after > 0.0 && after >= before * GROWTH
        };
        numbers(Metric::ALL.iter().copied().filter(grows))
    }

    /// The two metrics that cost most.
    fn dearest(&self) -> Numbers {
        let bill = &self.whole[1];
        let known = Metric::ALL.iter().copied();
        let mut known: Vec<Metric> = known.filter(|m| m.in_ooh_paper().is_some()).collect();
        known.sort_by(|&a, &b| cost(bill, b).total_cmp(&cost(bill, a)));
        numbers(known.into_iter().take(2))
    }

    /// The metrics of a row of table V.
    fn row(&self, row: usize) -> Numbers {
        let involved = |bill: &Bill| numbers(bill.items.iter().map(|item| item.metric));
        match row {
            0 => involved(&self.whole[1]),
            1 => self.growing(None),
            2 => involved(&self.monitor),
            3 => self.dearest(),
            4 => self.growing(Some(Payer::Tracker)),
            _ => self.growing(Some(Payer::Tracked)),
        }
    }
}

/// What a metric costs in all, as far as it has a cost.
fn cost(bill: &Bill, metric: Metric) -> f64 {
    let items = bill.items.iter().filter(|item| item.metric == metric);
    items.filter_map(|item| item.cost_ns).sum()
}

/// What a metric costs in all, or what `payer` pays of that; its events where it has no cost (M2,
/// which the paper does not print).
fn amount(bill: &Bill, metric: Metric, payer: Option<Payer>) -> f64 {
    let items = bill.items.iter().filter(|item| item.metric == metric);
    let items = items.filter(|item| payer.is_none_or(|payer| item.payer == payer));
    let amounts = items.map(|item| item.cost_ns.unwrap_or(item.events as f64));
    amounts.sum()
}

/// The numbers in table IV of those metrics that have one.
fn numbers(metrics: impl Iterator<Item = Metric>) -> Numbers {
    metrics.filter_map(Metric::in_ooh_paper).collect()
}

fn named(numbers: &Numbers) -> String {
    let names: Vec<String> = numbers.iter().map(|number| format!("M{number}")).collect();
    match names.len() {
        0 => "none".to_owned(),
        _ => names.join(", "),
    }
}

/// Table V.
pub fn table5() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    let mut statements = Vec::new();
    let runs = PAPER.map(|technique| Ok((Runs::of(technique.kind)?, technique)));
    let runs = runs.into_iter().collect::<Result<Vec<_>, RunError>>()?;
    for (number, (name, says, why)) in ROWS.into_iter().enumerate() {
        let mut against = Vec::new();
        for (run, technique) in &runs {
            let kind = technique.kind;
            let ours = run.row(number);
            let paper: Numbers = technique.rows[number].iter().copied().collect();
            // M3 and M4 are the system calls around M9 to M12, which are counted instead.
            let expected: Numbers = paper
                .iter()
                .copied()
                .filter(|m| ![3, 4].contains(m))
                .collect();
            if ours != expected {
                let [ours, paper] = [&ours, &expected].map(named);
                against.push(format!("{kind} {ours} (paper: {paper})"));
            }
            // How many of the two are the paper's: a count of two is no result.
            let (printed, value) = match number {
                3 => (2, ours.intersection(&paper).count()),
                _ => (paper.len(), ours.len()),
            };
            let value = Modelled::of(&run.whole[1], |_| value as f64);
            let name = match number {
                3 => "of the two most costly metrics, those of the paper",
                _ => name,
            };
            let row = Row::modelled(
                format!("{kind}, {name}"),
                "metrics",
                Printed(printed as f64),
                value,
            );
            rows.push(match ours == paper {
                true => row,
                false => row.note(why),
            });
        }
        let numbers = match against.len() {
            0 => format!("for all {} techniques", PAPER.len()),
            _ => against.join("; "),
        };
        statements.push(Statement::modelled(says, against.is_empty(), numbers));
    }
    Ok(Table {
        name: "V",
        about: "Metrics that a technique involves, by the bills of Listing 1 on 10 and 100 MiB at the costs of table IV.",
        rows,
        statements,
        ..Table::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_what_a_run_pays_more_for() {
        let runs = Runs::of(TechniqueKind::SoftDirty).unwrap();
        // Ending it is the same call for any memory.
        assert!(runs.growing(None).is_superset(&Numbers::from([5, 15, 16])));
        let [tracker, tracked] = [Payer::Tracker, Payer::Tracked].map(|p| runs.growing(Some(p)));
        assert!(tracker.is_disjoint(&Numbers::from([5])) && tracked.contains(&5));
        let epml = Runs::of(TechniqueKind::Epml).unwrap();
        assert!(epml.growing(None).is_disjoint(&Numbers::from([10, 12])));
        assert_eq!(epml.dearest(), Numbers::from([10, 12]));
    }
}
