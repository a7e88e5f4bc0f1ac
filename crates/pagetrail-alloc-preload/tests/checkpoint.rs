//! Checkpoints of a program on the heap: its memory is mapped several times, and is of one instant
//! all the same.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;

use pagetrail::{Capabilities, Memory, PageSet, Status, Technique};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{ProcessCheckpointer, ProcessOptions, Store, WriterOptions};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// `tests/victims/nodes.c`, running.
fn start(parts: &str) -> Option<Child> {
    let works = Capabilities::probe_one(Technique::PagemapScan);
    if *works != Status::Works {
        pagetrail_skips::not_here(format!("pagemap-scan {works}"));
        return None;
    }
    let mut command = common::under(common::victim("nodes")?, parts);
    let mut child = command.arg("60").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some(child)
}

#[test]
fn a_rewound_program_finds_all_objects_of_one_instant() {
    for (parts, trust_subpages) in [("1", true), ("8", true), ("8", false), ("64", true)] {
        let Some(mut child) = start(parts) else {
            return;
        };
        let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
        let mut writer = store.writer(WriterOptions::default()).unwrap();
        let options = ProcessOptions {
            trust_subpages,
            ..ProcessOptions::default()
        };
        let mut process = ProcessCheckpointer::attach(child.id(), options).unwrap();
        let first = process.checkpoint(&mut writer).unwrap();
        let mut last = first.clone();
        for _ in 0..4 {
            sleep(Duration::from_millis(30));
            last = process.checkpoint(&mut writer).unwrap();
        }
        for number in [last.number, first.number, last.number] {
            sleep(Duration::from_millis(30));
            let mut image = store.image(number).unwrap();
            assert!(image.rewind(child.id()).unwrap().pages > 0);
            // What the rewinding wrote is noticed in all parts of a page.
            process.checkpoint(&mut writer).unwrap();
        }
        // Of pages of which only what has changed was stored, all bytes are what they were.
        let verified = store.verify().unwrap();
        assert!(verified.is_sound(), "{parts} parts: {verified:?}");
        sleep(Duration::from_millis(30));
        // What is mapped several times is in the image once.
        let image = store.image(last.number).unwrap();
        let shared = last
            .mappings
            .iter()
            .filter(|mapping| mapping.permissions.shared);
        let shared: PageSet = shared.map(|mapping| mapping.range).collect();
        let stored = image.pages().intersection(&shared).bytes();
        assert!(stored < 20 << 20, "{parts} parts: {stored} bytes stored");
        assert!(Memory::of(child.id()).is_ok());
        // It checks all of its objects at its end.
        // SAFETY: our child, not waited for yet.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        assert!(child.wait().unwrap().success(), "{parts} parts");
    }
}
