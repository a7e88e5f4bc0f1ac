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
/// So often it is looked until the vCPU has the program.
const LOOKS_MAX: u32 = 20;
/// Frames that the guest's kernel may have moved since the guest named them: one in so many.
const MOVED: usize = 20;

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
    let (mut from_log, mut full) = (0, 0);
    for window in 0..WINDOWS {
        // Of a process that the vCPU does not have when it is looked, nothing is known.
        let mut looks = 0;
        let (spaces, seen) = loop {
            while_it_runs(&mut monitor, Some(&tracker), |guest| {
                until_it_goes_on(guest, steps(&guest.console), || {});
            });
            let spaces = monitor.spaces().unwrap();
            let seen = scan.accesses(&spaces).unwrap();
            let (everything, tables) = scan.read_everything();
            assert!(
                seen.accessed == everything,
                "window {window}: {:?}",
                seen.cost
            );
            let (of_hot, of_cold) = (among(&hot, &seen.accessed), among(&cold, &seen.accessed));
            println!(
                "window {window}: {} pages accessed, of the hot {of_hot}, of the cold {of_cold}; \
                 {} written; {} address spaces; tables read: from the log {}, of all {tables}",
                seen.accessed.count(),
                seen.written.count(),
                seen.cost.spaces,
                seen.cost.tables_read,
            );
            // Before the first time that bits are cleared, all that was ever touched has them.
            if window > 0 {
                (from_log, full) = (from_log + seen.cost.tables_read, full + tables);
                assert!(
                    of_cold <= cold.len() / MOVED,
                    "{of_cold} that nobody touches"
                );
            }
            looks += 1;
            if of_hot >= hot.len() - hot.len() / MOVED {
                break (spaces, seen);
            }
            assert!(
                looks < LOOKS_MAX,
                "window {window}: the hot pages are not found"
            );
        };
        scan.clear(&spaces, &seen.accessed).unwrap();
        let (left, _) = scan.read_everything();
        assert!(left.is_empty(), "window {window}");
        replica.follow(&memory);
        assert!(replica.contents == contents(&memory), "window {window}");
    }
    println!("tables read: from the log {from_log}, of all {full}");
    assert!(
        from_log < full || monitor.ring_was_overrun(),
        "{from_log} {full}"
    );
}
