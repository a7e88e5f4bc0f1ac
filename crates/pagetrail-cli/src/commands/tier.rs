//! `pagetrail tier`: `plan`, `run` and `status`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use pagetrail::{Memory, PageRange, Region};
use pagetrail_tier::mover::DryRun;
use pagetrail_tier::mover::{NodeMover, NodeOptions};
use pagetrail_tier::{Keeper, KeeperOptions, Plan, Settings, Unit};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::endpoint;
use crate::report::words;
use crate::tier::args::{PlanArgs, RunArgs, StatusArgs, TierArgs, TierCommand};
use crate::tier::config::Config;
use crate::tier::daemon::{Daemon, machine_limit};
use crate::tier::heat::History;
use crate::tier::page::{self, Entry};
use crate::tier::status::Status;
use crate::tracking::schedule::Schedule;

/// How soon a signal is noticed.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(50);
/// Lines of a plan in each direction.
const LINES_MAX: usize = 20;

/// Runs one of the subcommands.
pub(crate) fn run(args: &TierArgs) -> Result<ExitCode> {
    match &args.command {
        TierCommand::Plan(args) => plan(args),
        TierCommand::Run(args) => keep(args),
        TierCommand::Status(args) => status(args),
    }
}

/// Runs `tier run`.
fn keep(args: &RunArgs) -> Result<ExitCode> {
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot handle signals")?;
    let mut daemon = Daemon::new(&args.config, args.dry_run)?;
    // Before hours of running, not after.
    if let Some(path) = &args.html {
        File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let start = Instant::now();
    let mut schedule = Schedule::new(start, daemon.window(), args.duration);
    'windows: loop {
        daemon.turn()?;
        let now = Instant::now();
        if schedule.is_over(now) {
            break;
        }
        schedule.advance(now);
        loop {
            for signal in signals.pending() {
                if signal != SIGHUP {
                    break 'windows;
                }
                daemon.reload();
                schedule = Schedule::new(
                    Instant::now(),
                    daemon.window(),
                    args.duration.map(|all| all.saturating_sub(start.elapsed())),
                );
            }
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(SIGNAL_PATIENCE));
        }
    }
    daemon.finish(args.html.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tier status`.
fn status(args: &StatusArgs) -> Result<ExitCode> {
    let address = match (&args.whom.at, &args.whom.config) {
        (Some(address), _) => address.clone(),
        (None, Some(path)) => match Config::read(path)?.listen {
            Some(address) => address,
            None => bail!("{} does not say where to listen", path.display()),
        },
        (None, None) => bail!("neither --config nor --at"),
    };
    let text = endpoint::get(&address, "/status")?;
    let status: Status = serde_json::from_str(&text)
        .with_context(|| format!("{address} does not answer as pagetrail does"))?;
    let out = match args.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false => status.text(),
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}

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

/// Runs `tier plan`.
fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let html = args
        .html
        .as_deref()
        .map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let html = html.transpose()?;
    let source = (args.source)
        .start(args.pid, args.window)
        .map_err(machine_limit)?;
    let regions = Memory::of(args.pid)?.mappings()?;
    // Wherever slow memory is: it is not asked for.
    let options = NodeOptions {
        fast: args.fast_node,
        ..NodeOptions::default()
    };
    let keeper = KeeperOptions {
        settings: Settings {
            windows: args.windows.clamp(1, 16) as u8,
            ..Settings::default()
        },
        capacity: args.fast.bytes(),
        patience: None,
    };
    let mover = DryRun(NodeMover::new(args.pid, options));
    let mut keeper = Keeper::new(source, Box::new(mover), keeper).map_err(machine_limit)?;
    let mut history = History::default();
    keeper.begin_period().map_err(machine_limit)?;
    for _ in 0..args.windows {
        thread::sleep(args.window);
        let report = keeper.window().map_err(machine_limit)?;
        history.add(&mut keeper, &report);
    }
    let plan = keeper.plan();
    history.add_plan(&mut keeper, &plan);
    let usage = keeper.policy().usage();
    let document = Planned {
        schema: 1,
        pid: args.pid,
        source: keeper.ability().name,
        windows: args.windows,
        fast_bytes: usage.fast,
        slow_bytes: usage.slow,
        allowed_bytes: args.fast.bytes(),
        demand_bytes: keeper.policy().demand().wanted,
        cut: plan.cut,
        left_out_bytes: plan.left_out_bytes,
        fast_by_degree: history.fast.clone(),
        slow_by_degree: history.slow.clone(),
        promote: parts(&plan.promote, &regions),
        demote: parts(&plan.demote, &regions),
    };
    let writes_only = !keeper.ability().tells.accesses;
    drop(keeper);
    if let Some(file) = html {
        let title = format!("What would move, process {}", args.pid);
        let entry = Entry {
            title: format!("process {}", args.pid),
            history: &history,
        };
        let mut out = BufWriter::new(file);
        page::write(&title, &sum(&document, &plan), &[], &[], &[entry], &mut out)?;
        out.flush()?;
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&document)? + "\n",
        false => text(&document, &plan, writes_only),
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Neighbours of one degree as one part.
fn parts(units: &[Unit], regions: &[Region]) -> Vec<Part> {
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
        let region = regions.iter().find(|region| region.range.contains(address));
        region.map_or_else(String::new, |region| match region.name.is_empty() {
            true => "anonymous".into(),
            false => region.name.clone(),
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
        out += "this source tells of writes only: what is only read counts as cold\n";
    }
    let size = |bytes: u64| words::bytes(bytes as f64);
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
        out += "nothing: every page is where it should be\n";
    }
    out
}
