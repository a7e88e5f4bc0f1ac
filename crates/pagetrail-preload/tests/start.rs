//! What the library costs a program that opens none of its files. A test of its own, so that no
//! other runs beside it.

#![allow(clippy::print_stdout, reason = "tests print what they measured")]

use std::process::Command;
use std::time::{Duration, Instant};

const TIMES: usize = 201;
/// Mapping a library touches about a page for each of its pages with relocations; setting something
/// up would touch more.
const FAULTS_MAX: i64 = 150;

/// What starting and ending a program took.
struct Start {
    time: Duration,
    faults: i64,
}

/// The quicker runs: on a busy machine the slower ones tell of the others.
fn first_quartile<T: Ord + Copy>(starts: &[Start], of: impl Fn(&Start) -> T) -> T {
    let mut values: Vec<T> = starts.iter().map(of).collect();
    values.sort();
    values[TIMES / 4]
}

/// Page faults without input or output of all children that have been waited for.
fn faults_of_children() -> i64 {
    // SAFETY: a structure of numbers, for which zeros are valid, to be filled by the kernel.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn a_program_that_opens_none_of_its_files_starts_as_usual() {
    let test = std::env::current_exe().unwrap();
    // Not the copy one directory up, which only `cargo build` renews.
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    let run = |preload: bool| {
        let mut command = Command::new("/bin/true");
        if preload {
            command.env("LD_PRELOAD", &library);
        }
        let (faults, before) = (faults_of_children(), Instant::now());
        assert!(command.status().unwrap().success());
        Start {
            time: before.elapsed(),
            faults: faults_of_children() - faults,
        }
    };
    let (bare, ours): (Vec<_>, Vec<_>) = (0..TIMES).map(|_| (run(false), run(true))).unzip();
    let time = |starts: &[Start]| first_quartile(starts, |start| start.time);
    let faults = |starts: &[Start]| first_quartile(starts, |start| start.faults);
    println!(
        "first quartiles of {TIMES} interleaved runs: {:?} and {} page faults without, {:?} and {} with the library",
        time(&bare),
        faults(&bare),
        time(&ours),
        faults(&ours),
    );
    assert!(faults(&ours) > faults(&bare), "the library was not there");
    assert!(faults(&ours) < faults(&bare) + FAULTS_MAX);
}
