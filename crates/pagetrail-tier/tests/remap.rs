//! Why pages move by `move_pages(2)`: what the kernel makes of the other way, `UFFDIO_MOVE` of a
//! page out of its place and of its copy into it. The book's chapter on tiered memory cites this.

#![allow(clippy::print_stderr, reason = "figures for readers of the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagetrail_tier::nodes;

/// Linux has no `UFFDIO_MOVE` before 6.8.
const NOT_HERE: i32 = 3;

fn program(directory: &Path, name: &str) -> PathBuf {
    let program = directory.join(name);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let source = tests.join(format!("{name}.c"));
    let mut cc = Command::new("cc");
    let cc = cc.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    assert!(
        cc.status().is_ok_and(|status| status.success()),
        "cc failed"
    );
    program
}

/// What it prints; `None` where the kernel cannot.
fn remap(arguments: &[&str]) -> Option<String> {
    run("remap", arguments)
}

fn run(name: &str, arguments: &[&str]) -> Option<String> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(program(directory.path(), name));
    let output: Output = command.args(arguments).output().expect("it runs");
    if output.status.code() == Some(NOT_HERE) {
        pagetrail_skips::not_here("no UFFDIO_MOVE (Linux 6.8), or no userfaultfd");
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let line = String::from_utf8(output.stdout).expect("UTF-8");
    eprintln!("{}: {}", arguments.join(" "), line.trim());
    Some(line.trim().to_owned())
}

#[test]
fn replaced_pages_keep_their_contents_and_are_rarely_waited_for() {
    const PAGES: u64 = 2048;
    for (how, kind) in [
        ("copy", "read"),
        ("copy", "write"),
        ("protect", "read"),
        ("protect", "write"),
    ] {
        let Some(line) = remap(&["cost", how, kind, &PAGES.to_string()]) else {
            return;
        };
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [moved, again, _, wrong, fast] = numbers[..] else {
            panic!("{line}");
        };
        assert_eq!(wrong, 0, "{how} {kind}: {line}");
        // A page may be in somebody's hands for a moment.
        assert!(moved >= PAGES * 9 / 10, "{how} {kind}: {line}");
        // The copies are there, and so what was replaced by them.
        assert!(fast >= moved, "{how} {kind}: {line}");
        if kind == "read" {
            assert_eq!(again, 0, "nobody wrote: {line}");
        }
    }
}

/// Who reads a page while it moves finds what was there, however it moves; what that takes is
/// recorded by `cargo xtask bench tier-guest`.
#[test]
fn readers_of_what_moves_find_their_memory() {
    const REGIONS: u64 = 8;
    for how in ["still", "small", "batch", "huge", "replaced"] {
        let Some(line) = run("wait", &[how, &REGIONS.to_string()]) else {
            return;
        };
        let number = |name: &str| -> u64 {
            let mut words = line.split(' ').skip_while(|word| *word != name);
            let value = words.nth(1).and_then(|value| value.parse().ok());
            value.unwrap_or_else(|| panic!("no {name}: {line}"))
        };
        assert_eq!(number("wrong"), 0, "{how}: {line}");
        if how != "still" {
            // There may not be a free huge page for each.
            assert!(number("moved") >= REGIONS / 2, "{how}: {line}");
        } else if nodes().len() > 1 {
            assert_eq!(number("moved"), 0, "{how}: {line}");
        }
        if how == "replaced" {
            // A system may have none at all.
            let had = number("had");
            assert!(number("huge") >= had / 2, "it was split: {line}");
        }
    }
}

/// `tier run` is another process, and could not call it.
#[test]
fn no_other_process_can_replace_a_page() {
    if let Some(line) = remap(&["other"]) {
        assert_eq!(line, "Invalid argument");
    }
}

/// A fork between the two calls finds a hole, for which nobody answers in the child; and as the
/// child may have the page, the kernel does not put it back.
#[test]
fn a_child_that_is_born_meanwhile_reads_zeros() {
    if let Some(line) = remap(&["fork"]) {
        assert_eq!(line, "read 0 instead of 4711: Device or resource busy");
    }
}

/// The kernel may write by a reference that is no pin, as KVM does for a guest's own guests:
/// migration sees it and leaves the page, `UFFDIO_MOVE` does not.
#[test]
fn references_are_seen_by_migration_alone() {
    let Some(line) = remap(&["referenced"]) else {
        return;
    };
    let numbers: Vec<i32> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [migrated, replaced] = numbers[..] else {
        panic!("{line}");
    };
    assert_eq!(replaced, 0, "it moved: {line}");
    match nodes().len() {
        0 | 1 => pagetrail_skips::not_here("one memory node: migration was not tried"),
        _ => assert_eq!(migrated, 0, "it did not move: {line}"),
    }
}
