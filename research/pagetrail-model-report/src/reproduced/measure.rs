//! Makes the recordings that this machine can make by itself, and
//! names the others, with what makes them.

use anyhow::{Context, Result};
use pagetrail::{Capabilities, Technique};
use pagetrail_bench::measure::{self, Plan};
use pagetrail_bench::{memory, metrics};
use pagetrail_model::reproduce::Table;
use pagetrail_model::reproduce::recording::Recording;
use pagetrail_report::size::Size;

use super::Listener;

/// Runs of each measurement.
const RUNS: u32 = 3;
/// The paper's techniques that a stock kernel may have.
const TECHNIQUES: [Technique; 2] = [Technique::Userfaultfd, Technique::SoftDirty];

/// Measures what the tables look up, as far as that is possible here and of the sizes in `only`,
/// unless that is empty; documents as JSON.
pub(super) fn all(
    tables: &[&Table],
    only: &[Size],
    listener: &mut dyn Listener,
) -> Result<Vec<String>> {
    let sizes = sizes(tables, only, listener);
    let mut wanted: Vec<Recording> = tables.iter().flat_map(|table| table.recordings()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut documents = Vec::new();
    let mut elsewhere = Vec::new();
    for recording in wanted {
        match recording {
            Recording::Bench => documents.extend(techniques(&sizes, listener)?),
            Recording::Metrics => {
                let found = metrics::run(&sizes, RUNS, |step| listener.step(step))?;
                documents.push(serde_json::to_string(&found)?);
            }
            // With a machine that has soft-dirty bits, the first is all there is to measure.
            Recording::BenchGuest if works(Technique::SoftDirty) => {}
            other => elsewhere.push(elsewhere_words(other)),
        }
    }
    if !elsewhere.is_empty() {
        listener.notice(&format!(
            "not measured now, shown as recorded: {}",
            elsewhere.join("; ")
        ));
    }
    Ok(documents)
}

fn elsewhere_words(recording: Recording) -> String {
    let guest = if recording.needs_guest() {
        " (in a guest)"
    } else {
        ""
    };
    format!("{}, by {}{guest}", recording.file(), recording.command())
}

fn works(technique: Technique) -> bool {
    Capabilities::probe().works(technique)
}

/// The sizes that rows are about, as far as there is memory for them.
fn sizes(tables: &[&Table], only: &[Size], listener: &mut dyn Listener) -> Vec<Size> {
    let rows = tables.iter().flat_map(|table| &table.rows);
    let quantities = rows.filter_map(|row| row.quantity.as_ref());
    let mut bytes: Vec<u64> = quantities.filter_map(|quantity| quantity.bytes()).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let sizes = bytes
        .into_iter()
        .filter_map(|bytes| Size::shown(bytes).parse().ok());
    let wanted = |size: &Size| only.is_empty() || only.iter().any(|o| o.bytes() == size.bytes());
    sizes
        .filter(wanted)
        .filter(|&size| match memory::check(&[size], &TECHNIQUES) {
            Ok(()) => true,
            Err(error) => {
                listener.notice(&format!("not measured: {error:#}"));
                false
            }
        })
        .collect()
}

fn techniques(sizes: &[Size], listener: &mut dyn Listener) -> Result<Option<String>> {
    let techniques: Vec<Technique> = TECHNIQUES.into_iter().filter(|&t| works(t)).collect();
    if techniques.is_empty() || sizes.is_empty() {
        listener.notice("no technique of the paper works here; recorded values are shown");
        return Ok(None);
    }
    let plan = Plan {
        sizes: sizes.to_vec(),
        techniques,
        runs: RUNS,
    };
    let results = measure::run(&plan, |step| listener.step(step)).context("cannot measure")?;
    Ok(Some(serde_json::to_string(&results)?))
}
