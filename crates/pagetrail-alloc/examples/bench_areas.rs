//! What it saves natively that a heap hands objects out in whole pages where sub-pages show
//! nothing: faults, processor time and volume of four kinds of work, beside static sub-pages and
//! beside whole pages; as JSON.
//!
//! `cargo run --release -p pagetrail-alloc --example bench_areas [ROUNDS]`
//!
//! A round is a fixed amount of work, so that counts do not depend on the machine. Each round is
//! held against what was written: nothing may be missing. The first third of the rounds is not
//! counted.

#![allow(unsafe_code, reason = "it writes to bare memory of a heap")]
#![allow(clippy::print_stdout, reason = "the result")]

use std::alloc::Layout;
use std::ptr::NonNull;

use pagetrail::{Choice, PageRange, Round, Target, Technique, Watch};
use pagetrail_alloc::{Heap, SubpageCount};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The first superblock of a heap has room for all objects.
const ALIAS_BYTES: u64 = 16 << 20;
const OBJECT_BYTES: usize = 48;
/// Objects that live as long as the program: 4.6 MiB.
const LASTING: usize = 100_000;
/// Objects that a nursery has in a round, in batches that are freed one after the other.
const YOUNG: usize = 60_000;
const BATCH: usize = 15_000;
/// Random updates in a round.
const UPDATES: usize = 4_000;

/// How sub-pages are tracked.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    subpages: u32,
    merges: bool,
    technique: Technique,
}

const fn variant(name: &'static str, subpages: u32, merges: bool, technique: Technique) -> Variant {
    Variant {
        name,
        subpages,
        merges,
        technique,
    }
}

const VARIANTS: [Variant; 6] = [
    variant("pages", 1, false, Technique::PagemapScan),
    variant("static", 8, false, Technique::PagemapScan),
    variant("merging", 8, true, Technique::PagemapScan),
    variant("pages, adaptive", 1, false, Technique::Adaptive),
    variant("static, adaptive", 8, false, Technique::Adaptive),
    variant("merging, adaptive", 8, true, Technique::Adaptive),
];

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Objects that are allocated, written and freed.
    Nursery,
    /// A nursery, a hundredth of which lives until eight rounds later and is written once more.
    Survivors,
    /// All lasting objects, one after the other.
    Sweep,
    /// Random lasting objects.
    Keys,
}

struct Program {
    heap: Heap,
    lasting: Vec<NonNull<u8>>,
    survivors: Vec<(usize, NonNull<u8>)>,
    random: fastrand::Rng,
    aliases: PageRange,
}

fn layout() -> Layout {
    Layout::from_size_align(OBJECT_BYTES, 16).expect("a layout")
}

impl Program {
    fn new(subpages: u32) -> Self {
        let subpages = SubpageCount::new(subpages).expect("a number of sub-pages");
        let heap = Heap::new(subpages).expect("memory");
        let new = |_| heap.allocate(layout()).expect("memory");
        let lasting: Vec<NonNull<u8>> = (0..LASTING).map(new).collect();
        let least = lasting.iter().map(|object| object.as_ptr() as u64).min();
        let base = least.unwrap_or(0) & !((2 << 20) - 1);
        let aliases = PageRange::new(base, base + ALIAS_BYTES * u64::from(subpages.count()));
        Self {
            heap,
            lasting,
            survivors: Vec::new(),
            random: fastrand::Rng::with_seed(1),
            aliases: aliases.expect("a range"),
        }
    }

    /// Does a round's work; returns the addresses of the objects that were written.
    fn round(&mut self, work: Work, number: usize) -> Vec<u64> {
        let mut written = Vec::new();
        let mut write = |object: NonNull<u8>| {
            // SAFETY: the object has so many bytes, and only this thread uses it.
            unsafe { object.write_bytes(number as u8, OBJECT_BYTES) };
            written.push(object.as_ptr() as u64);
        };
        match work {
            Work::Sweep => self.lasting.iter().for_each(|object| write(*object)),
            Work::Keys => (0..UPDATES).for_each(|_| {
                write(self.lasting[self.random.usize(..self.lasting.len())]);
            }),
            Work::Nursery | Work::Survivors => {
                for _ in 0..YOUNG / BATCH {
                    let new = |_| self.heap.allocate(layout()).expect("memory");
                    let young: Vec<NonNull<u8>> = (0..BATCH).map(new).collect();
                    for object in young {
                        write(object);
                        if work == Work::Survivors && self.random.usize(..100) == 0 {
                            self.survivors.push((number + 8, object));
                        } else {
                            // SAFETY: it is not used any more.
                            unsafe { self.heap.free(object) };
                        }
                    }
                }
                let (old, rest) = self
                    .survivors
                    .iter()
                    .partition(|(until, _)| *until <= number);
                let old: Vec<(usize, NonNull<u8>)> = old;
                self.survivors = rest;
                for (_, object) in old {
                    write(object);
                    // SAFETY: it is not used any more.
                    unsafe { self.heap.free(object) };
                }
            }
        }
        written
    }
}

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds: usize = rounds.map_or(60, |rounds| rounds.parse().expect("a number of rounds"));
    let mut rows = Vec::new();
    for work in [Work::Nursery, Work::Survivors, Work::Sweep, Work::Keys] {
        for variant in VARIANTS {
            rows.push(measure(work, variant, rounds));
        }
    }
    let result = json!({
        "schema": 1,
        "object_bytes": OBJECT_BYTES,
        "lasting": LASTING,
        "young": YOUNG,
        "updates": UPDATES,
        "rounds": rounds,
        "rows": rows,
    });
    println!("{result}");
}

fn measure(work: Work, variant: Variant, rounds: usize) -> Value {
    let mut program = Program::new(variant.subpages);
    let mut watch = Watch::builder()
        .target(Target::ranges([program.aliases]))
        .technique(Choice::from(variant.technique))
        .merge_subpages(variant.merges)
        .start()
        .expect("a watch");
    let (mut faults, mut ns, mut bytes, mut count) = (0, 0.0, 0, 0);
    for number in 0..rounds {
        let began = (minor_faults(), processor_ns());
        let written = program.round(work, number);
        let took = (minor_faults() - began.0, processor_ns() - began.1);
        let round = watch.collect().expect("a round");
        let found = found(&round, &program, &written);
        round.commit();
        if number >= rounds / 3 {
            faults += took.0;
            ns += took.1;
            bytes += found;
            count += 1;
        }
    }
    json!({
        "work": format!("{work:?}").to_lowercase(),
        "variant": variant.name,
        "faults": faults as f64 / f64::from(count),
        "processor_us": ns / 1e3 / f64::from(count),
        "bytes": bytes as f64 / f64::from(count),
    })
}

/// The bytes that a round reports, all that was written among them.
fn found(round: &Round<'_>, program: &Program, written: &[u64]) -> u64 {
    let subpages = round.subpages().expect("a heap");
    let base = program.aliases.start();
    let physical = |address: &u64| base + (address - base) % ALIAS_BYTES;
    let objects = written.iter().map(physical);
    let ranges = objects.filter_map(|at| PageRange::new(at, at + OBJECT_BYTES as u64));
    let missed = ranges.collect::<pagetrail::PageSet>();
    let missed = missed.difference(subpages.bytes());
    assert!(missed.is_empty(), "missed: {missed:?}");
    subpages.bytes().bytes()
}

/// Minor faults of this thread so far (`getrusage(2)`).
fn minor_faults() -> i64 {
    // SAFETY: zeros are a valid structure, and the call writes one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_minflt
    }
}

/// Of this thread, faults included.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
