//! What a run came to, with its bill; serialized, it is the document of docs/model-format.md.

use std::collections::BTreeMap;

use pagetrail_model::cost::{CostTable, Item, Payer, formula, price};
use pagetrail_model::{Events, Report};
use serde::Serialize;

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The technique's name.
    pub technique: String,
    /// The most memory that the program had at once.
    pub size_bytes: u64,
    /// What the technique tells apart: a page, or a part of one.
    pub unit_bytes: u64,
    /// False where the program has no tracker: then everything is counted and priced.
    pub tracked: bool,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// All that happened while tracked, zeros left out.
    pub events: Counts,
    /// What the events cost.
    pub bill: Vec<Line>,
    /// The sum of what the tracker waits for.
    pub tracker_ns: f64,
    /// The sum of what the tracked program waits for.
    pub tracked_ns: f64,
    /// What the bill has no cost for: the sums are lower bounds then.
    pub unpriced: Vec<&'static str>,
    /// The OoH paper's formula 2, where it says anything.
    pub formula_tracker_ns: Option<f64>,
    /// The OoH paper's formula 4, where it says anything.
    pub formula_tracked_ns: Option<f64>,
}

/// Events by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// A round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Units that the program wrote.
    pub written: u64,
    /// Units that the technique reported.
    pub reported: u64,
    /// Units that were written and not reported.
    pub missed: u64,
    /// What happened while the program ran.
    pub monitor: Counts,
    /// What happened while the tracker collected.
    pub collect: Counts,
}

/// A line of a bill.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// What is paid for.
    pub metric: &'static str,
    /// Who waits: "tracker" or "tracked".
    pub payer: &'static str,
    /// How often.
    pub events: u64,
    /// What all of it takes; `None` where the table has no cost.
    pub cost_ns: Option<f64>,
    /// Whether the cost was not measured.
    pub assumed: bool,
}

impl Outcome {
    /// Prices a run.
    pub fn of(report: &Report, costs: &CostTable) -> Self {
        let tracked = !report.rounds.is_empty() || report.stop != Events::default();
        let events = match tracked {
            true => report.tracking(),
            false => report.total(),
        };
        let bytes = report.tracked_bytes;
        let bill = price(&events, bytes, costs);
        let seen = formula::Occurrences::of(report);
        let mut unpriced: Vec<_> = bill.unpriced().map(|item| item.metric.name()).collect();
        unpriced.dedup();
        let rounds = report.rounds.iter().map(|round| Round {
            written: round.written,
            reported: round.reported,
            missed: round.missed,
            monitor: counts(&round.monitor),
            collect: counts(&round.collect),
        });
        Self {
            technique: report.technique.to_string(),
            size_bytes: bytes,
            unit_bytes: report.unit_bytes,
            tracked,
            rounds: rounds.collect(),
            events: counts(&events),
            bill: bill.items.iter().map(|item| line(item, costs)).collect(),
            tracker_ns: bill.sum_ns(Payer::Tracker),
            tracked_ns: bill.sum_ns(Payer::Tracked),
            unpriced,
            formula_tracker_ns: formula::technique_time(report.technique, &seen, costs),
            formula_tracked_ns: formula::impact(report.technique, &seen, costs),
        }
    }

    /// How often something happened.
    pub fn count(&self, event: &str) -> u64 {
        self.events.get(event).copied().unwrap_or(0)
    }

    /// A figure of all rounds together.
    pub fn sum(&self, figure: fn(&Round) -> u64) -> u64 {
        self.rounds.iter().map(figure).sum()
    }
}

fn counts(events: &Events) -> Counts {
    events.iter().filter(|&(_, count)| count > 0).collect()
}

fn line(item: &Item, costs: &CostTable) -> Line {
    Line {
        metric: item.metric.name(),
        payer: match item.payer {
            Payer::Tracker => "tracker",
            Payer::Tracked => "tracked",
        },
        events: item.events,
        cost_ns: item.cost_ns,
        assumed: costs.is_assumed(item.metric),
    }
}
