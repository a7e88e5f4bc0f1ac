//! [`Process`]: a process under tiering: its loop, its periods, and its status.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail_report::size::Size;
use pagetrail_report::words;
use pagetrail_tier::mover::{DryRun, Mover, NodeMover, NodeOptions, SwapMover};
use pagetrail_tier::source::Source;
use pagetrail_tier::{Demand, Error, Moves, TierLoop, TierLoopOptions};

use crate::agent::{self, AgentAddress};
use crate::config::{Config, Memory, Slow, Target};
use crate::guest_memory::GuestMemory;
use crate::history::History;
use crate::life::Life;
use crate::monitor;
use crate::status::ProcessStatus;

/// What moves the pages of a process.
pub(crate) fn mover(pid: u32, memory: &Memory, dry_run: bool) -> Result<Box<dyn Mover>, Error> {
    let bytes_per_second = memory.bandwidth.map(Size::bytes);
    let nodes = |slow: &[u32]| {
        let options = NodeOptions {
            fast: memory.fast_node.clone(),
            slow: slow.to_vec(),
            threads: memory.threads,
            batch: memory.batch,
            bytes_per_second,
        };
        NodeMover::new(pid, options)
    };
    Ok(match (&memory.slow, dry_run) {
        (Slow::Nodes(slow), false) => Box::new(nodes(slow)),
        (Slow::Nodes(slow), true) => Box::new(DryRun(nodes(slow))),
        (Slow::Swap, false) => Box::new(SwapMover::new(pid, bytes_per_second)?),
        (Slow::Swap, true) => Box::new(DryRun(SwapMover::new(pid, bytes_per_second)?)),
    })
}

/// The first words of a process's command line.
fn command_line(pid: u32) -> String {
    let line = words::command(&pagetrail::command_line(pid));
    line.chars().take(60).collect()
}

/// How long a process's pages are moved in a window: somebody else's turn comes, too.
fn time_to_move(config: &Config) -> Duration {
    config.window / 2
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Windows of a period run.
    Tracking,
    /// Until the next period begins.
    Waiting(Instant),
    /// Likewise, because the last ones were calm.
    Paused(Instant),
}

/// A process and its loop.
pub(crate) struct Process {
    pub(crate) pid: u32,
    life: Life,
    command: String,
    tier_loop: TierLoop,
    phase: Phase,
    /// When the period began.
    began: Instant,
    demand: Demand,
    /// Whether a window has shown demand.
    measured: bool,
    pub(crate) history: History,
    agency: Agency,
}

/// The agent of a guest.
#[derive(Debug, Default)]
struct Agency {
    address: Option<AgentAddress>,
    is_used: bool,
    /// Why not.
    refusal: Option<String>,
}

/// What reports the accesses of a monitor's guest: its agent, if it is asked and answers in time,
/// or what is seen from outside.
fn guest(
    pid: u32,
    address: Option<&AgentAddress>,
    timeout: Option<Duration>,
    start: impl FnOnce() -> Result<Box<dyn Source>, Error>,
) -> Result<(Box<dyn Source>, Agency), Error> {
    let mut agency = Agency {
        address: address.cloned(),
        ..Agency::default()
    };
    let asked = address.zip(timeout);
    match asked.map(|(address, timeout)| agent::Guest::of(pid, address, timeout)) {
        Some(Ok(guest)) => {
            agency.is_used = true;
            return Ok((Box::new(guest), agency));
        }
        Some(Err(error)) => {
            agency.refusal = Some(format!("{error}: its guest is watched from outside"));
        }
        None => {}
    }
    Ok((Box::new(GuestMemory::of(pid, start)?), agency))
}

impl Process {
    /// Begins to keep a process; its first period begins with the next turn.
    pub(crate) fn start(
        pid: u32,
        target: &Target,
        config: &Config,
        dry_run: bool,
        asks_agent: bool,
    ) -> Result<Self, Error> {
        // First, so that it is this process whose agent answers.
        let life = Life::of(pid)?;
        // Then this, so that what cannot be moved is not watched.
        let mover = mover(pid, &config.memory, dry_run)?;
        let start = || target.source.start(pid, config.window);
        if target.vm.is_none() {
            return Self::with(pid, life, start()?, mover, config);
        }
        let timeout = asks_agent.then(|| agent::timeout(config.window));
        let (source, agency) = guest(pid, target.agent.as_ref(), timeout, start)?;
        let mut process = Self::with(pid, life, source, mover, config)?;
        process.history.guest = Some(monitor::guest_name(pid).unwrap_or_default());
        process.agency = agency;
        Ok(process)
    }

    /// Why its guest is watched from outside though it has an agent, the first time.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        self.agency.refusal.take()
    }

    /// Whether its agent reports what is used.
    pub(crate) fn has_agent(&self) -> bool {
        self.agency.is_used
    }

    /// Whether it was watched for a period.
    pub(crate) fn is_measured(&self) -> bool {
        self.measured
    }

    /// Whether its agent, which did not answer, does again; asked before a period, and `None` where
    /// it was not.
    pub(crate) fn agent_is_back(&self, config: &Config, now: Instant) -> Option<bool> {
        let begins = match self.phase {
            Phase::Waiting(until) | Phase::Paused(until) => now >= until,
            Phase::Tracking => false,
        };
        // Not before it was watched from outside for a period.
        let asked = self
            .agency
            .address
            .as_ref()
            .filter(|_| begins && self.measured && !self.agency.is_used)
            .filter(|_| !self.ends_within(Duration::ZERO));
        let timeout = agent::timeout(config.window);
        asked.map(|address| agent::Guest::of(self.pid, address, timeout).is_ok())
    }

    /// Begins to keep a process whose accesses a source reports.
    pub(crate) fn of_source(
        pid: u32,
        source: Box<dyn Source>,
        config: &Config,
        dry_run: bool,
    ) -> Result<Self, Error> {
        let mover = mover(pid, &config.memory, dry_run)?;
        Self::with(pid, Life::of(pid)?, source, mover, config)
    }

    fn with(
        pid: u32,
        life: Life,
        source: Box<dyn Source>,
        mover: Box<dyn Mover>,
        config: &Config,
    ) -> Result<Self, Error> {
        let options = TierLoopOptions {
            settings: config.settings(&source.info()),
            // What it may use is said before its first window.
            capacity: 0,
            timeout: Some(time_to_move(config)),
        };
        let now = Instant::now();
        Ok(Self {
            pid,
            life,
            command: command_line(pid),
            tier_loop: TierLoop::new(source, mover, options)?,
            phase: Phase::Waiting(now),
            began: now,
            demand: Demand::default(),
            measured: false,
            history: History::default(),
            agency: Agency::default(),
        })
    }

    /// Whether it has ended, or does within a time.
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        self.life.ends_within(timeout)
    }

    /// Takes a turn: one per window.
    pub(crate) fn turn(&mut self, config: &Config, now: Instant) -> Result<(), Error> {
        // Not every source and not every turn notices, and its number may be another's by now.
        self.life.check()?;
        match self.phase {
            Phase::Tracking => {
                let report = self.tier_loop.window()?;
                self.demand = report.demand;
                self.history.add(&mut self.tier_loop, &report);
                if report.over {
                    self.measured = true;
                    self.tier_loop.end_period()?;
                    self.phase = match self.tier_loop.pause() {
                        0 => Phase::Waiting(self.began + config.period),
                        _ => Phase::Paused(self.began + config.period),
                    };
                }
            }
            Phase::Waiting(until) | Phase::Paused(until) if now < until => {}
            Phase::Waiting(_) | Phase::Paused(_) => {
                self.began = now;
                self.phase = match self.tier_loop.begin_period()? {
                    true => Phase::Tracking,
                    false => Phase::Paused(now + config.period),
                };
            }
        }
        Ok(())
    }

    /// What it could use of fast memory, once a period has shown it.
    pub(crate) fn demand(&self) -> Option<Demand> {
        self.measured.then_some(self.demand)
    }

    /// How much of its memory may be fast from now on. What is above that goes with the next plan.
    pub(crate) fn allow(&mut self, bytes: u64) {
        self.tier_loop.set_capacity(bytes);
    }

    /// Holds its moves, or lets them go on.
    pub(crate) fn set_moves(&mut self, moves: Moves) {
        self.tier_loop.set_moves(moves);
    }

    /// Takes other settings, and begins a period with the next turn.
    pub(crate) fn reload(&mut self, config: &Config) -> Result<()> {
        let settings = config.settings(&self.tier_loop.info());
        self.tier_loop.set_settings(settings)?;
        self.tier_loop.set_timeout(Some(time_to_move(config)));
        self.phase = Phase::Waiting(Instant::now());
        Ok(())
    }

    /// How long its pages are moved in a window.
    #[cfg(test)]
    pub(crate) fn time_to_move(&self) -> Option<Duration> {
        self.tier_loop.timeout()
    }

    pub(crate) fn status(&mut self) -> ProcessStatus {
        let usage = self.tier_loop.policy().usage();
        let totals = self.tier_loop.totals();
        let state = match self.phase {
            Phase::Tracking => "tracking",
            Phase::Waiting(_) => "waiting",
            Phase::Paused(_) => "paused",
        };
        ProcessStatus {
            pid: self.pid,
            command: self.command.clone(),
            guest: self.history.guest.clone(),
            source: self.tier_loop.info().name.into(),
            state: state.into(),
            fast_bytes: usage.fast,
            slow_bytes: usage.slow,
            allowed_bytes: self.tier_loop.capacity(),
            demand_bytes: self.demand.wanted,
            windows: totals.windows,
            periods: totals.periods,
            pauses: totals.pauses,
            faults: totals.faults,
            promoted_bytes: totals.promoted_bytes,
            demoted_bytes: totals.demoted_bytes,
            not_moved: totals
                .failures
                .iter()
                .map(|(reason, count)| (reason.name().to_owned(), *count))
                .collect(),
            busy_s: totals.busy.as_secs_f64(),
        }
    }
}
