//! The measuring: for each size, writer and technique, untracked and tracked passes in turn.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use pagetrail::{Capabilities, CollectAt, Technique, Watch, page_size};

use super::child::ChildWriter;
use super::oracle;
use super::predicted::{Predicted, Tally};
use super::results::{Absent, Fault, Measured, Results, Spread, Steps, Tracked};
use super::workload::{Memory, Writer};
use pagetrail_report::size::Size;

/// A run of a small size repeats its round until it has written about this much.
const BYTES_PER_RUN: u64 = 16 << 20;
/// The second round is the first that finds memory re-armed rather than armed.
const ROUNDS_MIN: u64 = 2;
const ROUNDS_MAX: u64 = 16;

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// Sizes of the memory.
    pub sizes: Vec<Size>,
    /// All of them work here for some target.
    pub techniques: Vec<Technique>,
    /// How often each was measured.
    pub runs: u32,
}

/// Measures; calls `progress` with what is done next.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Results> {
    let mut results = Results {
        schema: 2,
        kernel: kernel(),
        machine: machine(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: command(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        page_size: page_size(),
        runs: plan.runs,
        not_locked: None,
        absent: absent(),
        results: Vec::new(),
    };
    for &size in &plan.sizes {
        for tracked in Tracked::ALL {
            let mut writer: Box<dyn Writer> = match tracked {
                Tracked::Own => Box::new(Memory::new(size)?),
                Tracked::Other => Box::new(ChildWriter::start(size)?),
            };
            if let Some(why) = writer.unlocked() {
                results.not_locked = Some(why.into());
            }
            let techniques = plan.techniques.iter().copied();
            let techniques: Vec<_> = techniques.filter(|t| fits(*t, tracked)).collect();
            let mut samples = vec![Vec::new(); techniques.len()];
            for run in 1..=plan.runs {
                for (technique, samples) in techniques.iter().zip(&mut samples) {
                    let words = tracked.words();
                    progress(&format!("{size}, {words}, run {run}: {technique}"));
                    let sample = sample(&mut *writer, *technique);
                    samples.push(sample.with_context(|| format!("{technique}, {words}"))?);
                }
            }
            for (technique, samples) in techniques.iter().zip(samples) {
                results
                    .results
                    .push(summary(*technique, tracked, size, &samples));
            }
        }
    }
    Ok(results)
}

/// The kernel's version without what its builder appended.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    release.split(['-', '+']).next().unwrap_or("").to_owned()
}

/// The processor's name, as the kernel has it (proc_cpuinfo(5)).
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map(|name| name.trim_start_matches(|c: char| c.is_whitespace() || c == ':'));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// This run's command line, without the path to the program.
pub(crate) fn command() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once("pagetrail".to_owned())
        .chain(words)
        .collect();
    words.join(" ")
}

fn fits(technique: Technique, tracked: Tracked) -> bool {
    !(technique == Technique::Mprotect && tracked == Tracked::Other)
}

fn absent() -> Vec<Absent> {
    let mut absent = Vec::new();
    for (technique, status) in Capabilities::probe().iter() {
        for tracked in Tracked::ALL {
            let reason = status.reason().map(String::from);
            let own_only =
                || (!fits(technique, tracked)).then(|| "works on the own process only".into());
            absent.extend(reason.or_else(own_only).map(|reason| Absent {
                technique: technique.name(),
                tracked,
                reason,
            }));
        }
    }
    absent
}

/// One run of one technique.
#[derive(Clone, Debug, Default)]
struct Sample {
    pages: u64,
    reported: u64,
    reported_clean: u64,
    untracked: f64,
    arm: f64,
    attach_stopped: f64,
    pass: f64,
    collect: f64,
    stopped: f64,
    clean_collect: f64,
    disarm: f64,
    tally: Tally,
}

fn sample(writer: &mut dyn Writer, technique: Technique) -> Result<Sample> {
    let written = writer.range();
    let rounds = (BYTES_PER_RUN / written.bytes()).clamp(ROUNDS_MIN, ROUNDS_MAX);
    let mut sample = Sample {
        pages: written.page_count(),
        ..Sample::default()
    };
    // What the watch before left behind in page tables and caches goes with this pass.
    writer.pass()?;
    let passes: Result<Vec<_>> = (0..rounds).map(|_| writer.pass().map(ns)).collect();
    sample.untracked = Spread::of(passes?).median;

    let target = writer.target()?;
    let began = Instant::now();
    let watch = Watch::builder().target(target).technique(technique);
    // Writer and tracker take turns, so nobody writes during a collect.
    let mut watch = watch.collect_at(CollectAt::Safepoint).start()?;
    sample.arm = ns(began.elapsed());
    sample.attach_stopped = ns(watch.attach_stopped());

    let (mut passes, mut collects, mut stops) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        passes.push(ns(writer.pass()?));
        let began = Instant::now();
        let round = watch.collect()?;
        collects.push(ns(began.elapsed()));
        stops.push(ns(round.cost().stopped));
        let reported = oracle::check(technique.name(), written, round.dirty())?;
        sample.reported = sample.reported.max(reported);
        sample.tally.add(round.prediction());
        round.commit();
    }
    let mut clean = vec![];
    for _ in 0..rounds {
        let began = Instant::now();
        let round = watch.collect()?;
        clean.push(ns(began.elapsed()));
        let reported = round
            .dirty_ranges()
            .filter_map(|r| r.intersection(&written));
        let reported = reported.map(|range| range.page_count()).sum();
        sample.reported_clean = sample.reported_clean.max(reported);
        round.commit();
    }
    let began = Instant::now();
    drop(watch);
    sample.disarm = ns(began.elapsed());
    sample.pass = Spread::of(passes).median;
    sample.collect = Spread::of(collects).median;
    sample.stopped = Spread::of(stops).median;
    sample.clean_collect = Spread::of(clean).median;
    Ok(sample)
}

fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}

fn summary(technique: Technique, tracked: Tracked, size: Size, samples: &[Sample]) -> Measured {
    let over = |figure: fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
    let most = |count: fn(&Sample) -> u64| samples.iter().map(count).max().unwrap_or(0);
    Measured {
        technique: technique.name(),
        tracked,
        size_bytes: size.bytes(),
        pages_written: size.pages(),
        pages_reported: most(|s| s.reported),
        pages_reported_clean: most(|s| s.reported_clean),
        untracked_pass_ns: over(|s| s.untracked),
        tracked_pass_ns: over(|s| s.pass),
        overhead_on_tracked_percent: over(|s| percent(s.pass + s.stopped, s.untracked)),
        overhead_on_tracker_percent: over(|s| percent(s.arm + s.pass + s.collect, s.untracked)),
        steps: Steps {
            arm_ns: over(|s| s.arm),
            attach_stopped_ns: over(|s| s.attach_stopped),
            fault: fault_handled_in(technique).map(|handled_in| Fault {
                handled_in,
                ns_per_page: over(|s| (s.pass - s.untracked) / s.pages as f64),
                take_and_rearm_ns_per_page: over(|s| {
                    (s.collect - s.clean_collect) / s.pages as f64
                }),
            }),
            collect_ns: over(|s| s.collect),
            collect_stopped_ns: over(|s| s.stopped),
            clean_collect_ns: over(|s| s.clean_collect),
            disarm_ns: over(|s| s.disarm),
        },
        prediction: Predicted::of(samples.iter().map(|sample| &sample.tally)),
    }
}

fn percent(time: f64, ideal: f64) -> f64 {
    (time / ideal.max(1.0) - 1.0) * 100.0
}

fn fault_handled_in(technique: Technique) -> Option<&'static str> {
    match technique {
        Technique::PagemapScan
        | Technique::Adaptive
        | Technique::SoftDirty
        | Technique::AccessScan => Some("kernel"),
        Technique::Userfaultfd | Technique::Mprotect => Some("user space"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overheads_follow_their_definition() {
        let sample = Sample {
            pages: 10,
            untracked: 100.0,
            arm: 1000.0,
            pass: 250.0,
            stopped: 50.0,
            collect: 500.0,
            clean_collect: 100.0,
            ..Sample::default()
        };
        let size = "1M".parse().unwrap();
        let measured = summary(Technique::SoftDirty, Tracked::Other, size, &[sample]);
        assert_eq!(measured.overhead_on_tracked_percent.median, 200.0);
        assert_eq!(measured.overhead_on_tracker_percent.median, 1650.0);
        let fault = measured.steps.fault.unwrap();
        assert_eq!(fault.handled_in, "kernel");
        assert_eq!(fault.ns_per_page.median, 15.0);
        assert_eq!(fault.take_and_rearm_ns_per_page.median, 40.0);
    }
}
