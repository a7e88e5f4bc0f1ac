//! A Linux guest of the example's monitor asks for its own dirty pages, by the module of
//! `research/ooh`, while the monitor saves it: two consumers of one log.
//!
//! The guest's program (`research/ooh/guest.c`) judges what it gets; here it is seen that it has
//! got anything, and that the monitor has all pages, too. Besides what `linux.rs` needs there is
//! the module, compiled for the guest's kernel (`PAGETRAIL_GUEST_MODULE`), and the program:
//! `cargo xtask ooh` has both.
#![expect(
    clippy::print_stdout,
    reason = "what the guest has counted is in the book"
)]

use crate::linux::{Replica, contents, on_demand, steps, until_it_goes_on, while_it_runs};
use crate::small_vmm::{Console, Memory, Monitor, Software, State};
use pagetrail_checkpoint::{Store, WorldWritable, WriterOptions};
use pagetrail_vmm::store::Snapshots;
use pagetrail_vmm::{Start, Tracker};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// The module takes seven for each of three trackers.
const MEMORY_BYTES: u64 = 136 << 20;
/// Lines of the guest's program in each phase.
const LINES: usize = 3;
/// Of the guest's program: two by the module's owners, and one whose frames it searches for itself.
const LOGS: usize = 3;
/// `STEPS_PER_LINE` of the program.
const ROUNDS_PER_LINE: u64 = 8;
/// Where a guest is that another process saved: set in the process that has it go on.
const SAVED: &str = "PAGETRAIL_TEST_SAVED_GUEST";

fn booted(word: &str) -> Option<Monitor> {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let init = |programs: PathBuf| programs.join("small_vmm_ooh");
    let (Some(kernel), Some(module), Some(init)) = (
        path("PAGETRAIL_GUEST_KERNEL"),
        path("PAGETRAIL_GUEST_MODULE"),
        path("PAGETRAIL_GUEST_PROGRAMS").map(init),
    ) else {
        pagetrail_skips::not_here("no kernel, module and program for a guest of Linux");
        return None;
    };
    let software = Software {
        kernel: &kernel,
        init: &init,
        word,
        module: Some(&module),
    };
    let memory = Arc::new(Memory::new(MEMORY_BYTES).unwrap());
    match Monitor::new(memory, &software) {
        Ok(monitor) => Some(monitor),
        Err(error) => {
            pagetrail_skips::not_here(format!("no KVM: {error}"));
            None
        }
    }
}

/// The numbers of a line of the guest's program: rounds, and those of them that may have lost
/// pages.
fn numbers(line: &str) -> (u64, u64) {
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    let mut next = || numbers.next().unwrap();
    (next(), next())
}

/// What the guest's program has counted: rounds of each kind of log, and the most of them that may
/// have lost pages.
fn counts(console: &Console) -> (u64, u64) {
    let text = console.text();
    // The last line may be cut off where the guest was stopped.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut lines = whole.lines().rev();
    let mut line_of = |log: &str| lines.find_map(|line| line.strip_prefix(log)).map(numbers);
    // Printed one after the other, this one last.
    let owned = line_of("log: ").unwrap();
    let searched = line_of("search: ").unwrap();
    assert_eq!(owned.0, searched.0);
    (owned.0, owned.1.max(searched.1))
}

/// Has the guest work while its memory is followed; both have all pages.
fn followed(monitor: &mut Monitor, tracker: &Tracker) {
    let memory = monitor.memory.clone();
    let mut replica = Replica::new(tracker);
    for _ in 0..LINES {
        while_it_runs(monitor, Some(tracker), |guest| {
            until_it_goes_on(guest, steps(&guest.console), || replica.follow(&memory));
        });
        replica.follow(&memory);
        assert!(replica.contents == contents(&memory));
    }
}

/// The guest's rounds are whole, but for as many as are said to be lost.
fn works(monitor: &mut Monitor, tracker: &Tracker, lost_at_most: u64) {
    let (rounds_before, lost_before) = counts(&monitor.console);
    followed(monitor, tracker);
    let (rounds, lost) = counts(&monitor.console);
    assert!(rounds > rounds_before);
    assert!(
        lost - lost_before <= lost_at_most || monitor.ring_was_overrun(),
        "{lost} rounds lost of {rounds}, before {lost_before} of {rounds_before}"
    );
}

fn save(monitor: &mut Monitor, tracker: &Tracker, directory: &Path) {
    let writer = Store::create(&directory.join("store"), WorldWritable::Refuse).unwrap();
    let writer = writer.writer(WriterOptions::default()).unwrap();
    let mut snapshots = Snapshots::new(writer, tracker.consumer(Start::Everything).unwrap());
    for _ in 0..2 {
        let mut snapshot = snapshots.begin().unwrap();
        while_it_runs(monitor, Some(tracker), |guest| {
            snapshot.copy().unwrap();
            until_it_goes_on(guest, steps(&guest.console), || {});
        });
        snapshot.copy().unwrap();
        snapshot.publish().unwrap();
    }
    let state = monitor.state().unwrap().to_bytes();
    fs::write(directory.join("state"), state).unwrap();
}

#[test]
fn a_guest_has_its_own_log_beside_the_snapshots() {
    if let Some(directory) = env::var_os(SAVED) {
        return goes_on(Path::new(&directory));
    }
    let Some(mut monitor) = booted("") else {
        return;
    };
    // Without a log, a kernel boots in half the time; the guest learns that it may miss pages.
    while_it_runs(&mut monitor, None, |guest| {
        until_it_goes_on(guest, 0, || {});
    });
    let (rounds, lost) = counts(&monitor.console);
    assert!(rounds > 0 && lost == rounds, "{lost} of {rounds}");
    let tracker = monitor.track().unwrap();
    monitor.share(&tracker);
    // Those since the last line, and the first with the log, which does not know what was written
    // before.
    works(&mut monitor, &tracker, ROUNDS_PER_LINE + 1);
    assert_eq!(monitor.logs_of_guest(), LOGS);
    works(&mut monitor, &tracker, 0);
    let directory = tempfile::tempdir().unwrap();
    save(&mut monitor, &tracker, directory.path());
    println!("{}", monitor.console.text());
    drop(monitor);
    // Another process has it go on.
    let mut again = Command::new(env::current_exe().unwrap());
    again.args(["--exact", "--nocapture"]);
    again.arg("linux_log::a_guest_has_its_own_log_beside_the_snapshots");
    let status = again.env(SAVED, directory.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Figures 10 and 11 of the OoH paper with SPML in Linux guests: each of several that run at once
/// has its own pages, all of them and no others, and so has its monitor. Five with
/// `PAGETRAIL_LONG=1`.
#[test]
fn several_guests_have_logs_of_their_own() {
    let guests = match env::var_os("PAGETRAIL_LONG") {
        Some(_) => 5,
        None => 2,
    };
    let Some(monitors) = (0..guests).map(|_| booted("")).collect::<Option<Vec<_>>>() else {
        return;
    };
    let works = |mut monitor: Monitor| {
        while_it_runs(&mut monitor, None, |guest| {
            until_it_goes_on(guest, 0, || {});
        });
        let tracker = monitor.track().unwrap();
        monitor.share(&tracker);
        works(&mut monitor, &tracker, ROUNDS_PER_LINE + 1);
        works(&mut monitor, &tracker, 0);
        let (rounds, lost) = counts(&monitor.console);
        assert_eq!(monitor.logs_of_guest(), LOGS);
        format!("{rounds} rounds, of which {lost} may have lost pages")
    };
    let running: Vec<_> = monitors
        .into_iter()
        .map(|monitor| thread::spawn(move || works(monitor)))
        .collect();
    for (number, guest) in running.into_iter().enumerate() {
        println!("guest {number} of {guests}: {}", guest.join().unwrap());
    }
}

/// The second half, in a process that has the directory alone.
fn goes_on(directory: &Path) {
    let bytes = fs::read(directory.join("state")).unwrap();
    // What was cut off, or has more than it should, is no state.
    for length in [0, 17, 18, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(State::from_bytes(&bytes[..length]).is_err(), "{length}");
    }
    assert!(State::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let state = State::from_bytes(&bytes).unwrap();
    on_demand(&directory.join("store"), MEMORY_BYTES, |memory| {
        let mut monitor = Monitor::restored(memory, &state).unwrap();
        let tracker = monitor.track().unwrap();
        monitor.share(&tracker);
        while_it_runs(&mut monitor, Some(&tracker), |guest| {
            // Of the first line, a part may have been printed before.
            until_it_goes_on(guest, 0, || {});
            until_it_goes_on(guest, steps(&guest.console), || {});
        });
        assert_eq!(monitor.logs_of_guest(), LOGS);
        works(&mut monitor, &tracker, 0);
        println!("{}", monitor.console.text());
    });
}

/// Its root writes what it likes to the log's memory, to its doorbell, to ports and to a device
/// that fills pages.
#[test]
fn a_hostile_guest_harms_no_monitor() {
    let Some(mut monitor) = booted("hostile") else {
        return;
    };
    let tracker = monitor.track().unwrap();
    monitor.share(&tracker);
    followed(&mut monitor, &tracker);
    println!("{}", monitor.console.text());
}
