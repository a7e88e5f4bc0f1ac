//! The comparison as one JSON document. The structs below are the schema; within a schema number
//! fields are only ever added.

use std::io::{self, Write};

use serde::Serialize;

use super::{Comparison, Line, Measure, Pair, Side, Verdict, WINDOW_NS, measure};
use crate::words;

/// The number of the schema.
pub(super) const SCHEMA: u32 = 1;

/// A comparison as the schema has it.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    comparison_schema: u32,
    before: SideView<'a>,
    after: SideView<'a>,
    access_kind: &'static str,
    page_size: u64,
    working_set_seconds: f64,
    total: LineView<'a>,
    mappings: Vec<LineView<'a>>,
    functions: Vec<LineView<'a>>,
    conditions: Vec<ConditionView<'a>>,
}

#[derive(Serialize)]
struct SideView<'a> {
    command: &'a [String],
    technique: &'a str,
    interval_ms: u64,
    started_unix_ms: u64,
    rounds: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct LineView<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    pages_per_second: PairView,
    working_set_pages: PairView,
}

#[derive(Serialize)]
struct PairView {
    before: MeasureView,
    after: MeasureView,
    /// After divided by before; `null` if there was nothing before.
    ratio: Option<f64>,
    /// Whether the quartiles of both recordings overlap.
    within_spread: bool,
}

#[derive(Serialize)]
struct MeasureView {
    mean: f64,
    lower_quartile: f64,
    upper_quartile: f64,
}

/// What became of a condition.
#[derive(Serialize)]
pub(super) struct ConditionView<'a> {
    condition: &'a str,
    fails: bool,
    reason: &'a str,
}

pub(super) fn write(
    comparison: &Comparison,
    verdicts: &[Verdict],
    out: &mut dyn Write,
) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &document(comparison, verdicts))?;
    out.write_all(b"\n")
}

/// A comparison with what became of conditions on it.
pub(super) fn document<'a>(comparison: &'a Comparison, verdicts: &'a [Verdict]) -> Document<'a> {
    Document {
        comparison_schema: SCHEMA,
        before: side(&comparison.before),
        after: side(&comparison.after),
        access_kind: words::terms(comparison.access_kind).writes,
        page_size: comparison.page_size,
        working_set_seconds: WINDOW_NS as f64 / 1e9,
        total: line(&comparison.total),
        mappings: comparison.mappings.iter().map(line).collect(),
        functions: comparison.functions.iter().map(line).collect(),
        conditions: conditions(verdicts),
    }
}

/// What became of conditions.
pub(super) fn conditions(verdicts: &[Verdict]) -> Vec<ConditionView<'_>> {
    let views = verdicts.iter().map(|verdict| ConditionView {
        condition: &verdict.condition,
        fails: verdict.holds,
        reason: &verdict.reason,
    });
    views.collect()
}

fn side(side: &Side) -> SideView<'_> {
    SideView {
        command: &side.header.command,
        technique: &side.header.technique,
        interval_ms: side.header.interval_ms,
        started_unix_ms: side.header.started_unix_ms,
        rounds: side.rounds,
        seconds: side.seconds,
    }
}

fn line(line: &Line) -> LineView<'_> {
    LineView {
        name: &line.name,
        file: &line.file,
        pages_per_second: pair(&line.written),
        working_set_pages: pair(&line.working_set),
    }
}

fn pair(pair: &Pair) -> PairView {
    let view = |measure: &Measure| MeasureView {
        mean: measure.mean,
        lower_quartile: measure.lower_quartile,
        upper_quartile: measure.upper_quartile,
    };
    let ratio = measure::ratio(pair.before.mean, pair.after.mean);
    PairView {
        before: view(&pair.before),
        after: view(&pair.after),
        ratio: ratio.is_finite().then_some(ratio),
        within_spread: pair.before.overlaps(&pair.after),
    }
}
