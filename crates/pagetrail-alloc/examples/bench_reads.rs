//! The cost of tracking reads of a sub-page heap, next to that of tracking writes, by the number of
//! sub-pages per page; as JSON.
//!
//! `cargo run --release -p pagetrail-alloc --example bench_reads [ROUNDS]`
//!
//! Rounds of random objects of 64 bytes, one access each, by the heap's own process. Each round's
//! sub-pages are compared with those that were accessed. `first_touch_ns` is what an access costs,
//! beyond an access that is not tracked, if it is the first to its sub-page in a round.

#![allow(unsafe_code, reason = "it reads and writes bare memory of a heap")]
#![allow(clippy::print_stdout, reason = "the result")]

use pagetrail::{
    Capabilities, Choice, PageRange, Round, Status, Target, Technique, TrackMode, Watch,
};
use pagetrail_alloc::{Heap, SubpageCount};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

const OBJECTS: usize = 100_000;
const OBJECT_BYTES: usize = 64;
/// Accesses in a round.
const ACCESSES: usize = 5000;
const COUNTS: [u32; 6] = [1, 2, 4, 8, 16, 64];
/// The first superblock of a heap has room for all objects.
const ALIAS_BYTES: u64 = 16 << 20;

const WATCHES: [(Technique, TrackMode); 4] = [
    (Technique::PagemapScan, TrackMode::Writes),
    (Technique::Mprotect, TrackMode::Writes),
    (Technique::Mprotect, TrackMode::Accesses),
    (Technique::AccessScan, TrackMode::Accesses),
];

struct Objects {
    heap: Heap,
    all: Vec<NonNull<u8>>,
    aliases: PageRange,
}

impl Objects {
    fn new(subpages: SubpageCount) -> Self {
        let heap = Heap::new(subpages).expect("memory");
        let layout = Layout::from_size_align(OBJECT_BYTES, 16).expect("a layout");
        let all: Vec<_> = (0..OBJECTS)
            .map(|_| heap.allocate(layout).expect("memory"))
            .collect();
        let least = all.iter().map(|object| object.as_ptr() as u64).min();
        let base = least.unwrap_or(0) & !((2 << 20) - 1);
        let aliases = PageRange::new(base, base + ALIAS_BYTES * u64::from(subpages.count()));
        let aliases = aliases.expect("a range");
        let addresses = aliases.start()..aliases.end();
        assert!(
            all.iter()
                .all(|object| addresses.contains(&(object.as_ptr() as u64)))
        );
        Self { heap, all, aliases }
    }

    /// The sub-page in which an object begins, at its address in the first alias.
    fn subpage(&self, object: NonNull<u8>) -> u64 {
        let subpage_bytes = 4096 / u64::from(self.heap.subpages_per_page().count());
        let within = (object.as_ptr() as u64 - self.aliases.start()) % ALIAS_BYTES;
        self.aliases.start() + within / subpage_bytes * subpage_bytes
    }
}

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.map_or(21, |rounds| rounds.parse().expect("a number of rounds"));
    let mut rows = Vec::new();
    for subpages in COUNTS.into_iter().filter_map(SubpageCount::new) {
        let objects = Objects::new(subpages);
        let alone = [TrackMode::Writes, TrackMode::Accesses].map(|track| {
            let mut random = fastrand::Rng::with_seed(1);
            median((0..rounds).map(|_| access(&objects, track, &mut random).1))
        });
        for (technique, track) in WATCHES {
            let alone = alone[usize::from(track == TrackMode::Accesses)];
            rows.push(measure(&objects, technique, track, alone, rounds));
        }
    }
    let result = json!({
        "schema": 1,
        "objects": OBJECTS,
        "object_bytes": OBJECT_BYTES,
        "accesses": ACCESSES,
        "rounds": rounds,
        "rows": rows,
    });
    println!("{result}");
}

fn measure(
    objects: &Objects,
    technique: Technique,
    track: TrackMode,
    alone: f64,
    rounds: usize,
) -> Value {
    let mut row = json!({
        "parts": objects.heap.subpages_per_page().count(),
        "technique": technique.to_string(),
        "notices": if track == TrackMode::Accesses { "reads and writes" } else { "writes" },
        "unwatched_ns": alone,
    });
    let works = Capabilities::probe_one(technique);
    if *works != Status::Works {
        row["not_here"] = works.to_string().into();
        return row;
    }
    let mut watch = Watch::builder()
        .target(Target::ranges([objects.aliases]))
        .technique(Choice::from(technique))
        .track(track)
        .start()
        .expect("a watch");
    let mut random = fastrand::Rng::with_seed(2);
    let (mut accesses_ns, mut collects_us, mut dirty_subpages) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        let (right, ns) = access(objects, track, &mut random);
        let began = Instant::now();
        let round = watch.collect().expect("a round");
        collects_us.push(began.elapsed().as_secs_f64() * 1e6);
        assert_eq!(found(&round), right, "it checks its answer");
        round.commit();
        accesses_ns.push(ns);
        dirty_subpages.push(right.len() as f64);
    }
    let (ns, dirty_subpages) = (median(accesses_ns), median(dirty_subpages));
    row["access_ns"] = ns.into();
    row["units"] = dirty_subpages.into();
    row["first_touch_ns"] = ((ns - alone) * ACCESSES as f64 / dirty_subpages).into();
    row["collect_us"] = median(collects_us).into();
    row
}

fn found(round: &Round<'_>) -> BTreeSet<u64> {
    let dirty_subpages = round.subpages().expect("a heap");
    dirty_subpages
        .dirty()
        .iter_units(dirty_subpages.subpage_bytes())
        .collect()
}

/// Accesses random objects; their sub-pages, and processor time for each access.
fn access(objects: &Objects, track: TrackMode, random: &mut fastrand::Rng) -> (BTreeSet<u64>, f64) {
    let chosen: Vec<NonNull<u8>> = (0..ACCESSES)
        .map(|_| objects.all[random.usize(..OBJECTS)])
        .collect();
    let began = processor_ns();
    for object in &chosen {
        // SAFETY: objects of this heap, which only this thread uses.
        unsafe {
            match track {
                TrackMode::Accesses => _ = black_box(object.read_volatile()),
                _ => object.write_volatile(1),
            }
        }
    }
    let ns = (processor_ns() - began) / ACCESSES as f64;
    (
        chosen
            .into_iter()
            .map(|object| objects.subpage(object))
            .collect(),
        ns,
    )
}

/// Of this thread, faults and signals included.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
