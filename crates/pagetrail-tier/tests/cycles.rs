//! Starting and ending, again and again, on a program that must not notice.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use common::Program;
use pagetrail::{Capabilities, Target, Technique};
use pagetrail_tier::mover::{DryRun, NodeMover, NodeOptions};
use pagetrail_tier::source::{Watched, WatchedKind};
use pagetrail_tier::{TierLoop, TierLoopOptions};

#[test]
fn a_thousand_cycles_leave_nothing_behind() {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    if *status != pagetrail::Status::Works {
        pagetrail_skips::not_here(format!("pagemap-scan is {status}"));
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut program = Program::start(directory.path(), &[200]);
    let pid = program.pid();
    let descriptors = |pid: u32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        entries.count()
    };
    let before = (descriptors(pid), descriptors(std::process::id()));
    for _ in 0..1000 {
        let target = Target::process(pid).expect("it runs");
        let source = Watched::start(target, WatchedKind::Writes).expect("it can be watched");
        let mover = DryRun(NodeMover::new(pid, NodeOptions::default()));
        let options = TierLoopOptions {
            capacity: 1 << 16,
            ..TierLoopOptions::default()
        };
        let mut tier_loop =
            TierLoop::new(Box::new(source), Box::new(mover), options).expect("fine");
        assert!(tier_loop.begin_period().expect("it runs"));
        tier_loop.window().expect("it runs");
    }
    assert_eq!((descriptors(pid), descriptors(std::process::id())), before);
    program.finish();
}
