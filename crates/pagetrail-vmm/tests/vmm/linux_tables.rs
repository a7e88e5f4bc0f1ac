//! The page tables of a Linux guest are scanned from the log, while it runs: what is found is what
//! a scan of all its tables finds, and what the guest says of its memory. A copy of the memory that
//! is kept by rounds has the cleared bits, too.
//!
//! It needs what `linux.rs` needs.
#![expect(
    clippy::print_stdout,
    reason = "how many tables were read is in the book"
)]

use crate::linux::{Replica, contents, steps, until_it_goes_on, while_it_runs};
use crate::small_vmm::{Console, Memory, Monitor, Software};
use pagetrail_vmm::DirtyPages;
use pagetrail_vmm::tables::TableScan;
use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::sync::Arc;

const MEMORY_BYTES: u64 = 192 << 20;
const WINDOWS: u64 = 8;
/// In a window, how often it is looked who runs.
const STOPS: u64 = 3;

fn booted() -> Option<Monitor> {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let init = path("PAGETRAIL_GUEST_PROGRAMS").map(|all| all.join("small_vmm_tables"));
    let (Some(kernel), Some(init)) = (path("PAGETRAIL_GUEST_KERNEL"), init) else {
        pagetrail_skips::not_here("no kernel and program for a guest of Linux");
        return None;
    };
    let software = Software {
        kernel: &kernel,
        init: &init,
        word: "",
        module: None,
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

/// Frames that the guest has named.
fn frames(console: &Console, word: &str) -> BTreeSet<u64> {
    let text = console.text();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    let numbers = line.unwrap().split_whitespace();
    numbers
        .map(|number| u64::from_str_radix(number, 16).unwrap())
        .collect()
}

fn among(frames: &BTreeSet<u64>, pages: &DirtyPages) -> usize {
    let pages = pages.of_slot(0).unwrap();
    frames
        .iter()
        .filter(|frame| pages.contains(**frame))
        .count()
}

#[test]
fn a_guest_is_scanned_from_the_log() {
    let Some(mut monitor) = booted() else {
        return;
    };
    while_it_runs(&mut monitor, None, |guest| {
        until_it_goes_on(guest, 0, || {})
    });
    let (hot, cold) = (
        frames(&monitor.console, "hot"),
        frames(&monitor.console, "cold"),
    );
    assert!(hot.len() == 64 && cold.len() > 100);
    let tracker = monitor.track().unwrap();
    let memory = monitor.memory.clone();
    let mut replica = Replica::new(&tracker);
    let mut scan = TableScan::new(&tracker, memory.tables().unwrap()).unwrap();
    let (mut from_log, mut full, mut with_hot) = (0, 0, 0);
    for window in 0..WINDOWS {
        for _ in 0..STOPS {
            while_it_runs(&mut monitor, Some(&tracker), |guest| {
                until_it_goes_on(guest, steps(&guest.console), || {});
            });
            scan.follow(&monitor.spaces().unwrap()).unwrap();
        }
        let spaces = monitor.spaces().unwrap();
        let seen = scan.accesses(&spaces).unwrap();
        let (everything, tables) = scan.read_everything();
        assert!(
            seen.accessed == everything,
            "window {window}: {:?}",
            seen.cost
        );
        let found = (among(&hot, &seen.accessed), among(&cold, &seen.accessed));
        println!(
            "window {window}: {} pages accessed, of the hot {}, of the cold {}; {} written; \
             {} address spaces; tables read: from the log {}, of all {tables}",
            seen.accessed.count(),
            found.0,
            found.1,
            seen.written.count(),
            seen.cost.spaces,
            seen.cost.tables_read,
        );
        // Before the first time that bits are cleared, all that was ever touched has them.
        if window > 0 {
            (from_log, full) = (from_log + seen.cost.tables_read, full + tables);
            assert_eq!(found.1, 0, "pages that nobody touches");
            with_hot += u64::from(found.0 == hot.len());
        } else {
            assert_eq!(found, (hot.len(), cold.len()));
        }
        scan.clear(&spaces, &seen.accessed).unwrap();
        let (left, _) = scan.read_everything();
        assert!(left.is_empty(), "window {window}");
        replica.follow(&memory);
        assert!(replica.contents == contents(&memory), "window {window}");
    }
    println!(
        "tables read in {} windows: from the log {from_log}, of all {full}",
        WINDOWS - 1
    );
    // In a window at whose end another process ran, it may not be known what the first one did.
    assert!(with_hot >= WINDOWS / 2, "{with_hot}");
    assert!(
        from_log < full || monitor.ring_was_overrun(),
        "{from_log} {full}"
    );
}
