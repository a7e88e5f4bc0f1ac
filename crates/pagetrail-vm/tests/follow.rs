//! Guests whose children and whose executed programs are guests, too: what a program finds after
//! `execve(2)`, and which calls fail, is compared with a native run.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.
//! The machine with nested virtualization that `cargo xtask test` starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use libtest_mimic::{Arguments, Trial};
use pagetrail_vm::{Settings, become_guest, check, resume};

/// Says that this process becomes a guest.
const GUEST: &str = "PAGETRAIL_TEST_GUEST";

fn main() -> ExitCode {
    resume();
    if env::var_os(GUEST).is_some() {
        return run_guest();
    }
    let tests: [(&str, fn()); 4] = [
        (
            "programs_find_what_they_find_natively",
            programs_find_what_they_find_natively,
        ),
        ("executed_programs_are_guests", executed_programs_are_guests),
        (
            "programs_with_other_rights_run_natively",
            programs_with_other_rights_run_natively,
        ),
        ("shells_run", shells_run),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn run_guest() -> ExitCode {
    let mut settings = Settings::default();
    settings.follow = true;
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let Err(error) = become_guest(&command, &settings);
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Whether there are no guests here; says why.
fn no_guest() -> bool {
    match check::try_guest() {
        Ok(_) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

fn program(directory: &Path) -> PathBuf {
    let program = directory.join("follow");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/follow.c");
    let mut compile = Command::new("cc");
    let compile = compile
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source);
    let compiled = compile.output().expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

fn natively(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    finish(directory, command.env(GUEST, ""))
}

fn as_a_guest(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(words);
    finish(directory, command.env(GUEST, ""))
}

fn finish(directory: &Path, command: &mut Command) -> Output {
    let command = command.current_dir(directory).stdin(Stdio::null());
    command.output().expect("it starts")
}

#[track_caller]
fn same(directory: &Path, words: &[&str]) {
    let native = natively(directory, words);
    let guest = as_a_guest(directory, words);
    assert_eq!(native, guest, "{words:?}");
}

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn programs_find_what_they_find_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    for case in ["state", "threads", "failures", "ways"] {
        same(directory.path(), &["./follow", case]);
    }
}

fn executed_programs_are_guests() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    let script = directory.path().join("script");
    std::fs::write(&script, "#!./follow where\n").expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its mode");
    let words = "./follow; (./follow where); ./script; sh -c './follow; exec ./follow where'; exec ./follow";
    let output = as_a_guest(directory.path(), &["sh", "-c", words]);
    assert_eq!(text(&output), "a guest\n".repeat(6));
}

/// A program that runs with other rights than its caller's is not a guest, which would not have
/// them.
fn programs_with_other_rights_run_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path());
    for (bits, expected) in [
        (0o4755, "natively\n"),
        (0o2755, "natively\n"),
        (0o755, "a guest\n"),
    ] {
        let mode = std::fs::Permissions::from_mode(bits);
        std::fs::set_permissions(&program, mode).expect("its mode");
        let output = as_a_guest(directory.path(), &["sh", "-c", "./follow; true"]);
        assert_eq!(text(&output), expected, "{bits:o}");
    }
}

fn shells_run() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("makefile"),
        "all: a b\na b:\n\tseq 3 | tac > $@\n",
    )
    .expect("a makefile");
    let commands: [&[&str]; 4] = [
        &[
            "sh",
            "-c",
            "seq 100 | sort -r | head -3; echo $(expr 6 '*' 7); exit 3",
        ],
        &[
            "bash",
            "-c",
            "trap 'echo got' USR1; kill -USR1 $$; x=$(echo sub); echo ${x^^}; sleep 0.1 & wait; echo $?; \
             sleep 100 & kill %1; wait %1; echo $?",
        ],
        &["make", "--no-print-directory", "-j2", "-s"],
        &[
            "sh",
            "-c",
            "cat a b; (exec sh -c 'kill -TERM $$'); echo $?; exec /nowhere",
        ],
    ];
    for command in commands {
        same(directory.path(), command);
    }
}
