//! What a document of `pagetrail bench --json` says of Listing 1, and how well the OoH paper's
//! formulas estimate it.

use pagetrail_model::cost::formula;
use pagetrail_model::technique::TechniqueKind;

use crate::calibrate::{Measured, Results};

/// The time that a technique adds to a pass, in per cent.
pub(super) fn overhead_on_tracked(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<f64> {
    Some(best(of, kind, bytes)?.overhead_on_tracked_percent.median)
}

/// The tracker's time, in per cent.
pub(super) fn overhead_on_tracker(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<f64> {
    Some(best(of, kind, bytes)?.overhead_on_tracker_percent.median)
}

/// A tracked pass over an untracked one.
pub(super) fn slowdown(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<f64> {
    let measured = best(of, kind, bytes)?;
    Some(measured.tracked_pass_ns.median / measured.untracked_pass_ns.median)
}

/// An untracked pass, in milliseconds.
pub(super) fn untracked_pass(of: &Results, bytes: u64) -> Option<f64> {
    let mut of_size = of.results.iter().filter(|m| m.size_bytes == bytes);
    Some(of_size.next()?.untracked_pass_ns.median / 1e6)
}

/// The accuracy in per cent of formulas 1 and 2: the steps in the own process estimate a tracker of
/// another process. The tracker has no routine of its own here.
pub(super) fn tracker_formula(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<f64> {
    let (own, other) = (
        find(of, kind, bytes, "own")?,
        find(of, kind, bytes, "other")?,
    );
    let estimated = formula::tracker_time(steps(own), 0.0);
    percent(formula::accuracy(estimated, steps(other)))
}

/// The accuracy in per cent of formulas 3 and 4: a fault for each page, the untracked pass and the
/// tracker, against a tracked pass of another process and its tracker.
pub(super) fn tracked_formula(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<f64> {
    let (own, other) = (
        find(of, kind, bytes, "own")?,
        find(of, kind, bytes, "other")?,
    );
    let fault = own.steps.fault.as_ref()?.ns_per_page.median;
    let impact = fault * other.pages_written as f64;
    let pass = other.untracked_pass_ns.median;
    let estimated = formula::tracked_time(pass, formula::tracker_time(steps(own), 0.0), impact);
    let measured = other.tracked_pass_ns.median + steps(other);
    percent(formula::accuracy(estimated, measured))
}

/// What formula 2 has of a technique: starting it and one collect. What attaching adds to the start
/// is taken off, as far as the target stood still for it.
fn steps(of: &Measured) -> f64 {
    let start = of.steps.arm_ns.median - of.steps.attach_stopped_ns.median;
    start.max(0.0) + of.steps.collect_ns.median
}

fn percent(accuracy: f64) -> Option<f64> {
    accuracy.is_finite().then_some(accuracy * 100.0)
}

/// A technique at a size, on a writer in the tracker's process before one in another.
fn best(of: &Results, kind: TechniqueKind, bytes: u64) -> Option<&Measured> {
    find(of, kind, bytes, "own").or_else(|| find(of, kind, bytes, "other"))
}

fn find<'a>(
    of: &'a Results,
    kind: TechniqueKind,
    bytes: u64,
    tracked: &str,
) -> Option<&'a Measured> {
    let name = kind.to_string();
    of.results.iter().find(|measured| {
        measured.technique == name && measured.size_bytes == bytes && measured.tracked == tracked
    })
}
