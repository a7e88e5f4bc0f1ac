//! `pagetrail tier` with virtual machines that run as targets: guest memory alone is planned for,
//! and, where there are two memory nodes, moved, and the guests run on.
//!
//! The guests are those of `kvm_monitor.c`, which knows what its memory holds.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::running::Running;
use common::{number, pagetrail, run};
use pagetrail::{Capabilities, Technique};
use pagetrail_tier::nodes;
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 32;
const HOT_PAGES: u64 = 256;
const PAGE: u64 = 4096;
/// In emulation, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A monitor, where guest memory begins in it, and memory of its own.
struct Monitor {
    running: Running,
    memory: u64,
    own: u64,
}

impl Monitor {
    /// `None` where KVM runs no guest.
    fn start(directory: &Path, name: &str) -> Option<Self> {
        let program = directory.join("kvm_monitor");
        if !program.exists() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kvm_monitor.c");
            let mut cc = Command::new("cc");
            let status = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
            assert!(status.is_ok_and(|status| status.success()), "cc failed");
        }
        let mut command = Command::new(program);
        let arguments = [&*MIB.to_string(), &HOT_PAGES.to_string(), "--id", name];
        let mut running = Running(
            command
                .args(arguments)
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts"),
        );
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("its first line");
        let addresses = line.split_whitespace();
        let mut addresses = addresses.filter_map(|word| u64::from_str_radix(word, 16).ok());
        let (Some(memory), Some(own)) = (addresses.next(), addresses.next()) else {
            pagetrail_skips::not_here("KVM runs no guest");
            return None;
        };
        Some(Self {
            running,
            memory,
            own,
        })
    }

    /// Pages on node 0 and on node 1 of the mapping at an address.
    fn on_nodes(&self, address: u64) -> [u64; 2] {
        let path = format!("/proc/{}/numa_maps", self.running.0.id());
        let text = fs::read_to_string(path).expect("numa_maps");
        let start = format!("{address:x} ");
        let line = text.lines().find(|line| line.starts_with(&start));
        let words: Vec<&str> = line.expect("the mapping").split(' ').collect();
        ["N0=", "N1="].map(|node| {
            let count = words.iter().find_map(|word| word.strip_prefix(node));
            count.map_or(0, |count| count.parse().expect("a number"))
        })
    }

    /// Ends it: it has checked its memory, and the guest's.
    fn end(mut self) {
        self.running.signal(Signal::TERM);
        assert_eq!(self.running.0.wait().expect("it ends").code(), Some(0));
    }
}

fn can_watch_writes() -> bool {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    let works = *status == pagetrail::Status::Works;
    if !works {
        pagetrail_skips::not_here(format!("pagemap-scan is {status}"));
    }
    works
}

#[test]
fn a_plan_has_guest_memory_alone() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let Some(monitor) = Monitor::start(directory, "plan-1") else {
        return;
    };
    let arguments = [
        "tier",
        "plan",
        "--guest",
        "plan-1",
        "--source",
        "writes",
        "--windows",
        "4",
        "--window",
        "200ms",
        "--fast",
        "1M",
        "--json",
    ];
    let output = run(directory, &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = number(&plan["fast_bytes"]) + number(&plan["slow_bytes"]);
    assert_eq!(all, MIB << 20, "what the guest has, and no more: {plan:#}");
    let hex = |value: &Value| {
        let text = value.as_str().expect("an address");
        u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
    };
    let memory = monitor.memory..monitor.memory + (MIB << 20);
    let hot = monitor.memory + (2 << 20)..monitor.memory + (2 << 20) + HOT_PAGES * PAGE;
    let parts = plan["demote"].as_array().expect("a list");
    assert!(!parts.is_empty(), "{plan:#}");
    for part in parts {
        let (start, end) = (hex(&part["start"]), hex(&part["end"]));
        assert!(memory.contains(&start) && end <= memory.end, "{part}");
        // What the guest writes in every pass stays.
        let is_hot = start < hot.end && hot.start < end;
        assert!(!is_hot || number(&part["degree"]) < 12, "{part}");
    }
    monitor.end();
}

/// The status, as soon as it is as it should be.
fn status(directory: &Path, fine: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = run(
            directory,
            &["tier", "status", "--config", "tier.toml", "--json"],
        );
        let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() && fine(&value) {
            return value;
        }
        let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
        assert!(Instant::now() < deadline, "{value:#}\n{output:?}\n{log}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Two guests, by PID and by name: cold guest memory leaves the fast node, the monitors' own stays,
/// and what the guests compute is right, also when the daemon is killed.
#[test]
fn two_guests_share_two_nodes() {
    if !can_watch_writes() {
        return;
    }
    let moves = nodes().len() >= 2;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let monitors = ["pool-1", "pool-2"].map(|name| Monitor::start(directory, name));
    let [Some(first), Some(second)] = monitors else {
        return;
    };
    let target = |name: &str, vm: &str| {
        format!("[[target]]\nname = \"{name}\"\nvm = {vm}\nfast = \"2M\"\nsource = \"writes\"\n")
    };
    let text = format!(
        "listen = \"unix:{}\"\nmode = \"pool\"\nwindow = \"100ms\"\nperiod = \"2s\"\n[policy]\ncalm_bytes = 4096\n{}{}",
        directory.join("tier.sock").display(),
        target("first", &first.running.0.id().to_string()),
        target("second", "\"pool-2\""),
    );
    fs::write(directory.join("tier.toml"), text).expect("it can be written");
    let start = || {
        let mut arguments = vec!["tier", "run", "--config", "tier.toml"];
        if !moves {
            arguments.push("--dry-run");
        }
        let log = fs::File::create(directory.join("log")).expect("a log");
        let mut command = pagetrail(directory, &arguments);
        Running(command.stderr(log).spawn().expect("it starts"))
    };
    let mut daemon = start();
    let process = |status: &Value, index: usize| status["targets"][index]["processes"][0].clone();
    let settled = |status: &Value| {
        (0..2).all(|index| {
            let process = process(status, index);
            let windows = process["windows"].as_u64().unwrap_or(0);
            windows >= 8 && (!moves || process["fast_bytes"].as_u64() <= Some(4 << 20))
        })
    };
    let status_now = status(directory, settled);
    for (index, name) in ["pool-1", "pool-2"].into_iter().enumerate() {
        let process = process(&status_now, index);
        assert_eq!(process["guest"], name, "{status_now:#}");
        let all = number(&process["fast_bytes"]) + number(&process["slow_bytes"]);
        assert_eq!(all, MIB << 20, "{status_now:#}");
    }
    let text = run(directory, &["tier", "status", "--config", "tier.toml"]).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("guest pool-1"), "{text}");
    daemon.signal(Signal::KILL);
    daemon.0.wait().expect("it is dead");
    let mut daemon = start();
    status(directory, settled);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.0.wait().expect("it ends").code(), Some(0));
    if moves {
        for monitor in [&first, &second] {
            let [fast, slow] = monitor.on_nodes(monitor.memory);
            assert!(
                fast * PAGE <= 4 << 20,
                "{fast} pages on node 0, {slow} on node 1"
            );
            assert!(slow * PAGE >= (MIB - 4) << 20, "{slow} pages on node 1");
            let [_, slow] = monitor.on_nodes(monitor.own);
            assert_eq!(slow, 0, "the monitor's own memory stays");
        }
    } else {
        pagetrail_skips::not_here("one memory node: planned, not moved");
    }
    first.end();
    second.end();
}
