//! Boehm's collector, unmodified, in programs that are guests of `pagetrail vm`: under the library
//! it gets the write set of the machine, the programs are right, and its own checksums of clean
//! pages hold.
//!
//! This program starts itself as the guest. Needs a KVM that runs guests, and the programs in
//! `PAGETRAIL_GUEST_PROGRAMS`, which `cargo xtask test` builds.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what the runs took, and a guest that cannot start"
)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

/// Set in the process that becomes a guest: variables for the program, a line each.
const VARIABLES: &str = "PAGETRAIL_TEST_COLLECTORS";
/// The programs, in order: GCBench, four of the Phoenix suite, and one that is wrong when a write
/// is missed.
const PROGRAMS: [&str; 6] = [
    "gcbench",
    "gc-kmeans",
    "gc-wordcount",
    "gc-matmul",
    "gc-pca",
    "gc-pointers",
];

/// One of them with so many collections that exits of its start are few beside.
const MANY_COLLECTIONS: &str = "gc-pca";

fn main() -> ExitCode {
    if let Some(variables) = env::var_os(VARIABLES) {
        return start_guest(&variables);
    }
    let tests: [(&str, fn()); 3] = [
        ("programs_are_right_by_the_machine", programs_are_right),
        ("checksums_of_clean_pages_hold", checksums_hold),
        ("reads_without_a_call_are_as_the_kernels", cases_pass),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn start_guest(variables: &OsString) -> ExitCode {
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let mut settings = pagetrail_vm::Settings::default();
    for line in variables.to_str().unwrap_or_default().lines() {
        let (name, value) = line.split_once('=').expect("a variable");
        settings.variables.push((name.into(), value.into()));
    }
    match pagetrail_vm::become_guest(&command, &settings) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The directory with the programs, if there are guests here and it has them; says why not.
fn programs() -> Option<PathBuf> {
    if let Err(error) =
        pagetrail_vm::check::try_guest().and_then(|_| pagetrail_vm::check::try_accesses())
    {
        pagetrail_skips::not_here(error);
        return None;
    }
    let directory = env::var_os("PAGETRAIL_GUEST_PROGRAMS").map(PathBuf::from);
    let found = directory.filter(|it| PROGRAMS.iter().all(|name| it.join(name).exists()));
    if found.is_none() {
        pagetrail_skips::not_here("no programs on libgc (PAGETRAIL_GUEST_PROGRAMS)");
    }
    found
}

/// The library, which cargo has built beside this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("this program");
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// What a run was: what the program said of itself, its errors, and KVM's exits.
struct Run {
    said: Value,
    errors: String,
    exits: Option<u64>,
}

/// All exits of the virtual machines that there are (debugfs), where they can be read.
fn exits() -> Option<u64> {
    let text = fs::read_to_string("/sys/kernel/debug/kvm/exits").ok()?;
    text.trim().parse().ok()
}

/// Waits for a program; what it printed, and the exits of its machine as last seen before its end.
fn waited(command: &mut Command) -> (Output, Option<u64>) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let mut seen = None;
            while !is_over.load(Ordering::Relaxed) {
                seen = seen.max(exits());
                std::thread::sleep(Duration::from_millis(10));
            }
            seen
        });
        let output = child.wait_with_output();
        is_over.store(true, Ordering::Relaxed);
        (output.expect("it ends"), seen.join().expect("no panic"))
    })
}

#[track_caller]
fn run(program: &Path, mode: &str, variables: Option<&[(&str, &Path)]>) -> Run {
    // As large as a test can be, so that there are several collections.
    let size = env::var("PAGETRAIL_TEST_COLLECTORS_SIZE").unwrap_or_else(|_| "0".into());
    let mut command = match variables {
        Some(variables) => {
            let mut command = Command::new(env::current_exe().expect("this program"));
            let lines: Vec<String> = variables
                .iter()
                .map(|(name, value)| format!("{name}={}", value.display()))
                .collect();
            command.env(VARIABLES, lines.join("\n")).arg(program);
            command
        }
        None => Command::new(program),
    };
    let (output, exits) = waited(command.args([&size, mode]));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let said = serde_json::from_str(last).unwrap_or_else(|_| panic!("{program:?}: {output:?}"));
    Run {
        said,
        errors: errors + &text,
        exits,
    }
}

/// Each program natively without a collector of generations, as a guest by `mprotect`, and as a
/// guest by the machine.
fn programs_are_right() {
    let Some(programs) = programs() else { return };
    let (library, directory) = (library(), tempfile::tempdir().expect("a directory"));
    for name in PROGRAMS {
        let program = programs.join(name);
        let right = run(&program, "off", None);
        let by_mprotect = Path::new("0");
        let mprotect = run(
            &program,
            "on",
            Some(&[("GC_USE_GETWRITEWATCH", by_mprotect)]),
        );
        let log = directory.path().join(name);
        let variables = [
            ("LD_PRELOAD", &*library),
            ("PAGETRAIL_SOFTDIRTY_READER", Path::new("collector")),
            ("PAGETRAIL_SOFTDIRTY_LOG", &log),
        ];
        let machine = run(&program, "on", Some(&variables));
        for (by, run) in [("mprotect", &mprotect), ("machine", &machine)] {
            println!(
                "{name} by {by}: run {} ms, collecting {} ms, {} collections, {} exits",
                run.said["run_ms"],
                run.said["collecting_ms"],
                run.said["collections"],
                run.exits.map_or("?".into(), |exits| exits.to_string())
            );
            assert_eq!(
                run.said["checksum"], right.said["checksum"],
                "{name} by {by}"
            );
        }
        if name == MANY_COLLECTIONS
            && let Some(exits) = machine.exits
        {
            let collections = machine.said["collections"].as_u64().expect("a number");
            // The program's start, and two calls for each clear; with a call for each read it was
            // 35, and more.
            let exits = exits / collections.max(1);
            assert!(exits < 24, "{name}: {exits} exits for each collection");
        }
        assert_eq!(mprotect.said["provider"], "mprotect", "{name}");
        assert_eq!(machine.said["provider"], "soft-dirty", "{name}");
        let log = fs::read_to_string(log).unwrap_or_default();
        assert!(log.contains("by the virtual machine"), "{name}: {log}");
        assert!(!log.contains("counts as written"), "{name}: {log}");
    }
}

/// Reads that need no system call, into bad buffers and by duplicates, go as by the kernel
/// (`tests/victims/softdirty.c`).
fn cases_pass() {
    if let Err(error) =
        pagetrail_vm::check::try_guest().and_then(|_| pagetrail_vm::check::try_accesses())
    {
        return pagetrail_skips::not_here(error);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/softdirty.c");
    let program = directory.path().join("softdirty");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source]);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return pagetrail_skips::not_here("no C compiler (cc)"),
    }
    let log = directory.path().join("log");
    let variables = [
        format!("LD_PRELOAD={}", library().display()),
        "PAGETRAIL_SOFTDIRTY_READER=collector".into(),
        format!("PAGETRAIL_SOFTDIRTY_LOG={}", log.display()),
    ];
    for case in ["bad-buffers", "passed"] {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env(VARIABLES, variables.join("\n"));
        let (output, _) = waited(command.arg(&program).arg(case));
        let log = fs::read_to_string(&log).unwrap_or_default();
        assert!(output.status.success(), "{case}: {output:?}: {log}");
        assert!(log.contains("by the virtual machine"), "{log}");
    }
}

/// The collector's build that compares each clean page with its checksum.
fn checksums_hold() {
    let Some(programs) = programs() else { return };
    let checking = programs.join("libgc-checksums.so");
    if !checking.exists() {
        return pagetrail_skips::not_here("no libgc with checksums");
    }
    let preloaded = format!("{}:{}", library().display(), checking.display());
    for name in PROGRAMS {
        let variables = [
            ("LD_PRELOAD", Path::new(&preloaded)),
            ("PAGETRAIL_SOFTDIRTY_READER", Path::new("collector")),
            ("GC_PRINT_STATS", Path::new("1")),
        ];
        let run = run(&programs.join(name), "on", Some(&variables));
        let checked = run
            .errors
            .lines()
            .filter(|line| line.contains("Checked "))
            .count();
        println!("{name}: {checked} collections with checksums");
        assert_eq!(run.said["provider"], "soft-dirty", "{name}");
        assert!(checked > 0, "{name}: {}", run.errors);
        assert!(
            !run.errors.contains("dirty bit errors"),
            "{name}: {}",
            run.errors
        );
    }
}
