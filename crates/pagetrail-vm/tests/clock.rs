//! The time that a program reads by the vDSO, compared with what the kernel says before and after;
//! in threads and in a forked child. Where the program can use the vDSO, a look takes no VM exit.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what it found, and a guest that cannot start"
)]

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use pagetrail_vm::{Settings, become_guest, check};

/// Set in the process that becomes the guest.
const GUEST: &str = "PAGETRAIL_TEST_CLOCK";
/// What the program does that takes no exit, if there is a vDSO.
const LOOKS: u64 = 50_000;

fn main() -> ExitCode {
    if env::var_os(GUEST).is_some() {
        let command: Vec<OsString> = env::args_os().skip(1).collect();
        let Err(error) = become_guest(&command, &Settings::default());
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let test = Trial::test("the_clock_is_the_kernels", || {
        the_clock_is_the_kernels();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn the_clock_is_the_kernels() {
    if let Err(error) = check::try_guest() {
        return pagetrail_skips::not_here(error);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("clock");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    let output = Command::new(env::current_exe().expect("this program"))
        .arg(&program)
        .env(GUEST, "")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{output:?}");
    let exits = text
        .split(", ")
        .nth(1)
        .and_then(|part| part.split(' ').next());
    let exits: i64 = exits.and_then(|text| text.parse().ok()).expect("exits");
    let is_fast = text.starts_with("a vDSO");
    // Interrupts are exits, too.
    assert!(!is_fast || exits < 0 || exits < LOOKS as i64 / 4, "{text}");
}
