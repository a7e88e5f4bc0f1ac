//! [`Target`]: what is kept: processes or virtual machines, their share, and their source.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use pagetrail::{Capabilities, Technique};
use pagetrail_report::size::Size;
use pagetrail_tier::Error;
use pagetrail_tier::source::{Damon, PageIdle, Source, Watched, WatchedKind};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::agent::AgentAddress;

/// What reports which pages are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Accesses where the kernel reports them, else writes.
    #[default]
    Auto,
    /// Reads and writes alike (access-scan, Linux 7.3).
    Accesses,
    /// Writes only (pagemap-scan, Linux 6.7).
    Writes,
    /// Accesses and writes in turns, distinguished; every page is sampled in every window.
    Turns,
    /// Regions that DAMON saw touched, without faults; one process on a machine.
    Damon,
    /// Accesses by the kernel's idle page tracking, without faults, where a kernel has it.
    Idle,
}

impl SourceKind {
    /// All sources.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Accesses,
        Self::Writes,
        Self::Turns,
        Self::Damon,
        Self::Idle,
    ];

    /// The name in configurations and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Accesses => "accesses",
            Self::Writes => "writes",
            Self::Turns => "turns",
            Self::Damon => "damon",
            Self::Idle => "idle",
        }
    }

    /// This source, or the one that `Auto` means on this machine.
    pub(crate) fn resolved(self) -> Self {
        match self {
            Self::Auto => match Capabilities::probe_one(Technique::AccessScan).reason() {
                None => Self::Accesses,
                Some(_) => Self::Writes,
            },
            named => named,
        }
    }

    /// Whether it reports reads as well, and whether it tells writes.
    pub(crate) fn reports(self) -> (bool, bool) {
        match self.resolved() {
            Self::Writes => (false, true),
            Self::Turns => (true, true),
            Self::Auto | Self::Accesses | Self::Damon | Self::Idle => (true, false),
        }
    }

    /// Begins to watch a process.
    ///
    /// # Errors
    ///
    /// The source does not work here, or not for this process.
    pub fn start(self, pid: u32, window: Duration) -> Result<Box<dyn Source>, Error> {
        let kind = match self.resolved() {
            Self::Auto | Self::Accesses => WatchedKind::Accesses,
            Self::Writes => WatchedKind::Writes,
            Self::Turns => WatchedKind::Turns,
            Self::Idle => {
                pagetrail::Target::process(pid)?;
                return Ok(Box::new(PageIdle::start(pid)?));
            }
            Self::Damon => {
                pagetrail::Target::process(pid)?;
                return Ok(Box::new(Damon::start(pid, window)?));
            }
        };
        let target = pagetrail::Target::process(pid)?;
        Ok(Box::new(Watched::start(target, kind)?))
    }
}

/// A target: its processes, and its share.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Its name in status, numbers and messages.
    pub name: String,
    /// A process.
    pub pid: Option<u32>,
    /// All processes of a program, by its name or file.
    pub command: Option<String>,
    /// All processes of a control group and of those below it.
    pub cgroup: Option<PathBuf>,
    /// Virtual machines that run, by their monitors: guest memory alone is kept.
    pub vm: Option<Vm>,
    /// Where the guest's agent is, which says what of its memory is used.
    pub agent: Option<AgentAddress>,
    /// A program to start as a guest of KVM, and its arguments.
    pub guest: Option<Vec<String>>,
    /// Its share of fast memory.
    #[serde(deserialize_with = "size")]
    pub fast: Size,
    /// What reports which pages are used.
    #[serde(default)]
    pub source: SourceKind,
}

/// Virtual machines on KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vm {
    /// The guest of a monitor, by its PID.
    Pid(u32),
    /// The guest of this name, as its monitor was given it.
    Name(String),
    /// All guests of the monitors in a control group.
    Cgroup(PathBuf),
}

impl std::str::FromStr for Vm {
    type Err = String;

    /// A number is a PID, a path a control group, and anything else a name.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(pid) => Ok(Self::Pid(pid)),
            Err(_) if text.is_empty() => Err("it must be a PID, a name or a control group".into()),
            Err(_) if text.starts_with('/') => Ok(Self::Cgroup(text.into())),
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for Vm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Pid(u32),
            Word(String),
        }
        match Raw::deserialize(deserializer) {
            Ok(Raw::Pid(pid)) => Ok(Self::Pid(pid)),
            Ok(Raw::Word(word)) if word.starts_with('/') => Ok(Self::Cgroup(word.into())),
            // A guest may be called 7.
            Ok(Raw::Word(word)) if !word.is_empty() => Ok(Self::Name(word)),
            _ => Err(de::Error::custom(
                "vm is the PID of a monitor, the name of a guest, or the path of a control group",
            )),
        }
    }
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

pub(super) fn check_agent(target: &Target) -> Result<()> {
    ensure!(
        target.agent.is_none() || matches!(target.vm, Some(Vm::Pid(_) | Vm::Name(_))),
        "target '{}' has an agent, which is in one guest: name that by vm, its monitor's PID or its name",
        target.name
    );
    ensure!(
        target.agent.is_none() || target.source == SourceKind::Auto,
        "target '{}' has an agent, which is given its source in the guest: leave out source",
        target.name
    );
    Ok(())
}

pub(super) fn check_guest(name: &str, words: &[String], source: SourceKind) -> Result<()> {
    ensure!(
        words.first().is_some_and(|program| !program.is_empty()),
        "target '{name}' starts no program: guest is a list, the program and its arguments"
    );
    ensure!(
        !words.iter().any(|word| word.contains('\0')),
        "target '{name}' starts a program by a text with a NUL byte"
    );
    ensure!(
        !matches!(source, SourceKind::Damon | SourceKind::Idle),
        "target '{name}' is a guest, whose accesses the virtual machine reports: leave out source"
    );
    Ok(())
}
