//! The program that the arguments name.

use anyhow::{Context, Result};
use pagetrail_model::workload::Workload;
use pagetrail_model_report::program::{Conditions, Program};
use pagetrail_report::size::Size;

use super::args::ProgramArgs;

/// The workload at `size`, or the trace.
pub(super) fn named(args: &ProgramArgs, size: Size) -> Result<Program> {
    match args.workload {
        Some(kind) => Program::generated(Workload {
            kind,
            bytes: size.bytes(),
            rounds: args.rounds,
            seed: args.seed,
        })
        .with_context(|| format!("--size {size}")),
        None => Program::recorded(args.trace.as_deref().context("no program")?),
    }
}

/// What it runs under.
pub(super) fn conditions(args: &ProgramArgs) -> Conditions {
    Conditions {
        ring_pages: args.ring_pages,
        switch_every: args.switch_every,
    }
}
