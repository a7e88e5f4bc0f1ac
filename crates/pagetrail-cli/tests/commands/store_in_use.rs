//! One process writes to a store at a time: what the others do meanwhile, as a user sees it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::running::Running;
use crate::common::{error_line, pagetrail, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command that takes checkpoints of a process into the store `s` until it is asked to stop, and
/// has taken two.
fn taking(directory: &Path, what: &[&str]) -> Child {
    let arguments = ["checkpoint", "--store", "s", "--every", "50ms", "--json"];
    let mut child = pagetrail(directory, &[&arguments[..], what].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
    assert_eq!(lines.map_while(Result::ok).take(2).count(), 2);
    child
}

fn stop(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    // What it writes until then finds a reader.
    let output = child
        .stdout
        .take()
        .map(|output| BufReader::new(output).lines().count());
    assert!(output.is_some());
    assert!(child.wait().expect("it ends").success());
}

/// The numbers in the store.
fn numbers(directory: &Path) -> Vec<u64> {
    let output = run(directory, &["log", "s", "--json"]);
    let log: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checkpoints = log["checkpoints"].as_array().expect("a list");
    let number = |checkpoint: &Value| checkpoint["number"].as_u64().expect("a number");
    checkpoints.iter().map(number).collect()
}

#[test]
fn pruning_waits_until_checkpoints_are_taken() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let taker = taking(here, &["-p", &busy.pid()]);
    let mut prune = pagetrail(
        here,
        &["prune", "s", "--keep-last", "1", "--lock-wait", "2m"],
    );
    let prune = prune.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut prune = prune.spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(prune.try_wait().expect("a child"), None, "it does not wait");
    assert_eq!(numbers(here)[0], 1);
    stop(taker);
    let output = prune.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(numbers(here).len(), 1);
    assert_eq!(run(here, &["verify", "s"]).status.code(), Some(0));
}

#[test]
fn a_store_that_stays_in_use_is_named_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let taker = taking(here, &["-p", &pid]);
    for arguments in [
        &["prune", "s", "--keep-last", "1"][..],
        &["squash", "s", "1", "2"],
        &["repair", "s"],
        &["checkpoint", "-p", &pid, "--store", "s"],
    ] {
        let since = Instant::now();
        let wait = ["--lock-wait", "200ms"];
        let line = error_line(&run(here, &[arguments, &wait].concat()), 2);
        assert!(line.contains("s is in use by another process"), "{line}");
        assert!(
            line.contains("200 ms") && line.contains("--lock-wait"),
            "{line}"
        );
        assert!(since.elapsed() >= Duration::from_millis(200));
    }
    let there = numbers(here);
    stop(taker);
    let all = numbers(here);
    assert!(all.starts_with(&there), "{all:?}");
    let expected: Vec<u64> = (1..=all.len() as u64).collect();
    assert_eq!(all, expected);
    assert_eq!(run(here, &["verify", "s"]).status.code(), Some(0));
}

#[test]
fn a_checkpoint_waits_for_one_of_another_tree() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let of_tree = ["-p", &busy.pid(), "--tree"];
    let taker = taking(here, &of_tree);
    let take = [&["checkpoint", "--store", "s"][..], &of_tree].concat();
    let at_once = [&take[..], &["--lock-wait", "1ms"]].concat();
    assert!(error_line(&run(here, &at_once), 2).contains("--lock-wait"));
    let mut second = pagetrail(here, &[&take[..], &["--lock-wait", "2m"]].concat());
    let second = second.stdout(Stdio::piped()).stderr(Stdio::piped());
    let second = second.spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(300));
    stop(taker);
    let output = second.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
