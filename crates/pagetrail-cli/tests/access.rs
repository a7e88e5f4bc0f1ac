//! `pagetrail record --access` on a program that reads some pages and writes others.
//!
//! Needs Linux 7.3. Elsewhere it says so and passes, and a guest runs it.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::running::Running;
use common::{pagetrail, run};
use pagetrail::{AccessKind, Capabilities, PageRange, PageSet, Technique, page_size};
use pagetrail_trail::Trail;

/// What `read_pages.c` says of itself.
const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 300;

impl Running {
    fn read_pages(directory: &Path) -> Self {
        let program = directory.join("read_pages");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_pages.c");
        let mut cc = Command::new("cc");
        let status = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        let mut command = Command::new(program);
        let mut running = Self(command.stdout(Stdio::piped()).spawn().expect("it starts"));
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("its first line");
        running
    }
}

/// Every third page from page `first` on.
fn every_third(first: u64) -> PageSet {
    let page = page_size();
    let starts = (first..PAGES).step_by(3).map(|i| BASE + i * page);
    starts
        .filter_map(|start| PageRange::new(start, start + page))
        .collect()
}

#[test]
fn reads_and_writes_are_distinguished() {
    if !Capabilities::probe().works(Technique::AccessScan) {
        let status = Capabilities::probe().status(Technique::AccessScan);
        pagetrail_skips::not_here(format!("access-scan is {status}"));
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let running = Running::read_pages(directory);
    let pid = running.0.id().to_string();
    let memory = PageSet::from_iter(PageRange::new(BASE, BASE + PAGES * page_size()));
    let (written, read) = (every_third(0), every_third(1));
    for (how, kinds) in [
        ("--access", [AccessKind::Writes, AccessKind::Accesses]),
        ("--access=only", [AccessKind::Accesses; 2]),
    ] {
        let arguments = ["record", how, "--rounds", "8", "--interval", "300ms", "-p"];
        let output = run(directory, &[&arguments[..], &[&pid]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let file = std::fs::File::open(directory.join("pagetrail.trail")).expect("the recording");
        let trail = Trail::read(BufReader::new(file)).expect("a whole recording");
        assert_eq!(trail.rounds.len(), 8);
        for (round, kind) in trail.rounds.iter().zip(kinds.iter().cycle()) {
            assert_eq!(round.access_kind, *kind);
            assert_eq!(round.blind_ns > 0, how == "--access");
            let found = round.written.intersection(&memory);
            let expected = match kind {
                AccessKind::Writes => written.clone(),
                AccessKind::Accesses => written.union(&read),
            };
            assert_eq!(found, expected, "round {} of {kind:?}", round.index);
        }
        let mut text = pagetrail(directory, &["report"]);
        let text = text.output().expect("it starts").stdout;
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(text.contains("page accesses"), "{text}");
        assert_eq!(text.contains("in turns"), how == "--access", "{text}");
    }
}
