//! Holds a real guest to the contract of [`DirtySource`]: what it writes is in the round, also of a
//! round before that was dropped; it stands still while it is held; its last round has everything.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.
//! The machine with nested virtualization that `cargo xtask test` starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::env;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use pagetrail::{
    AccessKind, DirtySource, Ended, Event, Memory, PageRange, PageSet, State, TrackMode, page_size,
};
use pagetrail_vm::{GuestSource, RoundDetail, Settings, check, pair, recorded_guest};

/// The number of the link's descriptor, in the process that becomes the guest.
const LINK: &str = "PAGETRAIL_TEST_LINK";
/// The address and length of the memory in `vm_accesses.c`.
const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 300;
/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if let Some(link) = env::var_os(LINK) {
        return become_guest(&link);
    }
    let tests: [(&str, fn()); 6] = [
        ("a_dropped_round_comes_back", a_dropped_round_comes_back),
        (
            "reads_are_in_rounds_of_accesses",
            reads_are_in_rounds_of_accesses,
        ),
        ("a_held_guest_stands_still", a_held_guest_stands_still),
        ("a_busy_guest_is_held", a_busy_guest_is_held),
        ("another_program_is_no_guest", another_program_is_no_guest),
        ("sub_pages_merge_and_split", sub_pages_merge_and_split),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn become_guest(link: &OsString) -> ExitCode {
    let link = link.to_str().and_then(|link| link.parse().ok());
    let mut settings = Settings::default();
    settings.accesses = true;
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let Err(error) = recorded_guest(&command, &settings, link.expect("a number"));
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Whether there are no guests here; says why.
fn no_guest() -> bool {
    match check::try_guest().and_then(|_| check::try_accesses()) {
        Ok(()) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

/// A guest that reads and writes on request.
struct Requested {
    source: GuestSource,
    /// The requests; closing them ends the program.
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Requested {
    fn start(track: TrackMode, command: &[&str]) -> Self {
        let (rounds, link) = pair().expect("sockets");
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(command)
            .env(LINK, link.as_raw_fd().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut requested = Self {
            source: GuestSource::new(rounds, child, track, RoundDetail::Pages),
            input,
            output: output.expect("it is piped"),
        };
        requested.source.collect().expect("it is a guest").commit();
        requested
    }

    fn send(&mut self, what: u8) {
        let input = self.input.as_mut().expect("it is piped");
        input.write_all(&[what]).expect("the program reads");
    }

    fn request(&mut self, what: u8) {
        self.send(what);
        self.await_answer(what);
    }

    fn await_answer(&mut self, what: u8) {
        let mut answer = [0];
        self.output.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, [what]);
    }

    /// The pages of the program's memory in the next round of a kind.
    fn collect(&mut self, access_kind: AccessKind, commit: bool) -> PageSet {
        loop {
            let round = self.source.collect().expect("a round");
            let is_wanted = round.access_kind() == access_kind;
            let dirty = round.dirty().intersection(&memory());
            if commit || !is_wanted {
                round.commit();
            }
            if is_wanted {
                return dirty;
            }
        }
    }

    /// Ends the program, and returns how it ended.
    fn end(&mut self) -> State {
        self.input = None;
        loop {
            match self.source.wait(TIMEOUT) {
                State::Ready => self.source.collect().expect("a round").commit(),
                State::Exiting => self.source.release_exit(),
                state => return state,
            }
        }
    }
}

fn program(directory: &Path) -> PathBuf {
    let source = "../pagetrail-cli/tests/vm_accesses.c";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = directory.join("vm_accesses");
    let mut compile = Command::new("cc");
    let compile = compile.args(["-O1", "-pthread", "-o"]).arg(&program);
    let compiled = compile.arg(source).output().expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

fn start(track: TrackMode) -> Requested {
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path());
    // It is mapped before the directory goes.
    Requested::start(track, &[program.to_str().expect("UTF-8")])
}

/// Every third page of the program's memory, from page `first` on.
fn every_third(first: u64) -> PageSet {
    let page = page_size();
    let starts = (first..PAGES)
        .step_by(3)
        .map(|page_number| BASE + page_number * page);
    starts
        .filter_map(|start| PageRange::new(start, start + page))
        .collect()
}

fn memory() -> PageSet {
    PageSet::from_iter(PageRange::new(BASE, BASE + PAGES * page_size()))
}

fn a_dropped_round_comes_back() {
    if no_guest() {
        return;
    }
    let mut guest = start(TrackMode::Writes);
    let nothing = PageSet::new();
    // The program maps its memory before it reads requests.
    guest.request(b'.');
    guest.collect(AccessKind::Writes, true);
    for commits in [[true, true], [false, true], [false, false]] {
        guest.request(b'w');
        assert_eq!(
            guest.collect(AccessKind::Writes, commits[0]),
            every_third(0)
        );
        let again = match commits[0] {
            true => nothing.clone(),
            false => every_third(0),
        };
        assert_eq!(guest.collect(AccessKind::Writes, commits[1]), again);
    }
    // What is written since is added to what came back.
    guest.request(b'w');
    assert_eq!(guest.collect(AccessKind::Writes, true), every_third(0));
    guest.request(b'r');
    assert_eq!(guest.collect(AccessKind::Writes, true), nothing);
    let named = guest.source.regions().iter();
    let named = named.filter(|region| region.name == "[stack]").count();
    assert_eq!(named, 1, "{:?}", guest.source.regions());
    // The last write is in the final round, for which the program waits.
    guest.request(b'w');
    guest.input = None;
    assert_eq!(guest.source.wait(TIMEOUT), State::Exiting);
    assert_eq!(guest.collect(AccessKind::Writes, false), every_third(0));
    assert_eq!(guest.source.wait(TIMEOUT), State::Exiting, "it was dropped");
    assert_eq!(guest.collect(AccessKind::Writes, true), every_third(0));
    guest.source.release_exit();
    assert_eq!(
        guest.source.wait(TIMEOUT),
        State::Ended(Some(Ended::Exited(0)))
    );
}

fn reads_are_in_rounds_of_accesses() {
    if no_guest() {
        return;
    }
    let mut guest = start(TrackMode::Alternate);
    guest.request(b'.');
    guest.collect(AccessKind::Accesses, true);
    guest.request(b'b');
    let both = every_third(0).union(&every_third(1));
    assert_eq!(guest.collect(AccessKind::Writes, true), every_third(0));
    assert_eq!(guest.source.wait(Duration::ZERO), State::Ready);
    assert_eq!(guest.collect(AccessKind::Accesses, false), both);
    assert_eq!(guest.source.wait(Duration::ZERO), State::Running);
    guest.request(b'k');
    let all = both.union(&every_third(2));
    assert_eq!(guest.collect(AccessKind::Accesses, true), all);
    assert_eq!(guest.end(), State::Ended(Some(Ended::Exited(0))));
}

fn a_held_guest_stands_still() {
    if no_guest() {
        return;
    }
    let mut guest = start(TrackMode::Writes);
    // Two threads in the guest, which make no system call.
    for what in [b'0', b'1', b'w'] {
        guest.request(what);
    }
    let pid = guest.source.pid();
    let contents = || {
        let range = PageRange::new(BASE, BASE + PAGES * page_size()).expect("not empty");
        let mut bytes = vec![0; range.bytes() as usize];
        let memory = Memory::of(pid).expect("its memory");
        memory.read(&[range], &mut bytes).expect("its contents");
        bytes
    };
    let held = guest.source.hold().expect("it is held");
    let round = guest.source.collect_held(&*held).expect("a round");
    assert!(every_third(0).difference(round.dirty()).is_empty());
    round.commit();
    let before = contents();
    guest.send(b'w');
    // The request has arrived, and cannot be served: however long this is, it must not fail.
    sleep(Duration::from_millis(200));
    assert!(contents() == before, "it has written");
    // It may be looked at once more meanwhile.
    assert_eq!(guest.collect(AccessKind::Writes, true), PageSet::new());
    held.release();
    guest.await_answer(b'w');
    assert!(contents() != before, "it has not written");
    assert_eq!(guest.collect(AccessKind::Writes, true), every_third(0));
    // A hold that is dropped is released, too.
    drop(guest.source.hold().expect("it is held"));
    guest.request(b'w');
    assert_eq!(guest.end(), State::Ended(Some(Ended::Exited(0))));
}

/// A program that ends with the test.
struct Endless(Requested);

impl Drop for Endless {
    fn drop(&mut self) {
        let pid = self.0.source.pid().to_string();
        let _ = Command::new("kill").args(["-KILL", &pid]).status();
    }
}

/// It has one thread, which is in the guest whenever it is held.
fn a_busy_guest_is_held() {
    if no_guest() {
        return;
    }
    let command = ["sh", "-c", "i=0; while :; do i=$((i+1)); done"];
    let mut guest = Endless(Requested::start(TrackMode::Writes, &command));
    for _ in 0..30 {
        let held = guest.0.source.hold().expect("it is held");
        let round = guest.0.source.collect_held(&*held).expect("a round");
        round.commit();
        held.release();
        assert_eq!(
            guest.0.source.wait(Duration::from_millis(2)),
            State::Running
        );
    }
    // It goes on: the shell writes its variable.
    let went_on = (0..1000).any(|_| {
        let round = guest.0.source.collect().expect("a round");
        let is_written = !round.dirty().is_empty();
        round.commit();
        is_written
    });
    assert!(went_on, "it stands still");
}

/// Where a guest has accessed bits, it has nested paging, and merges are exact.
fn sub_pages_merge_and_split() {
    if no_guest() {
        return;
    }
    check::try_units().expect("merged sub-pages");
}

fn another_program_is_no_guest() {
    if no_guest() {
        return;
    }
    let mut guest = Requested::start(TrackMode::Writes, &["sh", "-c", "read x; exec cat"]);
    guest.send(b'\n');
    assert_eq!(guest.source.wait(TIMEOUT), State::Ready);
    let round = guest.source.collect().expect("what it wrote before");
    let has_note = |event: &Event| matches!(event, Event::Note(note) if note.contains("executes"));
    assert!(round.events().iter().any(has_note), "{:?}", round.events());
    round.commit();
    let error = guest.source.collect().expect_err("it is no guest");
    assert!(matches!(error, pagetrail::Error::Gone { .. }), "{error}");
    guest.request(b'x');
    assert_eq!(guest.source.wait(Duration::ZERO), State::Running);
    assert_eq!(guest.end(), State::Ended(Some(Ended::Exited(0))));
}
