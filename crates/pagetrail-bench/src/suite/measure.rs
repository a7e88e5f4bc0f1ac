//! The measuring: for each workload and length of rounds, untracked and by each technique, in turn.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use pagetrail::{Capabilities, FalsePositiveCost, PageSet, Technique, Watch};

use rustix::time::{ClockId, clock_gettime};

use super::child::Writing;
use super::definition::{Definition, Length, Workload};
use super::program;
use super::results::{Measured, Row, Suite};
use super::sample::Sample;
use super::turns;
use crate::oracle::Missed;
use crate::predicted::Predicted;
use crate::results::Spread;

/// Measures; calls `progress` with what is done next.
pub fn run(
    definition: &Definition,
    programs: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Suite> {
    let mut suite = Suite::begin(definition);
    let capabilities = Capabilities::probe();
    let mut definition = definition.clone();
    definition
        .techniques
        .retain(|technique| capabilities.works(*technique));
    let definition = &definition;
    for workload in &definition.workload {
        for &length in &definition.length {
            let plan = Plan { definition, length };
            suite.rows.push(row(plan, workload, progress)?);
        }
    }
    for program in &definition.program {
        let is_here = match &definition.turns {
            Some(turns) => {
                let row = turns::row(definition, *turns, program, programs, progress)?;
                row.map(|row| suite.turns.push(row))
            }
            None => {
                let row = program::row(definition, program, programs, progress)?;
                row.map(|row| suite.programs.push(row))
            }
        };
        if is_here.is_none() {
            suite.missing.push(program.name.clone());
        }
    }
    Ok(suite)
}

/// The rounds of one row.
#[derive(Clone, Copy)]
struct Plan<'a> {
    definition: &'a Definition,
    length: Length,
}

fn row(plan: Plan<'_>, workload: &Workload, progress: &mut dyn FnMut(&str)) -> Result<Row> {
    let Plan { definition, length } = plan;
    let round_ms = length.round_ms;
    let mut writing = Writing::start(workload)?;
    let mut untracked = Vec::new();
    let mut samples = vec![Vec::new(); definition.techniques.len()];
    for run in 1..=length.runs {
        let mut say = |who: &str| {
            progress(&format!(
                "{}, rounds of {round_ms} ms, run {run}: {who}",
                workload.name
            ));
        };
        say("untracked");
        untracked.push(sample(plan, &mut writing, None)?.throughput);
        for (technique, samples) in definition.techniques.iter().zip(&mut samples) {
            say(technique.name());
            samples.push(sample(plan, &mut writing, Some(*technique))?);
        }
    }
    let untracked = Spread::of(untracked);
    Ok(Row {
        name: workload.name.clone(),
        round_ms,
        runs: length.runs,
        untracked_per_cpu_second: untracked,
        techniques: definition
            .techniques
            .iter()
            .zip(&samples)
            .map(|(technique, samples)| summary(*technique, untracked.median, samples))
            .collect(),
    })
}

/// Watches the writer for a while.
fn sample(plan: Plan<'_>, writing: &mut Writing, technique: Option<Technique>) -> Result<Sample> {
    let Plan { definition, length } = plan;
    // Nothing is to be learned where nobody watches.
    let warm_up = technique.map_or(1, |_| length.warm_up);
    let false_positive_cost =
        FalsePositiveCost::Costs(Duration::from_nanos(definition.false_positive_ns));
    let mut watch = match technique {
        Some(technique) => {
            let watch = Watch::builder().target(writing.target()?);
            let watch = watch
                .technique(technique)
                .false_positive_cost(false_positive_cost);
            Some(watch.block_pages(definition.block_pages).start()?)
        }
        None => None,
    };
    let mut sample = Sample::default();
    let mut before = PageSet::new();
    let mut from = writing.progress()?;
    let mut due = from.done;
    writing.begin_epoch()?;
    for number in 0..warm_up + length.rounds {
        due += length.round_ms * definition.operations_per_ms;
        writing.wait(due, Duration::from_millis(length.round_ms))?;
        if number == warm_up {
            from = writing.progress()?;
            // On a busy machine the writer may be far ahead of the rounds; those that count have
            // their operations still before them.
            due = from.done;
        }
        let Some(watch) = &mut watch else { continue };
        // What is marked was written before the collect begins.
        let written = writing.begin_epoch()?;
        let began = cpu_ns();
        let round = watch.collect()?;
        let collect_ns = cpu_ns() - began;
        let memory = PageSet::from_iter([writing.range()]);
        let reported = round.dirty().intersection(&memory);
        let prediction = round.prediction();
        round.commit();
        Missed::in_sets(watch.technique().name(), &written, &reported.union(&before))?;
        if number >= warm_up {
            sample.rounds += 1;
            sample.written += written.page_count();
            sample.reported += reported.page_count();
            sample.collect_ns.push(collect_ns as f64);
            sample.tally.add(prediction);
        }
        before = reported;
    }
    let to = writing.progress()?;
    let seconds = to.cpu_ns.saturating_sub(from.cpu_ns) as f64 / 1e9;
    if seconds == 0.0 {
        bail!("the writer has not run");
    }
    sample.faults = to.faults - from.faults;
    sample.throughput = (to.done - from.done) as f64 / seconds;
    Ok(sample)
}

/// Processor time of this thread.
pub(super) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn summary(technique: Technique, untracked: f64, samples: &[Sample]) -> Measured {
    let over = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
    let per_round = |count: fn(&Sample) -> u64| {
        over(&|sample| count(sample) as f64 / sample.rounds.max(1) as f64)
    };
    Measured {
        technique: technique.name(),
        overhead_percent: over(&|sample| (untracked / sample.throughput.max(1e-9) - 1.0) * 100.0),
        faults_per_round: per_round(|sample| sample.faults),
        written_per_round: per_round(|sample| sample.written),
        reported_per_round: per_round(|sample| sample.reported),
        reported_per_written: over(&|sample| sample.reported as f64 / sample.written.max(1) as f64),
        collect_us: over(&|sample| Spread::of(sample.collect_ns.iter().copied()).median / 1e3),
        prediction: Predicted::of(samples.iter().map(|sample| &sample.tally)),
    }
}
