//! `pagetrail bench --metrics`: single steps of the OoH paper's table IV that need no technique:
//! the way into the kernel (M1), a walk of the pagemap (M16), the search for a page's address by
//! its frame (M17), and a copy out of a ring buffer (M18); and the pass of Listing 1 that touches
//! its memory first.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use pagetrail::PageRange;
use pagetrail_report::size::Size;
use serde::Serialize;

use super::measure::{command, kernel, machine};
use super::results::Spread;
use super::workload::{Memory, Writer};

/// Calls of one sample of M1.
const CALLS: u32 = 100_000;
/// Entries that are read of a pagemap at once.
const CHUNK: usize = 1 << 16;
/// Bytes of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst).
const ENTRY: u64 = 8;
/// Bits of an entry that hold the page frame number.
const FRAME: u64 = (1 << 55) - 1;
/// Entries of the ring: the 1,024 pages that the model's ring has.
const RING: usize = 1024 * 512;
/// A search of more pages than this is done once: it takes the square of their number.
const SEARCHED_OFTEN: usize = 1 << 15;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Metrics {
    schema: u32,
    kernel: String,
    machine: String,
    date: String,
    command: String,
    /// Each metric that can be measured here.
    pub metrics: Vec<Cost>,
    /// The others.
    pub absent: Vec<Absent>,
}

/// One metric, for one size of memory where it depends on that.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// Its name in a cost table of the model.
    pub metric: &'static str,
    /// The size of memory; `None` where the metric does not depend on it.
    pub size_bytes: Option<u64>,
    /// The median of the runs.
    pub ns: f64,
    /// The least.
    pub min_ns: f64,
    /// The most.
    pub max_ns: f64,
}

/// Metrics that cannot be measured here.
#[derive(Debug, Serialize)]
pub struct Absent {
    /// Its name in a cost table of the model.
    pub metric: &'static str,
    /// Why not, in one line.
    pub reason: &'static str,
}

const HYPERVISOR: &str = "needs the paper's module in a guest kernel and its hypervisor";

/// Measures each metric `runs` times; calls `progress` with what is done next.
pub fn run(sizes: &[Size], runs: u32, mut progress: impl FnMut(&str)) -> Result<Metrics> {
    let mut metrics = Metrics {
        schema: 1,
        kernel: kernel(),
        machine: machine(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: command(),
        metrics: Vec::new(),
        absent: [
            "start-ioctl",
            "stop-ioctl",
            "vmread",
            "vmwrite",
            "init-pml",
            "init-shadowing",
            "stop-pml",
            "stop-shadowing",
            "enable-logging",
            "disable-logging",
        ]
        .map(|metric| Absent {
            metric,
            reason: HYPERVISOR,
        })
        .into(),
    };
    progress("context switch");
    let calls = (0..runs).map(|_| context_switch_ns());
    metrics.push("context-switch", None, calls);
    for &size in sizes {
        let memory = Memory::new(size)?;
        let range = memory.range();
        // Memory that was freed comes back populated, so only the first time counts.
        metrics.push(
            "first-touch",
            Some(size),
            [memory.first_pass().as_nanos() as f64],
        );
        progress(&format!("{size}, pagemap walk"));
        let mut entries = Vec::new();
        let mut walks = Vec::new();
        for _ in 0..runs {
            walks.push(timed(|| walk(range, &mut entries))?);
        }
        metrics.push("pagemap-walk", Some(size), walks);
        progress(&format!("{size}, ring copy"));
        let addresses: Vec<u64> = (0..entries.len() as u64)
            .map(|page| range.start() + page * pagetrail::page_size())
            .collect();
        let copies = (0..runs).map(|_| ring_copy_ns(&addresses));
        metrics.push("ring-copy", Some(size), copies.collect::<Vec<_>>());
        progress(&format!("{size}, reverse mapping"));
        let frames: Vec<u64> = entries.iter().map(|entry| entry & FRAME).collect();
        if frames.iter().all(|&frame| frame == 0) {
            if !metrics.absent.iter().any(|a| a.metric == "reverse-mapping") {
                metrics.absent.push(Absent {
                    metric: "reverse-mapping",
                    reason: "page frame numbers are for CAP_SYS_ADMIN only (proc_pid_pagemap(5))",
                });
            }
            continue;
        }
        let often = if frames.len() <= SEARCHED_OFTEN {
            runs
        } else {
            1
        };
        let mut searches = Vec::new();
        for _ in 0..often {
            searches.push(timed(|| reverse_map(&frames))?);
        }
        metrics.push("reverse-mapping", Some(size), searches);
    }
    Ok(metrics)
}

impl Metrics {
    fn push(
        &mut self,
        metric: &'static str,
        size: Option<Size>,
        samples: impl IntoIterator<Item = f64>,
    ) {
        let Spread { median, min, max } = Spread::of(samples);
        self.metrics.push(Cost {
            metric,
            size_bytes: size.map(|size| size.bytes()),
            ns: median,
            min_ns: min,
            max_ns: max,
        });
    }
}

/// A system call that does nothing, there and back.
fn context_switch_ns() -> f64 {
    let began = Instant::now();
    for _ in 0..CALLS {
        black_box(rustix::process::getppid());
    }
    began.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn timed(mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    step()?;
    Ok(began.elapsed().as_nanos() as f64)
}

/// Reads the pagemap of a range of the own process.
fn walk(range: PageRange, entries: &mut Vec<u64>) -> Result<()> {
    let pagemap = File::open("/proc/self/pagemap").context("cannot open /proc/self/pagemap")?;
    let pages = usize::try_from((range.end() - range.start()) / pagetrail::page_size())?;
    let mut buffer = vec![0; CHUNK * ENTRY as usize];
    let mut offset = range.start() / pagetrail::page_size() * ENTRY;
    entries.clear();
    while entries.len() < pages {
        let wanted = CHUNK.min(pages - entries.len()) * ENTRY as usize;
        let part = &mut buffer[..wanted];
        pagemap
            .read_exact_at(part, offset)
            .context("cannot read /proc/self/pagemap")?;
        let (chunks, _) = part.as_chunks::<{ ENTRY as usize }>();
        entries.extend(chunks.iter().map(|chunk| u64::from_ne_bytes(*chunk)));
        offset += wanted as u64;
    }
    Ok(())
}

/// Finds the page of each frame by a linear search, as SPML's library does for what its ring holds.
fn reverse_map(frames: &[u64]) -> Result<()> {
    for (page, frame) in frames.iter().enumerate() {
        let found = frames.iter().position(|other| other == frame);
        // Pages can share a frame, the zero page for one; the first is found then.
        ensure!(
            found.is_some_and(|found| found <= page),
            "page {page} was not found by its frame"
        );
    }
    Ok(())
}

/// Time of copying all addresses out of a ring, which is filled as often as it takes.
fn ring_copy_ns(addresses: &[u64]) -> f64 {
    let ring: Vec<AtomicU64> = (0..RING.min(addresses.len()))
        .map(|_| AtomicU64::new(0))
        .collect();
    let head = AtomicU64::new(0);
    let tail = AtomicU64::new(0);
    let mut copied: Vec<u64> = Vec::with_capacity(addresses.len());
    let mut took = 0.0;
    for part in addresses.chunks(ring.len().max(1)) {
        for (slot, address) in ring.iter().zip(part) {
            slot.store(*address, Ordering::Relaxed);
        }
        head.fetch_add(part.len() as u64, Ordering::Release);
        let began = Instant::now();
        let pending = head.load(Ordering::Acquire) - tail.load(Ordering::Relaxed);
        let slots = ring.iter().take(pending as usize);
        copied.extend(slots.map(|slot| slot.load(Ordering::Relaxed)));
        tail.fetch_add(pending, Ordering::Release);
        took += began.elapsed().as_nanos() as f64;
    }
    black_box(&copied);
    took
}

/// Writes the metrics as text.
pub fn write(metrics: &Metrics, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}, Linux {}", metrics.machine, metrics.kernel)?;
    for cost in &metrics.metrics {
        let size = cost
            .size_bytes
            .map(|bytes| format!(", {}", Size::shown(bytes)));
        writeln!(
            out,
            "{}{}: {:.3} us ({:.3} to {:.3})",
            cost.metric,
            size.unwrap_or_default(),
            cost.ns / 1e3,
            cost.min_ns / 1e3,
            cost.max_ns / 1e3
        )?;
    }
    for absent in &metrics.absent {
        writeln!(out, "{}: not here: {}", absent.metric, absent.reason)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_measured_or_named() {
        let sizes = ["256K", "1M"].map(|size| size.parse::<Size>().unwrap());
        let metrics = run(&sizes, 3, |_| {}).unwrap();
        let has = |name: &str| {
            let sizes = metrics.metrics.iter().filter(|cost| cost.metric == name);
            let positive = sizes
                .clone()
                .all(|cost| cost.min_ns > 0.0 && cost.ns <= cost.max_ns);
            (sizes.count(), positive)
        };
        assert_eq!(has("context-switch"), (1, true));
        assert_eq!(has("pagemap-walk"), (2, true));
        assert_eq!(has("first-touch"), (2, true));
        assert_eq!(has("ring-copy"), (2, true));
        let is_absent = metrics.absent.iter().any(|a| a.metric == "reverse-mapping");
        let expected = if is_absent { (0, true) } else { (2, true) };
        assert_eq!(has("reverse-mapping"), expected);
        assert!(metrics.absent.iter().any(|a| a.metric == "vmread"));
    }

    #[test]
    fn a_walk_has_an_entry_for_each_page_and_all_are_there() {
        let memory = Memory::new("1M".parse().unwrap()).unwrap();
        let mut entries = Vec::new();
        walk(memory.range(), &mut entries).unwrap();
        assert_eq!(entries.len() as u64, (1 << 20) / pagetrail::page_size());
        // Bit 63: present.
        assert!(entries.iter().all(|entry| entry >> 63 == 1));
    }

    #[test]
    fn a_search_finds_the_first_page_of_a_frame() {
        assert!(reverse_map(&[5, 6, 5, 7]).is_ok());
        assert!(ring_copy_ns(&[1, 2, 3]) > 0.0);
    }
}
