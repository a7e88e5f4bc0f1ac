//! `pagetrail tier` as its users have it: plans, dry runs, status, numbers, reload, restart after
//! `kill -9`; and, where there are two memory nodes, a daemon that moves memory.
//!
//! Watches writes, so that any kernel with `pagemap-scan` can run most of it.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::running::Running;
use common::{error_line, number, pagetrail, run};
use pagetrail::{AccessKind, Capabilities, PageRange, PageSet, Technique};
use pagetrail_tier::nodes;
use pagetrail_trail::{End, Header, Mapping, Round, Writer};
use rustix::process::Signal;
use serde_json::{Value, json};

const PAGES: u64 = 1000;
const PAGE: u64 = 4096;
/// In emulation, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

impl Running {
    /// The program whose hot set is known; see there.
    fn hot_set(directory: &Path) -> Self {
        let program = directory.join("hot_set");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../pagetrail-tier/tests/hot_set.c");
        if !program.exists() {
            let mut cc = Command::new("cc");
            let status = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
            assert!(status.is_ok_and(|status| status.success()), "cc failed");
        }
        let mut command = Command::new(program);
        let command = command.arg(PAGES.to_string()).stdout(Stdio::piped());
        let mut running = Self(command.spawn().expect("it starts"));
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("its first line");
        running
    }

    fn daemon(directory: &Path, arguments: &[&str]) -> Self {
        let all = [&["tier", "run", "--config", "tier.toml"][..], arguments].concat();
        let mut command = pagetrail(directory, &all);
        let log = fs::File::create(directory.join("log")).expect("a log");
        Self(command.stderr(log).spawn().expect("it starts"))
    }

    /// Ends it kindly; its exit code.
    fn end(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.0.wait().expect("it ends").code()
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

fn socket(directory: &Path) -> PathBuf {
    directory.join("tier.sock")
}

/// A configuration with short periods, and targets as given.
fn configure(directory: &Path, top: &str, targets: &str) {
    let text = format!(
        "listen = \"unix:{}\"\nwindow = \"50ms\"\nperiod = \"600ms\"\n{top}\n{targets}",
        socket(directory).display()
    );
    fs::write(directory.join("tier.toml"), text).expect("it can be written");
}

fn target(name: &str, pid: u32, fast: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\npid = {pid}\nfast = \"{fast}\"\nsource = \"writes\"\n")
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

fn process<'a>(status: &'a Value, target: &str) -> &'a Value {
    let targets = status["targets"].as_array().expect("targets");
    let target = targets.iter().find(|known| known["name"] == target);
    target.map_or(&Value::Null, |target| &target["processes"][0])
}

#[test]
fn a_plan_names_what_would_move() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut program = Running::hot_set(directory);
    let pid = program.pid();
    let arguments = [
        "tier",
        "plan",
        "-p",
        &pid,
        "--fast",
        "1M",
        "--source",
        "writes",
        "--windows",
        "4",
        "--window",
        "100ms",
        "--html",
        "plan.html",
    ];
    let output = run(directory, &[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (fast, slow) = (number(&plan["fast_bytes"]), number(&plan["slow_bytes"]));
    assert!(fast + slow >= PAGES * PAGE, "{plan:#}");
    // All of it is in fast memory, and more than may be.
    let out = plan["demote"].as_array().expect("a list");
    let bytes: u64 = out.iter().map(|part| number(&part["bytes"])).sum();
    assert!(bytes >= fast - (1 << 20), "{bytes} of {fast}");
    // What is written, every tenth page, stays.
    assert!(
        out.iter().all(|part| number(&part["degree"]) < 12),
        "{plan:#}"
    );
    let page = fs::read_to_string(directory.join("plan.html")).expect("the page");
    assert!(page.contains("data:image/png;base64,") && !page.contains("{{"));
    let text = run(directory, &arguments).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("out of fast memory"), "{text}");
    assert!(
        text.contains("3 for one with a write; at most 12"),
        "{text}"
    );
    // All is in fast memory, and what is written stays there.
    let share = |name: &str| plan[name].as_f64().expect("a share");
    assert!(
        share("fast_share") > 0.9 && share("fast_share_planned") > 0.9,
        "{plan:#}"
    );
    assert!(
        text.contains("of the accesses seen, fast memory serves"),
        "{text}"
    );
    assert_eq!(program.end(), Some(0));
}

/// A trail of accesses: 110 pages are touched in its first two rounds, the last ten of them in
/// every round.
fn recording(path: &Path) {
    let header = Header {
        pid: 4711,
        page_size: PAGE,
        technique: "access-scan".into(),
        ..Header::default()
    };
    let file = fs::File::create(path).expect("a file");
    let mut trail = Writer::create(file, &header).expect("it can be written");
    let pages = |first: u64| PageRange::new((1000 + first) * PAGE, 1110 * PAGE).expect("not empty");
    let mapping = Mapping {
        range: pages(0),
        name: "[heap]".into(),
        permissions: "rw-p".into(),
        untracked: None,
        shared: None,
        first_round: 0,
        last_round: None,
    };
    trail.mapping(&mapping).expect("it can be written");
    for index in 0..20 {
        let round = Round {
            index,
            access_kind: AccessKind::Accesses,
            written: PageSet::from_iter([pages(if index < 2 { 0 } else { 100 })]),
            ..Round::default()
        };
        trail.round(&round).expect("it can be written");
    }
    trail.finish(&End::Exited(0)).expect("it can be written");
}

#[test]
fn a_plan_for_a_recording_tells_what_would_have_been_done() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    recording(&directory.join("run.trail"));
    let arguments = [
        "tier",
        "plan",
        "--trail",
        "run.trail",
        "--fast",
        "40K",
        "--html",
        "plan.html",
    ];
    let output = run(directory, &[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // What was touched first was in fast memory, and what is hot has taken its place.
    let expected = [
        ("pid", 4711),
        // The first round says which pages there are.
        ("windows", 19),
        ("fast_bytes", 10 * PAGE),
        ("slow_bytes", 100 * PAGE),
        ("promoted_bytes", 10 * PAGE),
        ("demoted_bytes", 10 * PAGE),
    ];
    for (name, value) in expected {
        assert_eq!(number(&plan[name]), value, "{name}: {plan:#}");
    }
    assert_eq!(plan["source"], "replay");
    assert_eq!(
        (&plan["promote"], &plan["demote"]),
        (&json!([]), &json!([]))
    );
    assert!(number(&plan["faults"]) > 110, "{plan:#}");
    let text = run(directory, &arguments).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("moved in and"), "{text}");
    let page = fs::read_to_string(directory.join("plan.html")).expect("the page");
    assert!(page.contains("run.trail") && !page.contains("{{"));
    // Room for half of what is hot: the others wait, and no plan says that all is well.
    let little = ["tier", "plan", "--trail", "run.trail", "--fast", "20K"];
    let text = run(directory, &little).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(
        text.contains("hot and without room 20 KiB") && text.contains("no page that waits"),
        "{text}"
    );

    // Half of it: the windows that are there, and no more.
    let whole = fs::read(directory.join("run.trail")).expect("the trail");
    fs::write(directory.join("run.trail"), &whole[..whole.len() / 2]).expect("written");
    let output = run(directory, &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    fs::write(directory.join("run.trail"), "no trail").expect("written");
    let line = error_line(&run(directory, &arguments), 2);
    assert!(line.contains("run.trail"), "{line}");
    let both = [&arguments[..], &["--source", "writes"]].concat();
    assert_eq!(run(directory, &both).status.code(), Some(2));
}

#[test]
fn a_dry_run_tells_and_reads_its_file_anew() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut programs = [Running::hot_set(directory), Running::hot_set(directory)];
    let pids = [programs[0].0.id(), programs[1].0.id()];
    let first = target("first", pids[0], "1M");
    configure(directory, "", &first);
    let mut daemon = Running::daemon(directory, &["--dry-run", "--html", "tier.html"]);
    let status_now = status(directory, |status| {
        number_of(process(status, "first"), "windows") >= 8
    });
    assert_eq!(status_now["mode"], "island");
    assert_eq!(number(&process(&status_now, "first")["promoted_bytes"]), 0);
    let text = run(directory, &["tier", "status", "--config", "tier.toml"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("a dry run"));

    // A wrong file changes nothing.
    fs::write(directory.join("tier.toml.new"), "mode = 7").expect("written");
    let good = fs::read_to_string(directory.join("tier.toml")).expect("the file");
    fs::rename(directory.join("tier.toml.new"), directory.join("tier.toml")).expect("renamed");
    daemon.signal(Signal::HUP);
    let deadline = Instant::now() + TIMEOUT;
    let log = || fs::read_to_string(directory.join("log")).unwrap_or_default();
    while !log().contains("going on as before") {
        assert!(Instant::now() < deadline, "{}", log());
        thread::sleep(Duration::from_millis(50));
    }
    // A right one adds a target, and makes a pool of both.
    fs::write(directory.join("tier.toml"), good).expect("written");
    let both = first + &target("second", pids[1], "2M");
    configure(directory, "mode = \"pool\"", &both);
    daemon.signal(Signal::HUP);
    let status_now = status(directory, |status| {
        number_of(process(status, "second"), "windows") >= 8
            && number_of(process(status, "first"), "windows") >= 8
    });
    assert_eq!(
        (number(&status_now["reloads"]), &status_now["mode"]),
        (1, &Value::from("pool"))
    );
    let allowed: u64 = status_now["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .map(|target| number(&target["allowed_bytes"]))
        .sum();
    assert_eq!(allowed + number(&status_now["fast_free_bytes"]), 3 << 20);

    // A program that ends is let go, and the daemon goes on.
    assert_eq!(programs[0].end(), Some(0));
    status(directory, |status| process(status, "first").is_null());
    assert_eq!(daemon.end(), Some(0), "{}", log());
    let page = fs::read_to_string(directory.join("tier.html")).expect("the page");
    for part in [
        "Heat by address",
        "Degrees",
        "Memory by tier",
        "Moves",
        "Fast memory by target",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("{{") && !page.contains("<script"));
    assert!(!socket(directory).exists());
    assert_eq!(programs[1].end(), Some(0));
}

fn number_of(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

#[test]
fn killed_it_harms_nobody_and_starts_again() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut program = Running::hot_set(directory);
    configure(directory, "", &target("it", program.0.id(), "1M"));
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..6 {
        let mut daemon = Running::daemon(directory, &["--dry-run"]);
        status(directory, |status| {
            number_of(process(status, "it"), "windows") >= 1
        });
        thread::sleep(Duration::from_millis(random.u64(0..200)));
        daemon.signal(Signal::KILL);
        daemon.0.wait().expect("it is dead");
        assert!(socket(directory).exists(), "it had no time to tidy up");
    }
    assert_eq!(program.end(), Some(0), "its memory is as it should be");
}

/// A service manager hears of the start, of life and of the end.
#[test]
fn a_service_manager_hears_how_it_is() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut program = Running::hot_set(directory);
    configure(directory, "", &target("it", program.0.id(), "1M"));
    let manager = UnixDatagram::bind(directory.join("notify")).expect("a socket");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let arguments = ["tier", "run", "--config", "tier.toml", "--dry-run"];
    let mut command = pagetrail(directory, &arguments);
    command
        .env("NOTIFY_SOCKET", directory.join("notify"))
        .env("WATCHDOG_USEC", "200000")
        .env_remove("WATCHDOG_PID");
    let mut daemon = Running(command.stderr(Stdio::null()).spawn().expect("it starts"));
    let hear = |wanted: &str| {
        let mut buffer = [0; 200];
        loop {
            let length = manager.recv(&mut buffer).expect("a message in time");
            if buffer[..length].starts_with(wanted.as_bytes()) {
                return;
            }
        }
    };
    for wanted in [
        "READY=1",
        "STATUS=1 process of 1 target",
        "WATCHDOG=1",
        "WATCHDOG=1",
    ] {
        hear(wanted);
    }
    assert_eq!(daemon.end(), Some(0));
    hear("STOPPING=1");
    assert_eq!(program.end(), Some(0));
}

/// A process that is no monitor is refused as one, in one line, and goes on.
#[test]
fn what_is_no_virtual_machine_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut program = Running::hot_set(directory);
    let pid = program.pid();
    let plan = [
        "tier", "plan", "--fast", "1M", "--source", "writes", "--guest",
    ];
    let line = error_line(&run(directory, &[&plan[..], &[&pid]].concat()), 2);
    assert!(line.contains("has no virtual machine"), "{line}");
    let line = error_line(
        &run(directory, &[&plan[..], &["nobody-is-called-so"]].concat()),
        2,
    );
    assert!(line.contains("is called so"), "{line}");
    let text =
        format!("[[target]]\nname = \"it\"\nvm = {pid}\nfast = \"1M\"\nsource = \"writes\"\n");
    configure(directory, "", &text);
    let mut daemon = Running::daemon(directory, &["--dry-run"]);
    let refused = |status: &Value| {
        status["targets"][0]["refused"][0]
            .as_str()
            .map(str::to_owned)
    };
    let status_now = status(directory, |status| refused(status).is_some());
    let line = refused(&status_now).unwrap_or_default();
    assert!(line.contains("has no virtual machine"), "{line}");
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(program.end(), Some(0));
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let run_it = ["tier", "run", "--config", "tier.toml"];
    let line = error_line(&run(directory, &run_it), 2);
    assert!(line.contains("tier.toml"), "{line}");
    configure(directory, "window = 7", "");
    let line = error_line(&run(directory, &run_it), 2);
    assert!(line.contains("line"), "{line}");
    // A node that no machine has.
    configure(directory, "[memory]\nslow = 900", &target("it", 1, "1M"));
    let line = error_line(&run(directory, &run_it), 3);
    assert!(line.contains("no memory node"), "{line}");
    let line = error_line(
        &run(directory, &["tier", "status", "--at", "unix:/nowhere/it"]),
        2,
    );
    assert!(line.contains("nobody answers"), "{line}");
    let own = std::process::id().to_string();
    let plan = [
        "tier", "plan", "-p", &own, "--fast", "1M", "--source", "accesses",
    ];
    if !Capabilities::probe().works(Technique::AccessScan) {
        error_line(&run(directory, &plan), 3);
    }
}

#[test]
fn between_two_nodes_it_moves_what_is_cold() {
    if nodes().len() < 2 {
        pagetrail_skips::not_here("one memory node, two are needed");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let mut program = Running::hot_set(directory);
    let pid = program.0.id();
    configure(
        directory,
        "[policy]\ncalm_bytes = 4096\n",
        &target("it", pid, "1M"),
    );
    let mut daemon = Running::daemon(directory, &[]);
    // Cold pages leave until it has what it may have, and no more.
    let it = |status: &Value| process(status, "it").clone();
    let status_now = status(directory, |status| {
        number_of(&it(status), "fast_bytes") <= 1 << 20 && number_of(&it(status), "windows") >= 8
    });
    assert!(
        number(&it(&status_now)["demoted_bytes"]) > 2 << 20,
        "{status_now:#}"
    );
    assert_eq!(daemon.end(), Some(0));
    // Read when nothing moves any more.
    assert!(on_node_0(pid) * PAGE <= 1 << 20);
    let stays = on_node_0(pid);
    // Killed under load, and started again, it goes on from where the memory is.
    let mut daemon = Running::daemon(directory, &[]);
    status(directory, |status| number_of(&it(status), "windows") >= 4);
    program.signal(Signal::USR1);
    thread::sleep(Duration::from_millis(100));
    daemon.signal(Signal::KILL);
    daemon.0.wait().expect("it is dead");
    assert!(on_node_0(pid) * PAGE <= 1 << 20, "as before: {stays} pages");
    assert_eq!(program.end(), Some(0), "its memory is as it should be");
}

/// Pages of the program's arena on node 0, by `/proc/PID/numa_maps`.
fn on_node_0(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("numa_maps");
    let line = text.lines().find(|line| line.starts_with("100000000000 "));
    let mut words = line.expect("the arena").split(' ');
    let count = words.find_map(|word| word.strip_prefix("N0="));
    count.map_or(0, |count| count.parse().expect("a number"))
}
