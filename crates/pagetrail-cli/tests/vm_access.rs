//! Tests `pagetrail record --vm --access` on a program that reads and writes on request, and the
//! use of the recording for tiering.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::guest::{compiled, no_guest};
use common::{pagetrail, report, run};
use pagetrail::{AccessKind, PageRange, PageSet, page_size};
use pagetrail_tier::source::{Replay, Source};
use pagetrail_trail::{Reader, Record, Round, Trail};

/// The address and length of the memory in `vm_accesses.c`.
const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 300;
/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);
const FILE: &str = "pagetrail.trail";

/// A recording in progress, of a program that reads and writes on request.
struct Recording<'a> {
    directory: &'a Path,
    child: Child,
    /// The requests; closing them ends the program.
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl<'a> Recording<'a> {
    fn begin(directory: &'a Path, access: &str) -> Self {
        let program = compiled(directory, "vm_accesses.c", &["-pthread"]);
        let program = program.to_str().expect("UTF-8");
        let arguments = [
            "record",
            "--vm",
            access,
            "--interval",
            "20ms",
            "--",
            program,
        ];
        let mut command = pagetrail(directory, &arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self {
            directory,
            input: child.stdin.take(),
            output: child.stdout.take().expect("it is piped"),
            child,
        }
    }

    /// Sends the program a request.
    fn request(&mut self, what: u8) {
        let input = self.input.as_mut().expect("it is piped");
        input.write_all(&[what]).expect("the program reads");
        let mut answer = [0];
        self.output
            .read_exact(&mut answer)
            .expect("the program answers");
        assert_eq!(answer, [what]);
    }

    /// The number of rounds so far.
    fn rounds(&self) -> usize {
        // The file may end within a record, or before its first one.
        let Ok(file) = File::open(self.directory.join(FILE)) else {
            return 0;
        };
        let Ok(mut reader) = Reader::open(BufReader::new(file)) else {
            return 0;
        };
        let mut rounds = 0;
        while let Ok(Some(record)) = reader.next_record() {
            rounds += usize::from(matches!(record, Record::Round(_)));
        }
        rounds
    }

    /// Waits until a whole round has passed from now on. Returns the number of rounds.
    fn await_rounds(&mut self) -> usize {
        let before = self.rounds();
        let began = Instant::now();
        loop {
            let now = self.rounds();
            // One may have been under way, and each may be two.
            if now >= before + 4 {
                return now;
            }
            assert!(began.elapsed() < TIMEOUT, "{now} rounds");
            assert_eq!(self.child.try_wait().expect("it is ours"), None);
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(mut self) -> Trail {
        self.input = None;
        let status = self.child.wait().expect("it is ours");
        assert_eq!(status.code(), Some(0));
        let file = File::open(self.directory.join(FILE)).expect("the recording");
        Trail::read(BufReader::new(file)).expect("a whole recording")
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pages(numbers: impl Iterator<Item = u64>) -> PageSet {
    let page = page_size();
    let starts = numbers.map(|number| BASE + number * page);
    starts
        .filter_map(|start| PageRange::new(start, start + page))
        .collect()
}

/// Every third page from page `first` on.
fn every_third(first: u64) -> PageSet {
    pages((first..PAGES).step_by(3))
}

fn memory() -> PageSet {
    pages(0..PAGES)
}

/// The pages of the program's memory in all rounds of a kind.
fn pages_of(rounds: &[Round], access_kind: AccessKind) -> PageSet {
    let rounds = rounds
        .iter()
        .filter(|round| round.access_kind == access_kind);
    let mut all = PageSet::new();
    rounds.for_each(|round| all.union_with(&round.written));
    all.intersection(&memory())
}

#[test]
fn reads_and_writes_are_distinguished() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let mut recording = Recording::begin(directory, "--access");
    let (written, read, by_kernel) = (every_third(0), every_third(1), every_third(2));
    let nothing = PageSet::new();
    // In this order: what is read before it was ever written is there for the first time.
    let steps = [
        (b'r', &nothing, read.clone()),
        (b'.', &nothing, nothing.clone()),
        (b'w', &written, written.clone()),
        (b'b', &written, written.union(&read)),
        (b'k', &nothing, by_kernel.clone()),
        (b'm', &nothing, pages((0..30).step_by(3))),
        (b'r', &nothing, read.clone()),
    ];
    let mut ends = vec![recording.await_rounds()];
    for (what, _, _) in &steps {
        recording.request(*what);
        ends.push(recording.await_rounds());
    }
    let trail = recording.end();
    assert_eq!(trail.header.technique, "kvm");
    for pair in trail.rounds.chunks(2) {
        assert!(pair[1].covers_same_interval(&pair[0]), "{pair:?}");
        assert!(pair[0].written.difference(&pair[1].written).is_empty());
    }
    // The last rounds before a step may have been under way when it began, but then there were some
    // before them.
    for (step, (what, written, touched)) in steps.iter().enumerate() {
        let rounds = &trail.rounds[ends[step] & !1..ends[step + 1] & !1];
        let what = *what as char;
        assert_eq!(
            pages_of(rounds, AccessKind::Writes),
            **written,
            "step {step}, {what}"
        );
        assert_eq!(
            pages_of(rounds, AccessKind::Accesses),
            *touched,
            "step {step}, {what}"
        );
    }
    let mut report_text = pagetrail(directory, &["report"]);
    let text = report_text.output().expect("it starts").stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(
        text.contains("page accesses") && text.contains("at once"),
        "{text}"
    );
    assert!(report(directory, FILE)["accesses"].is_object());
    replayed(directory, &trail);
}

/// A policy receives what HMM-V's has: reads and writes of the same window.
fn replayed(directory: &Path, trail: &Trail) {
    let file = File::open(directory.join(FILE)).expect("the recording");
    let mut replay = Replay::open(BufReader::new(file)).expect("a recording");
    let caps = replay.info().caps;
    assert!(caps.accesses && caps.writes && !caps.in_turns, "{caps:?}");
    for pair in trail.rounds.chunks(2) {
        let sample = replay.window().expect("a window for each pair");
        assert_eq!(sample.written.as_ref(), Some(&pair[0].written));
        assert_eq!(sample.accessed.as_ref(), Some(&pair[1].written));
    }
}

/// Each of two threads has a vCPU with its own TLB, and is not stopped at the end of a round.
#[test]
fn accesses_of_each_thread_are_recorded() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut recording = Recording::begin(directory.path(), "--access=only");
    let steps = [
        (b'0', every_third(0)),
        (b'1', every_third(1)),
        (b'1', every_third(1)),
        (b'.', PageSet::new()),
        (b'0', every_third(0)),
        (b'1', every_third(1)),
    ];
    let mut ends = vec![recording.await_rounds()];
    for (what, _) in &steps {
        recording.request(*what);
        ends.push(recording.await_rounds());
    }
    let trail = recording.end();
    for (step, (what, touched)) in steps.iter().enumerate() {
        let rounds = &trail.rounds[ends[step]..ends[step + 1]];
        let what = *what as char;
        assert_eq!(
            pages_of(rounds, AccessKind::Accesses),
            *touched,
            "step {step}, {what}"
        );
    }
}

#[test]
fn accesses_may_be_all_that_is_kept() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut recording = Recording::begin(directory.path(), "--access=only");
    recording.await_rounds();
    recording.request(b'b');
    let trail = recording.end();
    let kinds = trail.rounds.iter().map(|round| round.access_kind);
    assert!(kinds.eq(trail.rounds.iter().map(|_| AccessKind::Accesses)));
    let expected = every_third(0).union(&every_third(1));
    assert_eq!(pages_of(&trail.rounds, AccessKind::Accesses), expected);
}

#[test]
fn a_number_of_rounds_is_kept_to() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let arguments = [
        "record",
        "--vm",
        "--access",
        "--rounds",
        "3",
        "--interval",
        "5ms",
    ];
    let output = run(directory, &[&arguments[..], &["--", "sleep", "1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rounds = report(directory, FILE)["rounds"].as_array().map(Vec::len);
    assert_eq!(rounds, Some(3));
}
