//! Checkpoints that keep pages while the process writes to them (`Mode::Cow`) do not harm it:
//! threads end as they should, and neither the death of the tracker nor a stop of it holds anybody.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "common/mod.rs"]
mod common;
#[path = "common/keeping.rs"]
mod keeping;
#[path = "common/stamps.rs"]
mod stamps;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use keeping::{Counts, Keeping};
use pagetrail::Technique::{Compare, PagemapScan};
use pagetrail::{Choice, Memory, PageRange, Target, Watch};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Error, Mode, ProcessCheckpointer, ProcessOptions, Store, Writer, WriterOptions,
};
use rustix::process::Signal;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::{Victim, random, row, times, working};

const ROLE: &str = "PAGETRAIL_TEST_COW";
const SUBJECT: &str = "copy-on-write checkpoints";
/// Where `stamps` and `holes` have their pages.
const BASE: u64 = 0x1000_0000_0000;

fn attach(pid: u32) -> ProcessCheckpointer {
    let options = ProcessOptions {
        mode: Mode::Cow,
        technique: Choice::Technique(PagemapScan),
        ..ProcessOptions::default()
    };
    ProcessCheckpointer::attach(pid, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Attaches, and counts what is kept.
fn attach_counting(pid: u32) -> (ProcessCheckpointer, Counts) {
    let watch = Watch::builder()
        .target(Target::process(pid).unwrap())
        .technique(Choice::Technique(PagemapScan))
        .start()
        .unwrap();
    let counts = Counts::default();
    let source = Keeping {
        watch,
        counts: counts.clone(),
    };
    let options = ProcessOptions {
        mode: Mode::Cow,
        ..ProcessOptions::default()
    };
    let process = ProcessCheckpointer::of_source(Box::new(source), vec!["victim".into()], options);
    (process.unwrap(), counts)
}

fn store() -> Store {
    Store::create_on(Arc::new(InMemory::new())).unwrap()
}

/// Takes a checkpoint. On a busy machine a thread may come to no processor for longer than a stop
/// waits; then nothing was done, and it is tried again.
fn checkpoint(process: &mut ProcessCheckpointer, writer: &mut Writer) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match process.checkpoint(writer) {
            Ok(_) => return,
            Err(Error::Process(pagetrail::Error::NotStopping { .. }))
                if Instant::now() < deadline => {}
            Err(error) => panic!("{error}"),
        }
    }
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
    let (mut process, counts) = attach_counting(victim.pid());
    for _ in 0..times(30, 1000) {
        checkpoint(&mut process, &mut writer);
        std::thread::sleep(Duration::from_millis(3));
    }
    drop(process);
    let kept = counts.pages.load(SeqCst);
    assert!(kept > 128, "{kept} pages kept");
    victim.is_clean(true);
    victim.finish();
    row(SUBJECT, PagemapScan.name(), "works", "");
}

/// Checkpoints a victim `holes` a few times; then nobody answers faults any more, and all of its
/// threads must go on all the same, while the watch stays as it is.
fn all_go_on(what: &str) {
    const THREADS: u64 = 6;
    const PAGES: u64 = 512;
    if working(SUBJECT, &[PagemapScan]).is_empty() {
        return;
    }
    let arguments = [600, THREADS, PAGES].map(|n| n.to_string());
    let [seconds, threads, pages] = arguments.each_ref().map(String::as_str);
    let Some(victim) = Victim::start("holes", &[seconds, threads, pages, what]) else {
        return;
    };
    let store = store();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let (mut process, counts) = attach_counting(victim.pid());
    let memory = Memory::of(victim.pid()).unwrap();
    let steps = || {
        let page = |thread: u64| {
            let start = BASE + thread * PAGES * 4096 + 16 * 4096 * u64::from(thread > 0);
            PageRange::new(start, start + 4096).unwrap()
        };
        let pages: Vec<_> = (0..THREADS).map(page).collect();
        let mut bytes = vec![0; 4096 * pages.len()];
        memory.read(&pages, &mut bytes).unwrap();
        let word = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().unwrap());
        bytes.chunks(4096).map(word).collect::<Vec<_>>()
    };
    for _ in 0..times(15, 300) {
        checkpoint(&mut process, &mut writer);
        let (before, deadline) = (steps(), Instant::now() + Duration::from_secs(60));
        // No thread is between two of its steps all the time.
        while steps()
            .iter()
            .zip(&before)
            .any(|(now, before)| now < &(before + 2))
        {
            assert!(Instant::now() < deadline, "a thread stands still: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(process);
    let kept = counts.pages.load(SeqCst);
    assert!(kept > THREADS * PAGES, "{kept} pages kept");
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn pages_that_are_lost_are_copied_at_another_instant() {
    if working(SUBJECT, &[PagemapScan]).is_empty() {
        return;
    }
    let Some(victim) = stamps::start(4, 1024, 0) else {
        return;
    };
    let store = store();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let (mut process, counts) = attach_counting(victim.pid());
    for lost in [1, 0, 2, 1, 3, 1] {
        let before = counts.freezes.load(SeqCst);
        counts.to_lose.store(lost, SeqCst);
        checkpoint(&mut process, &mut writer);
        // With few pages left there is nothing to keep.
        let freezes = counts.freezes.load(SeqCst) - before;
        assert!(freezes <= 2, "{freezes} freezes with {lost} lost");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(counts.freezes.load(SeqCst) > 6, "none was tried again");
    drop(process);
    stamps::check_all(&store);
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn a_process_that_cannot_be_frozen_is_refused_before_anything_is_copied() {
    if working(SUBJECT, &[Compare]).is_empty() {
        return;
    }
    let Some(victim) = stamps::start(1, 256, 100) else {
        return;
    };
    let watch = Watch::builder()
        .target(Target::process(victim.pid()).unwrap())
        .technique(Choice::Technique(Compare))
        .start()
        .unwrap();
    let options = ProcessOptions {
        mode: Mode::Cow,
        ..ProcessOptions::default()
    };
    let process = ProcessCheckpointer::of_source(Box::new(watch), Vec::new(), options);
    let error = process.err().expect("it is refused").to_string();
    assert!(error.contains("pagemap-scan"), "{error}");
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn a_file_in_the_middle_of_a_mapping_holds_nobody() {
    all_go_on("holes");
}

#[test]
fn a_mapping_that_grows_holds_nobody() {
    all_go_on("grows");
}

/// How far the first thread of `stamps` is.
fn progress(memory: &Memory) -> u64 {
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
