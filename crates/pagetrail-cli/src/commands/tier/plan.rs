//! `pagetrail tier plan`: what would move and why, of a process, a guest or in a recording; nothing
//! does.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use pagetrail::{Memory, PageRange};
use pagetrail_report::words;
use pagetrail_tier::mover::{DryRun, Ledger, Mover, NodeMover, NodeOptions};
use pagetrail_tier::source::{Replay, Source};
use pagetrail_tier::{Plan, Settings, TierLoop, TierLoopOptions, Unit};
use pagetrail_trail::{Reader, Record};
use serde::Serialize;

use super::args::PlanArgs;
use super::daemon::machine_limit;
use super::guest;
use super::heat::History;
use super::page::{self, Entry};
use crate::outfile::{Kind, OutFile};
use crate::session::waiting::Waiting;

/// Lines of a plan in each direction.
const LINES_MAX: usize = 20;
/// Windows of a process, unless it is said how many.
const WINDOWS: u32 = 8;

/// The document of `tier plan --json`, schema 1. Within a schema number fields are only ever added.
#[derive(Serialize)]
struct Planned {
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

/// What a plan is for.
struct Subject {
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

impl Subject {
    fn process(args: &PlanArgs, pid: u32) -> Result<Self> {
        let source = (args.source)
            .start(pid, args.window)
            .map_err(machine_limit)?;
        Self::of_source(args, pid, source)
    }

    /// A program that is started as a guest.
    fn guest(args: &PlanArgs) -> Result<Self> {
        let (pid, source) = guest::start(&args.command, args.source)?;
        Ok(Self {
            may_end: true,
            ..Self::of_source(args, pid, source)?
        })
    }

    fn of_source(args: &PlanArgs, pid: u32, source: Box<dyn Source>) -> Result<Self> {
        // Where slow memory is does not matter here.
        let options = NodeOptions {
            fast: args.fast_node,
            ..NodeOptions::default()
        };
        let regions = Memory::of(pid)?.mappings()?.into_iter();
        Ok(Self {
            name: format!("process {pid}"),
            pid,
            source,
            mover: Box::new(DryRun(NodeMover::new(pid, options))),
            mappings: regions.map(|region| (region.range, region.name)).collect(),
            window: Some(args.window),
            may_end: false,
        })
    }

    fn recording(args: &PlanArgs, path: &Path) -> Result<Self> {
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
            mover: Box::new(Ledger::new(args.fast.bytes())),
            mappings,
            window: None,
            may_end: true,
            name,
        })
    }
}

/// What `tier plan` prints.
pub(crate) fn text_of(args: &PlanArgs) -> Result<String> {
    let html = args.html.as_deref();
    let html = html
        .map(|path| OutFile::open(path, Kind::Page))
        .transpose()?;
    let subject = match (args.subject.pid, &args.subject.trail) {
        (Some(pid), _) => Subject::process(args, pid)?,
        (None, Some(path)) => Subject::recording(args, path)?,
        (None, None) if args.subject.vm => Subject::guest(args)?,
        (None, None) => bail!("nothing is named to plan for: give --pid, --trail or --vm"),
    };
    let windows = match subject.window {
        Some(_) => args.windows.unwrap_or(WINDOWS),
        None => args.windows.unwrap_or(u32::MAX),
    };
    let remembered = if subject.window.is_some() {
        windows
    } else {
        WINDOWS
    };
    let options = TierLoopOptions {
        settings: Settings {
            windows: remembered.clamp(1, 16) as u8,
            ..Settings::default()
        },
        capacity: args.fast.bytes(),
        timeout: None,
    };
    let mut tier_loop =
        TierLoop::new(subject.source, subject.mover, options).map_err(machine_limit)?;
    let mut history = History::default();
    let waiting = Waiting::during("watching what is accessed");
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
    drop(waiting);
    let plan = tier_loop.plan();
    history.add_plan(&mut tier_loop, &plan);
    let usage = tier_loop.policy().usage();
    let totals = tier_loop.totals();
    let document = Planned {
        schema: 1,
        pid: subject.pid,
        source: tier_loop.info().name,
        windows: totals.windows as u32,
        promoted_bytes: totals.promoted_bytes,
        demoted_bytes: totals.demoted_bytes,
        faults: totals.faults,
        fast_bytes: usage.fast,
        slow_bytes: usage.slow,
        allowed_bytes: args.fast.bytes(),
        demand_bytes: tier_loop.policy().demand().wanted,
        cut: plan.cut,
        left_out_bytes: plan.left_out_bytes,
        fast_by_degree: history.fast.clone(),
        slow_by_degree: history.slow.clone(),
        promote: parts(&plan.promote, &subject.mappings),
        demote: parts(&plan.demote, &subject.mappings),
    };
    let writes_only = !tier_loop.info().caps.accesses;
    drop(tier_loop);
    if let Some(html) = html {
        let title = format!("What would move, {}", subject.name);
        let entry = Entry {
            title: subject.name,
            history: &history,
        };
        let subtitle = sum(&document, &plan);
        html.write(|out| page::write(&title, &subtitle, &[], &[], &[entry], out))?;
    }
    Ok(match args.json {
        true => serde_json::to_string_pretty(&document)? + "\n",
        false => text(&document, &plan, writes_only),
    })
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

fn sum(document: &Planned, plan: &Plan) -> String {
    let size = |bytes: u64| words::bytes(bytes as f64);
    let all = |units: &[Unit]| size(units.iter().map(|unit| unit.bytes).sum());
    format!(
        "{} in fast memory and {} in slow, of which {} may be fast; by {} in {}, {} would move in and {} out",
        size(document.fast_bytes),
        size(document.slow_bytes),
        size(document.allowed_bytes),
        document.source,
        words::plural(document.windows.into(), "window"),
        all(&plan.promote),
        all(&plan.demote),
    )
}

fn text(document: &Planned, plan: &Plan, writes_only: bool) -> String {
    let mut out = sum(document, plan) + "\n";
    if writes_only {
        out += "this source reports writes only: what is only read counts as cold\n";
    }
    let size = |bytes: u64| words::bytes(bytes as f64);
    if document.promoted_bytes + document.demoted_bytes > 0 {
        out += &format!(
            "until then {} moved in and {} out\n",
            size(document.promoted_bytes),
            size(document.demoted_bytes),
        );
    }
    out += &format!(
        "hot from degree {} on; wanted {}; hot and without room {}\n",
        document.cut,
        size(document.demand_bytes),
        size(document.left_out_bytes)
    );
    for (title, why, list) in [
        (
            "into fast memory",
            "hotter than what is there",
            &document.promote,
        ),
        (
            "out of fast memory",
            "among the coldest there, and more is in use than allowed or hotter pages wait",
            &document.demote,
        ),
    ] {
        if list.is_empty() {
            continue;
        }
        out += &format!("\n{title} ({why}):\n");
        let mut largest: Vec<&Part> = list.iter().collect();
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(["addresses", "size", "degree", "mapping"]);
        for part in largest.iter().take(LINES_MAX) {
            table.add_row([
                format!("{}..{}", part.start, part.end),
                size(part.bytes),
                part.degree.to_string(),
                words::printable(&part.mapping).into_owned(),
            ]);
        }
        out += &table
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect::<String>();
        if largest.len() > LINES_MAX {
            let rest = &largest[LINES_MAX..];
            let bytes = rest.iter().map(|part| part.bytes).sum();
            out += &format!(
                "and {} more, {}\n",
                words::plural(rest.len() as u64, "range"),
                size(bytes)
            );
        }
    }
    if document.promote.is_empty() && document.demote.is_empty() {
        out += match document.left_out_bytes {
            0 => "nothing: every page is where it should be\n",
            _ => "nothing: no page that waits is hotter by enough than what is in fast memory\n",
        };
    }
    out
}
