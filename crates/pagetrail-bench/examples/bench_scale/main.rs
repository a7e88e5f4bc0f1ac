//! What tracking costs against the size of the target: its memory, mappings, threads and processes.
//!
//! `cargo run --release --example bench_scale [ROUNDS [CURVE..]]`; the curves are called as in the
//! document. The target is this program, started again; in each round it writes 100 pages, which
//! every round must have. Prints one JSON document: for each size the medians of what a start, a
//! stop and a collect took, beside each collect what it takes to read the target's mappings and no
//! more, and the slope of each curve: the exponent of the power that fits it best, and what a unit
//! costs between the two largest sizes.
#![allow(clippy::print_stdout, reason = "that is what an example is for")]

mod target;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use pagetrail::{PageSet, Target, Technique, Watch};
use serde_json::{Value, json};
use target::{Kind, Victim};

/// Rounds of each size, unless it is said how many.
const ROUNDS: usize = 15;
/// How often a start is measured.
const STARTS: usize = 5;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A curve: what grows, and to which sizes.
const CURVES: [(Kind, &str, &[u64]); 5] = [
    (Kind::Resident, "MiB in memory", &[1, 16, 256, 4096]),
    (
        Kind::Sparse,
        "MiB mapped, of which 100 pages are in memory",
        &[1, 16, 256, 4096, 65_536],
    ),
    (
        Kind::Mappings,
        "mappings",
        &[1, 10, 100, 1000, 10_000, 30_000, 100_000],
    ),
    (Kind::Threads, "threads", &[1, 10, 100, 1000]),
    (Kind::Processes, "processes", &[1, 10, 100, 1000]),
];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word] if word == "idle" => return target::idle(),
        [word, kind, size] if word == "target" => return target::run(kind.parse()?, size.parse()?),
        _ => {}
    }
    let rounds = match arguments.first() {
        Some(rounds) => rounds.parse::<usize>()?.max(1),
        None => ROUNDS,
    };
    let wanted = arguments.iter().skip(1).map(|name| name.parse());
    let wanted: Vec<Kind> = wanted.collect::<Result<_, _>>()?;
    let load_before = load()?;
    let curves: Outcome<Vec<Value>> = CURVES
        .iter()
        .filter(|(kind, ..)| wanted.is_empty() || wanted.contains(kind))
        .map(|(kind, unit, sizes)| curve(*kind, unit, sizes, rounds))
        .collect();
    let document = json!({
        "schema": 1,
        "rounds": rounds,
        "written_pages": target::WRITTEN,
        "load_average_before": load_before,
        "load_average_after": load()?,
        "curves": curves?,
    });
    println!("{document:#}");
    Ok(())
}

fn curve(kind: Kind, unit: &str, sizes: &[u64], rounds: usize) -> Outcome<Value> {
    let (mut points, mut absent) = (Vec::new(), Vec::new());
    for &size in sizes {
        match target::lacks(kind, size) {
            Some(reason) => absent.push(json!({ "size": size, "reason": reason })),
            None => points.push(measure(kind, size, rounds)?),
        }
    }
    let slope = |figure: &str| slope(&points, figure);
    Ok(json!({
        "what": kind.name(),
        "unit": unit,
        "slopes": {
            "start_us": slope("start_us"),
            "stopped_us": slope("stopped_us"),
            "collect_us": slope("collect_us"),
            "maps_us": slope("maps_us"),
        },
        "points": points,
        "not_here": absent,
    }))
}

/// One size: the medians of starts, and of rounds.
fn measure(kind: Kind, size: u64, rounds: usize) -> Outcome<Value> {
    let mut victim = Victim::start(kind, size)?;
    let pid = victim.pid();
    let (mut starts, mut stops, mut collects, mut maps) = (vec![], vec![], vec![], vec![]);
    let mut text = Vec::new();
    let mut processes = 0;
    for start in 0..STARTS {
        let began = Instant::now();
        let target = Target::tree([pid])?;
        let watches = Watch::builder().target(target);
        let mut tree = watches.technique(Technique::PagemapScan).start_tree()?;
        starts.push(began.elapsed());
        let members = tree.members();
        processes = members.len();
        stops.push(
            members
                .iter()
                .map(|member| member.watch().attach_stopped())
                .sum(),
        );
        let here = if start == 0 { rounds } else { 1 };
        for _ in 0..here {
            let written = victim.write()?;
            let began = Instant::now();
            let mut dirty = PageSet::new();
            for member in tree.members_mut() {
                let writes = member.pid() == pid;
                let round = member.watch_mut().collect()?;
                if writes {
                    dirty = round.dirty().clone();
                }
                round.commit();
            }
            collects.push(began.elapsed());
            let began = Instant::now();
            for member in tree.members() {
                read_maps(member.pid(), &mut text)?;
            }
            maps.push(began.elapsed());
            if let Some(page) = written.iter().find(|page| !dirty.contains(**page)) {
                return Err(format!("page {page:#x} was written and is not reported").into());
            }
        }
    }
    let expected = if kind == Kind::Processes { size } else { 1 };
    if processes as u64 != expected {
        return Err(format!("{processes} processes are tracked, not {expected}").into());
    }
    Ok(json!({
        "size": size,
        "start_us": median_us(starts),
        "stopped_us": median_us(stops),
        "collect_us": median_us(collects),
        "maps_us": median_us(maps),
    }))
}

/// Reads the text of a process's mappings into memory that is used again.
fn read_maps(pid: u32, text: &mut Vec<u8>) -> Outcome<()> {
    text.clear();
    File::open(format!("/proc/{pid}/maps"))?.read_to_end(text)?;
    Ok(())
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let nanoseconds = times[times.len() / 2].as_nanos() as f64;
    (nanoseconds / 100.0).round() / 10.0
}

/// The exponent of the power that fits a figure best, and what a unit costs in ns between the two
/// largest sizes.
fn slope(points: &[Value], figure: &str) -> Value {
    let of = |point: &Value| Some((point["size"].as_f64()?, point[figure].as_f64()?));
    let all: Vec<(f64, f64)> = points.iter().filter_map(of).collect();
    let [.., before, last] = all[..] else {
        return Value::Null;
    };
    let logs = || {
        let positive = all.iter().filter(|(_, time)| *time > 0.0);
        positive.map(|(size, time)| (size.ln(), time.ln()))
    };
    let count = logs().count() as f64;
    let (x, y) = logs().fold((0.0, 0.0), |(x, y), (size, time)| (x + size, y + time));
    let (x, y) = (x / count, y / count);
    let along: f64 = logs().map(|(size, _)| (size - x).powi(2)).sum();
    let both: f64 = logs().map(|(size, time)| (size - x) * (time - y)).sum();
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let per_unit = (last.1 - before.1) * 1000.0 / (last.0 - before.0);
    json!({
        "exponent": (along > 0.0).then(|| rounded(both / along)),
        "ns_per_unit_at_the_end": rounded(per_unit),
    })
}

fn load() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let first = text.split(' ').next().ok_or("no load average")?;
    Ok(first.parse()?)
}
