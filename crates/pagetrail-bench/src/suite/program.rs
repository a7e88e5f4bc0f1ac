//! Real programs of a suite: each does the same work in every run, and what counts is its processor
//! time.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use pagetrail::Technique;
use tempfile::TempDir;

use super::definition::{Definition, Program};
use super::program_run::sample;
use super::results::{Budget, ProgramMeasured, ProgramRow};
use super::sample::Sample;
use crate::predicted::Predicted;
use crate::results::Spread;

/// Measures a program; `None` where it is not here.
pub(crate) fn row(
    definition: &Definition,
    program: &Program,
    programs: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<ProgramRow>> {
    let Some(Prepared { program, .. }) = &Prepared::of(program, programs)? else {
        return Ok(None);
    };
    let name = &program.name;
    let mut runs: HashMap<Option<Technique>, Vec<Sample>> = HashMap::new();
    let techniques = definition.techniques.iter().copied().map(Some);
    let techniques: Vec<_> = [None].into_iter().chain(techniques).collect();
    for run in 1..=definition.program_runs {
        for technique in &techniques {
            let who = technique.map_or("untracked", Technique::name);
            progress(&format!("{}, run {run}: {who}", program.name));
            let sample = sample(definition, program, *technique);
            let sample = sample.with_context(|| format!("{name}, {who}"))?;
            runs.entry(*technique).or_default().push(sample);
        }
    }
    let cpu = |of: &Option<Technique>| {
        let samples = runs.get(of).into_iter().flatten();
        Spread::of(samples.map(|sample| sample.cpu_ns as f64 / 1e6))
    };
    let untracked = cpu(&None);
    let measured = |technique: &Technique| {
        let samples = &runs[&Some(*technique)];
        let over = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
        ProgramMeasured {
            technique: technique.name(),
            overhead_percent: over(&|sample| {
                (sample.cpu_ns as f64 / 1e6 / untracked.median.max(1e-9) - 1.0) * 100.0
            }),
            faults: over(&|sample| sample.faults as f64),
            rounds: over(&|sample| sample.rounds as f64),
            reported_per_round: over(&|s| s.reported as f64 / s.rounds.max(1) as f64),
            collect_us: over(&|s| Spread::of(s.collect_ns.iter().copied()).median / 1e3),
            prediction: Predicted::of(samples.iter().map(|sample| &sample.tally)),
            budget: Budget::of(definition.max_overhead, samples),
        }
    };
    Ok(Some(ProgramRow {
        name: program.name.clone(),
        round_ms: definition.program_round_ms,
        runs: definition.program_runs,
        untracked_cpu_ms: untracked,
        techniques: definition.techniques.iter().map(measured).collect(),
    }))
}

/// A program that is here and has what it needs, and the directory that is its own.
pub(super) struct Prepared {
    pub(super) program: Program,
    _dir: TempDir,
}

impl Prepared {
    /// `None` where it is not here.
    pub(super) fn of(program: &Program, programs: &Path) -> Result<Option<Self>> {
        let dir = tempfile::tempdir().context("a directory for the program")?;
        let program = program.placed(programs, dir.path());
        let mut needed = program.command.iter().take(1).chain(&program.needs);
        if !needed.all(|name| is_here(name)) {
            return Ok(None);
        }
        prepare(&program).with_context(|| format!("{} cannot be prepared", program.name))?;
        Ok(Some(Self { program, _dir: dir }))
    }
}

impl Budget {
    /// What tracking within a budget came to over some runs; `None` without a budget, and of a
    /// program that has ended before a round, which says nothing of what rounds cost.
    pub(super) fn of(allowed: Option<f64>, samples: &[Sample]) -> Option<Self> {
        let had_rounds = samples.iter().all(|sample| !sample.costs.is_empty());
        let share = allowed.filter(|_| had_rounds)?;
        let over = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
        Some(Self {
            allowed_percent: share * 100.0,
            cost_percent: over(&|sample| sample.mean_cost(|cost| cost.share) * 100.0),
            interval_ms: over(&|sample| {
                let lengths = sample.costs.iter();
                Spread::of(lengths.map(|cost| cost.length.as_secs_f64() * 1e3)).median
            }),
            reported_per_written: over(&|s| s.mean_cost(|cost| cost.reported_per_written)),
            rounds_over: over(&|sample| {
                let over = sample.costs.iter().filter(|cost| !cost.overhead.is_kept);
                over.count() as f64
            }),
        })
    }
}

fn is_here(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Path::new(name).is_file() || std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// Makes what the program needs before its first run.
fn prepare(program: &Program) -> Result<()> {
    let Some(script) = &program.prepare else {
        return Ok(());
    };
    let mut shell = Command::new("sh");
    let made = shell.args(["-ec", script]).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "{}", said.trim());
    Ok(())
}
