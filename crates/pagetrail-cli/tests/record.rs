//! `pagetrail record` on real programs: what is in the file, and which exit code comes of it.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{address, error_line, last_line, number, pagetrail, report, run};
use pagetrail_trail::{End, Origin, Trail, TreeTrail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// What `known_pages.c` says of itself.
const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 300;
const STEP: u64 = 3;

const FILE: &str = "pagetrail.trail";
/// For what takes milliseconds on a machine that is not busy.
const TIMEOUT: Duration = Duration::from_secs(120);

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// The program `known_pages`, compiled once.
fn known_pages() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("known_pages");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/known_pages.c");
        let status = Command::new("cc")
            .arg("-O1")
            .arg("-o")
            .arg(&program)
            .arg(source)
            .status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        program
    })
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    /// `known_pages` without end, past its start.
    fn known_pages() -> Self {
        let mut command = Command::new(known_pages());
        let command = command.arg("0").stdout(Stdio::piped());
        let mut running = Self(command.spawn().expect("it starts"));
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        running
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a PID");
        kill_process(pid, signal).expect("it takes signals");
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A recording that runs beside the test.
struct Recording {
    process: Option<Running>,
    file: PathBuf,
}

impl Recording {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut command = pagetrail(directory, &["record", "--interval", "10ms"]);
        let command = command.args(arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self {
            process: Some(Running(command.spawn().expect("the command starts"))),
            file: directory.join(FILE),
        }
    }

    /// Waits until `rounds` rounds are in the file, which proves that it is readable while it is
    /// written.
    fn wait_for(&self, rounds: usize) {
        let kept = || {
            let file = File::open(&self.file).ok()?;
            Some(Trail::read(BufReader::new(file)).ok()?.rounds.len())
        };
        wait_until("rounds come", || kept().is_some_and(|kept| kept >= rounds));
    }

    /// Waits until it has written something, or has ended: its targets may have.
    fn wait_for_start(&self) {
        let process = self.process.as_ref().expect("it runs");
        let stat = format!("/proc/{}/stat", process.0.id());
        let is_zombie = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        let has_begun = || fs::metadata(&self.file).is_ok_and(|file| file.len() > 0);
        wait_until("the recording begins", || has_begun() || is_zombie());
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        process.signal(signal);
    }

    fn wait(mut self) -> Output {
        let mut running = self.process.take().expect("it runs");
        wait_until("the recording ends", || !running.is_alive());
        let mut output = Output {
            status: running.0.wait().expect("its status"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let (stdout, stderr) = (running.0.stdout.take(), running.0.stderr.take());
        std::io::copy(&mut stdout.expect("piped"), &mut output.stdout).expect("its output");
        std::io::copy(&mut stderr.expect("piped"), &mut output.stderr).expect("its messages");
        output
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

fn trail(directory: &Path) -> Trail {
    let file = File::open(directory.join(FILE)).expect("a recording");
    Trail::read(BufReader::new(file)).expect("a whole one")
}

/// Checks all that a report of schema 2 promises about its rounds; returns the pages that were
/// written.
fn check_schema(report: &Value) -> BTreeSet<u64> {
    assert_eq!(report["schema"], 2);
    assert!(report["command"].is_array() && report["technique"].is_string());
    let page = number(&report["page_size"]);
    let mut pages = BTreeSet::new();
    let mut start_ms = -1.0;
    for (index, round) in report["rounds"]
        .as_array()
        .expect("rounds")
        .iter()
        .enumerate()
    {
        assert_eq!(number(&round["round"]), index as u64);
        let began = round["start_ms"].as_f64().expect("a time");
        assert!(began > start_ms, "rounds in order");
        start_ms = began;
        for field in ["duration_ms", "collect_us", "stopped_us"] {
            assert!(
                round[field].as_f64().is_some_and(|time| time >= 0.0),
                "{field}"
            );
        }
        let (mut count, mut end) = (0, 0);
        for range in round["ranges"].as_array().expect("ranges") {
            let (start, length) = (address(&range["start"]), number(&range["pages"]));
            assert!(start >= end && start.is_multiple_of(page) && length > 0);
            end = start + length * page;
            count += length;
            pages.extend((start..end).step_by(page as usize));
        }
        assert_eq!(number(&round["written_pages"]), count);
    }
    for mapping in report["mappings"].as_array().expect("mappings") {
        assert!(address(&mapping["start"]) < address(&mapping["end"]));
        assert!(mapping["name"].is_string());
    }
    pages
}

fn assert_known_pages(report: &Value) {
    let written = check_schema(report);
    let page = number(&report["page_size"]);
    for known in (0..PAGES).step_by(STEP as usize) {
        assert!(written.contains(&(BASE + known * page)), "page {known}");
    }
    let mappings = report["mappings"].as_array().expect("mappings");
    let covers = |mapping: &Value| {
        address(&mapping["start"]) <= BASE && address(&mapping["end"]) >= BASE + PAGES * page
    };
    assert!(mappings.iter().any(covers), "its mapping is named");
}

/// Leaves a row for the table of what works where: `absent` for a reason, or else `works`.
fn note_row(technique: &str, reason: Option<&str>) {
    let Some(rows) = std::env::var_os("PAGETRAIL_ROWS").filter(|_| technique != "auto") else {
        return;
    };
    let row = serde_json::json!({
        "where": std::env::var("PAGETRAIL_WHERE").unwrap_or("this machine".into()),
        "subject": "record -- CMD",
        "technique": technique,
        "status": if reason.is_some() { "absent" } else { "works" },
        "reason": reason,
    });
    let file = Path::new(&rows).join(format!("record-{technique}"));
    fs::write(file, format!("{row}\n")).expect("a row");
}

#[test]
fn a_program_is_recorded_from_its_start_to_its_end() {
    let directory = directory();
    let program = known_pages().to_str().expect("UTF-8");
    for technique in [
        "auto",
        "pagemap-scan",
        "userfaultfd",
        "soft-dirty",
        "compare",
        "none",
    ] {
        let arguments = [
            "record",
            "--technique",
            technique,
            "--interval",
            "10ms",
            "--",
            program,
            // Half a second at least: some rounds, however busy the machine is.
            "100",
        ];
        let output = run(directory.path(), &arguments);
        if output.status.code() == Some(3) {
            note_row(technique, Some(&error_line(&output, 3)));
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{technique}: {output:?}");
        assert_eq!(output.stdout, b"ready\n", "the output is the program's");
        let report = report(directory.path(), FILE);
        assert_known_pages(&report);
        assert_eq!(report["command"][1], "100");
        assert_eq!(report["end"]["kind"], "exited");
        assert!(
            report["rounds"].as_array().map_or(0, Vec::len) > 1,
            "{technique}"
        );
        note_row(technique, None);
    }
}

#[test]
fn the_shortest_program_leaves_a_round() {
    let directory = directory();
    let output = run(directory.path(), &["record", "--last-round", "--", "true"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(message.starts_with("pagetrail: recorded ") && message.lines().count() == 1);
    assert!(
        message.ends_with("look at it with: pagetrail report\n"),
        "{message}"
    );
    assert!(!message.contains("--last-round"), "nothing is missing");
    let report = report(directory.path(), FILE);
    assert!(!check_schema(&report).is_empty());
}

#[test]
fn what_is_missing_at_the_end_is_said() {
    let directory = directory();
    let record = |interval, script| {
        let arguments = ["record", "--interval", interval, "--", "sh", "-c", script];
        let output = run(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    };
    // Its exit status is passed on though there is no round, and no file.
    let message = record("1h", "exit 3");
    assert!(message.contains("nothing was recorded"), "{message}");
    assert!(message.contains("(--last-round records it)"), "{message}");
    assert!(!directory.path().join(FILE).exists());
    let message = record("1ms", "sleep 0.3; exit 3");
    assert!(message.contains("without the program's last "), "{message}");
    assert!(message.contains("(--last-round records them)"), "{message}");
    assert!(!trail(directory.path()).rounds.is_empty());
}

#[test]
fn the_exit_status_is_the_programs() {
    let directory = directory();
    for (script, code, end) in [
        ("exit 3", 3, End::Exited(3)),
        ("kill -9 $$", 137, End::Killed(9)),
        ("kill -TERM $$", 143, End::Killed(15)),
    ] {
        let long = format!("sleep 0.3; {script}");
        for arguments in [
            ["--last-round", "--", "sh", "-c", script],
            ["--interval=1ms", "--", "sh", "-c", &long],
        ] {
            let output = run(directory.path(), &[&["record"], &arguments[..]].concat());
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            let trail = trail(directory.path());
            assert_eq!(trail.end.as_ref(), Some(&end));
            assert!(!trail.rounds.is_empty());
        }
    }
}

#[test]
fn a_process_is_followed_to_its_end() {
    let directory = directory();
    let running = Running::known_pages();
    let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
    recording.wait_for(4);
    drop(running);
    let output = recording.wait();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(trail(directory.path()).end, Some(End::Gone));
    assert_known_pages(&report(directory.path(), FILE));
}

#[test]
fn an_interrupt_ends_a_recording_and_keeps_it() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let directory = directory();
        let mut running = Running::known_pages();
        let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
        recording.wait_for(3);
        recording.signal(signal);
        let output = recording.wait();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(running.is_alive(), "the process is left alone");
        assert_eq!(trail(directory.path()).end, Some(End::Detached));
        assert_known_pages(&report(directory.path(), FILE));
    }
}

#[test]
fn signals_are_the_programs_business() {
    let directory = directory();
    let script = "trap 'exit 7' TERM; : > ready; while :; do sleep 0.02; done";
    let recording = Recording::start(directory.path(), &["--", "sh", "-c", script]);
    let ready = directory.path().join("ready");
    wait_until("the program is ready", || ready.exists());
    recording.wait_for(1);
    let before = trail(directory.path()).rounds.len();
    recording.signal(Signal::INT);
    recording.wait_for(before + 3);
    recording.signal(Signal::TERM);
    let output = recording.wait();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(trail(directory.path()).end, Some(End::Exited(7)));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(" processes, in "), "{message}");
}

/// Without descriptors nothing can be recorded, and the reason is said: the process is there.
#[test]
fn few_descriptors_are_no_missing_process() {
    let directory = directory();
    let running = Running::known_pages();
    let mut recorded = 0;
    for limit in [4, 5, 6, 8, 10, 12, 64] {
        let script = format!("ulimit -n {limit}; exec \"$0\" record -p \"$1\" --rounds 1");
        let mut shell = Command::new("sh");
        shell.current_dir(directory.path()).stdin(Stdio::null());
        shell.args([
            "-c",
            &script,
            env!("CARGO_BIN_EXE_pagetrail"),
            &running.pid(),
        ]);
        let output = shell.output().expect("a shell");
        let message = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => recorded += 1,
            Some(2 | 3) => assert!(
                message.contains("Too many open files"),
                "{limit}: {message}"
            ),
            _ => panic!("{limit}: {output:?}"),
        }
    }
    assert!(recorded > 0, "64 are enough");
}

#[test]
fn limits_end_a_recording() {
    let directory = directory();
    let running = Running::known_pages();
    let pid = running.pid();
    let arguments = ["record", "-p", &pid, "--rounds", "3", "--interval", "10ms"];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(trail(directory.path()).rounds.len(), 3);
    let arguments = [
        "record",
        "-p",
        &pid,
        "--duration",
        "50ms",
        "--interval",
        "1h",
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let trail = trail(directory.path());
    assert_eq!((trail.rounds.len(), trail.end), (1, Some(End::Detached)));
    assert!(trail.rounds[0].duration_ns >= 49_000_000);
}

#[test]
fn a_program_runs_on_behind_a_limit() {
    let directory = directory();
    let script = "sleep 0.2; : > done; exit 4";
    let arguments = [
        "record",
        "--interval",
        "10ms",
        "--rounds",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(directory.path().join("done").exists());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("runs on untracked"), "{message}");
    assert_eq!(trail(directory.path()).end, Some(End::Detached));
}

#[test]
fn pictures_come_with_the_recording() {
    let directory = directory();
    let arguments = [
        "record",
        "--last-round",
        "--html",
        "a.html",
        "--png",
        "a.png",
        "--",
        "sh",
        "-c",
        "exit 5",
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let file = |name| fs::read(directory.path().join(name)).expect(name);
    assert!(file("a.html").starts_with(b"<!doctype html>"));
    assert!(file("a.png").starts_with(b"\x89PNG"));
}

#[test]
fn what_was_recorded_outlives_a_full_disk() {
    let directory = directory();
    let running = Running::known_pages();
    let pid = running.pid();
    let full = run(directory.path(), &["record", "-p", &pid, "-o", "/dev/full"]);
    assert!(last_line(&full, 2).contains("No space left on device"));
    // A limit on the size of files does the same in the middle of a recording. Its unit is the
    // shell's.
    let script = "ulimit -f 16; exec \"$0\" record -p \"$1\" --interval 5ms";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_pagetrail"), &pid])
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    let message = last_line(&output, 2);
    let trail = trail(directory.path());
    assert!(trail.rounds.len() > 2 && trail.is_cut_off());
    let kept = format!("the {} rounds before are kept", trail.rounds.len());
    assert!(message.contains(&kept), "{message}");
    assert_known_pages(&report(directory.path(), FILE));
}

#[test]
fn only_recordings_are_overwritten() {
    let directory = directory();
    let path = directory.path();
    fs::write(path.join("text"), "precious").expect("a file");
    let refused = run(path, &["record", "-o", "text", "--", "true"]);
    assert!(error_line(&refused, 2).contains("is not a recording"));
    assert_eq!(fs::read(path.join("text")).expect("a file"), b"precious");
    assert_eq!(
        run(
            path,
            &["record", "--last-round", "--", "sh", "-c", "exit 1"]
        )
        .status
        .code(),
        Some(1)
    );
    let whole = ["record", "--last-round", "--", "true"];
    assert_eq!(run(path, &whole).status.code(), Some(0));
    assert_eq!(trail(path).end, Some(End::Exited(0)), "the new one");
    // A recording that cannot begin leaves the earlier one, and no new file.
    let absent = "4194305";
    error_line(&run(path, &["record", "-p", absent]), 2);
    assert_eq!(trail(path).end, Some(End::Exited(0)));
    error_line(&run(path, &["record", "-p", absent, "-o", "new"]), 2);
    assert!(!path.join("new").exists());
}

#[test]
fn pictures_and_the_recording_are_different_files() {
    let directory = directory();
    let path = directory.path();
    fs::write(path.join("text"), "precious").expect("a file");
    for (arguments, says) in [
        (["-o", "a", "--html", "a"], "a is the recording itself"),
        (
            ["--html", "text", "--png", "b"],
            "text exists and is no web page",
        ),
        (["--html", "b", "--png", "b"], "b is the HTML page"),
    ] {
        let command = ["--", "sh", "-c", ": > ran"];
        let refused = run(path, &[&["record"], &arguments[..], &command].concat());
        assert!(error_line(&refused, 2).contains(says), "{refused:?}");
        let names = fs::read_dir(path).expect("a directory").map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        });
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["text"],
            "refused before anything is done"
        );
    }
}

/// On a machine where this guest runs there is nothing to see here; elsewhere the recording before
/// must outlive the attempt.
#[test]
fn a_guest_that_cannot_run_leaves_the_earlier_recording() {
    let directory = directory();
    let path = directory.path();
    let whole = ["record", "--last-round", "--", "true"];
    assert_eq!(run(path, &whole).status.code(), Some(0));
    let before = fs::read(path.join(FILE)).expect("a recording");
    let output = run(path, &["record", "--vm", "--", "true"]);
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert_eq!(trail(path).end, Some(End::Exited(0))),
        Some(3) => {
            assert!(!message.contains("recorded 0"), "{message}");
            assert!(fs::read(path.join(FILE)).is_ok_and(|after| after == before));
        }
        _ => panic!("{output:?}"),
    }
}

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
    (parent, Leftover(child.trim().parse().expect("a PID")))
}

/// A process of which only the PID is known; it ends with the test.
struct Leftover(i32);

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).expect("a PID"), Signal::KILL);
    }
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

fn tree(directory: &Path) -> TreeTrail {
    let file = File::open(directory.join(FILE)).expect("a trail");
    TreeTrail::read(BufReader::new(file)).expect("it reads")
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

#[test]
fn two_recordings_do_not_share_a_file() {
    let directory = directory();
    let running = Running::known_pages();
    let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
    recording.wait_for(1);
    let second = run(directory.path(), &["record", "--", "true"]);
    assert!(error_line(&second, 2).contains("another recording"));
    recording.signal(Signal::INT);
    assert_eq!(recording.wait().status.code(), Some(0));
}
