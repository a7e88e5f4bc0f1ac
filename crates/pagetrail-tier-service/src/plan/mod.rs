//! [`watch`]: what would move and why, of a process, a guest or in a recording; nothing does.

mod text;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagetrail::{Memory, PageRange};
use pagetrail_report::size::Size;
use pagetrail_tier::mover::{DryRun, Ledger, Mover, NodeMover, NodeOptions};
use pagetrail_tier::source::{Replay, Source};
use pagetrail_tier::{Plan, Settings, TierLoop, TierLoopOptions, Unit};
use pagetrail_trail::{Reader, Record};
use serde::Serialize;

use crate::agent::{self, AgentAddress};
use crate::config::{SourceKind, Vm};
use crate::daemon::machine_limit;
use crate::find;
use crate::guest_memory::GuestMemory;
use crate::history::History;
use crate::monitor;
use crate::page::{self, Entry};

/// For an agent's answers: nobody else waits meanwhile.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Windows of a process, unless it is said how many.
const WINDOWS: u32 = 8;

/// The document of `tier plan --json`, schema 1. Within a schema number fields are only ever added.
#[derive(Serialize)]
struct Document {
    schema: u32,
    pid: u32,
    source: &'static str,
    windows: u32,
    fast_bytes: u64,
    slow_bytes: u64,
    allowed_bytes: u64,
    /// What it could use of fast memory.
    demand_bytes: u64,
    /// The degree from which on pages should be in fast memory.
    cut: u16,
    /// What a degree is.
    degree: String,
    /// Which part of the accesses that were seen is to fast memory, and would be after the plan;
    /// null if there were none.
    fast_share: Option<f64>,
    fast_share_planned: Option<f64>,
    /// Hot, and without room.
    left_out_bytes: u64,
    /// Bytes in fast memory by degree.
    fast_by_degree: Vec<u64>,
    slow_by_degree: Vec<u64>,
    promote: Vec<Part>,
    demote: Vec<Part>,
    /// Of a recording: what had been moved before, over all windows.
    promoted_bytes: u64,
    demoted_bytes: u64,
    /// Page faults that sampling cost the program, or would have.
    faults: u64,
}

/// Neighbouring pages that would move for the same reason.
#[derive(Serialize)]
struct Part {
    start: String,
    end: String,
    bytes: u64,
    degree: u16,
    mapping: String,
}

/// What would move, and why.
pub struct Planned {
    name: String,
    writes_only: bool,
    document: Document,
    plan: Plan,
    history: History,
}

/// What a plan is for.
pub struct Subject {
    name: String,
    pid: u32,
    source: Box<dyn Source>,
    mover: Box<dyn Mover>,
    /// Mappings and their names.
    mappings: Vec<(PageRange, String)>,
    /// How long a window is to be waited for; a recording has them all.
    window: Option<Duration>,
    /// Whether the plan is made also when it has come to its end before the last window.
    may_end: bool,
}

/// How it is watched.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much of its memory may be fast.
    pub fast: Size,
    /// How many windows to watch; 8, or all of a recording, if it is not said.
    pub windows: Option<u32>,
    /// How long a window is.
    pub window: Duration,
    /// The nodes that fast memory is on.
    pub fast_nodes: Vec<u32>,
}

impl Subject {
    /// A running process.
    ///
    /// # Errors
    ///
    /// It cannot be tracked.
    pub fn process(pid: u32, kind: SourceKind, options: &Options) -> Result<Self> {
        let source = kind.start(pid, options.window).map_err(machine_limit)?;
        Self::of_source(pid, source, options)
    }

    /// The guest of a monitor that runs: guest memory alone, as its agent reports it, if that is
    /// named, or as it is seen from outside.
    ///
    /// # Errors
    ///
    /// No such guest runs here, or several do, or it cannot be tracked, or its agent does not
    /// answer.
    pub fn monitor(
        vm: &Vm,
        kind: SourceKind,
        agent: Option<&AgentAddress>,
        options: &Options,
    ) -> Result<Self> {
        let pid = match find::monitors(vm)[..] {
            [pid] => pid,
            [] => bail!("no virtual machine on KVM is called so"),
            _ => bail!("several virtual machines on KVM are called so: name one by its PID"),
        };
        let source: Result<Box<dyn Source>, _> = match agent {
            Some(address) => {
                agent::Guest::of(pid, address, AGENT_TIMEOUT).map(|guest| Box::new(guest) as _)
            }
            None => GuestMemory::of(pid, || kind.start(pid, options.window))
                .map(|memory| Box::new(memory) as _),
        };
        let source = source.map_err(machine_limit)?;
        let name = monitor::guest_name(pid).unwrap_or_default();
        Ok(Self {
            name: format!("guest {name} of process {pid}"),
            ..Self::of_source(pid, source, options)?
        })
    }

    /// A program that was started as a guest of KVM, which may end before the last window.
    ///
    /// # Errors
    ///
    /// It has ended already.
    pub fn guest(pid: u32, source: Box<dyn Source>, options: &Options) -> Result<Self> {
        Ok(Self {
            may_end: true,
            ..Self::of_source(pid, source, options)?
        })
    }

    fn of_source(pid: u32, source: Box<dyn Source>, options: &Options) -> Result<Self> {
        // Where slow memory is does not matter here.
        let nodes = NodeOptions {
            fast: options.fast_nodes.clone(),
            ..NodeOptions::default()
        };
        let regions = Memory::of(pid)?.mappings()?.into_iter();
        Ok(Self {
            name: format!("process {pid}"),
            pid,
            source,
            mover: Box::new(DryRun(NodeMover::new(pid, nodes))),
            mappings: regions.map(|region| (region.range, region.name)).collect(),
            window: Some(options.window),
            may_end: false,
        })
    }

    /// A recording: what would have been done with the program.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is none.
    pub fn recording(path: &Path, options: &Options) -> Result<Self> {
        let name = path.display().to_string();
        let open = || -> Result<_> { Ok(BufReader::new(File::open(path)?)) };
        let mut reader =
            Reader::open(open().with_context(|| name.clone())?).with_context(|| name.clone())?;
        let mut mappings = Vec::new();
        while let Some(record) = reader.next_record().with_context(|| name.clone())? {
            if let Record::Mapping(mapping) = record {
                mappings.push((mapping.range, mapping.name));
            }
        }
        Ok(Self {
            pid: reader.header().pid,
            source: Box::new(Replay::open(open()?)?),
            mover: Box::new(Ledger::new(options.fast.bytes())),
            mappings,
            window: None,
            may_end: true,
            name,
        })
    }
}

/// Watches a subject, and plans.
///
/// # Errors
///
/// It cannot be tracked, or ends before there is a plan.
pub fn watch(subject: Subject, options: &Options) -> Result<Planned> {
    let windows = match subject.window {
        Some(_) => options.windows.unwrap_or(WINDOWS),
        None => options.windows.unwrap_or(u32::MAX),
    };
    let remembered = if subject.window.is_some() {
        windows
    } else {
        WINDOWS
    };
    let loop_options = TierLoopOptions {
        settings: Settings {
            windows: remembered.clamp(1, 16) as u8,
            ..Settings::default()
        },
        capacity: options.fast.bytes(),
        timeout: None,
    };
    let mut tier_loop =
        TierLoop::new(subject.source, subject.mover, loop_options).map_err(machine_limit)?;
    let mut history = History::default();
    tier_loop.begin_period().map_err(machine_limit)?;
    for _ in 0..windows {
        subject.window.into_iter().for_each(thread::sleep);
        let report = match tier_loop.window() {
            // There was one at least, in which the program's pages came into being.
            Err(error) if subject.may_end && error.means_end() => break,
            report => report.map_err(machine_limit)?,
        };
        history.add(&mut tier_loop, &report);
    }
    let plan = tier_loop.plan();
    history.add_plan(&mut tier_loop, &plan);
    let usage = tier_loop.policy().usage();
    let totals = tier_loop.totals();
    let caps = tier_loop.info().caps;
    let shares = FastShares::of(&history, &plan);
    let document = Document {
        schema: 1,
        pid: subject.pid,
        source: tier_loop.info().name,
        windows: totals.windows as u32,
        promoted_bytes: totals.promoted_bytes,
        demoted_bytes: totals.demoted_bytes,
        faults: totals.faults,
        fast_bytes: usage.fast,
        slow_bytes: usage.slow,
        allowed_bytes: options.fast.bytes(),
        demand_bytes: tier_loop.policy().demand().wanted,
        cut: plan.cut,
        degree: text::degree(tier_loop.policy().settings(), caps),
        fast_share: shares.now,
        fast_share_planned: shares.planned,
        left_out_bytes: plan.left_out_bytes,
        fast_by_degree: history.fast.clone(),
        slow_by_degree: history.slow.clone(),
        promote: parts(&plan.promote, &subject.mappings),
        demote: parts(&plan.demote, &subject.mappings),
    };
    Ok(Planned {
        name: subject.name,
        writes_only: !caps.accesses,
        document,
        plan,
        history,
    })
}

impl Planned {
    /// The document, as JSON.
    ///
    /// # Errors
    ///
    /// None that can happen.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.document)? + "\n")
    }

    /// The plan for people.
    pub fn text(&self) -> String {
        text::plan(&self.document, &self.plan, self.writes_only)
    }

    /// Writes a self-contained page with pictures.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_page(&self, out: &mut dyn Write) -> io::Result<()> {
        let title = format!("What would move, {}", self.name);
        let entry = Entry {
            title: self.name.clone(),
            history: &self.history,
        };
        let subtitle = text::sum(&self.document, &self.plan);
        page::write(&title, &subtitle, &[], &[], &[entry], out)
    }
}

/// Which part of all accesses fast memory serves: pages count by their degrees, which are sampled
/// accesses.
#[derive(Debug, Default, PartialEq)]
struct FastShares {
    now: Option<f64>,
    planned: Option<f64>,
}

impl FastShares {
    fn of(history: &History, plan: &Plan) -> Self {
        let weighed = |bytes: &[u64]| -> f64 {
            let ranks = bytes.iter().enumerate();
            ranks.map(|(rank, bytes)| rank as f64 * *bytes as f64).sum()
        };
        let moved = |units: &[Unit]| -> f64 {
            let weights = units
                .iter()
                .map(|unit| f64::from(unit.rank) * unit.bytes as f64);
            weights.sum()
        };
        let (fast, slow) = (weighed(&history.fast), weighed(&history.slow));
        let all = fast + slow;
        let part = |fast: f64| (all > 0.0).then(|| (fast / all * 1000.0).round() / 1000.0);
        Self {
            now: part(fast),
            planned: part(fast + moved(&plan.promote) - moved(&plan.demote)),
        }
    }
}

/// Neighbours of one degree as one part.
fn parts(units: &[Unit], mappings: &[(PageRange, String)]) -> Vec<Part> {
    let mut sorted = units.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<Unit> = Vec::new();
    for unit in sorted {
        match merged.last_mut() {
            Some(last) if last.address + last.bytes == unit.address && last.rank == unit.rank => {
                last.bytes += unit.bytes;
            }
            _ => merged.push(unit),
        }
    }
    let name = |address: u64| {
        // Of a recording the last that was there.
        let mut newest = mappings.iter().rev();
        let mapping = newest.find(|(range, _)| range.contains(address));
        mapping.map_or_else(String::new, |(_, name)| match name.is_empty() {
            true => "anonymous".into(),
            false => name.clone(),
        })
    };
    merged
        .into_iter()
        .filter_map(|unit| {
            PageRange::new(unit.address, unit.address + unit.bytes).map(|range| (range, unit.rank))
        })
        .map(|(range, degree)| Part {
            start: format!("{:#x}", range.start()),
            end: format!("{:#x}", range.end()),
            bytes: range.bytes(),
            degree,
            mapping: name(range.start()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_count_pages_by_their_degree() {
        // Degree 0: 100 and 400; degree 2: 10 and 20; degree 4: nothing and 10.
        let history = History {
            fast: vec![100, 0, 10, 0, 0],
            slow: vec![400, 0, 20, 0, 10],
            ..History::default()
        };
        let unit = |bytes, rank| Unit {
            address: 0,
            bytes,
            rank,
        };
        let mut plan = Plan::default();
        let none = FastShares::of(&history, &plan);
        assert_eq!((none.now, none.planned), (Some(0.2), Some(0.2)));
        plan.promote = vec![unit(10, 4)];
        plan.demote = vec![unit(100, 0), unit(5, 2)];
        let some = FastShares::of(&history, &plan);
        assert_eq!((some.now, some.planned), (Some(0.2), Some(0.5)));
        let idle = FastShares::of(&History::default(), &Plan::default());
        assert_eq!(idle, FastShares::default(), "nothing was accessed");
    }
}
