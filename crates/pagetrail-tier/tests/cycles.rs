//! Starting and ending, again and again, on a program that must not notice.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use pagetrail::{Capabilities, Target, Technique};
use pagetrail_tier::mover::{DryRun, NodeMover, NodeOptions};
use pagetrail_tier::source::{Watched, WatchedKind};
use pagetrail_tier::{Keeper, KeeperOptions};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_thousand_cycles_leave_nothing_behind() {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    if *status != pagetrail::Status::Works {
        eprintln!("not tested here: pagemap-scan is {status}");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("hot_set");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hot_set.c");
    let mut cc = Command::new("cc");
    let compiled = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc failed");
    let mut command = Command::new(program);
    let mut child = command
        .arg("200")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("its first line");
    let pid = child.id();
    let descriptors = |pid: u32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        entries.count()
    };
    let before = (descriptors(pid), descriptors(std::process::id()));
    for _ in 0..1000 {
        let target = Target::process(pid).expect("it runs");
        let source = Watched::start(target, WatchedKind::Writes).expect("it can be watched");
        let mover = DryRun(NodeMover::new(pid, NodeOptions::default()));
        let options = KeeperOptions {
            capacity: 1 << 16,
            ..KeeperOptions::default()
        };
        let mut keeper = Keeper::new(Box::new(source), Box::new(mover), options).expect("fine");
        assert!(keeper.begin_period().expect("it runs"));
        keeper.window().expect("it runs");
    }
    assert_eq!((descriptors(pid), descriptors(std::process::id())), before);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let status = child.wait().expect("it ends");
    assert!(
        status.success(),
        "its memory is as it should be: {status:?}"
    );
}
