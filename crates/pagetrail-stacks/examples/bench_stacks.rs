//! What sampling adds to a tracked program: the same work, tracked only and tracked with stacks, in
//! turns on one machine.
//!
//! `cargo run --release -p pagetrail-stacks --example bench_stacks [RUNS [WORKLOAD]]`. The program
//! is this one, started again; it says how much processor time its work took, which other programs
//! on the machine disturb less than the time that passes. Each row is the median of the ratios of
//! neighbouring runs.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use pagetrail::{Target, Technique, Watch};
use pagetrail_stacks::{Options, Period, Sampler, Summary, Unwind};
use rustix::time::{ClockId, clock_gettime};

const PAGE: usize = 4096;
const INTERVAL: Duration = Duration::from_millis(100);

/// Name, pages, passes over them, and iterations of computing after each page.
const WORKLOADS: [(&str, usize, usize, u32); 3] = [
    ("writes only", 20_000, 2_000, 0),
    ("1 us of work a page", 20_000, 40, 1_000),
    ("20 us of work a page", 20_000, 2, 20_000),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, child, workload] = &arguments[..]
        && child == "child"
    {
        return work(workload.parse()?);
    }
    let runs: usize = arguments.get(1).map_or(Ok(7), |runs| runs.parse())?;
    let only: Option<usize> = arguments.get(2).map(|number| number.parse()).transpose()?;
    let ways = [
        (
            "none, counted",
            Unwind::FramePointers,
            Period::Fixed(1 << 30),
        ),
        ("each fault", Unwind::FramePointers, Period::Fixed(1)),
        ("default", Unwind::FramePointers, Period::default()),
        ("each fault, dwarf", Unwind::Dwarf, Period::Fixed(1)),
        ("default, dwarf", Unwind::Dwarf, Period::default()),
    ];
    println!(
        "workload               stacks             ratio  samples  lost  period  one sample, reckoned"
    );
    for (number, (name, ..)) in WORKLOADS.iter().enumerate() {
        if only.is_some_and(|only| only != number) {
            continue;
        }
        let mut ratios = vec![Vec::new(); ways.len()];
        let mut costs = vec![Vec::new(); ways.len()];
        let mut last = vec![None; ways.len()];
        for _ in 0..runs {
            for (index, (_, unwind, period)) in ways.iter().enumerate() {
                let (plain, _) = run(number, None)?;
                let options = Options {
                    unwind: *unwind,
                    period: *period,
                };
                let (sampled, summary) = run(number, Some(&options))?;
                ratios[index].push(sampled / plain);
                let samples = summary.map_or(1, |summary| summary.samples.max(1));
                costs[index].push((sampled - plain) / samples as f64);
                last[index] = summary;
            }
        }
        for (index, (way, ..)) in ways.iter().enumerate() {
            let (ratio, cost) = (median(&mut ratios[index]), median(&mut costs[index]));
            if let Some(of) = last[index] {
                println!(
                    "{name:<22} {way:<18} {ratio:>5.3} {:>8} {:>5} {:>7} {cost:>7.0} ns {:>6.0} ns",
                    of.samples, of.lost, of.period, of.sample_ns
                );
            }
        }
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the work once, tracked; its processor time in nanoseconds.
fn run(
    workload: usize,
    stacks: Option<&Options>,
) -> Result<(f64, Option<Summary>), Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child", &workload.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let mut watch = Watch::builder()
        .target(Target::process(child.id())?)
        .technique(Technique::PagemapScan)
        .start()?;
    let mut sampler = match stacks {
        Some(options) => Some(Sampler::attach(child.id(), options)?),
        None => None,
    };
    watch.collect()?.commit();
    child.stdin.take().ok_or("no pipe")?.write_all(b"x")?;
    let (mut pages, mut attributed, mut summary) = (0, 0, None);
    while child.try_wait()?.is_none() {
        std::thread::sleep(INTERVAL);
        let began = sampler.as_ref().map(Sampler::mark);
        let Ok(round) = watch.collect() else { break };
        if let Some((sampler, began)) = sampler.as_mut().zip(began) {
            let (attribution, _) = sampler.attribute(began, round.dirty());
            pages += round.dirty().page_count();
            attributed += attribution.page_count();
            summary = Some(sampler.summary());
        }
        round.commit();
    }
    black_box((pages, attributed));
    line.clear();
    lines.read_line(&mut line)?;
    child.wait()?;
    Ok((line.trim().parse()?, summary))
}

/// The program's part: writes pages, computes, and says how much processor time that took.
fn work(workload: usize) -> Result<(), Box<dyn Error>> {
    let (_, pages, passes, iterations) = WORKLOADS[workload];
    let mut memory = vec![1u8; pages * PAGE];
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let begun = cpu_ns();
    let mut sum = 1u64;
    for pass in 0..passes {
        for page in 0..pages {
            memory[page * PAGE] = pass as u8;
            for step in 0..iterations {
                sum = black_box(sum.wrapping_mul(31).wrapping_add(u64::from(step)));
            }
        }
        black_box(&memory);
    }
    println!("{}", cpu_ns() - begun);
    Ok(())
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
