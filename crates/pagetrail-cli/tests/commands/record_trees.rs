//! `pagetrail record` on processes with children, and on groups of processes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::recording::{
    BASE, FILE, PAGES, Recording, STEP, directory, known_pages, wait_until,
};
use crate::common::running::Running;
use crate::common::{error_line, report, run};
use pagetrail_trail::{End, Origin, TreeTrail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A shell that has started a process in the background, whose PID this returns.
fn parent_and_child() -> (Running, Leftover) {
    let script = "sleep 1000 & echo $!; exec sleep 1000";
    let mut command = Command::new("sh");
    let command = command.args(["-c", script]).stdout(Stdio::piped());
    let mut parent = Running(command.spawn().expect("it starts"));
    let stdout = parent.0.stdout.as_mut().expect("it is piped");
    let mut child = String::new();
    BufReader::new(stdout)
        .read_line(&mut child)
        .expect("a line");
    let child = Leftover(child.trim().parse().expect("a PID"));
    // Both are shells at first.
    for pid in [parent.0.id() as i32, child.0] {
        let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        wait_until("both are sleep(1)", || name() == "sleep\n");
    }
    (parent, child)
}

/// A process of which only the PID is known; it ends with the test.
struct Leftover(i32);

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).expect("a PID"), Signal::KILL);
    }
}

fn tree(directory: &Path) -> TreeTrail {
    let file = File::open(directory.join(FILE)).expect("a trail");
    TreeTrail::read(BufReader::new(file)).expect("it reads")
}

#[test]
fn what_is_not_recorded_is_said_at_the_start() {
    let directory = directory();
    let (parent, child) = parent_and_child();
    let arguments = [
        "record",
        "--no-children",
        "-p",
        &parent.pid(),
        "--rounds",
        "1",
    ];
    let output = run(directory.path(), &arguments);
    let children = format!("/proc/{0}/task/{0}/children", parent.pid());
    let is_listed = Path::new(&children).exists();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("pagetrail: recording process "), "{said}");
    let expected = format!(
        "its child process is not tracked, by --no-children: {} (sleep 1000)",
        child.0
    );
    assert_eq!(said.contains(&expected), is_listed, "{said}");
    assert_eq!(tree(directory.path()).processes.len(), 1);
}

#[test]
fn children_are_recorded_and_listed() {
    let directory = directory();
    let (parent, child) = parent_and_child();
    if !Path::new(&format!("/proc/{0}/task/{0}/children", parent.pid())).exists() {
        pagetrail_skips::not_here("the kernel lists no children (CONFIG_PROC_CHILDREN)");
        return;
    }
    let arguments = [
        "record",
        "-p",
        &parent.pid(),
        "--rounds",
        "2",
        "--interval",
        "10ms",
    ];
    let output = run(directory.path(), &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(" and 1 more by "), "{said}");
    let tree = tree(directory.path());
    let [first, second] = &tree.processes[..] else {
        panic!("two processes: {said}")
    };
    assert_eq!(first.trail.header.pid.to_string(), parent.pid());
    assert_eq!(second.trail.header.pid, child.0 as u32);
    assert_eq!((second.parent, second.origin), (Some(0), Origin::Present));
    assert_eq!(second.trail.end, Some(End::Detached));
    let text = run(directory.path(), &["report"]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.starts_with("2 processes, "), "{text}");
    let document = report(directory.path(), FILE);
    assert_eq!(document["processes"][1]["pid"], child.0);
    assert_eq!(document["pid"].to_string(), parent.pid());
    let arguments = ["report", "--json", "--process", &child.0.to_string()];
    let one = run(directory.path(), &arguments);
    let one: Value = serde_json::from_slice(&one.stdout).expect("a document");
    assert_eq!(one["pid"], child.0);
    for (wanted, complaint) in [
        ("sleep", "2 processes of the recording are called sleep"),
        ("nobody", "no process of the recording is called nobody"),
        ("1", "no process 1 is in the recording"),
    ] {
        let output = run(directory.path(), &["report", "--process", wanted]);
        assert!(error_line(&output, 2).contains(complaint), "{output:?}");
    }
}

#[test]
fn children_of_a_program_are_recorded_with_what_they_wrote() {
    let directory = directory();
    let program = known_pages().display();
    let script = format!("{program} 400 & {program} 400; wait");
    let arguments = ["record", "--interval", "10ms", "--", "sh", "-c", &script];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let tree = tree(directory.path());
    let writers: Vec<_> = tree
        .processes
        .iter()
        .filter(|process| process.trail.header.command.first() == Some(&program.to_string()))
        .collect();
    assert_eq!(writers.len(), 2, "{:?}", tree.processes.len());
    for writer in writers {
        assert_eq!((writer.parent, writer.origin), (Some(0), Origin::New));
        let rounds = writer.trail.rounds.iter();
        let is_written = |page: &u64| {
            let address = BASE + page * 4096;
            rounds.clone().any(|round| round.written.contains(address))
        };
        let pages = (0..PAGES).step_by(STEP as usize);
        assert_eq!(pages.clone().filter(is_written).count(), pages.count());
    }
}

/// Sixteen shells that fork all the time come to their end, whatever becomes of the recorder.
#[test]
fn a_recorder_that_stops_or_dies_leaves_no_forking_process_stuck() {
    let script = "i=0; while [ $i -lt 60 ]; do /bin/true; i=$((i+1)); done";
    for signal in [Signal::STOP, Signal::KILL] {
        let directory = directory();
        let shells = (0..16).map(|_| {
            let mut command = Command::new("sh");
            Running(command.args(["-c", script]).spawn().expect("it starts"))
        });
        let mut shells: Vec<_> = shells.collect();
        let pids: Vec<String> = shells
            .iter()
            .map(|shell| format!("-p{}", shell.pid()))
            .collect();
        let arguments: Vec<&str> = pids.iter().map(String::as_str).collect();
        let recording = Recording::start(directory.path(), &arguments);
        recording.wait_for_start();
        recording.signal(signal);
        for shell in &mut shells {
            wait_until("a shell comes to its end", || !shell.is_alive());
            assert!(shell.0.wait().expect("its status").success());
        }
    }
}

#[test]
fn what_is_no_group_of_processes_is_refused() {
    let directory = directory();
    let output = run(directory.path(), &["record", "--cgroup", "/proc"]);
    assert!(
        error_line(&output, 2).contains("control group"),
        "{output:?}"
    );
    for arguments in [
        &["record", "--cgroup", "/x", "-p", "1"][..],
        &["record", "--cgroup", "/x", "--last-round"],
        &["record", "--cgroup", "/x", "--no-children"],
    ] {
        assert_eq!(run(directory.path(), arguments).status.code(), Some(2));
    }
    assert!(!directory.path().join(FILE).exists());
}
