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

use libtest_mimic::{Arguments, Trial};
use pagetrail_vm::{GuestRound, Settings, become_guest, check, pair, recorded_guest};

/// Set in the process that becomes the guest: `unrecorded`, or the descriptor of a link.
const LINK: &str = "PAGETRAIL_TEST_OWN";

fn main() -> ExitCode {
    if let Some(link) = env::var_os(LINK) {
        return start_guest(&link);
    }
    let tests: [(&str, fn()); 3] = [
        ("natively_there_is_no_machine", natively_there_is_no_machine),
        ("a_program_has_its_own_set", a_program_has_its_own_set),
        ("so_has_one_that_is_recorded", so_has_one_that_is_recorded),
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

fn compiled(directory: &Path) -> PathBuf {
    let program = directory.join("own");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/own.c");
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
    let output = Command::new(compiled(directory.path())).output();
    held(&output.expect("it starts"), "not a guest");
}

fn a_program_has_its_own_set() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path());
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
    let program = compiled(directory.path());
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
