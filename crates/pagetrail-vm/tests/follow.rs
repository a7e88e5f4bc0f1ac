//! Guests whose children and whose executed programs are guests, too: what a program finds after
//! `execve(2)`, and which calls fail, is compared with a native run; and the recording of each
//! process has what that wrote, and nothing else.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.
//! The machine with nested virtualization that `cargo xtask test` starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use pagetrail::{DirtySource, Ended, Event, PageRange, PageSet, State, TrackMode, page_size};
use pagetrail_vm::{
    Announcements, GuestChange, GuestTree, RoundDetail, Settings, become_guest, check,
    recorded_guest, resume,
};

/// Says that this process becomes a guest, and has the descriptor of the announcements of one that
/// is recorded.
const GUEST: &str = "PAGETRAIL_TEST_GUEST";
/// The address of the memory in `follow.c`.
const BASE: u64 = 0x1000_0000_0000;
/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    resume();
    if let Some(link) = env::var_os(GUEST) {
        return run_guest(&link);
    }
    let tests: [(&str, fn()); 7] = [
        (
            "programs_find_what_they_find_natively",
            programs_find_what_they_find_natively,
        ),
        ("executed_programs_are_guests", executed_programs_are_guests),
        (
            "programs_with_other_rights_run_natively",
            programs_with_other_rights_run_natively,
        ),
        ("shells_run", shells_run),
        (
            "each_process_has_its_own_writes",
            each_process_has_its_own_writes,
        ),
        (
            "a_stopped_process_keeps_nobody_waiting",
            a_stopped_process_keeps_nobody_waiting,
        ),
        (
            "they_go_on_without_the_recorder",
            they_go_on_without_the_recorder,
        ),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn run_guest(link: &OsString) -> ExitCode {
    let mut settings = Settings::default();
    settings.follow = true;
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let link = link.to_str().and_then(|link| link.parse().ok());
    let Err(error) = match link {
        Some(link) => recorded_guest(&command, &settings, link),
        None => become_guest(&command, &settings),
    };
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Whether there are no guests here; says why.
fn no_guest() -> bool {
    match check::try_guest() {
        Ok(_) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

fn program(directory: &Path) -> PathBuf {
    let program = directory.join("follow");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/follow.c");
    let mut compile = Command::new("cc");
    let compile = compile
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source);
    let compiled = compile.output().expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

fn natively(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    finish(directory, command.env(GUEST, ""))
}

fn as_a_guest(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(words);
    finish(directory, command.env(GUEST, ""))
}

fn finish(directory: &Path, command: &mut Command) -> Output {
    let command = command.current_dir(directory).stdin(Stdio::null());
    command.output().expect("it starts")
}

#[track_caller]
fn same(directory: &Path, words: &[&str]) {
    let native = natively(directory, words);
    let guest = as_a_guest(directory, words);
    assert_eq!(native, guest, "{words:?}");
}

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn programs_find_what_they_find_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    for case in ["state", "threads", "failures", "ways", "narrow"] {
        same(directory.path(), &["./follow", case]);
    }
    // It deletes itself.
    let native = natively(directory.path(), &["./follow", "gone", "2"]);
    program(directory.path());
    let guest = as_a_guest(directory.path(), &["./follow", "gone", "2"]);
    assert_eq!(native, guest);
    assert_eq!(guest.status.code(), Some(4), "{guest:?}");
}

fn executed_programs_are_guests() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    let script = directory.path().join("script");
    std::fs::write(&script, "#!./follow where\n").expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its mode");
    let words = "./follow descriptor; ./follow; (./follow where); ./script; sh -c './follow; exec ./follow where'; exec ./follow";
    let output = as_a_guest(directory.path(), &["sh", "-c", words]);
    assert_eq!(text(&output), "a guest\n".repeat(7));
}

/// A program that runs with other rights than its caller's is not a guest, which would not have
/// them.
fn programs_with_other_rights_run_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path());
    for (bits, expected) in [
        (0o4755, "natively\n"),
        (0o2755, "natively\n"),
        (0o755, "a guest\n"),
    ] {
        let mode = std::fs::Permissions::from_mode(bits);
        std::fs::set_permissions(&program, mode).expect("its mode");
        let output = as_a_guest(directory.path(), &["sh", "-c", "./follow; true"]);
        assert_eq!(text(&output), expected, "{bits:o}");
    }
}

fn shells_run() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("makefile"),
        "all: a b\na b:\n\tseq 3 | tac > $@\n",
    )
    .expect("a makefile");
    let commands: [&[&str]; 4] = [
        &[
            "sh",
            "-c",
            "seq 100 | sort -r | head -3; echo $(expr 6 '*' 7); exit 3",
        ],
        &[
            "bash",
            "-c",
            "trap 'echo got' USR1; kill -USR1 $$; x=$(echo sub); echo ${x^^}; sleep 0.1 & wait; echo $?; \
             sleep 100 & kill %1; wait %1; echo $?",
        ],
        &["make", "--no-print-directory", "-j2", "-s"],
        &[
            "sh",
            "-c",
            "cat a b; (exec sh -c 'kill -TERM $$'); echo $?; exec /nowhere",
        ],
    ];
    for command in commands {
        same(directory.path(), command);
    }
}

/// Starts a program that is recorded, with pipes.
fn start(directory: &Path, case: &str) -> (GuestTree, Pipes) {
    let (announcements, link) = Announcements::pair().expect("sockets");
    let mut command = Command::new(env::current_exe().expect("this program"));
    let command = command.args(["./follow", case]).current_dir(directory);
    let command = command.env(GUEST, link.as_raw_fd().to_string());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let pipes = Pipes {
        input: child.stdin.take().expect("it is piped"),
        output: BufReader::new(child.stdout.take().expect("it is piped")),
    };
    let words = vec!["./follow".to_owned(), case.to_owned()];
    let tree = GuestTree::new(
        announcements,
        child,
        words,
        TrackMode::Writes,
        RoundDetail::Pages,
    );
    (tree, pipes)
}

struct Pipes {
    input: std::process::ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Pipes {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }
}

/// What was recorded of a process.
#[derive(Debug, Default)]
struct Recorded {
    parent: Option<u32>,
    written: PageSet,
    executed: Vec<String>,
    has_ended: bool,
}

/// Records until the first process has ended.
fn record(tree: &mut GuestTree) -> (BTreeMap<u32, Recorded>, Option<Ended>) {
    let mut all = BTreeMap::<u32, Recorded>::new();
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < TIMEOUT, "{all:?}");
        let state = tree.wait(Duration::from_millis(20));
        for change in tree.follow() {
            match change {
                GuestChange::Appeared { number } => {
                    let mut members = tree.members().iter();
                    let member = members.find(|member| member.number() == number);
                    let parent = member.and_then(|member| member.parent());
                    all.entry(number).or_default().parent = parent;
                }
                GuestChange::Ended { number } => all.entry(number).or_default().has_ended = true,
                _ => {}
            }
        }
        match state {
            State::Ended(ended) => return (all, ended),
            State::Running | State::Exiting => tree.request_rounds(),
            _ => {}
        }
        take(tree, &mut all);
        if state == State::Exiting {
            tree.release_exit();
        }
    }
}

fn take(tree: &mut GuestTree, all: &mut BTreeMap<u32, Recorded>) {
    let memory = PageRange::new(BASE, BASE + 64 * page_size()).expect("a range");
    for member in tree.members_mut() {
        if !member.is_ready() {
            continue;
        }
        let recorded = all.entry(member.number()).or_default();
        let round = member.source_mut().collect().expect("a round");
        recorded
            .written
            .union_with(&round.dirty().intersection(&PageSet::from_iter([memory])));
        for event in round.events() {
            match event {
                Event::Exec { command } => recorded.executed.push(command.join(" ")),
                other => panic!("{other:?}"),
            }
        }
        round.commit();
    }
}

/// Eight pages from each of these on.
fn from(pages: &[u64]) -> PageSet {
    let at = |page: u64| BASE + page * page_size();
    let ranges = pages
        .iter()
        .filter_map(|page| PageRange::new(at(*page), at(page + 8)));
    ranges.collect()
}

fn each_process_has_its_own_writes() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    let (mut tree, pipes) = start(directory.path(), "tree");
    let (all, ended) = record(&mut tree);
    drop(pipes);
    assert_eq!(ended, Some(Ended::Exited(6)), "{all:?}");
    let expected: [(Option<u32>, &[u64], &[&str]); 4] = [
        (None, &[0, 40], &[]),
        (Some(0), &[8, 24], &["./follow leaf 24"]),
        (Some(1), &[16], &[]),
        (Some(0), &[32], &[]),
    ];
    assert_eq!(all.len(), expected.len(), "{all:?}");
    for ((number, recorded), (parent, pages, executed)) in all.iter().zip(expected) {
        assert_eq!(recorded.parent, parent, "{number}");
        assert_eq!(recorded.written, from(pages), "{number}");
        assert_eq!(recorded.executed, executed, "{number}");
        assert_eq!(recorded.has_ended, *number != 0);
    }
}

fn a_stopped_process_keeps_nobody_waiting() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    let (mut tree, pipes) = start(directory.path(), "stopped");
    let (all, ended) = record(&mut tree);
    drop(pipes);
    assert_eq!(ended, Some(Ended::Exited(6)), "{all:?}");
    assert_eq!(all.len(), 5);
    assert_eq!(all[&1].written, from(&[8, 16]));
}

fn they_go_on_without_the_recorder() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path());
    let (mut tree, mut pipes) = start(directory.path(), "alone");
    assert_eq!(pipes.line(), "begun\n");
    while tree.members().len() < 2 {
        tree.wait(Duration::from_millis(20));
        tree.follow();
        tree.request_rounds();
        take(&mut tree, &mut BTreeMap::new());
    }
    drop(tree);
    pipes.input.write_all(b"x").expect("it reads");
    assert_eq!(pipes.line(), "ended 0\n");
    assert_eq!(pipes.line(), "");
}
