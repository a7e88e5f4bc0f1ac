//! [`Kept`]: a target and its processes: their turns, their parts of its fast memory, and why some
//! are not kept.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail_tier::{Demand, Error};

use crate::config::{Config, SourceKind, Target, Vm};
use crate::daemon::{StartGuest, machine_limit};
use crate::find;
use crate::history::History;
use crate::process::Process;
use crate::silent::Silent;

/// Who was refused is tried again after so long.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);
/// A monitor's end closes the connection to its agent somewhat before the process is gone.
const END: Duration = Duration::from_millis(100);
/// Histories of processes that have ended, of all targets together, or one for each target.
const ENDED_MAX: usize = 64;

/// A target and its processes.
pub(crate) struct Kept {
    pub(crate) target: Target,
    pub(crate) processes: Vec<Process>,
    /// Why some could not be kept, and when they were tried.
    pub(crate) refused: BTreeMap<u32, (String, Instant)>,
    /// Monitors whose guest's agent failed: they are watched from outside meanwhile.
    silent: Silent,
    /// What the last processes that have ended did, for the page.
    pub(crate) ended: VecDeque<(u32, History)>,
    /// Whether the process that was named by its PID has ended: its number may be another's by now.
    is_named_over: bool,
    /// When it last had a process.
    last_had: Option<Instant>,
    /// Whether the program of a guest was started, or could not be.
    pub(crate) is_started: bool,
}

impl Kept {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            processes: Vec::new(),
            refused: BTreeMap::new(),
            silent: Silent::default(),
            ended: VecDeque::new(),
            is_named_over: false,
            last_had: None,
            is_started: false,
        }
    }

    /// Takes over what is known of a target of the same name in an earlier configuration.
    pub(crate) fn inherit(&mut self, known: Self) {
        self.is_named_over = known.is_named_over
            && (known.target.pid, &known.target.vm) == (self.target.pid, &self.target.vm);
        self.ended = known.ended;
        self.last_had = known.last_had;
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
        let found = match self.is_named_over {
            true => Vec::new(),
            false => find::processes(&self.target),
        };
        // Who has ended, or is meant no longer, is not refused either.
        self.refused.retain(|pid, _| found.contains(pid));
        self.silent.retain(&found);
        let pids = self.processes.iter().map(|process| process.pid);
        let ambiguous = ambiguous(&self.target, &found, &pids.collect::<Vec<_>>());
        for pid in found {
            let known = self.processes.iter().any(|process| process.pid == pid);
            let refused = self.refused.get(&pid);
            if known || refused.is_some_and(|(_, then)| now - *then < REFUSED_AGAIN) {
                continue;
            }
            if let Some(line) = &ambiguous {
                let line = format!("process {pid}: {line}");
                messages.push(format!("{}: {line}", self.target.name));
                self.refused.insert(pid, (line, now));
                continue;
            }
            alive();
            let asks_agent = self.silent.may_ask(pid, now);
            match Process::start(pid, &self.target, config, dry_run, asks_agent) {
                Ok(mut process) => {
                    self.refused.remove(&pid);
                    if let Some(line) = process.take_refusal() {
                        messages.push(format!("{}: process {pid}: {line}", self.target.name));
                        self.silent.note(pid, now);
                    }
                    self.processes.push(process);
                }
                Err(error) if error.means_end() && self.is_named() => {
                    // Who has its number later is another.
                    let name = &self.target.name;
                    messages.push(format!("{name}: process {pid}: {error}: it is not kept"));
                    self.is_named_over = true;
                }
                Err(error) if error.means_end() => {}
                Err(error) if may_fail && error.is_machine_limit() => limits.push(error),
                Err(error) => {
                    let line = format!("process {pid}: {error}");
                    messages.push(format!("{}: {line}", self.target.name));
                    self.refused.insert(pid, (line, now));
                    if self.target.agent.is_some() && asks_agent {
                        self.silent.note(pid, now);
                    }
                }
            }
        }
        limits
    }

    /// Whether it is one process, by its PID.
    fn is_named(&self) -> bool {
        self.target.pid.is_some() || matches!(self.target.vm, Some(Vm::Pid(_)))
    }

    /// Whether the program of a guest has come and gone.
    pub(crate) fn is_over(&self) -> bool {
        self.target.guest.is_some() && self.is_started && self.processes.is_empty()
    }

    /// Whether a target of another configuration is the program that was started for this one.
    pub(crate) fn is_guest_of(&self, target: &Target) -> bool {
        self.target.guest.is_some() && self.target.guest == target.guest
    }

    /// Whether the processes of a target of another configuration are watched as this one's are, so
    /// that they can stay.
    pub(crate) fn is_watched_as(&self, target: &Target, is_same_window: bool) -> bool {
        let own = &self.target;
        let is_alike = (own.source, &own.agent, own.vm.is_some())
            == (target.source, &target.agent, target.vm.is_some());
        // DAMON, and the time that an agent has, are set by the window once.
        let has_window = own.source == SourceKind::Damon || own.agent.is_some();
        is_alike && (is_same_window || !has_window)
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
            let may_ask = self.silent.may_ask(process.pid, now);
            let is_back = may_ask
                .then(|| process.agent_is_back(config, now))
                .flatten();
            if is_back == Some(true) {
                let line = format!("process {}: its guest's agent answers again", process.pid);
                messages.push(format!("{}: {line}", self.target.name));
                gone.push((index, false));
                continue;
            }
            if is_back == Some(false) {
                self.silent.note(process.pid, now);
            }
            if let Err(error) = process.turn(config, now) {
                let has_ended =
                    error.means_end() || (process.has_agent() && process.ends_within(END));
                if !has_ended {
                    let line = format!("process {}: {error}", process.pid);
                    messages.push(format!("{}: {line}", self.target.name));
                    match process.has_agent() {
                        // Without its agent a guest is watched from outside at once. Who fails may
                        // be there all the same, and be too slow.
                        true => self.silent.note(process.pid, now),
                        false => drop(self.refused.insert(process.pid, (line, now))),
                    }
                }
                gone.push((index, has_ended));
            } else if process.has_agent() && process.is_measured() {
                self.silent.forget(process.pid);
            }
        }
        for (index, has_ended) in gone.into_iter().rev() {
            let process = self.processes.remove(index);
            self.ended.push_back((process.pid, process.history));
            self.is_named_over |= self.is_named() && has_ended;
        }
        let most = (ENDED_MAX / config.targets.len().max(1)).max(1);
        let surplus = self.ended.len().saturating_sub(most);
        self.ended.drain(..surplus);
    }

    /// What its processes could use of fast memory, where that is known of all of them.
    ///
    /// Where they have ended that is nothing, after a period: one that is started again, or watched
    /// in another way, finds its share.
    pub(crate) fn demand(&mut self, period: Duration, now: Instant) -> Option<Demand> {
        if self.processes.is_empty() {
            let is_over = self.last_had.is_some_and(|then| now - then > period);
            return is_over.then(Demand::default);
        }
        self.last_had = Some(now);
        let mut processes = self.processes.iter();
        processes.try_fold(Demand::default(), |sum, process| {
            let demand = process.demand()?;
            Some(Demand {
                wanted: sum.wanted + demand.wanted,
                steady: sum.steady + demand.steady,
            })
        })
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

/// Why none of the processes that are found for the name of a guest is kept, beyond those that are:
/// the name is what a process says of itself, and more than one says it.
fn ambiguous(target: &Target, found: &[u32], kept: &[u32]) -> Option<String> {
    let Some(Vm::Name(name)) = &target.vm else {
        return None;
    };
    let mut all: Vec<u32> = found.iter().chain(kept).copied().collect();
    all.sort_unstable();
    all.dedup();
    (all.len() > 1).then(|| {
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        format!(
            "more than one monitor calls its guest '{name}' ({}): name it by its PID or its control group",
            all.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(what: &str) -> Target {
        let text = format!("[[target]]\nname = \"a\"\nfast = \"1M\"\n{what}");
        Config::parse(&text).unwrap().targets.remove(0)
    }

    #[test]
    fn of_guests_with_one_name_none_is_taken() {
        let named = target("vm = \"web1\"");
        assert_eq!(ambiguous(&named, &[], &[]), None);
        assert_eq!(ambiguous(&named, &[7], &[]), None);
        assert_eq!(ambiguous(&named, &[7], &[7]), None, "it is kept already");
        let line = ambiguous(&named, &[9, 7], &[]).unwrap();
        assert!(line.contains("'web1' (7, 9)"), "{line}");
        assert!(ambiguous(&named, &[9], &[7]).is_some(), "7 is not asked");
        for many in ["vm = \"/machine.slice\"", "command = \"web1\""] {
            assert_eq!(ambiguous(&target(many), &[7, 9], &[]), None);
        }
    }

    #[test]
    fn who_is_watched_in_another_way_is_watched_anew() {
        let pid = target("pid = 7");
        let of = |what: &str| Kept::new(target(what));
        assert!(Kept::new(pid.clone()).is_watched_as(&pid, false));
        for (before, after) in [
            ("pid = 7", "pid = 7\nsource = \"turns\""),
            ("pid = 7", "vm = 7"),
            ("vm = 7", "vm = 7\nagent = \"vsock:3:9466\""),
            ("vm = 7\nagent = \"vsock:3:9466\"", "vm = 7"),
            (
                "vm = 7\nagent = \"vsock:3:9466\"",
                "vm = 7\nagent = \"vsock:4:9466\"",
            ),
        ] {
            assert!(!of(before).is_watched_as(&target(after), true), "{after}");
        }
        for once in [
            "pid = 7\nsource = \"damon\"",
            "vm = 7\nagent = \"vsock:3:9466\"",
        ] {
            assert!(of(once).is_watched_as(&target(once), true), "{once}");
            assert!(!of(once).is_watched_as(&target(once), false), "{once}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_refused_no_longer() {
        let target = target("pid = 4194305");
        let config = Config::parse("[[target]]\nname = \"a\"\npid = 1\nfast = \"1M\"").unwrap();
        let mut kept = Kept::new(target);
        let now = Instant::now();
        kept.refused.insert(4_194_304, ("long gone".into(), now));
        let mut messages = Vec::new();
        kept.search((&config, true), now, false, &mut messages, &mut || ());
        assert!(!kept.refused.contains_key(&4_194_304));
        // It is named by its PID, and said once to be gone.
        assert!(kept.is_named_over);
        kept.search((&config, true), now, false, &mut messages, &mut || ());
        assert!(kept.refused.is_empty() && kept.processes.is_empty());
        assert_eq!(messages.len(), 1, "{messages:?}");
        let mut again = Kept::new(kept.target.clone());
        again.inherit(kept);
        assert!(again.is_named_over, "its number may be another's by now");
    }
}
