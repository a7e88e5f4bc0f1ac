//! A watch's round, and how its target ended, in the trail's terms.

use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail::{Ended, Subpages};
use pagetrail_trail::{End, Event, Predicted, Round, UnitWrites};

use super::find;

/// The number of a round; a trail counts to 2^32.
pub(crate) fn index(round: &pagetrail::Round<'_>) -> Result<u32> {
    u32::try_from(round.index()).context("more than 2^32 rounds; record with a longer --interval")
}

/// The round as the trail keeps it.
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
        predicted: round.prediction().map(|told| Predicted {
            pages: told.predicted,
            faults_avoided: told.faults_avoided,
            false_positives: told.false_positives,
            memory_bytes: told.table_bytes,
        }),
        written: round.dirty().clone(),
        fresh: round.newly_mapped().clone(),
        events: round.events().iter().filter_map(event).collect(),
        units: round.subpages().map(unit_writes),
    }
}

/// What a sub-page heap tells, as the trail keeps it.
pub(crate) fn unit_writes(units: &Subpages) -> UnitWrites {
    UnitWrites {
        parts: units.subpages_per_page(),
        windows: units.aliases().clone(),
        units: units.dirty().clone(),
    }
}

/// How the target ended; not known of one that was already running.
pub(crate) fn end(ended: Option<Ended>) -> End {
    match ended {
        Some(Ended::Exited(code)) => End::Exited(code),
        Some(Ended::Killed(signal)) => End::Killed(signal),
        _ => End::Gone,
    }
}

fn event(event: &pagetrail::Event) -> Option<Event> {
    match event {
        pagetrail::Event::Exec { command } => Some(Event::Exec(
            find::without_padding(command.clone()).join(" "),
        )),
        pagetrail::Event::Children { count } => Some(Event::Children(*count)),
        pagetrail::Event::Note(note) => Some(Event::Note(note.clone())),
        _ => None,
    }
}

pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
