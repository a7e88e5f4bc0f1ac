//! Converts a source's round, and how its target ended, to the types of the trail.

use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail::{Ended, Subpages};
use pagetrail_trail::{End, Event, Overhead, Predicted, Round, SubpageWrites};

/// The number of a round as 32 bits, as the trail stores it.
pub(crate) fn index(round: &pagetrail::Round<'_>) -> Result<u32> {
    u32::try_from(round.index()).context("more than 2^32 rounds; a longer interval makes fewer")
}

/// Converts a round to the type of the trail.
pub(crate) fn convert(index: u32, round: &pagetrail::Round<'_>) -> Round {
    let cost = round.cost();
    Round {
        index,
        access_kind: round.access_kind(),
        start_ns: ns(round.began()),
        duration_ns: ns(round.duration()),
        collect_ns: ns(cost.collect),
        stopped_ns: ns(cost.stopped),
        blind_ns: ns(cost.blind),
        faults: cost.faults,
        predicted: round.prediction().map(|prediction| Predicted {
            pages: prediction.predicted,
            faults_avoided: prediction.faults_avoided,
            false_positives: prediction.false_positives,
            memory_bytes: prediction.table_bytes,
        }),
        written: round.dirty().clone(),
        newly_mapped: round.newly_mapped().clone(),
        events: round.events().iter().filter_map(event).collect(),
        subpages: round.subpages().map(subpage_writes),
        attribution: None,
        overhead: round.overhead().map(overhead),
    }
}

/// Converts what tracking cost to the type of the trail.
fn overhead(overhead: pagetrail::Overhead) -> Overhead {
    let ppm = |share: f64| (share * 1e6).round() as u64;
    Overhead {
        allowed_ppm: ppm(overhead.allowed),
        cost_ppm: ppm(overhead.share),
        faults: overhead.faults,
        is_kept: overhead.is_kept,
    }
}

/// Converts dirty sub-pages to the type of the trail.
fn subpage_writes(subpages: &Subpages) -> SubpageWrites {
    SubpageWrites {
        subpages_per_page: subpages.subpages_per_page(),
        aliases: subpages.aliases().clone(),
        dirty: subpages.dirty().clone(),
    }
}

/// Converts how the target ended; unknown if the target was already running when it was attached
/// to.
#[must_use]
pub fn end(ended: Option<Ended>) -> End {
    match ended {
        Some(Ended::Exited(code)) => End::Exited(code),
        Some(Ended::Killed(signal)) => End::Killed(signal),
        _ => End::Gone,
    }
}

fn event(event: &pagetrail::Event) -> Option<Event> {
    match event {
        pagetrail::Event::Exec { command } => Some(Event::Exec(command.join(" "))),
        pagetrail::Event::Children { count } => Some(Event::Children(*count)),
        pagetrail::Event::Note(note) => Some(Event::Note(note.clone())),
        _ => None,
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
