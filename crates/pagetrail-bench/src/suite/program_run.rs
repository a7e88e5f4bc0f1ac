//! One run of a program of a suite: under one technique, or under none.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use pagetrail::{
    AtExit, Children, Ended, FalsePositiveCost, Member, State, Target, Technique, Tree, Watch,
    WatchBuilder,
};
use rustix::process::Signal;

use super::child::{children_of, minor_faults};
use super::definition::{Definition, Program};
use super::measure::cpu_ns;
use super::sample::{Cost, Sample};

/// A program that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The longest round within a budget, as of `pagetrail record`.
const ROUND_MAX: Duration = Duration::from_secs(10);
/// Between two looks at a tree, at least.
const LOOK: Duration = Duration::from_millis(1);

/// Runs the program once, and collects while it runs.
pub(super) fn sample(
    definition: &Definition,
    program: &Program,
    technique: Option<Technique>,
) -> Result<Sample> {
    // Untracked, it is started the same way, and nobody collects.
    let watch = builder(definition, program, technique);
    let watch = watch.target(Target::command(command(program)));
    let mut tree = watch.at_exit(AtExit::Hold).start_tree()?;
    let _client = Client::start(program)?;
    let round = Duration::from_millis(definition.program_round_ms);
    let mut sample = Sample::default();
    let mut clocks = HashMap::new();
    let began = Instant::now();
    let mut next = began + round;
    loop {
        match tree.wait(next.saturating_duration_since(Instant::now())) {
            State::Exiting => {
                let root = tree.members().first().context("it has ended")?;
                (sample.cpu_ns, sample.faults) = consumed(root.pid())?;
                tree.release_exit();
            }
            State::Ended(Some(Ended::Exited(0))) => return Ok(sample),
            State::Ended(how) => bail!("it ended: {how:?}"),
            _ if began.elapsed() > TIMEOUT => bail!("it does not come to its end"),
            _ if technique.is_none() => next = Instant::now() + round,
            _ => next = collect_due(&mut tree, round, &mut clocks, &mut sample),
        }
    }
}

/// The program's command; nobody hears what it says.
pub(super) fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.command[0]);
    command.args(&program.command[1..]).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.envs(&program.environment);
    command
}

/// Tracks a program as the suite says.
pub(super) fn builder(
    definition: &Definition,
    program: &Program,
    technique: Option<Technique>,
) -> WatchBuilder {
    let false_positive_cost =
        FalsePositiveCost::Costs(Duration::from_nanos(definition.false_positive_ns));
    let round = Duration::from_millis(definition.program_round_ms);
    let watch = Watch::builder()
        .technique(technique.unwrap_or(Technique::None))
        .false_positive_cost(false_positive_cost)
        .block_pages(definition.block_pages)
        .children(match program.tree {
            true => Children::Follow,
            false => Children::LeaveOut,
        });
    match definition.max_overhead.filter(|_| technique.is_some()) {
        Some(share) => watch
            .max_overhead(share)
            .intervals(round..=ROUND_MAX.max(round)),
        None => watch,
    }
}

/// When a process was collected last, and its processor time then.
pub(super) type Clocks = HashMap<u32, (Instant, Duration)>;

/// The clocks of processes that ran before they were tracked, when that has begun: what they took
/// until then is none of their first round.
pub(super) fn clocks_of(tree: &Tree) -> Clocks {
    let began = tree.began();
    let clock = |member: &Member| {
        let consumed = cpu_time(member.pid()).ok()?;
        Some((member.number(), (began + member.appeared(), consumed)))
    };
    tree.members().iter().filter_map(clock).collect()
}

/// Collects the processes that are due; says when to look again.
pub(super) fn collect_due(
    tree: &mut Tree,
    round: Duration,
    clocks: &mut Clocks,
    sample: &mut Sample,
) -> Instant {
    tree.follow();
    let began = tree.began();
    for member in tree.members_mut() {
        collect(member, began, clocks, sample);
    }
    let due = tree
        .members()
        .iter()
        .map(|member| member.watch().next_collect());
    // Without a budget all are due after each round; new processes are looked for then. One that
    // has ended stays due until it is found to have.
    let now = Instant::now();
    let due = due.flatten().min().unwrap_or(now + round);
    due.clamp(now + LOOK, now + round.max(LOOK))
}

/// Collects a process of a `tree` that began then, if it is due.
fn collect(member: &mut Member, tree: Instant, clocks: &mut Clocks, sample: &mut Sample) {
    let now = Instant::now();
    let number = member.number();
    // It may end in the middle.
    let Ok(consumed) = cpu_time(member.pid()) else {
        return;
    };
    let appeared = (tree + member.appeared(), Duration::ZERO);
    let (last, before) = clocks.get(&number).copied().unwrap_or(appeared);
    let watch = member.watch_mut();
    if watch.next_collect().is_some_and(|due| due > now) {
        return;
    }
    let began = cpu_ns();
    let Ok(round) = watch.collect() else { return };
    let collect_ns = cpu_ns() - began;
    let (pages, prediction) = (round.dirty().page_count(), round.prediction());
    let cost = round.overhead();
    round.commit();
    clocks.insert(number, (Instant::now(), consumed));
    sample.costs.extend(cost.map(|overhead| Cost {
        overhead,
        length: last.elapsed(),
        busy: consumed.saturating_sub(before),
    }));
    sample.rounds += 1;
    sample.reported += pages;
    sample.collect_ns.push(collect_ns as f64);
    sample.tally.add(prediction);
}

/// Processor time of all threads of a process, those that have ended included.
fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.try_into()?))?;
    Ok(Duration::from(clock.now()?))
}

/// Processor time in nanoseconds and minor faults of a process that is held at its end, with those
/// of its children that have ended.
fn consumed(pid: u32) -> Result<(u64, u64)> {
    let children = children_of(pid)?;
    let own = cpu_time(pid)?;
    let faults = minor_faults(pid)? + children.faults;
    Ok(((own + children.cpu).as_nanos() as u64, faults))
}

/// The client that gives a server its work, and ends it.
pub(super) struct Client(Option<Child>);

impl Client {
    pub(super) fn start(program: &Program) -> Result<Self> {
        let Some(script) = &program.client else {
            return Ok(Self(None));
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).stdin(Stdio::null());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        // To be ended with all that it has started.
        shell.process_group(0);
        Ok(Self(Some(
            shell.spawn().context("cannot start the client")?,
        )))
    }

    /// The PID of its first process, where there is one.
    pub(super) fn id(&self) -> Option<u32> {
        self.0.as_ref().map(Child::id)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
        }
    }
}
