//! Recordings by `pagetrail record` of the program `known_pages`, and what must be in them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagetrail_trail::Trail;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::running::Running;
use super::{address, number, pagetrail};

/// What `known_pages.c` says of itself.
pub(crate) const BASE: u64 = 0x1000_0000_0000;
pub(crate) const PAGES: u64 = 300;
pub(crate) const STEP: u64 = 3;

pub(crate) const FILE: &str = "pagetrail.trail";
/// For what takes milliseconds on a machine that is not busy.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// The program `known_pages`, compiled once.
pub(crate) fn known_pages() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("known_pages");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/known_pages.c");
        // Another test may compile it, or run it, now.
        let draft = program.with_extension(std::process::id().to_string());
        let mut compile = Command::new("cc");
        let compile = compile.arg("-O1").arg("-o").arg(&draft).arg(source);
        let status = compile.status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        fs::rename(draft, &program).expect("it is moved");
        program
    })
}

impl Running {
    /// `known_pages` without end, past its start.
    pub(crate) fn known_pages() -> Self {
        let mut command = Command::new(known_pages());
        let command = command.arg("0").stdout(Stdio::piped());
        let mut running = Self(command.spawn().expect("it starts"));
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        running
    }
}

/// A recording that runs beside the test.
pub(crate) struct Recording {
    process: Option<Running>,
    file: PathBuf,
}

impl Recording {
    pub(crate) fn start(directory: &Path, arguments: &[&str]) -> Self {
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
    pub(crate) fn wait_for(&self, rounds: usize) {
        let kept = || {
            let file = File::open(&self.file).ok()?;
            Some(Trail::read(BufReader::new(file)).ok()?.rounds.len())
        };
        wait_until("rounds come", || kept().is_some_and(|kept| kept >= rounds));
    }

    /// Waits until it has written something, or has ended: its targets may have.
    pub(crate) fn wait_for_start(&self) {
        let process = self.process.as_ref().expect("it runs");
        let stat = format!("/proc/{}/stat", process.0.id());
        let is_zombie = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        let has_begun = || fs::metadata(&self.file).is_ok_and(|file| file.len() > 0);
        wait_until("the recording begins", || has_begun() || is_zombie());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        process.signal(signal);
    }

    pub(crate) fn wait(mut self) -> Output {
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

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

pub(crate) fn trail(directory: &Path) -> Trail {
    let file = File::open(directory.join(FILE)).expect("a recording");
    Trail::read(BufReader::new(file)).expect("a whole one")
}

/// Checks all that a report of schema 2 promises about its rounds; returns the pages that were
/// written.
pub(crate) fn check_schema(report: &Value) -> BTreeSet<u64> {
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

pub(crate) fn assert_known_pages(report: &Value) {
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
