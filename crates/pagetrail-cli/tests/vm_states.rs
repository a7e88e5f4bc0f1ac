//! Compares the state that a program finds as a guest of KVM with a native run, line by line: the
//! order of handlers, masks, stacks, floating-point state, how far its stack grows, and where it
//! is.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one. `PAGETRAIL_VM_SEEDS` is the number of random runs, `PAGETRAIL_VM_SEED` the first
//! seed.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::guest::{compiled, no_guest, same};
use common::run;

/// The default number of random runs, and their steps.
const SEEDS: u64 = 12;
const STEPS: &str = "400";

fn number_of(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

fn states(directory: &Path) -> PathBuf {
    compiled(directory, "vm_states.c", &["-lm"])
}

#[test]
fn a_program_finds_what_it_finds_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = states(directory.path());
    let program = program.to_str().expect("UTF-8");
    for case in [
        "arithmetic",
        "stops",
        "waits",
        "actions",
        "stack",
        "nested",
        "inherited",
    ] {
        same(directory.path(), &[program, case]);
    }
}

#[test]
fn random_signals_find_a_program_as_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = states(directory.path());
    let program = program.to_str().expect("UTF-8");
    let first = number_of("PAGETRAIL_VM_SEED", 1);
    for seed in first..first + number_of("PAGETRAIL_VM_SEEDS", SEEDS) {
        // A failure prints the command, and so the seed.
        same(
            directory.path(),
            &[program, "random", &seed.to_string(), STEPS],
        );
    }
}

/// Runs shell commands, the last of which runs the program, natively and as a guest.
#[track_caller]
fn same_in_shell(directory: &Path, words: &str, command: &str) {
    let guest = format!("{} vm run -- {command}", env!("CARGO_BIN_EXE_pagetrail"));
    let said = [command, &guest].map(|command| {
        let mut shell = Command::new("sh");
        let shell = shell.arg("-c").arg(format!("{words}; {command}"));
        shell.current_dir(directory).output().expect("a shell")
    });
    assert_eq!(said[0], said[1], "{words}; {command}");
}

#[test]
fn signals_that_were_ignored_before_stay_ignored() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = states(directory.path());
    let command = format!("{} inherited", program.display());
    same_in_shell(directory.path(), "trap '' PIPE SEGV BUS USR1", &command);
    same_in_shell(directory.path(), "true", &command);
}

#[test]
fn limits_of_the_stack_hold_as_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = states(directory.path());
    let command = format!("{} stack", program.display());
    for limit in ["ulimit -Ss 400", "ulimit -Ss unlimited", "ulimit -s 150000"] {
        same_in_shell(directory.path(), limit, &command);
    }
}

/// The sanitizers' run-time libraries check the address-space layout, and end the program where it
/// is not as under Linux.
#[test]
fn programs_with_sanitizers_run() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    for sanitizer in ["address", "thread", "undefined"] {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let program = directory.path().join(sanitizer);
        let mut compile = Command::new("cc");
        compile
            .arg(format!("-fsanitize={sanitizer}"))
            .arg("-pthread");
        compile.arg("-o").arg(&program);
        compile.arg(tests.join("vm_sanitized.c"));
        let built = compile.output().expect("a C compiler");
        if !built.status.success() {
            eprintln!("not here: -fsanitize={sanitizer}");
            continue;
        }
        // Who looks for leaks traces the program, which a guest's threads cannot be.
        let program = program.display().to_string();
        let variable = "export ASAN_OPTIONS=detect_leaks=0";
        same_in_shell(directory.path(), variable, &program);
    }
}

#[test]
fn what_a_kernel_may_lack_is_refused_as_there() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = states(directory.path());
    let program = program.to_str().expect("UTF-8");
    let output = run(directory.path(), &["vm", "run", "--", program, "lacks"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dispatch: 22\n");
}
