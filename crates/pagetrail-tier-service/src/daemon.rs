//! [`Daemon`]: keeps all processes of all targets, window by window, in one thread.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pagetrail_endpoint::Endpoint;
use pagetrail_report::words;
use pagetrail_tier::source::Source;
use pagetrail_tier::{Error, Moves, Pool, Tiers, nodes};

use crate::config::{Config, Mode, Slow, SourceKind};
use crate::find;
use crate::history::History;
use crate::kept::Kept;
use crate::kernel::{self, KernelMover};
use crate::metrics;
use crate::page;
use crate::pressure;
use crate::process::Process;
use crate::status::{Status, TargetStatus, Weights};

#[cfg(test)]
mod tests;

/// Time from one search for new processes to the next.
const SEARCH_EVERY: Duration = Duration::from_secs(2);
/// Shortest time after which the status that is served is made anew.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);
/// Samples of the pool that are kept for the page.
const SHARES_MAX: usize = 2000;

/// Starts a program as a guest of KVM; returns its PID and what reports its accesses. Its first
/// window is over, so that its mappings are complete.
pub type StartGuest = Box<dyn Fn(&[OsString], SourceKind) -> Result<(u32, Box<dyn Source>)>>;

/// Bytes of fast memory that each target was allowed at one time.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) seconds: f64,
    /// In the order of the targets.
    pub(crate) allowed: Vec<(String, u64)>,
}

/// All targets.
pub struct Daemon {
    path: PathBuf,
    config: Config,
    dry_run: bool,
    start_guest: StartGuest,
    messages: Vec<String>,
    pool: Pool,
    kept: Vec<Kept>,
    endpoint: Option<Endpoint>,
    started: Instant,
    searched: Option<Instant>,
    published: Option<Instant>,
    reloads: u64,
    /// Why nothing is moved at the moment.
    held: Option<String>,
    kernel_movers: Vec<KernelMover>,
    pub(crate) shares: Vec<Shares>,
}

impl Daemon {
    /// Reads the configuration and listens; nothing is kept yet. In a dry run nothing is moved.
    ///
    /// # Errors
    ///
    /// The configuration is wrong, its address is taken, or this machine lacks its memory nodes.
    pub fn new(path: &Path, dry_run: bool, start_guest: StartGuest) -> Result<Self> {
        let mut config = Config::read(path)?;
        if !dry_run {
            check_memory(&config)?;
        }
        let messages = measure(&mut config, dry_run)?.into_iter().collect();
        let endpoint = config.listen.as_ref().map(Endpoint::listen).transpose()?;
        let mut daemon = Self {
            path: path.to_owned(),
            pool: pool(&config)?,
            kept: config.targets.iter().cloned().map(Kept::new).collect(),
            config,
            dry_run,
            start_guest,
            messages,
            endpoint,
            started: Instant::now(),
            searched: None,
            published: None,
            reloads: 0,
            held: None,
            kernel_movers: Vec::new(),
            shares: Vec::new(),
        };
        daemon.look_at_the_kernel();
        Ok(daemon)
    }

    /// Says what else moves pages here, where that is new.
    fn look_at_the_kernel(&mut self) {
        let movers = kernel::movers();
        for mover in &movers {
            if !self.kernel_movers.contains(mover) {
                self.messages.push(mover.line());
            }
        }
        self.kernel_movers = movers;
    }

    /// Holds all moves while tasks wait for memory.
    fn heed_pressure(&mut self) {
        let limit = self.config.memory.pressure_max_percent;
        let above = limit.and_then(|limit| match pressure::memory_percent() {
            Ok(percent) => (percent > f64::from(limit)).then(|| {
                format!("tasks waited for memory {percent:.0}% of the time, more than {limit}%")
            }),
            // It was there at the start. Who asked for a limit does not want moves without one.
            Err(error) => Some(error.to_string()),
        });
        if above.is_some() != self.held.is_some() {
            self.messages.push(match &above {
                Some(reason) => format!("{reason}: nothing is moved"),
                None => "tasks wait less for memory: pages are moved again".into(),
            });
        }
        let moves = match above {
            Some(_) => Moves::Held,
            None => Moves::CarriedOut,
        };
        self.held = above;
        let processes = self.kept.iter_mut().flat_map(|kept| &mut kept.processes);
        processes.for_each(|process| process.set_moves(moves));
    }

    /// How long a window is.
    pub fn window(&self) -> Duration {
        self.config.window
    }

    /// Returns what is to be said to the user since the last call, a line each.
    pub fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// Runs the loop of every process once.
    ///
    /// `alive` is called before each process: a turn of many takes as long as all of them together.
    ///
    /// # Errors
    ///
    /// This machine cannot do what was asked for at all.
    pub fn turn(&mut self, alive: &mut dyn FnMut()) -> Result<()> {
        let now = Instant::now();
        if self.searched.is_none_or(|then| now - then >= SEARCH_EVERY) {
            self.searched = Some(now);
            self.search(now, alive)?;
            self.look_at_the_kernel();
        }
        self.heed_pressure();
        for kept in &mut self.kept {
            kept.turn(&self.config, now, &mut self.messages, alive);
        }
        self.share(now);
        if self
            .published
            .is_none_or(|then| now - then >= PUBLISH_EVERY)
        {
            self.published = Some(now);
            self.publish();
        }
        Ok(())
    }

    /// Whether all targets were guests, which have ended.
    pub fn is_over(&self) -> bool {
        self.kept.iter().all(Kept::is_over)
    }

    /// Begins to keep processes that are new, and starts the guests that are to be started.
    fn search(&mut self, now: Instant, alive: &mut dyn FnMut()) -> Result<()> {
        let first = self.shares.is_empty();
        let mut limits = Vec::new();
        for kept in &mut self.kept {
            match kept.start_guest(&self.start_guest, &self.config, self.dry_run) {
                Err(error) if first => return Err(error),
                Err(error) => self
                    .messages
                    .push(format!("{}: {error:#}", kept.target.name)),
                Ok(()) => {}
            }
            let how = (&self.config, self.dry_run);
            limits.extend(kept.search(how, now, first, &mut self.messages, alive));
        }
        // Nobody can be kept here, now or later.
        let nobody = self.kept.iter().all(|kept| kept.processes.is_empty());
        if let (true, Some(error)) = (nobody, limits.into_iter().next()) {
            return Err(machine_limit(error));
        }
        Ok(())
    }

    /// Says what each process may use.
    fn share(&mut self, now: Instant) {
        if self.config.mode == Mode::Pool {
            for kept in &mut self.kept {
                if let Some(demand) = kept.demand(self.config.period, now) {
                    self.pool.demand(&kept.target.name, demand);
                }
            }
            self.pool.balance(&self.config.policy);
        }
        for kept in &mut self.kept {
            let member = self.pool.member(&kept.target.name);
            kept.allow(member.map_or(0, |member| member.size));
        }
        let members = self.kept.iter().map(|kept| {
            let name = &kept.target.name;
            (
                name.clone(),
                self.pool.member(name).map_or(0, |member| member.size),
            )
        });
        let allowed: Vec<(String, u64)> = members.collect();
        if self
            .shares
            .last()
            .is_none_or(|last| last.allowed != allowed)
            && self.shares.len() < SHARES_MAX
        {
            self.shares.push(Shares {
                seconds: self.started.elapsed().as_secs_f64(),
                allowed,
            });
        }
    }

    /// Reads the configuration anew. One that is wrong changes nothing.
    pub fn reload(&mut self) {
        match self.try_reload() {
            Ok(()) => {
                self.reloads += 1;
                let line = format!("{} read anew", self.path.display());
                self.messages.push(line);
            }
            Err(error) => {
                let line = format!("{error:#}; going on as before");
                self.messages.push(line);
            }
        }
    }

    fn try_reload(&mut self) -> Result<()> {
        let mut config = Config::read(&self.path)?;
        if !self.dry_run {
            check_memory(&config)?;
        }
        let same_memory = config.memory == self.config.memory;
        let measured = match same_memory {
            true => {
                config.measured = self.config.measured;
                None
            }
            false => measure(&mut config, self.dry_run)?,
        };
        let fresh_pool = pool(&config)?;
        self.check_guests(&config)?;
        if config.listen != self.config.listen {
            // The old address first: it may be the same socket by another name.
            let endpoint = config.listen.as_ref().map(Endpoint::listen).transpose()?;
            self.endpoint = endpoint;
        }
        self.messages.extend(measured);
        let mut before = std::mem::take(&mut self.kept);
        for target in &config.targets {
            let known = before
                .iter()
                .position(|kept| kept.target.name == target.name);
            let mut kept = Kept::new(target.clone());
            if let Some(mut known) = known.map(|index| before.swap_remove(index)) {
                let same_window = self.config.window == config.window;
                let is_guest = known.is_guest_of(target);
                kept.is_started = is_guest && known.is_started;
                if same_memory && known.is_watched_as(target, same_window) {
                    let means = find::processes(target);
                    known
                        .processes
                        .retain(|process| is_guest || means.contains(&process.pid));
                    kept.processes = std::mem::take(&mut known.processes);
                    for process in &mut kept.processes {
                        process.reload(&config)?;
                    }
                }
                kept.inherit(known);
            }
            self.kept.push(kept);
        }
        self.pool = fresh_pool;
        self.config = config;
        self.searched = None;
        Ok(())
    }

    /// Refuses what a running guest cannot take: its tracking cannot begin again.
    fn check_guests(&self, config: &Config) -> Result<()> {
        for target in &config.targets {
            let mut kept = self.kept.iter();
            let guest = kept.find(|kept| kept.target.name == target.name);
            let Some(guest) = guest.filter(|kept| kept.is_guest_of(target)) else {
                continue;
            };
            let stays = guest.target.source == target.source && self.config.memory == config.memory;
            ensure!(
                stays || guest.processes.is_empty(),
                "target '{}' is a guest that runs, so its source and [memory] stay as they are",
                target.name
            );
        }
        Ok(())
    }

    /// The answers to status requests.
    pub fn status(&mut self) -> Status {
        let targets = self.kept.iter_mut().map(|kept| {
            let member = self.pool.member(&kept.target.name);
            TargetStatus {
                name: kept.target.name.clone(),
                share_bytes: kept.target.fast.bytes(),
                allowed_bytes: member.map_or(0, |member| member.size),
                demand_bytes: member.and_then(|member| Some(member.demand?.wanted)),
                processes: kept.processes.iter_mut().map(Process::status).collect(),
                refused: kept
                    .refused
                    .values()
                    .map(|(line, _)| line.clone())
                    .collect(),
            }
        });
        let targets: Vec<TargetStatus> = targets.collect();
        Status {
            schema: 1,
            pid: std::process::id(),
            mode: self.config.mode,
            dry_run: self.dry_run,
            uptime_s: self.started.elapsed().as_secs_f64(),
            fast_bytes: self.pool.total(),
            fast_free_bytes: self.pool.free(),
            reloads: self.reloads,
            held: self.held.clone(),
            kernel_movers: self.kernel_movers.clone(),
            weights: self
                .config
                .measured
                .as_ref()
                .map(|tiers| Weights::of(tiers, &self.config)),
            targets,
        }
    }

    /// One line about what it keeps.
    pub fn summary(&self) -> String {
        let processes = self
            .kept
            .iter()
            .map(|kept| kept.processes.len())
            .sum::<usize>();
        let held = self
            .held
            .as_ref()
            .map_or(String::new(), |reason| format!("; held: {reason}"));
        format!(
            "{} of {}{held}",
            words::plural(processes as u64, "process"),
            words::plural(self.kept.len() as u64, "target"),
        )
    }

    fn publish(&mut self) {
        if self.endpoint.is_none() {
            return;
        }
        let status = self.status();
        let json = serde_json::to_string(&status).unwrap_or_default();
        if let Some(endpoint) = &self.endpoint {
            let format = metrics::FORMAT.content_type();
            endpoint.set("/metrics", format, metrics::text(&status));
            endpoint.set("/status", "application/json", json);
        }
    }

    /// Name, PID and history of every process, those that have ended included.
    pub(crate) fn histories(&self) -> impl Iterator<Item = (&str, u32, &History)> {
        self.kept.iter().flat_map(|kept| {
            let running = kept
                .processes
                .iter()
                .map(|process| (process.pid, &process.history));
            let ended = kept.ended.iter().map(|(pid, history)| (*pid, history));
            let all = ended.chain(running);
            all.map(|(pid, history)| (&*kept.target.name, pid, history))
        })
    }
}

fn pool(config: &Config) -> Result<Pool> {
    let mut pool = Pool::new(config.fast_bytes());
    for target in &config.targets {
        pool.join(&target.name, target.fast.bytes())?;
    }
    Ok(pool)
}

/// Measures how reads and writes weigh, where that is wanted; one line about it.
fn measure(config: &mut Config, dry_run: bool) -> Result<Option<String>> {
    let memory = &config.memory;
    let (Slow::Nodes(slow), true) = (&memory.slow, memory.measure_weights) else {
        return Ok(None);
    };
    let (Some(fast), Some(slow)) = (memory.fast_node.first(), slow.first()) else {
        return Ok(None);
    };
    match Tiers::measure(*fast, *slow) {
        Ok(tiers) => {
            config.measured = Some(tiers);
            let weights = Weights::of(&tiers, config);
            Ok(Some(weights.line(*fast, *slow)))
        }
        Err(error) if dry_run && error.is_machine_limit() => Ok(Some(format!(
            "reads and writes weigh as in [policy]: {error}"
        ))),
        Err(error) => Err(machine_limit(error)),
    }
}

/// Whether the nodes are there, and the pressure that is to be heeded.
fn check_memory(config: &Config) -> Result<()> {
    if config.memory.pressure_max_percent.is_some() {
        pressure::memory_percent().map_err(machine_limit)?;
    }
    let Slow::Nodes(slow) = &config.memory.slow else {
        return Ok(());
    };
    let present: Vec<u32> = nodes().iter().map(|node| node.id).collect();
    for node in config.memory.fast_node.iter().chain(slow) {
        if !present.contains(node) {
            let error = Error::NotHere(format!(
                "there is no memory node {node} here, only {present:?}: set [memory], or move nothing in a dry run"
            ));
            return Err(machine_limit(error));
        }
    }
    Ok(())
}

/// An error that ends with the exit code for what this machine lacks.
pub fn machine_limit(error: Error) -> anyhow::Error {
    match error {
        Error::Watch(error) => error.into(),
        error => error.into(),
    }
}

impl Daemon {
    /// Writes a page about what was done.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_page(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(last) = self.shares.last() {
            // As it was until now.
            let allowed = last.allowed.clone();
            let seconds = self.started.elapsed().as_secs_f64();
            self.shares.push(Shares { seconds, allowed });
        }
        let status = self.status();
        page::write_daemon(&status, self, out)
    }
}
