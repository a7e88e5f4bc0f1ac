//! Measures the operations of a `PageSet` of ten million ranges of one page each, in nanoseconds
//! per range.
//!
//! `cargo run --release --example page_set_speed`
#![allow(clippy::print_stdout, reason = "that is what an example is for")]

use std::hint::black_box;
use std::time::Instant;

use pagetrail::{PageRange, PageSet, page_size};

const RANGES: u64 = 10_000_000;

/// Every second page, beginning with `first_page`.
fn every_second(first_page: u64) -> impl Iterator<Item = PageRange> {
    (0..RANGES).filter_map(move |i| {
        let start = (first_page + 2 * i) * page_size();
        PageRange::new(start, start + page_size())
    })
}

fn time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = black_box(work());
    let nanoseconds = begin.elapsed().as_nanos() as f64;
    println!("{what:<32}{:6.1} ns per range", nanoseconds / RANGES as f64);
    result
}

fn main() {
    let even: PageSet = time("from_iter, in order", || every_second(0).collect());
    let mut shuffled: Vec<PageRange> = every_second(0).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut shuffled);
    time("from_iter, shuffled", || PageSet::from_iter(shuffled));
    // Half of these ranges are in `even`, half come after it.
    let later: PageSet = every_second(RANGES).collect();
    // Each of these ranges touches ranges of `even`.
    let odd: PageSet = every_second(1).collect();
    time("union, half in common", || even.union(&later));
    time("union, all touch", || even.union(&odd));
    time("intersection, half in common", || even.intersection(&later));
    time("difference, half in common", || even.difference(&later));
    time("difference, nothing in common", || even.difference(&odd));
}
