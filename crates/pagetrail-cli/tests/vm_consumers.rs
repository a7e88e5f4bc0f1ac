//! Uses guests of KVM as other processes are used: the live view, plans of tiering, checkpoints.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;
#[path = "vm_consumers/rewind.rs"]
mod rewind;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::guest::{compiled, no_guest};
use common::running::Running;
use common::{address, number, pagetrail, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far more than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// `known_pages` writes the same 100 pages again and again; its memory is at this address.
const BASE: &str = "0x100000000000";
const BASE_ADDRESS: u64 = 0x1000_0000_0000;
const PAGE: u64 = 4096;
/// How often it writes its pages for a checkpoint: less than a byte counts.
const PASSES: u64 = 60;

/// The offsets in its memory of the bytes that it writes, in that order.
fn written_offsets() -> impl Iterator<Item = u64> {
    (0..300).step_by(3).map(|page| page * PAGE + 7)
}

/// What a terminal shows of this output: text at the places to which the cursor is moved.
fn shown(output: &str) -> String {
    let mut lines = vec![vec![' '; 200]; 60];
    let (mut row, mut column) = (0, 0);
    let mut rest = output.chars();
    while let Some(character) = rest.next() {
        if character != '\x1b' {
            if let Some(place) = lines.get_mut(row).and_then(|line| line.get_mut(column)) {
                *place = character;
            }
            column += 1;
            continue;
        }
        let mut sequence = String::new();
        for character in rest.by_ref() {
            sequence.push(character);
            if character.is_ascii_alphabetic() {
                break;
            }
        }
        let numbers = sequence
            .strip_prefix('[')
            .and_then(|to| to.strip_suffix('H'));
        let numbers = numbers.and_then(|numbers| numbers.split_once(';'));
        let number = |text: &str| text.parse().unwrap_or(1_usize) - 1;
        if let Some((to_row, to_column)) = numbers {
            (row, column) = (number(to_row), number(to_column));
        }
    }
    let lines = lines.into_iter().map(String::from_iter);
    lines.collect::<Vec<String>>().join("\n")
}

#[test]
fn the_live_view_shows_what_a_guest_writes_until_its_end() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), "known_pages.c", &[]);
    let view = format!(
        "stty cols 120 rows 40; exec '{}' top --vm --interval 50ms -- '{}' 100",
        env!("CARGO_BIN_EXE_pagetrail"),
        program.display()
    );
    let script = Command::new("script")
        .args(["-qfec", &view, "screen"])
        .current_dir(directory.path())
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut script) = script else {
        return pagetrail_skips::not_here("top: there is no script(1)");
    };
    let began = Instant::now();
    let screen = || {
        let bytes = fs::read(directory.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    // The program ends by itself, with its final round.
    while !screen().contains("exited with code 0") && began.elapsed() < TIMEOUT {
        sleep(Duration::from_millis(20));
    }
    let keys = script.stdin.take();
    let _ = keys.expect("it is piped").write_all(b"q");
    let status = script.wait().expect("it is ours");
    let screen = shown(&screen());
    assert!(screen.contains("exited with code 0"), "{screen}");
    assert!(screen.contains("kvm") && screen.contains(BASE), "{screen}");
    assert_eq!(status.code(), Some(0), "{screen}");
}

/// The bytes of `known_pages` when it is about to write the next page of a pass: the first `count`
/// pages are written in this pass, the others in the one before, if there was one.
fn written(pass: u64, count: usize) -> impl Iterator<Item = u8> {
    written_offsets()
        .enumerate()
        .map(move |(number, offset)| match (number < count, pass) {
            (true, pass) => (pass + offset / PAGE) as u8,
            (false, 0) => 0,
            (false, pass) => (pass - 1 + offset / PAGE) as u8,
        })
}

/// The pass and the count ([`written`]) at the instant of a checkpoint; `None` where the program
/// had not mapped its memory.
fn progress_at(directory: &Path, checkpoint: u64) -> Option<(u64, usize)> {
    let (at, raw) = (checkpoint.to_string(), format!("raw.{checkpoint}"));
    let export = run(directory, &["export", "st", "--raw", &raw, "--at", &at]);
    assert_eq!(export.status.code(), Some(0), "{export:?}");
    let index = fs::read_to_string(directory.join(format!("{raw}.map"))).expect("an index");
    let mut lines = index.lines();
    let line = lines.find(|line| line.starts_with(&BASE[2..]))?;
    let offset = line.split(' ').nth(2).expect("an offset");
    let offset = u64::from_str_radix(offset, 16).expect("hexadecimal");
    let file = File::open(directory.join(raw)).expect("the contents");
    let mut memory = vec![0; (300 * PAGE) as usize];
    file.read_exact_at(&mut memory, offset).expect("all of it");
    let states = (0..PASSES).flat_map(|pass| (0..=100).map(move |count| (pass, count)));
    let bytes: Vec<u8> = written_offsets().map(|at| memory[at as usize]).collect();
    let mut instants =
        states.filter(|(pass, count)| written(*pass, *count).eq(bytes.iter().copied()));
    let Some(instant) = instants.next() else {
        panic!("checkpoint {checkpoint} is of no instant: {bytes:?}");
    };
    written_offsets().for_each(|at| memory[at as usize] = 0);
    let others = memory.iter().filter(|byte| **byte != 0);
    assert_eq!(others.count(), 0, "bytes that nobody wrote");
    Some(instant)
}

/// Each image is of one instant of the program, and the last one of its end.
#[test]
fn checkpoints_of_a_guest_have_its_memory_at_one_instant() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let program = compiled(here, "known_pages.c", &[]);
    let program = program.to_str().expect("UTF-8");
    let passes = PASSES.to_string();
    let arguments = [
        "checkpoint",
        "--vm",
        "--store",
        "st",
        "--every",
        "50ms",
        "--json",
    ];
    let taken = run(here, &[&arguments[..], &["--", program, &passes]].concat());
    assert_eq!(taken.status.code(), Some(0), "{taken:?}");
    assert!(
        String::from_utf8_lossy(&taken.stderr).contains("ready"),
        "{taken:?}"
    );
    let lines = String::from_utf8(taken.stdout).expect("UTF-8");
    let documents = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let documents: Vec<Value> = documents.collect();
    assert!(!documents.is_empty());
    for document in &documents {
        assert_eq!(document["command"], serde_json::json!([program, passes]));
    }
    let numbers: Vec<u64> = documents
        .iter()
        .map(|document| number(&document["number"]))
        .collect();
    let found: Vec<_> = numbers
        .iter()
        .map(|number| progress_at(here, *number))
        .collect();
    assert_eq!(found.last(), Some(&Some((PASSES - 1, 100))), "{found:?}");
    assert!(found.is_sorted(), "{found:?}");
    let verified = run(here, &["verify", "st"]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    let shown = run(here, &["show", "st"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("no registers"), "{text}");
    assert!(text.contains("[stack]"), "{text}");
}

/// The pages that the program uses are hot, and stay where fast memory is.
#[test]
fn a_plan_of_tiering_knows_the_pages_that_a_guest_uses() {
    const HOT_BYTES: u64 = 100 * PAGE;
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let program = compiled(here, "known_pages.c", &[]);
    let program = program.to_str().expect("UTF-8");
    let mut last = String::new();
    // An emulated machine that is busy may need more windows until the program is at work.
    for windows in ["6", "12", "48"] {
        let command = [
            "tier",
            "plan",
            "--vm",
            "--fast",
            "1M",
            "--window",
            "250ms",
            "--windows",
            windows,
            "--json",
            "--",
            program,
            "4000",
        ];
        let output = run(here, &command);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        // The plan is made; the program would go on for a while.
        let pid = number(&plan["pid"]) as i32;
        let _ = kill_process(Pid::from_raw(pid).expect("a PID"), Signal::KILL);
        assert_eq!(plan["source"], "kvm", "{plan}");
        // The pool is asked for a share of what is hot.
        if number(&plan["demand_bytes"]) < HOT_BYTES / 2 {
            last = plan.to_string();
            continue;
        }
        assert!(number(&plan["fast_bytes"]) >= HOT_BYTES, "{plan}");
        for part in plan["demote"].as_array().expect("a list") {
            let (start, end) = (address(&part["start"]), address(&part["end"]));
            let mut hot = written_offsets().map(|offset| BASE_ADDRESS + offset);
            assert!(
                !hot.any(|address| (start..end).contains(&address)),
                "{part}"
            );
        }
        return;
    }
    panic!("its pages are not hot: {last}");
}

/// A daemon starts a guest, knows which of its pages are in use, and ends with it.
#[test]
fn tiering_keeps_a_guest_that_it_starts() {
    const HOT_BYTES: u64 = 100 * PAGE;
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let program = compiled(here, "known_pages.c", &[]);
    let config = format!(
        "listen = \"unix:{}\"\nwindow = \"250ms\"\nperiod = \"5s\"\n\
         [[target]]\nname = \"known\"\nguest = [{program:?}, \"100000\"]\nfast = \"1M\"\n",
        here.join("socket").display()
    );
    fs::write(here.join("tier.toml"), config).expect("a file");
    let arguments = ["tier", "run", "--config", "tier.toml", "--dry-run"];
    let mut daemon = Running(pagetrail(here, &arguments).spawn().expect("tier run"));
    let began = Instant::now();
    let pid = loop {
        let status = run(here, &["tier", "status", "--config", "tier.toml", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        let process = &status["targets"][0]["processes"][0];
        if process["demand_bytes"].as_u64() >= Some(HOT_BYTES / 2) {
            assert_eq!(process["source"], "kvm", "{status}");
            assert!(number(&process["fast_bytes"]) >= HOT_BYTES, "{status}");
            break number(&process["pid"]) as i32;
        }
        assert_eq!(daemon.0.try_wait().expect("a process"), None, "{status}");
        assert!(began.elapsed() < TIMEOUT, "its pages are not hot: {status}");
        sleep(Duration::from_millis(100));
    };
    kill_process(Pid::from_raw(pid).expect("a PID"), Signal::KILL).expect("the guest runs");
    assert_eq!(daemon.0.wait().expect("a process").code(), Some(0));
}
