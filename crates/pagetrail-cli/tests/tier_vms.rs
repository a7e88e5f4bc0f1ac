//! `pagetrail tier` with virtual machines that run as targets: guest memory alone is planned for,
//! and, where there are two memory nodes, moved, and the guests run on.
//!
//! The guests are those of `kvm_monitor.c`, which knows what its memory holds. Where pages are says
//! the kernel: `numa_maps`, and `move_pages(2)` page by page.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::running::Running;
use common::{number, pagetrail, run};
use pagetrail::{Capabilities, PageRange, PageSet, Technique, mapped_pages};
use pagetrail_tier::mover::{Mover, NodeMover, NodeOptions};
use pagetrail_tier::{Place, Unit, nodes};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 32;
const HOT_PAGES: u64 = 256;
const PAGE: u64 = 4096;
/// Where a guest's first hot set begins; the second comes after it.
const HOT_AT: u64 = 2 << 20;
/// What a guest may have in fast memory at most: its share, and in a pool a quarter more.
const FAST: u64 = 5 << 19;
/// In emulation, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A monitor, where guest memory begins in it, and memory of its own.
struct Monitor {
    running: Running,
    stdout: BufReader<ChildStdout>,
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
        let stdout = running.0.stdout.take().expect("it is piped");
        let mut monitor = Self {
            running,
            stdout: BufReader::new(stdout),
            memory: 0,
            own: 0,
        };
        if monitor.read_addresses() {
            return Some(monitor);
        }
        pagetrail_skips::not_here("KVM runs no guest");
        None
    }

    /// Reads where memory is; false if it says nothing.
    fn read_addresses(&mut self) -> bool {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("UTF-8");
        let words = line.split_whitespace();
        let addresses: Vec<u64> = words
            .filter_map(|word| u64::from_str_radix(word, 16).ok())
            .collect();
        if let [memory, own] = addresses[..] {
            (self.memory, self.own) = (memory, own);
            return true;
        }
        false
    }

    /// Reboots its guest, which gets other memory.
    fn reboot(&mut self) {
        let before = self.memory;
        self.running.signal(Signal::USR2);
        assert!(self.read_addresses(), "what it had was not as it should be");
        assert_ne!(self.memory, before, "the same memory");
    }

    /// How often the guest has gone through its first hot set.
    fn passes(&self) -> u64 {
        let memory = fs::File::open(format!("/proc/{}/mem", self.running.0.id()));
        let mut word = [0; 4];
        let last = self.memory + HOT_AT + (HOT_PAGES - 1) * PAGE;
        let read = memory.and_then(|memory| memory.read_exact_at(&mut word, last));
        read.expect("its memory");
        u32::from_ne_bytes(word).into()
    }

    /// Lets the guest run until it has surely gone through all its hot pages.
    fn run(&self) {
        self.running.signal(Signal::CONT);
        let before = self.passes();
        let deadline = Instant::now() + TIMEOUT;
        while self.passes() < before + 3 {
            assert!(Instant::now() < deadline, "the guest does not go on");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves its first hot set while it is stopped; it stays so.
    fn move_stopped(&self, to: Place) {
        self.running.signal(Signal::STOP);
        let pid = self.running.0.id();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
            stat.contains(") T ")
        };
        until(Path::new("/"), "stopped", is_stopped);
        let start = self.memory + HOT_AT;
        let pages = (start..start + HOT_PAGES * PAGE).step_by(PAGE as usize);
        let units: Vec<Unit> = pages
            .map(|address| Unit {
                address,
                bytes: PAGE,
                rank: 0,
            })
            .collect();
        let mut mover = NodeMover::new(pid, NodeOptions::default());
        let outcome = mover.carry_out(&units, to, TIMEOUT);
        assert_eq!(
            outcome.moved.len() as u64,
            HOT_PAGES,
            "{:?}",
            outcome.failed
        );
    }

    /// Page faults that the guest has left its processor for, by KVM's count; `None` where it is
    /// not shown.
    fn nested_faults(&self) -> Option<u64> {
        let start = format!("{}-", self.running.0.id());
        let machines = fs::read_dir("/sys/kernel/debug/kvm").ok()?.flatten();
        let mut machines = machines.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(&start))
        });
        let text = fs::read_to_string(machines.next()?.path().join("pf_taken")).ok()?;
        text.trim().parse().ok()
    }

    /// Which part of its first or its second hot set is in fast memory.
    fn hot_in_fast(&self, set: u64) -> f64 {
        let start = self.memory + HOT_AT + set * HOT_PAGES * PAGE;
        let hot = PageSet::from_iter(PageRange::new(start, start + HOT_PAGES * PAGE));
        let pid = self.running.0.id();
        let mapped = mapped_pages(pid, &hot).expect("it runs");
        let mut kernel = NodeMover::new(pid, NodeOptions::default());
        let runs = kernel.places(&mapped).expect("it runs");
        let fast = runs.iter().filter(|run| run.place == Place::Fast);
        let pages: u64 = fast.map(|run| run.range.page_count()).sum();
        pages as f64 / HOT_PAGES as f64
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

    /// Whether guest memory is on the slow node but for what is allowed, and this hot set is not.
    fn is_tiered(&self, set: u64) -> bool {
        let [fast, slow] = self.on_nodes(self.memory);
        let part = self.hot_in_fast(set);
        eprintln!(
            "{fast} pages on node 0, {slow} on node 1; {part:.2} of hot set {set} in fast memory"
        );
        // A page that moves just then is on neither.
        (fast + slow) * PAGE == MIB << 20 && fast * PAGE <= FAST && part >= 0.95
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
    let hot = monitor.memory + HOT_AT;
    let hot = hot..hot + HOT_PAGES * PAGE;
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

/// Two guests in the configuration: the first by its PID, the second by its name.
fn configure(directory: &Path, mode: &str, first: &Monitor, second: &str) {
    let target = |name: &str, vm: &str| {
        format!("[[target]]\nname = \"{name}\"\nvm = {vm}\nfast = \"2M\"\nsource = \"writes\"\n")
    };
    let text = format!(
        "listen = \"unix:{}\"\nmode = \"{mode}\"\nwindow = \"100ms\"\nperiod = \"2s\"\n\
         [policy]\ncalm_bytes = 4096\npause_max = 0\n{}{}",
        directory.join("tier.sock").display(),
        target("first", &first.running.0.id().to_string()),
        target("second", &format!("\"{second}\"")),
    );
    fs::write(directory.join("tier.toml"), text).expect("it can be written");
}

fn daemon(directory: &Path, moves: bool) -> Running {
    let mut arguments = vec!["tier", "run", "--config", "tier.toml"];
    if !moves {
        arguments.push("--dry-run");
    }
    let log = fs::File::create(directory.join("log")).expect("a log");
    let mut command = pagetrail(directory, &arguments);
    Running(command.stderr(log).spawn().expect("it starts"))
}

fn end(mut daemon: Running) {
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.0.wait().expect("it ends").code(), Some(0));
}

/// Neither an agent that is not there nor one of another machine, which cannot prove that it is in
/// this guest, keeps a guest from being tiered by what is seen from outside.
#[test]
fn without_its_agent_a_guest_is_watched_from_outside() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let Some(monitor) = Monitor::start(directory, "agent-1") else {
        return;
    };
    let agent = directory.join("agent.sock");
    let text = format!(
        "listen = \"unix:{}\"\nwindow = \"100ms\"\nperiod = \"2s\"\n\
         [[target]]\nname = \"first\"\nvm = {}\nagent = \"unix:{}\"\nfast = \"2M\"\n",
        directory.join("tier.sock").display(),
        monitor.running.0.id(),
        agent.display(),
    );
    fs::write(directory.join("tier.toml"), text).expect("it can be written");
    let watched_from_outside = |why: &str| {
        let daemon = daemon(directory, false);
        let status = status(directory, |status| watched(status, 0..1));
        let process = process(&status, 0);
        let source = process["source"].as_str().expect("a name");
        assert!(source.ends_with("-scan"), "{process:#}");
        let all = number(&process["fast_bytes"]) + number(&process["slow_bytes"]);
        assert_eq!(all, MIB << 20, "{process:#}");
        end(daemon);
        let log = fs::read_to_string(directory.join("log")).expect("a log");
        let line = log
            .lines()
            .find(|line| line.contains("watched from outside"));
        assert!(line.is_some_and(|line| line.contains(why)), "{log}");
    };
    watched_from_outside("connecting to the agent");
    let listen = format!("unix:{}", agent.display());
    let arguments = ["tier", "agent", "--listen", &listen];
    let other = Running(pagetrail(directory, &arguments).spawn().expect("it starts"));
    // Its socket has a name before it listens.
    let listens = || UnixStream::connect(&agent).is_ok();
    until(directory, "listening", listens);
    watched_from_outside("is not in the guest");
    end(other);
    monitor.end();
}

fn process(status: &Value, index: usize) -> Value {
    status["targets"][index]["processes"][0].clone()
}

/// Whether so many targets have a process that was watched for a period.
fn watched(status: &Value, targets: Range<usize>) -> bool {
    targets
        .into_iter()
        .all(|index| process(status, index)["windows"].as_u64() >= Some(8))
}

/// Waits until it is so; what the daemon says comes later.
fn until(directory: &Path, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        let log = || fs::read_to_string(directory.join("log")).unwrap_or_default();
        assert!(Instant::now() < deadline, "not {what}: {}", log());
        thread::sleep(Duration::from_millis(500));
    }
}

/// Guest memory and nothing else is counted and moved, also by the daemon that comes after one that
/// was killed; what a guest begins to write comes back to fast memory.
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
    configure(directory, "pool", &first, "pool-2");
    let mut killed = daemon(directory, moves);
    let status_now = status(directory, |status| watched(status, 0..2));
    for (index, name) in ["pool-1", "pool-2"].into_iter().enumerate() {
        let process = process(&status_now, index);
        assert_eq!(process["guest"], name, "{status_now:#}");
        let all = number(&process["fast_bytes"]) + number(&process["slow_bytes"]);
        assert_eq!(all, MIB << 20, "{status_now:#}");
    }
    let text = run(directory, &["tier", "status", "--config", "tier.toml"]).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("guest pool-1"), "{text}");
    let tiered = |set: u64| {
        until(directory, "tiered", || {
            first.is_tiered(set) && second.is_tiered(set)
        });
    };
    if moves {
        tiered(0);
    }
    killed.signal(Signal::KILL);
    killed.0.wait().expect("it is dead");
    let again = daemon(directory, moves);
    status(directory, |status| watched(status, 0..2));
    if moves {
        tiered(0);
        let monitors = [&first, &second];
        // There is room for cold pages, too, and these may be of the other hot set.
        let before = monitors.map(|monitor| monitor.hot_in_fast(1));
        for monitor in monitors {
            monitor.running.signal(Signal::USR1);
        }
        tiered(1);
        // Pages have moved before the status says so.
        status(directory, |status| {
            (0..2).all(|index| {
                let promoted = process(status, index)["promoted_bytes"].as_u64();
                let pages = promoted.map(|bytes| bytes as f64 / PAGE as f64);
                pages >= Some(HOT_PAGES as f64 * (0.9 - before[index]))
            })
        });
    } else {
        pagetrail_skips::not_here("one memory node: planned, not moved");
    }
    end(again);
    if moves {
        for monitor in [&first, &second] {
            assert!(monitor.is_tiered(1), "its pages stay where they are");
            let [_, slow] = monitor.on_nodes(monitor.own);
            assert_eq!(slow, 0, "the monitor's own memory stays");
        }
    }
    first.end();
    second.end();
}

/// One guest is killed and comes again under its name, the other gets other memory: the daemon goes
/// on with both.
#[test]
fn guests_reboot_and_die() {
    if !can_watch_writes() {
        return;
    }
    let moves = nodes().len() >= 2;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let monitors = ["reboots", "dies"].map(|name| Monitor::start(directory, name));
    let [Some(mut first), Some(mut second)] = monitors else {
        return;
    };
    configure(directory, "island", &first, "dies");
    let daemon = daemon(directory, moves);
    status(directory, |status| watched(status, 0..2));
    first.reboot();
    second.running.signal(Signal::KILL);
    second.running.0.wait().expect("it is dead");
    // Of the one that is gone nothing is left, of the other the memory that it has now.
    status(directory, |status| {
        let processes = status["targets"][1]["processes"].as_array();
        let is_gone = processes.is_some_and(Vec::is_empty);
        is_gone && process(status, 0)["pid"] == first.running.0.id()
    });
    if moves {
        until(directory, "tiered after its reboot", || first.is_tiered(0));
    }
    let second = Monitor::start(directory, "dies").expect("KVM ran one before");
    status(directory, |status| {
        watched(status, 0..2) && process(status, 1)["pid"] == second.running.0.id()
    });
    if moves {
        until(directory, "tiered after its death", || second.is_tiered(0));
    } else {
        pagetrail_skips::not_here("one memory node: planned, not moved");
    }
    end(daemon);
    first.end();
    second.end();
}

/// Table 5 of HMM-V: a page that moves costs the guest an exit when it uses it next, and none where
/// the monitor has KVM map what has moved.
#[test]
fn a_page_that_moves_costs_an_exit_or_none() {
    if nodes().len() < 2 {
        pagetrail_skips::not_here("one memory node, two are needed");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some(mut monitor) = Monitor::start(directory.path(), "table-5") else {
        return;
    };
    if monitor.nested_faults().is_none() {
        pagetrail_skips::not_here("KVM shows no counts in debugfs");
        return;
    }
    let exits = |monitor: &Monitor| monitor.nested_faults().expect("it was shown");
    monitor.run();
    monitor.move_stopped(Place::Slow);
    let before = exits(&monitor);
    monitor.run();
    let for_moved = exits(&monitor) - before;
    monitor.move_stopped(Place::Fast);
    let before = exits(&monitor);
    monitor.running.signal(Signal::HUP);
    monitor.run();
    let for_mapped = exits(&monitor) - before;
    let mut line = String::new();
    monitor.stdout.read_line(&mut line).expect("what it mapped");
    let per_page = |exits: u64| exits as f64 / HOT_PAGES as f64;
    eprintln!(
        "exits by page faults for each page moved: {:.3}; where KVM mapped it first: {:.3} ({})",
        per_page(for_moved),
        per_page(for_mapped),
        line.trim()
    );
    assert!(
        (HOT_PAGES..2 * HOT_PAGES).contains(&for_moved),
        "{for_moved} for {HOT_PAGES} pages"
    );
    match line.trim() {
        "none" => pagetrail_skips::not_here("KVM_PRE_FAULT_MEMORY: Linux 6.11"),
        line => {
            assert_eq!(line, "0 left");
            assert!(for_mapped < HOT_PAGES / 10, "{for_mapped} although mapped");
        }
    }
    monitor.end();
}
