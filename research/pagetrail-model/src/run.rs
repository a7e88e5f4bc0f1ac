//! [`run()`]: a program under a technique, from start to report.
//!
//! The runner makes the accesses, keeps its own record of what process 0 wrote, and holds each
//! round against it. Events are counted by phase, since a tracker pays for some and the tracked
//! program for others.

use std::collections::HashMap;
use std::fmt;

use crate::machine::{Gva, PAGE_BYTES};
use crate::technique::{Options, Target, Technique, TechniqueKind};
use crate::workload::Op;
use crate::{Error, Events, Host, HostConfig, Paging, ProcessId, VcpuId, VmConfig, WriteSet};

/// How many times a guest's memory its processes may map.
const OVERCOMMIT_MAX: u64 = 16;

/// What to run a program on.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The host.
    pub host: HostConfig,
    /// The machine that the program runs on. Its first vCPU is used.
    pub vm: VmConfig,
    /// The technique.
    pub technique: TechniqueKind,
    /// Its sizes.
    pub options: Options,
    /// Another process gets the vCPU for a moment after so many accesses.
    pub switch_every: Option<u64>,
}

impl RunConfig {
    /// The paper's machine, or one with shadow paging where the technique needs that.
    pub fn new(technique: TechniqueKind) -> Self {
        let paging = match technique {
            TechniqueKind::Shadow => Paging::Shadow,
            _ => VmConfig::default().paging,
        };
        Self {
            host: HostConfig::default(),
            vm: VmConfig {
                paging,
                ..VmConfig::default()
            },
            technique,
            options: Options::default(),
            switch_every: None,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The technique.
    pub technique: TechniqueKind,
    /// What its unit is, in bytes.
    pub unit_bytes: u64,
    /// The most memory that process 0 had mapped at once, in bytes.
    pub tracked_bytes: u64,
    /// Before tracking started.
    pub setup: Events,
    /// Starting it.
    pub start: Events,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// What the program did after the last round.
    pub rest: Events,
    /// Ending it.
    pub stop: Events,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// While the program ran.
    pub monitor: Events,
    /// While the tracker collected.
    pub collect: Events,
    /// Units that the program wrote and still has.
    pub written: u64,
    /// Units that the technique reported.
    pub reported: u64,
    /// Units written and not reported: anything but 0 is a fault of the technique.
    pub missed: u64,
}

impl Report {
    /// What happened from the start of tracking to its end.
    pub fn tracking(&self) -> Events {
        let rounds = self
            .rounds
            .iter()
            .map(|round| round.monitor + round.collect);
        rounds.fold(self.start + self.rest + self.stop, |sum, events| {
            sum + events
        })
    }

    /// All that happened.
    pub fn total(&self) -> Events {
        self.setup + self.tracking()
    }

    /// What happened while the program ran under tracking.
    pub fn monitor(&self) -> Events {
        self.rounds
            .iter()
            .fold(self.rest, |sum, round| sum + round.monitor)
    }
}

/// Why a program cannot be run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The step that failed, counted from 1; 0 where there is no machine to begin with.
    pub step: u64,
    /// What is wrong with it.
    pub reason: RunErrorKind,
}

/// What can be wrong with a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The machine cannot do it.
    Machine(Error),
    /// A process or area number that is in use, or is not.
    Number(&'static str, u32),
    /// An access outside of its area.
    Outside {
        /// The area.
        area: u32,
        /// Where in it.
        offset: u64,
    },
    /// No process runs.
    NoProcess,
    /// Tracking starts twice, or a round comes before it started, or process 0 is gone.
    NotTracking(&'static str),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.step > 0 {
            write!(f, "step {}: ", self.step)?;
        }
        match &self.reason {
            RunErrorKind::Machine(error) => error.fmt(f),
            RunErrorKind::Number(what, number) => write!(f, "{what}: {number}"),
            RunErrorKind::Outside { area, offset } => {
                write!(f, "offset {offset:#x} lies outside of area {area}")
            }
            RunErrorKind::NoProcess => f.write_str("no process runs"),
            RunErrorKind::NotTracking(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RunError {}

impl From<Error> for RunError {
    /// What is wrong before the first step.
    fn from(error: Error) -> Self {
        Self {
            step: 0,
            reason: error.into(),
        }
    }
}

impl From<Error> for RunErrorKind {
    fn from(error: Error) -> Self {
        Self::Machine(error)
    }
}

/// Runs a program.
pub fn run(config: &RunConfig, ops: impl IntoIterator<Item = Op>) -> Result<Report, RunError> {
    let mut runner = Runner::new(config)?;
    let mut step = 0;
    for op in ops {
        step += 1;
        runner
            .step(op)
            .map_err(|reason| RunError { step, reason })?;
    }
    runner.finish().map_err(|reason| RunError { step, reason })
}

/// An area of a process, and which of its units were written this round.
struct Area {
    process: u32,
    start: Gva,
    bytes: u64,
    written: Vec<u64>,
}

struct Runner<'a> {
    config: &'a RunConfig,
    host: Host,
    vcpu: VcpuId,
    /// Takes the vCPU now and then.
    other: ProcessId,
    processes: HashMap<u32, ProcessId>,
    areas: HashMap<u32, Area>,
    running: Option<u32>,
    technique: Option<Box<dyn Technique>>,
    unit_bytes: u64,
    accesses: u64,
    /// What all processes have mapped now.
    mapped_bytes: u64,
    /// What process 0 has mapped now, and at most.
    tracked_now: u64,
    tracked_bytes: u64,
    /// Events up to the end of the last phase.
    mark: Events,
    report: Report,
}

impl<'a> Runner<'a> {
    fn new(config: &'a RunConfig) -> Result<Self, Error> {
        let mut host = Host::new(&config.host)?;
        let vm = host.add_vm(&config.vm)?;
        let other = host.spawn(vm)?;
        let unit_bytes = match config.technique {
            TechniqueKind::Lu { parts, .. } => PAGE_BYTES / u64::from(parts.clamp(1, 64)),
            _ => PAGE_BYTES,
        };
        let none = Events::default();
        let report = Report {
            technique: config.technique,
            unit_bytes,
            tracked_bytes: 0,
            setup: none,
            start: none,
            rounds: Vec::new(),
            rest: none,
            stop: none,
        };
        Ok(Self {
            config,
            host,
            vcpu: vm.vcpu(0),
            other,
            processes: HashMap::new(),
            areas: HashMap::new(),
            running: None,
            technique: None,
            unit_bytes,
            accesses: 0,
            mapped_bytes: 0,
            tracked_now: 0,
            tracked_bytes: 0,
            mark: none,
            report,
        })
    }

    /// What happened since the last call.
    fn phase(&mut self) -> Events {
        let now = self.host.events(self.other.vm());
        now - std::mem::replace(&mut self.mark, now)
    }

    fn process(&self, number: u32) -> Result<ProcessId, RunErrorKind> {
        let process = self.processes.get(&number).copied();
        process.ok_or(RunErrorKind::Number("there is no such process", number))
    }

    #[inline]
    fn step(&mut self, op: Op) -> Result<(), RunErrorKind> {
        match op {
            Op::Read { area, offset } => self.access(area, offset, false),
            Op::Write { area, offset } => self.access(area, offset, true),
            Op::Spawn { process } => {
                if self.processes.contains_key(&process) {
                    return Err(RunErrorKind::Number("the process lives already", process));
                }
                self.processes
                    .insert(process, self.host.spawn(self.other.vm())?);
                Ok(())
            }
            Op::Exit { process } => {
                let id = self.process(process)?;
                if process == 0 && self.technique.is_some() {
                    return Err(RunErrorKind::NotTracking("the tracked process ends"));
                }
                self.host.exit(id)?;
                self.processes.remove(&process);
                let gone: Vec<Area> = self
                    .areas
                    .extract_if(|_, area| area.process == process)
                    .map(|(_, area)| area)
                    .collect();
                gone.iter().for_each(|area| self.forget(area));
                self.running = self.running.filter(|&running| running != process);
                Ok(())
            }
            Op::Switch { process } => {
                self.host.schedule(self.process(process)?, self.vcpu)?;
                self.running = Some(process);
                Ok(())
            }
            Op::Map { area, bytes } => self.map(area, bytes),
            Op::Unmap { area } => {
                let process = self.running.ok_or(RunErrorKind::NoProcess)?;
                let start = self.own_area(area)?.start;
                self.host.unmap(self.process(process)?, start)?;
                if let Some(area) = self.areas.remove(&area) {
                    self.forget(&area);
                }
                Ok(())
            }
            Op::Start => self.start(),
            Op::Round => self.round(),
        }
    }

    fn own_area(&self, number: u32) -> Result<&Area, RunErrorKind> {
        let area = self
            .areas
            .get(&number)
            .filter(|area| Some(area.process) == self.running);
        area.ok_or(RunErrorKind::Number(
            "the running process has no such area",
            number,
        ))
    }

    fn map(&mut self, number: u32, bytes: u64) -> Result<(), RunErrorKind> {
        let process = self.running.ok_or(RunErrorKind::NoProcess)?;
        if self.areas.contains_key(&number) {
            return Err(RunErrorKind::Number("the area exists already", number));
        }
        if bytes > self.config.vm.memory_bytes {
            return Err(Error::OutOfGuestMemory.into());
        }
        // Sparse programs are fine; a file that maps without end is not.
        let most = self.config.vm.memory_bytes.saturating_mul(OVERCOMMIT_MAX);
        if self.mapped_bytes.saturating_add(bytes) > most {
            return Err(Error::OutOfGuestMemory.into());
        }
        let start = self.host.map(self.process(process)?, bytes)?;
        let units = bytes.div_ceil(self.unit_bytes);
        let written = vec![0; units.div_ceil(64) as usize];
        self.areas.insert(
            number,
            Area {
                process,
                start,
                bytes,
                written,
            },
        );
        self.mapped_bytes += bytes;
        if process == 0 {
            self.tracked_now += bytes;
            self.tracked_bytes = self.tracked_bytes.max(self.tracked_now);
        }
        Ok(())
    }

    /// An area is gone.
    fn forget(&mut self, area: &Area) {
        self.mapped_bytes -= area.bytes;
        if area.process == 0 {
            self.tracked_now -= area.bytes;
        }
    }

    #[inline]
    fn access(&mut self, number: u32, offset: u64, write: bool) -> Result<(), RunErrorKind> {
        let area = self
            .areas
            .get_mut(&number)
            .filter(|area| Some(area.process) == self.running);
        let area = area.ok_or(RunErrorKind::Number(
            "the running process has no such area",
            number,
        ))?;
        if offset >= area.bytes {
            return Err(RunErrorKind::Outside {
                area: number,
                offset,
            });
        }
        let gva = area.start.add(offset);
        let mut place = gva;
        if area.process == 0
            && let Some(technique) = &mut self.technique
        {
            place = technique.place(gva);
            if write {
                let unit = offset / self.unit_bytes;
                area.written[(unit / 64) as usize] |= 1 << (unit % 64);
                technique.observe_write(gva);
            }
        }
        self.host.access(self.vcpu, place, write)?;
        self.accesses += 1;
        if let (Some(every), Some(running)) = (self.config.switch_every, self.running)
            && self.accesses.is_multiple_of(every.max(1))
        {
            self.host.schedule(self.other, self.vcpu)?;
            self.host.schedule(self.process(running)?, self.vcpu)?;
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), RunErrorKind> {
        if self.technique.is_some() {
            return Err(RunErrorKind::NotTracking("tracking has started already"));
        }
        let tracked = self.process(0)?;
        self.report.setup = self.phase();
        let target = Target {
            tracked,
            tracker: tracked,
            tracker_vcpu: self.vcpu,
        };
        let technique =
            self.config
                .technique
                .start_with(&mut self.host, target, self.config.options)?;
        self.technique = Some(technique);
        self.report.start = self.phase();
        Ok(())
    }

    fn round(&mut self) -> Result<(), RunErrorKind> {
        let monitor = self.phase();
        let Some(technique) = &mut self.technique else {
            return Err(RunErrorKind::NotTracking(
                "a round ends before tracking has started",
            ));
        };
        let reported = technique.collect(&mut self.host)?;
        let collect = self.phase();
        let (written, missed) = self.take_written(&reported);
        let reported = reported.len() as u64;
        self.report.rounds.push(Round {
            monitor,
            collect,
            written,
            reported,
            missed,
        });
        Ok(())
    }

    /// How many units process 0 wrote, and how many of them are not in `reported`.
    fn take_written(&mut self, reported: &WriteSet) -> (u64, u64) {
        let (mut count, mut missed) = (0, 0);
        for area in self.areas.values_mut().filter(|area| area.process == 0) {
            for (i, word) in area.written.iter_mut().enumerate() {
                let mut bits = std::mem::take(word);
                while bits != 0 {
                    let unit = i as u64 * 64 + u64::from(bits.trailing_zeros());
                    count += 1;
                    missed += u64::from(!reported.contains(area.start.add(unit * self.unit_bytes)));
                    bits &= bits - 1;
                }
            }
        }
        (count, missed)
    }

    fn finish(mut self) -> Result<Report, RunErrorKind> {
        let rest = self.phase();
        if let Some(mut technique) = self.technique.take() {
            self.report.rest = rest;
            technique.disarm(&mut self.host)?;
            self.report.stop = self.phase();
        } else {
            self.report.setup = rest;
        }
        self.report.tracked_bytes = self.tracked_bytes;
        Ok(self.report)
    }
}
