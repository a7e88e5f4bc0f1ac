//! Holds a guest over and over, whose threads change what is mapped: registers and mappings of a
//! hold are of one instant, and the program goes on as if nothing had happened.
//!
//! This program starts itself as the process that becomes the guest. Needs a KVM that runs guests.

#![allow(clippy::print_stderr, reason = "a guest that cannot start says so")]

use std::env;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use pagetrail::{Held, HeldThread, IfAbandoned, PageRange};
use pagetrail_vm::{GuestRound, Settings, check, hold_guest, pair, recorded_guest};

/// Set in the process that becomes the guest: the descriptor of a link.
const LINK: &str = "PAGETRAIL_TEST_STANDING";
/// How often the guest is held, and how often with `PAGETRAIL_LONG=1`.
const HOLDS: [usize; 2] = [60, 1000];
/// Far more than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// `NT_PRSTATUS`, and where its words are in `struct user_regs_struct`.
const GENERAL: u32 = 1;
const RAX: usize = 10;
const RCX: usize = 11;
const RDI: usize = 14;
const RIP: usize = 16;

fn main() -> ExitCode {
    if let Some(link) = env::var_os(LINK) {
        return start_guest(&link);
    }
    let test = Trial::test("registers_and_mappings_are_of_one_instant", || {
        registers_and_mappings_are_of_one_instant();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn start_guest(link: &OsString) -> ExitCode {
    let command: Vec<OsString> = env::args_os().skip(1).collect();
    let link = link.to_str().and_then(|link| link.parse().ok());
    let link = link.expect("a descriptor");
    let Err(error) = recorded_guest(&command, &Settings::default(), link);
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Where a thread is about to move memory from: a call that is under way counts as not begun.
fn moves_from(thread: &HeldThread) -> Option<u64> {
    let general = thread.registers.iter().find(|set| set.note == GENERAL)?;
    let word = |at: usize| {
        let bytes = general.bytes.get(at * 8..at * 8 + 8)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    };
    let is_before_call = word(RIP)? == word(RCX)?.wrapping_sub(2);
    (is_before_call && word(RAX)? == libc::SYS_mremap as u64).then(|| word(RDI))?
}

fn registers_and_mappings_are_of_one_instant() {
    if let Err(error) = check::try_guest() {
        return pagetrail_skips::not_here(error);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("standing");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standing.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-static", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    let (mut rounds, link) = pair().expect("sockets");
    let mut child = Command::new(env::current_exe().expect("this program"))
        .arg(&program)
        .env(LINK, link.as_raw_fd().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(link);
    let pid = child.id();
    let taker = thread::spawn(move || {
        // Dropping `rounds` lets the program end.
        while let Ok(GuestRound::Round(_)) = rounds.collect() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let began = Instant::now();
    let (mut held, mut moving, mut ended) = (0, 0, 0);
    let holds = HOLDS[usize::from(env::var_os("PAGETRAIL_LONG").is_some())];
    while held < holds && began.elapsed() < TIMEOUT {
        let hold = match hold_guest(pid) {
            Ok(Some(hold)) => hold,
            Ok(None) | Err(_) => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        let mut hold: Box<dyn Held> = hold;
        held += 1;
        let memory = hold.memory().expect("it has other memory, too").clone();
        for from in hold.threads().iter().filter_map(moves_from) {
            moving += 1;
            let page = PageRange::new(from, from + 4096).expect("a page");
            assert!(
                memory.intersects(page),
                "hold {held}: {from:#x} is to be moved and is not mapped"
            );
        }
        if hold.if_abandoned(IfAbandoned::Kill).is_ok() {
            ended += 1;
            hold.if_abandoned(IfAbandoned::GoOn).expect("it is held");
        }
        hold.release();
    }
    eprintln!("held {held}, before a move {moving}, calls ended {ended}");
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends");
    taker.join().expect("no panic");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.trim_end() == "all held",
        "{output:?}"
    );
    assert!(held > 10, "{held}");
}
