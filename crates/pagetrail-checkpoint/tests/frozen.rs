//! Checkpoints that keep pages while the process writes to them (`Mode::Cow`) do not harm it:
//! threads end as they should, and neither the death of the tracker nor a stop of it holds anybody.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::Technique::PagemapScan;
use pagetrail::{Choice, Memory, PageRange};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Mode, ProcessCheckpointer, ProcessOptions, Store, WriterOptions};
use rustix::process::Signal;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Victim, random, row, times, working};

const ROLE: &str = "PAGETRAIL_TEST_COW";
const SUBJECT: &str = "copy-on-write checkpoints";

fn attach(pid: u32) -> ProcessCheckpointer {
    let options = ProcessOptions {
        mode: Mode::Cow,
        technique: Choice::Technique(PagemapScan),
        ..ProcessOptions::default()
    };
    ProcessCheckpointer::attach(pid, options).unwrap_or_else(|error| panic!("{error}"))
}

fn store() -> Store {
    Store::create_on(Arc::new(InMemory::new())).unwrap()
}

/// The tracker of other tests; not a test by itself.
#[test]
fn tracker() {
    let Ok(pid) = std::env::var(ROLE) else {
        return;
    };
    let mut process = attach(pid.parse().unwrap());
    println!("tracking");
    loop {
        let store = store();
        let mut writer = store.writer(WriterOptions::default()).unwrap();
        for _ in 0..20 {
            match process.checkpoint(&mut writer) {
                Ok(_) => {}
                // After a stop of this process, its target had been let go.
                Err(error) => println!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A tracker in a process of its own, killed at its end.
struct Tracker(Child);

impl Tracker {
    fn of(victim: &Victim) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["tracker", "--exact", "--nocapture", "--quiet"])
            .env(ROLE, victim.pid().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut seen, mut byte) = (Vec::new(), [0]);
        let stdout = child.stdout.as_mut().unwrap();
        while !seen.ends_with(b"tracking") {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "it ended at once");
            seen.push(byte[0]);
        }
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ends_of_threads_are_seen() {
    if working(SUBJECT, &[PagemapScan]).is_empty() {
        return;
    }
    let Some(victim) = Victim::start("leaver", &["600", "4096"]) else {
        return;
    };
    let store = store();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = attach(victim.pid());
    for _ in 0..times(30, 1000) {
        process.checkpoint(&mut writer).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    drop(process);
    victim.is_clean(true);
    victim.finish();
    row(SUBJECT, PagemapScan.name(), "works", "");
}

/// How far the first thread of `stamps` is.
fn progress(memory: &Memory) -> u64 {
    const BASE: u64 = 0x1000_0000_0000;
    let page = PageRange::new(BASE + 4096, BASE + 2 * 4096).unwrap();
    let mut bytes = vec![0; 4096];
    memory.read(&[page], &mut bytes).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Waits until the victim has made progress.
fn goes_on(memory: &Memory, when: &str) {
    let (before, deadline) = (progress(memory), Instant::now() + Duration::from_secs(60));
    while progress(memory) == before {
        assert!(Instant::now() < deadline, "it stands still {when}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_process_goes_on_when_its_tracker_is_killed_or_stopped() {
    if working(SUBJECT, &[PagemapScan]).is_empty() {
        return;
    }
    let Some(victim) = Victim::start("stamps", &["600", "2", "8192", "0"]) else {
        return;
    };
    let mut random = random(SUBJECT);
    let memory = Memory::of(victim.pid()).unwrap();
    for _ in 0..times(10, 200) {
        let tracker = Tracker::of(&victim);
        std::thread::sleep(Duration::from_micros(random.u64(0..300_000)));
        tracker.signal(Signal::STOP);
        goes_on(&memory, "while its tracker is stopped");
        goes_on(&memory, "while its tracker is stopped for longer");
        if random.bool() {
            tracker.signal(Signal::CONT);
            std::thread::sleep(Duration::from_micros(random.u64(0..50_000)));
        }
        tracker.signal(Signal::KILL);
        goes_on(&memory, "after its tracker was killed");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while support::is_registered(victim.pid()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    victim.is_clean(false);
    victim.finish();
}
