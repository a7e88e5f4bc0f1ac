//! Real programs of a suite: each does the same work in every run, and what counts is its processor
//! time.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use pagetrail::{AtExit, Ended, FalsePositiveCost, State, Target, Technique, Watch};

use super::definition::{Definition, Program};
use super::measure::cpu_ns;
use super::results::{Budget, ProgramMeasured, ProgramRow};
use super::sample::Sample;
use crate::predicted::Predicted;
use crate::results::Spread;

/// A program that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Measures a program; `None` where it is not here.
pub(crate) fn row(
    definition: &Definition,
    program: &Program,
    programs: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<ProgramRow>> {
    let place = |word: &String| word.replace("{programs}", &programs.to_string_lossy());
    let command: Vec<String> = program.command.iter().map(place).collect();
    let Some(name) = command.first().filter(|name| is_here(name)) else {
        return Ok(None);
    };
    let name = name.clone();
    let mut runs: HashMap<Option<Technique>, Vec<Sample>> = HashMap::new();
    let techniques = definition.techniques.iter().copied().map(Some);
    let techniques: Vec<_> = [None].into_iter().chain(techniques).collect();
    for run in 1..=definition.program_runs {
        for technique in &techniques {
            let who = technique.map_or("untracked", Technique::name);
            progress(&format!("{}, run {run}: {who}", program.name));
            let sample = sample(definition, program, &command, *technique);
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
        // A program that has ended before a round says nothing of what rounds cost.
        let had_rounds = samples.iter().all(|sample| !sample.costs.is_empty());
        let allowed = definition.max_overhead.filter(|_| had_rounds);
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
            budget: allowed.map(|share| Budget {
                allowed_percent: share * 100.0,
                cost_percent: over(&|sample| sample.mean_cost(|cost| cost.share) * 100.0),
                interval_ms: over(&|sample| {
                    let lengths = sample.costs.iter().map(|cost| cost.1.as_secs_f64() * 1e3);
                    Spread::of(lengths).median
                }),
                reported_per_written: over(&|s| s.mean_cost(|cost| cost.reported_per_written)),
                rounds_over: over(&|sample| {
                    let over = sample.costs.iter().filter(|cost| !cost.0.is_kept);
                    over.count() as f64
                }),
            }),
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

fn is_here(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Path::new(name).is_file() || std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// Runs the program once, and collects while it runs.
fn sample(
    definition: &Definition,
    program: &Program,
    words: &[String],
    technique: Option<Technique>,
) -> Result<Sample> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.envs(&program.environment);
    let false_positive_cost =
        FalsePositiveCost::Costs(Duration::from_nanos(definition.false_positive_ns));
    let watch = Watch::builder()
        .target(Target::command(command))
        .at_exit(AtExit::Hold);
    // Untracked, it is started the same way, and nobody collects.
    let watch = watch.technique(technique.unwrap_or(Technique::None));
    let watch = watch.false_positive_cost(false_positive_cost);
    let round = Duration::from_millis(definition.program_round_ms);
    let watch = watch.block_pages(definition.block_pages);
    let watch = match definition.max_overhead.filter(|_| technique.is_some()) {
        Some(share) => watch.max_overhead(share).intervals(round..=round * 10),
        None => watch,
    };
    let mut watch = watch.start()?;
    let _client = Client::start(program)?;
    let mut sample = Sample::default();
    let began = Instant::now();
    let mut last = began;
    loop {
        let left = |due: Instant| due.saturating_duration_since(Instant::now());
        match watch.wait(watch.next_collect().map_or(round, left)) {
            State::Exiting => {
                (sample.cpu_ns, sample.faults) = consumed(watch.pid())?;
                watch.release_exit();
            }
            State::Ended(Some(Ended::Exited(0))) => return Ok(sample),
            State::Ended(how) => bail!("it ended: {how:?}"),
            _ if began.elapsed() > TIMEOUT => bail!("it does not come to its end"),
            _ if technique.is_none() => {}
            _ => {
                let began = cpu_ns();
                // It may end in the middle.
                let Ok(round) = watch.collect() else { continue };
                let collect_ns = cpu_ns() - began;
                let (pages, prediction) = (round.dirty().page_count(), round.prediction());
                let cost = round.overhead();
                round.commit();
                let length = last.elapsed();
                last += length;
                sample.costs.extend(cost.map(|cost| (cost, length)));
                sample.rounds += 1;
                sample.reported += pages;
                sample.collect_ns.push(collect_ns as f64);
                sample.tally.add(prediction);
            }
        }
    }
}

/// Processor time in nanoseconds of all its threads, those that have ended included, and minor
/// faults, of a process that is held at its end.
fn consumed(pid: u32) -> Result<(u64, u64)> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.try_into()?))?;
    let cpu_time = Duration::from(clock.now()?);
    Ok((cpu_time.as_nanos() as u64, super::child::minor_faults(pid)?))
}

/// The client that gives a server its work, and ends it.
struct Client(Option<Child>);

impl Client {
    fn start(program: &Program) -> Result<Self> {
        let Some(script) = &program.client else {
            return Ok(Self(None));
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).stdin(Stdio::null());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Some(
            shell.spawn().context("cannot start the client")?,
        )))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
