//! What the library costs a program that opens none of its files. A test of its own, so that no other runs beside it.

#![allow(clippy::print_stdout, reason = "tests print what they measured")]

use std::process::Command;
use std::time::{Duration, Instant};

const TIMES: usize = 201;

/// The quicker runs: on a busy machine the slower ones tell of the others.
fn first_quartile(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[TIMES / 4]
}

#[test]
fn a_program_starts_within_a_millisecond_of_its_usual_time() {
    let test = std::env::current_exe().unwrap();
    // Not the copy one directory up, which only `cargo build` renews.
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    let run = |preload: bool| {
        let mut command = Command::new("/bin/true");
        if preload {
            command.env("LD_PRELOAD", &library);
        }
        let before = Instant::now();
        assert!(command.status().unwrap().success());
        before.elapsed()
    };
    let (bare, ours) = (0..TIMES).map(|_| (run(false), run(true))).unzip();
    let (bare, ours) = (first_quartile(bare), first_quartile(ours));
    println!(
        "first quartiles of {TIMES} interleaved runs: {bare:?} without, {ours:?} with the library"
    );
    assert!(
        ours < bare + Duration::from_millis(1),
        "{bare:?} without, {ours:?} with the library"
    );
}
