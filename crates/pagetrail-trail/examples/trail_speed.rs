//! Times writing, reading, analysing and drawing of trails with ten million page-writes.
//!
//! `cargo run --release -p pagetrail-trail --example trail_speed`
#![allow(clippy::print_stdout, reason = "that is what an example is for")]

use std::hint::black_box;
use std::time::Instant;

use pagetrail::{PageRange, PageSet};
use pagetrail_trail::{Analysis, Header, Heatmap, Mapping, Round, Trail};

const PAGE_WRITES: usize = 10_000_000;

fn pages(start: u64, pages: u64) -> PageRange {
    PageRange::new(start << 12, (start + pages) << 12).expect("some pages")
}

/// One mapping of `mapped` pages, in which each round writes single pages at random.
fn trail(mapped: u64, rounds: usize) -> Trail {
    let mut random = fastrand::Rng::with_seed(1);
    let begin = 0x7f00_0000_0000 >> 12;
    let rounds = (0..rounds).map(|index| Round {
        index: index as u32,
        start_ns: index as u64 * 100_000_000,
        duration_ns: 100_000_000,
        collect_ns: 200_000,
        written: (0..PAGE_WRITES / rounds)
            .map(|_| pages(begin + random.u64(0..mapped), 1))
            .collect::<PageSet>(),
        ..Round::default()
    });
    Trail {
        rounds: rounds.collect(),
        header: Header {
            page_size: 4096,
            ..Header::default()
        },
        mappings: vec![Mapping {
            range: pages(begin, mapped),
            name: "[heap]".into(),
            permissions: "rw-p".into(),
            untracked: None,
            shared: None,
            first_round: 0,
            last_round: None,
        }],
        end: None,
        ..Trail::default()
    }
}

fn time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = black_box(work());
    println!("  {what:<10}{:6} ms", begin.elapsed().as_millis());
    result
}

fn main() {
    for (what, mapped, rounds) in [
        ("1 GiB, 1000 rounds", 1 << 18, 1000),
        ("64 GiB, 1000 rounds", 1 << 24, 1000),
        ("64 GiB, 10 rounds", 1 << 24, 10),
    ] {
        let trail = trail(mapped, rounds);
        let ranges = trail.rounds.iter().map(|r| r.written.ranges().len());
        let ranges: usize = ranges.sum();
        println!("{what}: {PAGE_WRITES} random page-writes in {ranges} ranges");
        let mut bytes = Vec::new();
        time("write", || {
            trail.write(&mut bytes).expect("memory takes it")
        });
        println!(
            "  {:.2} bytes per range",
            bytes.len() as f64 / ranges as f64
        );
        let read = time("read", || Trail::read(&bytes[..]).expect("just written"));
        assert!(read == trail, "read back as written");
        time("analysis", || Analysis::of(&trail));
        time("heat grid", || Heatmap::of(&trail, 1000, 1000));
    }
}
