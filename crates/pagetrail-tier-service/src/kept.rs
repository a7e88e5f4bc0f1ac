//! [`Kept`]: a target and its processes: their turns, their parts of its fast memory, and why some
//! are not kept.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail_tier::Error;

use crate::config::{Config, Target, Vm};
use crate::daemon::{StartGuest, machine_limit};
use crate::find;
use crate::history::History;
use crate::process::Process;

/// Who was refused is tried again after so long.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// A target and its processes.
pub(crate) struct Kept {
    pub(crate) target: Target,
    pub(crate) processes: Vec<Process>,
    /// Why some could not be kept, and when they were tried.
    pub(crate) refused: BTreeMap<u32, (String, Instant)>,
    /// What ended targets did, for the page.
    pub(crate) ended: Vec<(u32, History)>,
    /// Whether the program of a guest was started, or could not be.
    pub(crate) is_started: bool,
}

impl Kept {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            processes: Vec::new(),
            refused: BTreeMap::new(),
            ended: Vec::new(),
            is_started: false,
        }
    }

    /// Starts the program of a target that is a guest, once.
    pub(crate) fn start_guest(
        &mut self,
        start: &StartGuest,
        config: &Config,
        dry_run: bool,
    ) -> Result<()> {
        let Some(command) = self.target.guest.as_ref().filter(|_| !self.is_started) else {
            return Ok(());
        };
        self.is_started = true;
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let (pid, source) = start(&command, self.target.source)?;
        let process = Process::of_source(pid, source, config, dry_run).map_err(machine_limit)?;
        self.processes.push(process);
        Ok(())
    }

    /// Begins to keep the processes that are new. Of those that cannot be kept because of this
    /// machine the errors are returned if `may_fail`, and others are noted.
    pub(crate) fn search(
        &mut self,
        (config, dry_run): (&Config, bool),
        now: Instant,
        may_fail: bool,
        messages: &mut Vec<String>,
        alive: &mut dyn FnMut(),
    ) -> Vec<Error> {
        let mut limits = Vec::new();
        for pid in find::processes(&self.target) {
            let known = self.processes.iter().any(|process| process.pid == pid);
            let refused = self.refused.get(&pid);
            // Its number may be another's by now.
            let by_pid = self.target.pid.is_some() || matches!(self.target.vm, Some(Vm::Pid(_)));
            let over = by_pid && self.ended.iter().any(|(old, _)| *old == pid);
            if known || over || refused.is_some_and(|(_, then)| now - *then < REFUSED_AGAIN) {
                continue;
            }
            alive();
            match Process::start(pid, &self.target, config, dry_run) {
                Ok(process) => {
                    self.refused.remove(&pid);
                    self.processes.push(process);
                }
                Err(error) if error.means_end() => {}
                Err(error) if may_fail && error.is_machine_limit() => limits.push(error),
                Err(error) => {
                    let line = format!("process {pid}: {error}");
                    messages.push(format!("{}: {line}", self.target.name));
                    self.refused.insert(pid, (line, now));
                }
            }
        }
        limits
    }

    /// Whether the program of a guest has come and gone.
    pub(crate) fn is_over(&self) -> bool {
        self.target.guest.is_some() && self.is_started && self.processes.is_empty()
    }

    /// Whether a target of another configuration is the program that was started for this one.
    pub(crate) fn is_guest_of(&self, target: &Target) -> bool {
        self.target.guest.is_some() && self.target.guest == target.guest
    }

    /// Gives every process its turn; those that have ended are let go.
    pub(crate) fn turn(
        &mut self,
        config: &Config,
        now: Instant,
        messages: &mut Vec<String>,
        alive: &mut dyn FnMut(),
    ) {
        let mut gone = Vec::new();
        for (index, process) in self.processes.iter_mut().enumerate() {
            alive();
            if let Err(error) = process.turn(config, now) {
                if !error.means_end() {
                    let line = format!("process {}: {error}", process.pid);
                    messages.push(format!("{}: {line}", self.target.name));
                    self.refused.insert(process.pid, (line, now));
                }
                gone.push(index);
            }
        }
        for index in gone.into_iter().rev() {
            let process = self.processes.remove(index);
            self.ended.push((process.pid, process.history));
        }
    }

    /// Shares what the target may use among its processes: by what they could use, or alike where
    /// that is not known.
    pub(crate) fn allow(&mut self, bytes: u64) {
        let demands = self
            .processes
            .iter()
            .map(|process| Some(process.demand()?.wanted));
        let demands: Option<Vec<u64>> = demands.collect();
        let count = self.processes.len() as u64;
        let weights = match demands {
            Some(demands) if demands.iter().any(|demand| *demand > 0) => demands,
            _ => vec![1; self.processes.len()],
        };
        // Half of it in equal parts, so that a process that was idle once gets some again.
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        for (process, weight) in self.processes.iter_mut().zip(weights) {
            let alike = bytes / 2 / count;
            let by_demand = u128::from(bytes - bytes / 2) * u128::from(weight) / sum.max(1);
            process.allow(alike + by_demand as u64);
        }
    }
}
