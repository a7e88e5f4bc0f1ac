//! A program tracked and untracked in turns, within one run of it.
//!
//! What differs from run to run (where memory lies, what a compiler has compiled when, a host that
//! is busy for a minute) is the same for neighbouring turns, so that a few percent can be seen
//! where runs differ by ten. What counts is how many units of work the program does in a second of
//! time on the clock: its stops, its faults and a tracker that competes for the processors are all
//! in it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagetrail::{State, Target, Technique};
use rustix::time::{ClockId, clock_gettime};

use super::definition::{Definition, Program, Progress, Turns};
use super::guard::Guard;
use super::program::Prepared;
use super::program_run::{Client, builder, clocks_of, collect_due, command};
use super::results::{Budget, Paired, TurnsMeasured, TurnsRow};
use super::sample::Sample;
use crate::predicted::Predicted;
use crate::results::Spread;

/// Between two looks at how far a program is.
const LOOK: Duration = Duration::from_micros(200);
/// A program that does no unit of work in so long hangs.
const UNIT_MAX: Duration = Duration::from_secs(30);
/// A turn in which fewer are done tells nothing.
const UNITS_MIN: u64 = 5;

/// Measures a program; `None` where it is not here.
pub(super) fn row(
    definition: &Definition,
    turns: Turns,
    program: &Program,
    programs: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<TurnsRow>> {
    let Some(Prepared { program, .. }) = &Prepared::of(program, programs)? else {
        return Ok(None);
    };
    progress(&format!("{}: starts", program.name));
    let run = Run::start(definition, program);
    let measured = run.and_then(|mut run| run.measure(turns, progress));
    let taken = measured.with_context(|| program.name.clone())?;
    let untracked = taken.iter().map(|pair| pair.untracked.per_second());
    let lengths = taken.iter().flat_map(|pair| {
        let tracked = pair.tracked.iter().map(|(turn, _)| turn);
        tracked
            .chain([&pair.untracked])
            .map(|turn| turn.took.as_secs_f64())
    });
    let measured = |(at, technique): (usize, &Technique)| {
        let of = |pair: &Pair| {
            let slowed = pair.untracked.per_second() / pair.tracked[at].0.per_second();
            (slowed - 1.0) * 100.0
        };
        let samples: Vec<Sample> = taken
            .iter()
            .map(|pair| pair.tracked[at].1.clone())
            .collect();
        let over = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
        TurnsMeasured {
            technique: technique.name(),
            overhead_percent: Paired::of(&taken.iter().map(of).collect::<Vec<_>>()),
            faults_per_second: Spread::of(taken.iter().map(|pair| {
                let (turn, sample) = &pair.tracked[at];
                let faults = sample.costs.iter().map(|cost| cost.overhead.faults);
                faults.sum::<u64>() as f64 / turn.took.as_secs_f64()
            })),
            tracker_percent: Spread::of(taken.iter().map(|pair| {
                let turn = &pair.tracked[at].0;
                turn.tracker.as_secs_f64() / turn.took.as_secs_f64() * 100.0
            })),
            rounds: over(&|sample| sample.rounds as f64),
            reported_per_round: over(&|s| s.reported as f64 / s.rounds.max(1) as f64),
            collect_us: over(&|s| Spread::of(s.collect_ns.iter().copied()).median / 1e3),
            prediction: Predicted::of(samples.iter().map(|sample| &sample.tally)),
            budget: Budget::of(definition.max_overhead, &samples),
        }
    };
    Ok(Some(TurnsRow {
        name: program.name.clone(),
        round_ms: definition.program_round_ms,
        pairs: turns.pairs,
        turn_seconds: Spread::of(lengths),
        untracked_per_second: Spread::of(untracked),
        techniques: definition
            .techniques
            .iter()
            .enumerate()
            .map(measured)
            .collect(),
    }))
}

/// Neighbouring turns.
struct Pair {
    untracked: Turn,
    /// By each technique.
    tracked: Vec<(Turn, Sample)>,
}

/// What a program did in a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    units: u64,
    took: Duration,
    /// Processor time of the tracker.
    tracker: Duration,
}

impl Turn {
    fn per_second(&self) -> f64 {
        self.units as f64 / self.took.as_secs_f64()
    }
}

/// How far a program was when.
#[derive(Clone, Copy, Debug)]
struct Mark {
    units: u64,
    at: Instant,
    tracker: Duration,
}

/// A program at work; it is ended when this is dropped, and when this process ends.
struct Run<'a> {
    definition: &'a Definition,
    program: &'a Program,
    process: Child,
    client: Option<Client>,
    /// `None` only while this is being dropped.
    guard: Option<Guard>,
    last: Mark,
}

impl<'a> Run<'a> {
    fn start(definition: &'a Definition, program: &'a Program) -> Result<Self> {
        let mut guard = Guard::start(program.end.as_deref())?;
        let mut command = command(program);
        // To be ended with all that it has started.
        let process = command.process_group(0).spawn()?;
        guard.add(process.id())?;
        let mut run = Self {
            definition,
            program,
            process,
            client: None,
            guard: Some(guard),
            last: Mark {
                units: 0,
                at: Instant::now(),
                tracker: Duration::ZERO,
            },
        };
        let client = run.client.insert(Client::start(program)?);
        if let (Some(leader), Some(guard)) = (client.id(), &mut run.guard) {
            guard.add(leader)?;
        }
        Ok(run)
    }

    fn measure(&mut self, turns: Turns, progress: &mut dyn FnMut(&str)) -> Result<Vec<Pair>> {
        std::thread::sleep(Duration::from_secs(turns.warm_up_seconds.into()));
        self.last = self.next_mark()?;
        let mut pairs = Vec::new();
        for number in 1..=turns.pairs {
            let mut untracked = None;
            let mut tracked: Vec<Option<(Turn, Sample)>> =
                vec![None; self.definition.techniques.len()];
            let mut order: Vec<Option<usize>> = [None]
                .into_iter()
                .chain((0..tracked.len()).map(Some))
                .collect();
            // So that a program that becomes slower with time is not taken to be slowed down.
            if number % 2 == 0 {
                order.reverse();
            }
            for who in order {
                let technique = who.map(|at| self.definition.techniques[at]);
                let name = technique.map_or("untracked", Technique::name);
                progress(&format!("{}, pair {number}: {name}", self.program.name));
                match technique.zip(who) {
                    Some((technique, at)) => {
                        tracked[at] = Some(self.tracked(turns, technique)?);
                    }
                    None => {
                        std::thread::sleep(self.left(turns));
                        untracked = Some(self.end_turn()?);
                    }
                }
            }
            pairs.push(Pair {
                untracked: untracked.context("no turn untracked")?,
                tracked: tracked.into_iter().flatten().collect(),
            });
        }
        Ok(pairs)
    }

    /// The time until a turn is over.
    fn left(&self, turns: Turns) -> Duration {
        let ends = self.last.at + Duration::from_secs(turns.seconds.into());
        ends.saturating_duration_since(Instant::now())
    }

    /// A turn in which the program is attached to, collected, and let go.
    fn tracked(&mut self, turns: Turns, technique: Technique) -> Result<(Turn, Sample)> {
        let target = Target::process(self.process.id())?;
        let watch = builder(self.definition, self.program, Some(technique));
        let mut tree = watch.target(target).start_tree()?;
        let round = Duration::from_millis(self.definition.program_round_ms);
        let (mut sample, mut clocks) = (Sample::default(), clocks_of(&tree));
        let mut next = Instant::now() + round;
        loop {
            let left = self.left(turns);
            if left.is_zero() {
                break;
            }
            match tree.wait(left.min(next.saturating_duration_since(Instant::now()))) {
                State::Ended(how) => bail!("it ended: {how:?}"),
                _ if Instant::now() < next => {}
                _ => next = collect_due(&mut tree, round, &mut clocks, &mut sample),
            }
        }
        drop(tree);
        ensure!(
            sample.rounds > 0,
            "no round was collected in a turn: it tells nothing"
        );
        Ok((self.end_turn()?, sample))
    }

    /// Ends a turn with the unit that the program is at.
    fn end_turn(&mut self) -> Result<Turn> {
        let mark = self.next_mark()?;
        let last = std::mem::replace(&mut self.last, mark);
        let units = mark.units.checked_sub(last.units).with_context(|| {
            let (before, now) = (last.units, mark.units);
            format!("its progress goes back, from {before} to {now}")
        })?;
        let turn = Turn {
            units,
            took: mark.at - last.at,
            tracker: mark.tracker - last.tracker,
        };
        ensure!(
            turn.units >= UNITS_MIN,
            "{} units of work in a turn tell nothing",
            turn.units
        );
        Ok(turn)
    }

    /// The end of the unit that the program is at.
    fn next_mark(&mut self) -> Result<Mark> {
        let began = Instant::now();
        let ended = self.process.try_wait()?;
        if let Some(how) = ended {
            bail!("it has ended: {how}");
        }
        let first = self.units()?;
        loop {
            if let Progress::Script(_) = self.progress()? {
                // It looks at one moment of the time that it takes.
                let at = began + began.elapsed() / 2;
                return Ok(mark(first, at));
            }
            std::thread::sleep(LOOK);
            let units = self.units()?;
            if units > first {
                return Ok(mark(units, Instant::now()));
            }
            ensure!(began.elapsed() < UNIT_MAX, "it does not go on");
        }
    }

    fn progress(&self) -> Result<&Progress> {
        let progress = self.program.progress.as_ref();
        progress.context("nothing says its progress")
    }

    /// How far the program is.
    fn units(&self) -> Result<u64> {
        let field = match self.progress()? {
            Progress::Reads => "syscr:",
            Progress::Writes => "syscw:",
            Progress::Script(script) => {
                let mut shell = Command::new("sh");
                let said = shell.args(["-ec", script]).stdin(Stdio::null()).output()?;
                let text = String::from_utf8_lossy(&said.stdout);
                let number = text.trim().parse().ok();
                return number.with_context(|| {
                    let errors = String::from_utf8_lossy(&said.stderr);
                    format!("its progress is '{}': {}", text.trim(), errors.trim())
                });
            }
        };
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|number| number.trim().parse().ok());
        number.context("the kernel does not count what it reads and writes")
    }
}

fn mark(units: u64, at: Instant) -> Mark {
    let tracker = clock_gettime(ClockId::ProcessCPUTime);
    Mark {
        units,
        at,
        tracker: Duration::new(tracker.tv_sec as u64, tracker.tv_nsec as u32),
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // Before they are waited for: until then their PIDs are nobody else's.
        drop(self.guard.take());
        drop(self.client.take());
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::Capabilities;
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process_group};

    /// A program at work.
    const SUITE: &str = r#"
        techniques = ["pagemap-scan"]
        false_positive_ns = 50
        program_round_ms = 20
        max_overhead = 1.0
        [turns]
        warm_up_seconds = 1
        seconds = 1
        pairs = 1
        [[program]]
        name = "shell"
        command = ["sh", "-c", "while :; do echo; done"]
        progress = "writes"
    "#;

    #[test]
    fn a_first_round_has_what_the_program_ran_in_it() {
        if !Capabilities::probe().works(Technique::PagemapScan) {
            return pagetrail_skips::not_here("pagemap-scan");
        }
        let definition = Definition::parse(SUITE).unwrap();
        let turns = definition.turns.unwrap();
        let mut run = Run::start(&definition, &definition.program[0]).unwrap();
        std::thread::sleep(Duration::from_secs(turns.warm_up_seconds.into()));
        run.last = run.next_mark().unwrap();
        let (turn, sample) = run.tracked(turns, Technique::PagemapScan).unwrap();
        let busy: Duration = sample.costs.iter().map(|cost| cost.busy).sum();
        assert!(!sample.costs.is_empty());
        assert!(busy < turn.took * 3 / 2, "{busy:?} of {turn:?}");
    }

    #[test]
    fn a_program_ends_with_its_run() {
        let definition = Definition::parse(SUITE).unwrap();
        let run = Run::start(&definition, &definition.program[0]).unwrap();
        let group = Pid::from_raw(run.process.id() as i32).unwrap();
        assert_eq!(test_kill_process_group(group), Ok(()));
        drop(run);
        assert_eq!(test_kill_process_group(group), Err(Errno::SRCH));
    }

    #[test]
    fn progress_that_goes_back_is_an_error() {
        let suite = SUITE.replace("\"writes\"", "{ script = \"echo 7\" }");
        let definition = Definition::parse(&suite).unwrap();
        let mut run = Run::start(&definition, &definition.program[0]).unwrap();
        run.last.units = 9;
        let error = run.end_turn().unwrap_err().to_string();
        assert_eq!(error, "its progress goes back, from 9 to 7");
    }
}
