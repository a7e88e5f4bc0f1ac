//! Boehm's collector, unmodified, on a log of dirty pages (`/dev/ooh`): under the library it gets
//! its write set from the log, the programs are right, and its own checksums of clean pages hold.
//!
//! Needs `/dev/ooh`, which `cargo xtask ooh` has in a guest, and the programs in
//! `PAGETRAIL_GUEST_PROGRAMS`, which it builds.

#![allow(clippy::print_stdout, reason = "what the runs took")]

use pagetrail::{Capabilities, Status, Technique};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// GCBench, the Phoenix-like ones, and one that is wrong when a write is missed.
const PROGRAMS: [&str; 6] = [
    "gcbench",
    "gc-kmeans",
    "gc-wordcount",
    "gc-matmul",
    "gc-pca",
    "gc-pointers",
];

const LOGS: [Technique; 2] = [Technique::Epml, Technique::Spml];

/// The directory with the programs, if there is a log here and it has them; says why not.
fn programs() -> Option<PathBuf> {
    for technique in LOGS {
        let status = Capabilities::probe_one(technique);
        if !matches!(status, Status::Works) {
            pagetrail_skips::not_here(format!("{technique}: {status}"));
            return None;
        }
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

/// Runs a program in its smallest form; what it said of itself, and all that it printed.
#[track_caller]
fn run(program: &Path, mode: &str, variables: &[(&str, &str)]) -> (Value, String) {
    let mut command = Command::new(program);
    let output = command
        .args(["0", mode])
        .envs(variables.iter().copied())
        .output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{program:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = serde_json::from_str(text.lines().last().unwrap_or_default());
    let said = said.unwrap_or_else(|_| panic!("{program:?}: {output:?}"));
    (said, text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn programs_are_right_by_a_log() {
    let Some(programs) = programs() else { return };
    let (library, directory) = (library(), tempfile::tempdir().expect("a directory"));
    for name in PROGRAMS {
        let program = programs.join(name);
        let (right, _) = run(&program, "off", &[]);
        for technique in LOGS {
            let log = directory.path().join(format!("{name}-{technique}"));
            let (said, _) = run(
                &program,
                "on",
                &[
                    ("LD_PRELOAD", library.to_str().expect("UTF-8")),
                    ("PAGETRAIL_SOFTDIRTY", "always"),
                    ("PAGETRAIL_SOFTDIRTY_READER", "collector"),
                    ("PAGETRAIL_SOFTDIRTY_TECHNIQUE", technique.name()),
                    ("PAGETRAIL_SOFTDIRTY_LOG", log.to_str().expect("UTF-8")),
                ],
            );
            println!(
                "{name} by {technique}: run {} ms, collecting {} ms, {} collections",
                said["run_ms"], said["collecting_ms"], said["collections"]
            );
            assert_eq!(said["checksum"], right["checksum"], "{name} by {technique}");
            assert_eq!(said["provider"], "soft-dirty", "{name} by {technique}");
            let log = fs::read_to_string(log).unwrap_or_default();
            let answered = format!("answered by {technique}");
            assert!(log.contains(&answered), "{name}: {log}");
            assert!(!log.contains("counts as written"), "{name}: {log}");
        }
    }
}

#[test]
fn checksums_of_clean_pages_hold_by_a_log() {
    let Some(programs) = programs() else { return };
    let checking = programs.join("libgc-checksums.so");
    if !checking.exists() {
        return pagetrail_skips::not_here("no libgc with checksums");
    }
    let preloaded = format!("{}:{}", library().display(), checking.display());
    for name in PROGRAMS {
        for technique in LOGS {
            let (said, printed) = run(
                &programs.join(name),
                "on",
                &[
                    ("LD_PRELOAD", &preloaded),
                    ("PAGETRAIL_SOFTDIRTY", "always"),
                    ("PAGETRAIL_SOFTDIRTY_READER", "collector"),
                    ("PAGETRAIL_SOFTDIRTY_TECHNIQUE", technique.name()),
                    ("GC_PRINT_STATS", "1"),
                ],
            );
            let checked = printed.lines().filter(|line| line.contains("Checked "));
            let checked = checked.count();
            println!("{name} by {technique}: {checked} collections with checksums");
            assert_eq!(said["provider"], "soft-dirty", "{name} by {technique}");
            assert!(checked > 0, "{name} by {technique}: {printed}");
            assert!(
                !printed.contains("dirty bit errors"),
                "{name} by {technique}: {printed}"
            );
        }
    }
}
