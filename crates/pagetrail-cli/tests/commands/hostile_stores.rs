//! Stores that somebody has tampered with, under every command of a store: each ends in an answer,
//! what `verify` calls whole is as it was, and nothing outside the store changes.
//!
//! `PAGETRAIL_SEEDS` sets how many stores are tried, `PAGETRAIL_SEED` the first. The store is of a
//! real process: a seed stands for the kinds of damage, not for the same bytes.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::run;
use crate::common::running::Running;
use serde_json::Value;

/// A store of checkpoints 1, 3, 4, 5 and 6 of a process.
fn build(here: &Path) {
    let busy = Running::busy();
    let pid = busy.pid();
    let take = ["checkpoint", "-p", &pid, "--store", "base", "--count", "6"];
    let output = run(here, &[&take[..], &["--every", "20ms"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = run(here, &["squash", "base", "2", "3"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Runs a command that may fail, but in an orderly way; its exit code and standard output.
fn ends(here: &Path, arguments: &[&str], context: &str) -> (i32, Vec<u8>) {
    let output = run(here, arguments);
    let code = output.status.code();
    let said = String::from_utf8_lossy(&output.stderr);
    let in_order = matches!(code, Some(0..=2)) && !said.contains("panicked");
    assert!(in_order, "{context}: {arguments:?}: {output:?}");
    (code.unwrap_or_default(), output.stdout)
}

/// The contents of a checkpoint; `None` if it cannot be read.
fn contents(here: &Path, store: &str, number: u64, context: &str) -> Option<[Vec<u8>; 2]> {
    let at = number.to_string();
    let export = ["export", store, "--raw", "raw", "--force", "--at", &at];
    let (code, _) = ends(here, &export, context);
    let read = |name| fs::read(here.join(name)).expect("an export");
    (code == 0).then(|| [read("raw"), read("raw.map")])
}

/// The checkpoints that `verify` calls whole; `None` where it finds no store.
fn whole(here: &Path, context: &str) -> Option<Vec<u64>> {
    let (code, stdout) = ends(here, &["verify", "s", "--json"], context);
    if stdout.is_empty() {
        assert_ne!(code, 0, "{context}");
        return None;
    }
    let found: Value = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(found["sound"] == true, code == 0, "{context}: {found}");
    let lost: Vec<u64> = found["lost"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let is_there = |number: &u64| {
        let path = here.join(format!("s/{number:020}.manifest"));
        fs::symlink_metadata(path).is_ok() && !lost.contains(number)
    };
    Some((1..=6).filter(is_there).collect())
}

/// The store's files but its lock, in order.
fn files(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store).expect("a store");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_file = |path: &PathBuf| {
        let kind = fs::symlink_metadata(path).map(|metadata| metadata.is_file());
        kind.is_ok_and(|is_file| is_file) && !path.ends_with("lock")
    };
    let mut files: Vec<PathBuf> = paths.filter(is_file).collect();
    files.sort();
    files
}

/// Changes something in the store; says what.
fn tamper(here: &Path, random: &mut fastrand::Rng) -> String {
    let store = here.join("s");
    let files = files(&store);
    let Some(path) = random.choice(&files) else {
        return "nothing is left".into();
    };
    let other = random.choice(&files).expect("a file");
    let whole = fs::read(path).expect("a file");
    let mut bytes = whole.clone();
    let at = random.usize(0..=bytes.len());
    let write = |bytes: &[u8]| fs::write(path, bytes).expect("room");
    let what = match random.u32(0..11) {
        0..3 if !bytes.is_empty() => {
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1 << random.u32(0..8);
            write(&bytes);
            "a bit"
        }
        3 => {
            write(&bytes[..at]);
            "cut off"
        }
        4 => {
            bytes.extend((0..random.usize(1..5000)).map(|_| random.u8(..)));
            write(&bytes);
            "longer"
        }
        5 => {
            let end = bytes.len().min(at + random.usize(1..200));
            bytes[at..end].fill_with(|| random.u8(..));
            write(&bytes);
            "bytes"
        }
        6 => {
            write(&vec![0; bytes.len()]);
            "zeros"
        }
        7 => {
            let copy = fs::read(other).expect("a file");
            write(&copy);
            "another's contents"
        }
        8 => {
            let numbers = [0, 2, 7, u64::MAX - 1, u64::MAX];
            let number = numbers[random.usize(0..numbers.len())];
            write_new(&store.join(format!("{number:020}.manifest")), &whole);
            "copied to a number"
        }
        9 => {
            fs::remove_file(path).expect("removed");
            symlink("../precious", path).expect("a link");
            "a link"
        }
        _ => {
            fs::remove_file(path).expect("removed");
            "removed"
        }
    };
    format!("{}: {what} at {at}", path.display())
}

fn write_new(path: &Path, bytes: &[u8]) {
    if fs::symlink_metadata(path).is_err() {
        fs::write(path, bytes).expect("room");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_command_ends_well_on_stores_that_were_tampered_with() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    build(here);
    let mut oracle = BTreeMap::new();
    for number in [1, 3, 4, 5, 6] {
        let is = contents(here, "base", number, "as it was").expect("a checkpoint");
        oracle.insert(number, is);
    }
    fs::write(here.join("precious"), "important").expect("room");
    let first = number("PAGETRAIL_SEED", fastrand::u64(..1 << 32));
    for seed in first..first + number("PAGETRAIL_SEEDS", 20) {
        let mut random = fastrand::Rng::with_seed(seed);
        let _ = fs::remove_dir_all(here.join("s"));
        fs::create_dir_all(here.join("s/drafts")).expect("room");
        for path in files(&here.join("base")) {
            let name = path.file_name().expect("a name");
            fs::copy(&path, here.join("s").join(name)).expect("a copy");
        }
        let mut context = format!("PAGETRAIL_SEED={seed}");
        for _ in 0..random.u32(1..4) {
            context = format!("{context}; {}", tamper(here, &mut random));
        }
        println!("{context}");
        let mut before = whole(here, &context);
        for arguments in [
            &["log", "s"][..],
            &["show", "s"],
            &["diff", "s", "1", "6"],
            &["diff", "s", "4", "5"],
            &["export", "s", "--core", "core", "--force"],
        ] {
            ends(here, arguments, &context);
        }
        let mut changes = [
            &["squash", "s", "3", "5"][..],
            &["prune", "s", "--keep", "2"],
            &["repair", "s"],
        ];
        random.shuffle(&mut changes);
        for change in [&[][..], changes[0], changes[1], changes[2]] {
            let done = !change.is_empty() && ends(here, change, &context).0 == 0;
            let context = format!("{context}; after {change:?}");
            let now = whole(here, &context);
            for number in now.iter().flatten() {
                // One that has another's number is another's contents, and not lost.
                let is = contents(here, "s", *number, &context);
                let is = is.unwrap_or_else(|| panic!("{context}: {number} cannot be read"));
                let known = oracle.values().any(|contents| *contents == is);
                assert!(known, "{context}: {number} is not as it was");
            }
            // The newest that was whole stays.
            let newest = before.iter().flatten().next_back();
            // Or is part of the one that it was squashed into.
            let squashed = done && change[0] == "squash" && now.iter().flatten().any(|n| *n == 5);
            let stays = newest.is_none_or(|newest| {
                now.iter().flatten().any(|n| n == newest) || (3..5).contains(newest) && squashed
            });
            assert!(stays, "{context}: {before:?}, {now:?}");
            if done && change[0] == "repair" {
                let (code, _) = ends(here, &["verify", "s"], &context);
                assert_eq!(code, 0, "{context}");
            }
            before = now;
        }
        let precious = fs::read(here.join("precious")).expect("a file");
        assert_eq!(precious, b"important", "{context}");
    }
}
