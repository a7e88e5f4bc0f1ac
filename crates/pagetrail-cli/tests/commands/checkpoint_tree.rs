//! `checkpoint --tree`, as a user types it; killed at random instants it leaves all processes
//! running, and whole instants in its store.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::cgroup::Cgroup;
use crate::common::{error_line, pagetrail, run};
use serde_json::Value;

/// Where the processes of `tests/victims/relay.c` have the number that they share.
const SHARED: u64 = 0x100_0000_0000;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Three processes that take turns; they end with the test.
struct Relay {
    first: Child,
    pids: Vec<u32>,
}

impl Relay {
    fn start(directory: &Path) -> Self {
        let victims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims");
        let program = directory.join("relay");
        let mut compiler = Command::new("cc");
        let compiler = compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
        let status = compiler.arg(victims.join("relay.c")).status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        let mut command = Command::new(program);
        let command = command.args(["600", "3"]).stdout(Stdio::piped());
        let mut first = command.spawn().expect("it starts");
        let mut lines = BufReader::new(first.stdout.take().expect("it is piped")).lines();
        let mut line = || lines.next().expect("a line").expect("UTF-8");
        let mut pids = vec![first.id()];
        pids.extend(
            line()
                .split_whitespace()
                .map(|pid| pid.parse::<u32>().expect("a PID")),
        );
        assert_eq!(line(), "ready");
        Self { first, pids }
    }

    fn turn(&self) -> u64 {
        let memory = fs::File::open(format!("/proc/{}/mem", self.first.id())).expect("it runs");
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, SHARED)
            .expect("it is mapped");
        u64::from_ne_bytes(word)
    }

    /// Waits until each process has had turns and none is traced: none stands still.
    fn goes_on(&self) {
        let (before, deadline) = (self.turn(), Instant::now() + TIMEOUT);
        let is_traced = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            !status.contains("TracerPid:\t0\n")
        };
        while self.turn() < before + 12 || self.pids.iter().any(is_traced) {
            assert!(Instant::now() < deadline, "it stands still");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

fn document(directory: &Path, arguments: &[&str]) -> Value {
    let output = run(directory, &[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_tree_is_saved_shown_and_verified() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let relay = Relay::start(here);
    let pid = relay.pids[0].to_string();
    let take = ["checkpoint", "--tree", "-p", &pid, "--store", "s"];
    let line = text(here, &take);
    assert!(line.starts_with("instant 1: 3 processes, "), "{line}");
    let more = ["--every", "20ms", "--count", "3", "--keep", "2"];
    let lines = text(here, &[&take[..], &more].concat());
    assert_eq!(lines.lines().count(), 3, "{lines}");
    relay.goes_on();
    let log = document(here, &["log", "s"]);
    let numbers = log["instants"].as_array().expect("a list").iter();
    assert_eq!(
        numbers
            .map(|instant| instant["instant"].clone())
            .collect::<Vec<_>>(),
        [3, 4]
    );
    let shown = document(here, &["show", "s"]);
    let processes = shown["processes"].as_array().expect("a list");
    let mut pids: Vec<_> = processes
        .iter()
        .map(|process| process["pid"].as_u64())
        .collect();
    pids.sort_unstable();
    let mut expected: Vec<_> = relay.pids.iter().map(|pid| Some(u64::from(*pid))).collect();
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(text(here, &["show", "s"]).contains("relay 600 3"));
    assert!(text(here, &["verify", "s"]).contains("2 instants"));
    // The store of one process is one as any other.
    let one = format!("s/processes/{}", processes[0]["process"]);
    assert!(text(here, &["log", &one]).contains("relay"));

    for (arguments, part) in [
        (vec!["restore", "s"], "pagetrail checkpoint --restorable"),
        (vec!["export", "s", "--core", "core"], "s/processes/N"),
        (vec!["prune", "s", "--keep-last", "1"], "s/processes/N"),
        (
            vec!["checkpoint", "-p", &pid, "--store", "s"],
            "s/processes/N",
        ),
        (
            vec!["checkpoint", "--tree", "-p", &pid, "--store", &one],
            "is not a checkpoint store",
        ),
        (
            vec!["checkpoint", "--tree", "-p", &pid, "--store", "s3://b/p"],
            "--store DIRECTORY",
        ),
        (vec!["show", "s", "9"], "no checkpoint 9"),
    ] {
        let line = error_line(&run(here, &arguments), 2);
        assert!(line.contains(part), "{line}");
    }
    fs::write(here.join("s/00000000000000000003.manifest"), "x").expect("it is ours");
    assert_eq!(run(here, &["verify", "s"]).status.code(), Some(1));
    assert_eq!(run(here, &["log", "s"]).status.code(), Some(1));
    relay.goes_on();
}

#[test]
fn an_instant_is_printed_before_older_ones_are_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let relay = Relay::start(here);
    let pid = relay.pids[0].to_string();
    let take = ["checkpoint", "--tree", "-p", &pid, "--store", "s"];
    text(here, &[&take[..], &["--count", "2"]].concat());
    let first = here.join("s/00000000000000000001.manifest");
    let mut bytes = fs::read(&first).expect("it is there");
    bytes[40] ^= 1;
    fs::write(&first, bytes).expect("it is ours");
    let output = run(
        here,
        &[&take[..], &["--keep", "5", "--count", "2"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(numbers, ["instant 3", "instant 4"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("older instants stay: "), "{said}");
    relay.goes_on();
}

#[test]
fn the_processes_of_a_control_group_are_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    for (arguments, part) in [
        (
            &["checkpoint", "--cgroup", "/proc", "--store", "s"][..],
            "is not the directory of a control group",
        ),
        (
            &["checkpoint", "--cgroup", "/x", "-p", "1", "--store", "s"],
            "cannot be used with",
        ),
        (
            &[
                "checkpoint",
                "--cgroup",
                "/x",
                "--label",
                "a",
                "--store",
                "s",
            ],
            "cannot be used with",
        ),
        (
            &["checkpoint", "--cgroup", "/x", "--progress", "--store", "s"],
            "cannot be used with",
        ),
        (
            &[
                "checkpoint",
                "--tree",
                "-p",
                "1",
                "--progress",
                "--store",
                "s",
            ],
            "cannot be used with",
        ),
        (
            &[
                "checkpoint",
                "--cgroup",
                "/x",
                "--every",
                "1s..1m",
                "--max-overhead",
                "3%",
                "--store",
                "s",
            ],
            "cannot be used with",
        ),
    ] {
        let line = error_line(&run(here, arguments), 2);
        assert!(line.contains(part), "{line}");
    }
    assert!(!here.join("s").exists());
    let Some(group) = Cgroup::new() else {
        pagetrail_skips::not_here("no control group of version 2 can be made here");
        return;
    };
    let path = group.path().display().to_string();
    let take = ["checkpoint", "--cgroup", &path, "--store", "s"];
    let line = error_line(&run(here, &take), 2);
    assert!(line.contains("no process"), "{line}");
    let relay = Relay::start(here);
    // Two of the three: a group is no family.
    relay.pids[1..].iter().for_each(|pid| group.take(*pid));
    let line = text(here, &take);
    assert!(line.starts_with("instant 1: 2 processes, "), "{line}");
    relay.goes_on();
    group.take(relay.pids[0]);
    let line = text(here, &[&take[..], &["--tree"]].concat());
    assert!(line.starts_with("instant 2: 3 processes, "), "{line}");
    let text = text(here, &["verify", "s"]);
    assert!(text.contains("2 instants"), "{text}");
    relay.goes_on();
    drop(relay);
}

#[test]
fn a_control_group_that_changes_meanwhile_is_saved_or_refused_in_a_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let Some(group) = Cgroup::new() else {
        pagetrail_skips::not_here("no control group of version 2 can be made here");
        return;
    };
    let below = group.path().join("below");
    let relay = Relay::start(here);
    relay.pids.iter().for_each(|pid| group.take(*pid));
    let path = group.path().display().to_string();
    let is_over = AtomicBool::new(false);
    let seed = std::env::var("PAGETRAIL_SEED").ok();
    let seed = seed
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("PAGETRAIL_SEED={seed}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Processes that come, go, and move; groups that are made and removed.
            let mut random = fastrand::Rng::with_seed(seed);
            let mut others: Vec<Child> = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let member = relay.pids[random.usize(..relay.pids.len())];
                let to =
                    |group: &Path, pid: u32| fs::write(group.join("cgroup.procs"), pid.to_string());
                // Each may fail: a group that is not there, a process that has ended.
                match random.u32(..6) {
                    0 => drop(fs::create_dir(&below)),
                    1 => drop(fs::remove_dir(&below)),
                    2 => drop(to(&below, member)),
                    3 => drop(to(group.path(), member)),
                    4 if others.len() < 4 => {
                        let mut shell = Command::new("sh");
                        let shell = shell.args(["-c", "while :; do /bin/true; done"]);
                        let child = shell.spawn().expect("it starts");
                        let _ = to(group.path(), child.id());
                        others.push(child);
                    }
                    _ => {
                        if let Some(mut child) = others.pop() {
                            child.kill().expect("it was not waited for");
                            child.wait().expect("it was killed");
                        }
                    }
                }
                std::thread::sleep(Duration::from_micros(random.u64(..3000)));
            }
            for mut child in others {
                child.kill().expect("it was not waited for");
                child.wait().expect("it was killed");
            }
        });
        let mut saved = 0;
        for _ in 0..12 {
            let take = ["checkpoint", "--cgroup", &path, "--store", "s"];
            let output = run(here, &take);
            match output.status.code() {
                Some(0) => saved += 1,
                _ => drop(error_line(&output, 2)),
            }
            relay.goes_on();
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{saved} of 12 were saved");
    });
    // Once nothing changes any more, it is as ever.
    relay.pids.iter().for_each(|pid| group.take(*pid));
    let _ = fs::remove_dir(&below);
    let line = text(here, &["checkpoint", "--cgroup", &path, "--store", "s"]);
    assert!(line.contains(": 3 processes, "), "{line}");
    let text = text(here, &["verify", "s"]);
    assert!(text.contains("nothing damaged"), "{text}");
    relay.goes_on();
    drop(relay);
}

#[test]
fn killed_at_any_instant_it_leaves_all_processes_running() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let relay = Relay::start(here);
    let pid = relay.pids[0].to_string();
    // Up to where it has taken some, however busy this machine is.
    let take = [
        "checkpoint",
        "--tree",
        "-p",
        &pid,
        "--store",
        "s",
        "--count",
        "1000",
    ];
    let mut wait = Duration::from_millis(3);
    for _ in 0..25 {
        let mut command = pagetrail(here, &take);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().expect("it starts");
        std::thread::sleep(wait);
        killed.kill().expect("it runs");
        killed.wait().expect("it was killed");
        relay.goes_on();
        wait = wait.mul_f64(1.25);
    }
    let line = text(
        here,
        &[
            "checkpoint",
            "--tree",
            "-p",
            &pid,
            "--store",
            "s",
            "--keep",
            "1000",
        ],
    );
    assert!(line.starts_with("instant "), "{line}");
    let text = text(here, &["verify", "s"]);
    assert!(text.contains("nothing damaged"), "{text}");
    relay.goes_on();
}
