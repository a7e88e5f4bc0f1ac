//! What aliases cost a program that is not tracked, by the number of sub-pages per page; as JSON.
//!
//! `cargo run --release -p pagetrail-alloc --example alias_walk [ROUNDS]`
//!
//! The same objects for each number of sub-pages, in turns: made and filled, written to in random
//! order, where the processor may look up several addresses at once, and followed from one to the
//! next, where it must wait for each. Medians of nanoseconds of processor time; faults (entries
//! made in page tables by `madvise(2)` count as such) and page tables.

#![allow(unsafe_code, reason = "it reads and writes bare memory of a heap")]
#![allow(clippy::print_stdout, reason = "the result")]

use pagetrail_alloc::{Heap, SubpageCount};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::alloc::Layout;
use std::fs;
use std::hint::black_box;
use std::ptr::NonNull;

const OBJECTS: usize = 400_000;
/// A record of 64 bytes with what databases keep of it.
const OBJECT_BYTES: usize = 112;

/// What is measured of one heap.
#[derive(Default)]
struct Figures {
    fill_ns: Vec<f64>,
    write_ns: Vec<f64>,
    step_ns: Vec<f64>,
    faults: Vec<f64>,
    page_tables_kib: Vec<f64>,
}

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.map_or(11, |rounds| rounds.parse().expect("a number of rounds"));
    let mut random = fastrand::Rng::with_seed(1);
    let mut order: Vec<usize> = (0..OBJECTS).collect();
    random.shuffle(&mut order);
    let mut all = SubpageCount::ALL.map(|subpages| (subpages, Figures::default()));
    for _ in 0..rounds {
        for (subpages, figures) in &mut all {
            measure(*subpages, &order, figures);
        }
    }
    let rows = all.map(|(subpages, figures)| {
        json!({
            "parts": subpages.count(),
            "fill_ns": median(figures.fill_ns),
            "write_ns": median(figures.write_ns),
            "step_ns": median(figures.step_ns),
            "faults": median(figures.faults),
            "page_tables_kib": median(figures.page_tables_kib),
        })
    });
    let result = json!({
        "schema": 1,
        "objects": OBJECTS,
        "object_bytes": OBJECT_BYTES,
        "rounds": rounds,
        "rows": rows,
    });
    println!("{result}");
}

fn measure(subpages: SubpageCount, order: &[usize], figures: &mut Figures) {
    let (faults, tables) = (faults(), page_tables_kib());
    let heap = Heap::new(subpages).expect("memory");
    let layout = Layout::from_size_align(OBJECT_BYTES, 16).expect("a layout");
    let mut objects: Vec<NonNull<usize>> = Vec::with_capacity(OBJECTS);
    let began = processor_ns();
    for _ in 0..OBJECTS {
        let object = heap.allocate(layout).expect("memory");
        // SAFETY: it has so many bytes.
        unsafe { object.write_bytes(1, OBJECT_BYTES) };
        objects.push(object.cast());
    }
    let filled = processor_ns();
    // Each points to the next in this order.
    let next = order.iter().skip(1).chain(order.first());
    for (&from, &to) in order.iter().zip(next) {
        // SAFETY: it has room for a word, and is aligned.
        unsafe { objects[from].write_volatile(objects[to].as_ptr() as usize) };
    }
    let written = processor_ns();
    let mut at = objects[0];
    for _ in 0..OBJECTS {
        // SAFETY: each has the address of another one.
        at = unsafe { NonNull::new_unchecked(at.read_volatile() as *mut usize) };
    }
    assert_eq!(black_box(at), objects[0], "it comes back to where it began");
    let stepped = processor_ns();
    let each = |from: f64, to: f64| (to - from) / OBJECTS as f64;
    figures.fill_ns.push(each(began, filled));
    figures.write_ns.push(each(filled, written));
    figures.step_ns.push(each(written, stepped));
    figures.faults.push(self::faults() - faults);
    figures.page_tables_kib.push(page_tables_kib() - tables);
}

/// Of this thread, faults included.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn faults() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("a process");
    // The tenth word, counted from the end of the name, which may have spaces.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let faults = after.split_whitespace().nth(7);
    faults
        .and_then(|faults| faults.parse().ok())
        .expect("a number")
}

fn page_tables_kib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse().ok())
        .expect("a number")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
