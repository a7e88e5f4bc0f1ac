//! What resetting 256 MiB costs, by the share of it that was written, against copying all of it; as
//! JSON.
//!
//! `watched` is the time of the writes and of the reset with writes watched, `copied` that of the
//! same writes and a full copy: where they cross, watching stops to pay.

#![allow(clippy::print_stdout, reason = "the result")]

use pagetrail_checkpoint::{Arena, Snapshot};
use serde_json::json;
use std::hint::black_box;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;
const PAGE: usize = 4096;
const REPEATS: usize = 9;

fn main() {
    let mut arena = Arena::new(BYTES).expect("memory");
    let mut random = fastrand::Rng::with_seed(1);
    arena
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.u64(..).to_le_bytes()));
    let saved = arena.to_vec();
    let mut snapshot = Snapshot::take(arena).expect("a technique");
    let mut plain = saved.clone();
    let copy = median(|| {
        let began = Instant::now();
        black_box(&mut plain).copy_from_slice(black_box(&saved));
        began.elapsed()
    });
    let mut rows = Vec::new();
    let mut pages: Vec<usize> = (0..BYTES / PAGE).collect();
    for percent in [0.01, 0.1, 1.0, 3.0, 10.0, 20.0, 30.0, 40.0, 60.0, 100.0] {
        random.shuffle(&mut pages);
        let written = &pages[..((BYTES / PAGE) as f64 * percent / 100.0) as usize];
        let mut writing = Vec::new();
        let mut whole = 0;
        let reset = median(|| {
            let began = Instant::now();
            written.iter().for_each(|page| snapshot[page * PAGE] ^= 1);
            writing.push(began.elapsed());
            let began = Instant::now();
            whole += u32::from(snapshot.reset().expect("a reset").whole);
            let took = began.elapsed();
            assert!(snapshot[written[0] * PAGE..][..PAGE] == saved[written[0] * PAGE..][..PAGE]);
            took
        });
        assert!(snapshot[..] == saved[..], "it checks its answer");
        let untracked = median(|| {
            let began = Instant::now();
            written.iter().for_each(|page| plain[page * PAGE] ^= 1);
            let took = began.elapsed();
            plain.copy_from_slice(&saved);
            took
        });
        writing.sort_unstable();
        let watched_writes = writing[writing.len() / 2];
        rows.push(json!({
            "written_percent": percent,
            "reset_ns": reset.as_nanos() as u64,
            "memcpy_ns": copy.as_nanos() as u64,
            "times_faster_than_memcpy": ratio(copy, reset),
            "watched_ns": (watched_writes + reset).as_nanos() as u64,
            "copied_ns": (untracked + copy).as_nanos() as u64,
            "resets_that_copied_all": whole,
        }));
        // Back to watching for the next share.
        while snapshot.reset().expect("a reset").whole {}
    }
    let document = json!({ "schema": 1, "bytes": BYTES, "repeats": REPEATS, "rows": rows });
    println!("{document:#}");
}

fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..REPEATS).map(|_| measure()).collect();
    times.sort_unstable();
    times[REPEATS / 2]
}

fn ratio(a: Duration, b: Duration) -> f64 {
    (a.as_secs_f64() / b.as_secs_f64() * 100.0).round() / 100.0
}
