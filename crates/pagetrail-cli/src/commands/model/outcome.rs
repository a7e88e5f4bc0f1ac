//! What a run came to, with its bill; serialized, it is the document of docs/model-format.md.

use std::collections::BTreeMap;

use pagetrail_model::cost::{CostTable, Item, Payer, formula, price};
use pagetrail_model::{Events, Report};
use serde::Serialize;

/// A run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) technique: String,
    /// The most memory that the program had at once.
    pub(crate) size_bytes: u64,
    pub(crate) unit_bytes: u64,
    /// False where the program has no tracker: then everything is counted and priced.
    pub(crate) tracked: bool,
    pub(crate) rounds: Vec<Round>,
    /// All that happened while tracked, zeros left out.
    pub(crate) events: Counts,
    pub(crate) bill: Vec<Line>,
    pub(crate) tracker_ns: f64,
    pub(crate) tracked_ns: f64,
    /// What the bill has no cost for: the sums are lower bounds then.
    pub(crate) unpriced: Vec<&'static str>,
    /// The OoH paper's formulas 2 and 4, where they say anything.
    pub(crate) formula_tracker_ns: Option<f64>,
    pub(crate) formula_tracked_ns: Option<f64>,
}

/// Events by name.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// A round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) written: u64,
    pub(crate) reported: u64,
    pub(crate) missed: u64,
    pub(crate) monitor: Counts,
    pub(crate) collect: Counts,
}

/// A line of a bill.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) metric: &'static str,
    pub(crate) payer: &'static str,
    pub(crate) events: u64,
    pub(crate) cost_ns: Option<f64>,
    pub(crate) assumed: bool,
}

impl Outcome {
    /// Prices a run.
    pub(crate) fn of(report: &Report, costs: &CostTable) -> Self {
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
    pub(crate) fn count(&self, event: &str) -> u64 {
        self.events.get(event).copied().unwrap_or(0)
    }

    /// A figure of all rounds together.
    pub(crate) fn sum(&self, figure: fn(&Round) -> u64) -> u64 {
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
