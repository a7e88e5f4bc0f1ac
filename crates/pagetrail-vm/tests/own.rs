//! Holds the calls by which a program uses the machine to what `own.c` does: sets of dirty and
//! accessed pages, protection, records, merged aliases, for random operations, threads and forks.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.
//! The machine with nested virtualization that `cargo xtask test` starts has one.

#![allow(clippy::print_stderr, reason = "a guest that cannot start says so")]

use std::env;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use pagetrail_guest::{Guest, Kinds, Range};
use pagetrail_vm::{GuestRound, Settings, become_guest, check, pair, recorded_guest};

/// Set in the process that becomes the guest: `unrecorded`, or the descriptor of a link.
const LINK: &str = "PAGETRAIL_TEST_OWN";
/// The only argument of this program as the guest.
const SAMPLES: &str = "--samples";

fn main() -> ExitCode {
    if Guest::is_here() && env::args().nth(1).as_deref() == Some(SAMPLES) {
        return sample();
    }
    if let Some(link) = env::var_os(LINK) {
        return start_guest(&link);
    }
    let tests: [(&str, fn()); 6] = [
        ("natively_there_is_no_machine", natively_there_is_no_machine),
        ("a_program_has_its_own_set", a_program_has_its_own_set),
        ("so_has_one_that_is_recorded", so_has_one_that_is_recorded),
        ("a_program_samples_its_set", a_program_samples_its_set),
        (
            "natively_a_write_set_is_exact",
            natively_a_write_set_is_exact,
        ),
        ("in_a_guest_it_is_exact", in_a_guest_it_is_exact),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn start_guest(link: &OsString) -> ExitCode {
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let mut settings = Settings::default();
    let link = link.to_str().and_then(|link| link.parse().ok());
    let Err(error) = match link {
        Some(link) => {
            settings.accesses = true;
            recorded_guest(&command, &settings, link)
        }
        None => become_guest(&command, &settings),
    };
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Whether there are no guests here; says why.
fn no_guest() -> bool {
    match check::try_guest().and_then(|_| check::try_accesses()) {
        Ok(()) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

fn compiled(directory: &Path, name: &str) -> PathBuf {
    let program = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let compiled = Command::new("cc")
        .args(["-O1", "-static", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

#[track_caller]
fn held(output: &Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.trim_end() == expected,
        "{output:?}"
    );
}

fn natively_there_is_no_machine() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(compiled(directory.path(), "own")).output();
    held(&output.expect("it starts"), "not a guest");
}

fn a_program_has_its_own_set() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), "own");
    for seed in ["1", "2", "3"] {
        let output = Command::new(env::current_exe().expect("this program"))
            .arg(&program)
            .args([seed, "300"])
            .env(LINK, "unrecorded")
            .output();
        held(&output.expect("it starts"), "all held");
    }
}

/// The recorder takes rounds, of writes and accesses, meanwhile.
fn so_has_one_that_is_recorded() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), "own");
    let (mut rounds, link) = pair().expect("sockets");
    let child = Command::new(env::current_exe().expect("this program"))
        .arg(&program)
        .args(["4", "300"])
        .env(LINK, link.as_raw_fd().to_string())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(link);
    let taker = std::thread::spawn(move || {
        let mut taken = 0;
        // Dropping `rounds` lets the program end.
        while let Ok(GuestRound::Round(_)) = rounds.collect() {
            taken += 1;
        }
        taken
    });
    held(&child.wait_with_output().expect("it ends"), "all held");
    assert!(taker.join().expect("no panic") > 1);
}

fn a_program_samples_its_set() {
    if no_guest() {
        return;
    }
    let this = env::current_exe().expect("this program");
    let mut command = Command::new(&this);
    command.arg(&this).arg(SAMPLES).env(LINK, "unrecorded");
    held(&command.output().expect("it starts"), "all held");
}

/// The header's own write set, by write protection.
fn natively_a_write_set_is_exact() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(compiled(directory.path(), "own_set")).output();
    let output = output.expect("it starts");
    if output.stdout == b"not here\n" {
        return pagetrail_skips::not_here("own write set: no asynchronous write protection");
    }
    held(&output, "exact");
}

/// In a guest the program has the machine's set instead.
fn in_a_guest_it_is_exact() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(env::current_exe().expect("this program"))
        .arg(compiled(directory.path(), "own_set"))
        .env(LINK, "unrecorded")
        .output();
    held(&output.expect("it starts"), "exact");
}

/// The number of samples, and of pages in them.
static SAMPLES_TAKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn count(ranges: &[Range]) {
    let pages: u64 = ranges.iter().map(|it| (it.end - it.start) / 4096).sum();
    SAMPLES_TAKEN[0].fetch_add(1, Ordering::Relaxed);
    SAMPLES_TAKEN[1].fetch_add(pages, Ordering::Relaxed);
}

/// In the guest: two pages of 16 are written all the time, and are all that samples have.
#[allow(clippy::print_stdout, reason = "the test reads it")]
fn sample() -> ExitCode {
    let guest = Guest::open().expect("a guest");
    let mut memory = vec![1u8; 17 * 4096];
    let start = (memory.as_ptr() as u64).next_multiple_of(4096);
    let first = (start - memory.as_ptr() as u64) as usize;
    let end = start + 16 * 4096;
    let range = Range { start, end };
    guest.forget(range, Kinds::ALL).expect("it has a set");
    let every = Duration::from_millis(10);
    let of = |range, signal| guest.sample(range, Kinds::DIRTY, every, signal, count);
    assert!(
        of(
            Range {
                end: start,
                ..range
            },
            libc::SIGUSR1
        )
        .is_err()
    );
    assert!(of(range, 4000).is_err());
    let sampling = of(range, libc::SIGUSR1).expect("samples");
    assert!(of(range, libc::SIGUSR2).is_err(), "one at a time");
    let taken = || {
        SAMPLES_TAKEN
            .each_ref()
            .map(|it| it.load(Ordering::Relaxed))
    };
    while taken()[0] < 4 {
        for page in [3, 9] {
            std::hint::black_box(&mut memory)[first + page * 4096] ^= 1;
        }
    }
    drop(sampling);
    let [samples, pages] = taken();
    assert!(pages > 0 && pages <= 2 * samples, "{pages} in {samples}");
    // Another one may begin, and counts by itself.
    drop(of(range, libc::SIGUSR1).expect("samples"));
    println!("all held");
    ExitCode::SUCCESS
}
