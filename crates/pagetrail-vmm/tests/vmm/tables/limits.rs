//! Guests that do what no kernel does, and monitors that ask for what cannot be: the scanner
//! neither stands still, nor grows without bound, nor goes on as if nothing were wrong.

use super::{ACCESSED, BASE, ENTRY, Guest, LARGE, PAGE, PAGES};
use crate::sys::memory::{Memory, table_memory};
use pagetrail_vmm::tables::{AddressSpace, Mode, TableScan};
use pagetrail_vmm::{DirtyLog, DirtyPages, Error, OwnWrites, Regions, Tracker};
use std::time::{Duration, Instant};

/// A guest that maps the same page of 1 GiB in each entry of its tables is not looked at for
/// minutes, in which its processors would stand.
#[test]
fn a_large_page_that_is_mapped_everywhere_is_looked_at_once() {
    const TABLES: u64 = 64;
    let memory = Memory::new(0, 0, 1 << 30, false);
    let log = OwnWrites::new();
    let regions = Regions::new([memory.region()]).unwrap();
    let tracker = Tracker::new(regions, vec![Box::new(log)]).unwrap();
    for table in 1..=TABLES {
        let entry = ((table * PAGE) | ENTRY).to_le_bytes();
        memory.write((table - 1) * 8, &entry);
        for at in 0..512 {
            let entry = (ENTRY | ACCESSED | LARGE).to_le_bytes();
            memory.write(table * PAGE + at * 8, &entry);
        }
    }
    let loaded = [AddressSpace::of(1 << 31, 0, 0, 1 << 10, Mode::Guest).unwrap()];
    let mut scan = TableScan::new(&tracker, table_memory(&memory)).unwrap();
    let began = Instant::now();
    let seen = scan.accesses(&loaded).unwrap();
    assert_eq!(seen.cost.tables, 1 + TABLES);
    assert_eq!(seen.accessed, DirtyPages::all_of(&tracker.regions()));
    let none = DirtyPages::none_of(&tracker.regions());
    scan.clear(&loaded, &none).unwrap();
    assert_eq!(scan.accesses(&loaded).unwrap().accessed, seen.accessed);
    let mut last = none.clone();
    last.of_slot_mut(0).unwrap().insert((1 << 18) - 1..1 << 18);
    scan.clear(&loaded, &last).unwrap();
    assert!(scan.accesses(&loaded).unwrap().accessed.is_empty());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A guest has more tables than are known. When some go, others are known in their places: of the
/// same process, and of one that came when there was no room.
#[test]
fn tables_for_which_there_was_no_room_are_tried_again() {
    /// So many are known of such a memory.
    const TABLES_MAX: u64 = 4096;
    /// Of the first process: they lead to 512 tables each.
    const THIRD: u64 = 9;
    const ROOTS: [u64; 2] = [0, PAGE];
    let memory = Memory::new(0, 0, 3 * TABLES_MAX * PAGE, false);
    let log = OwnWrites::new();
    let regions = Regions::new([memory.region()]).unwrap();
    let tracker = Tracker::new(regions, vec![Box::new(log.clone())]).unwrap();
    let mut free = (2..3 * TABLES_MAX).map(|page| page * PAGE);
    let store = |at: u64, value: u64| {
        memory.write(at, &value.to_le_bytes());
        log.mark(at, 8);
    };
    let mut below = |table: u64, count: u64| -> Vec<u64> {
        let lower: Vec<u64> = free.by_ref().take(count as usize).collect();
        for (at, lower) in (0..).zip(&lower) {
            store(table + at * 8, lower | ENTRY);
        }
        lower
    };
    let second = below(ROOTS[0], 1)[0];
    let third = below(second, THIRD);
    let last: Vec<u64> = third.iter().flat_map(|table| below(*table, 512)).collect();
    // The last page of one process, and the only one of another.
    let of_first = below(last[last.len() - 1], 1)[0];
    let only = (0..3).fold(ROOTS[1], |table, _| below(table, 1)[0]);
    let of_other = below(only, 1)[0];
    store(last[last.len() - 1], of_first | ENTRY | ACCESSED);
    store(only, of_other | ENTRY | ACCESSED);
    let space = |root| [AddressSpace::of(1 << 31, root, 0, 1 << 10, Mode::Guest).unwrap()];
    let [first, other] = ROOTS.map(space);
    let found = |seen: &DirtyPages, page: u64| seen.of_slot(0).unwrap().contains(page / PAGE);

    let mut scan = TableScan::new(&tracker, table_memory(&memory)).unwrap();
    let seen = scan.accesses(&first).unwrap();
    assert_eq!(seen.cost.tables, TABLES_MAX);
    // Of the last, nothing is read; of the one before, ten have no room.
    assert_eq!(seen.cost.left_out, 1 + 2 + 513 * (THIRD - 1) - TABLES_MAX);
    assert!(!found(&seen.accessed, of_first));
    let seen = scan.accesses(&other).unwrap();
    assert_eq!((seen.cost.tables, seen.cost.spaces), (TABLES_MAX, 1));
    assert!(!found(&seen.accessed, of_other));
    // The process lets some go, and then more.
    store(second, 0);
    let seen = scan.accesses(&first).unwrap();
    assert_eq!(seen.cost.left_out, 2 + 513 * (THIRD - 1) - TABLES_MAX);
    assert!(found(&seen.accessed, of_first));
    store(second + 8, 0);
    let seen = scan.accesses(&first).unwrap();
    assert_eq!(seen.cost.left_out, 0);
    let seen = scan.accesses(&other).unwrap();
    assert_eq!((seen.cost.spaces, seen.cost.left_out), (2, 0));
    assert!(found(&seen.accessed, of_other));
    // A process that goes takes its tables along.
    store(ROOTS[0], 0);
    let seen = scan.accesses(&first).unwrap();
    assert_eq!(seen.cost.tables, 1 + 4);
}

/// What a guest loads into CR3 need not be memory.
#[test]
fn address_spaces_outside_memory_are_not_kept() {
    let (guest, tracker) = Guest::new(1);
    let mut scan = TableScan::new(&tracker, table_memory(&guest.memory)).unwrap();
    for at in 0..100 {
        let outside = BASE + (PAGES + at) * PAGE;
        let outside = AddressSpace::of(1 << 31, outside, 0, 1 << 10, Mode::Guest).unwrap();
        let seen = scan.accesses(&[outside, guest.space(0)]).unwrap();
        assert_eq!((seen.cost.spaces, seen.cost.left_out), (1, 0));
    }
}

/// Nobody would see that a page of such memory is no table any more.
#[test]
fn memory_that_is_not_tracked_is_refused() {
    let (guest, tracker) = Guest::new(1);
    let log = || -> Vec<Box<dyn DirtyLog>> { vec![Box::new(OwnWrites::new())] };
    let other = Memory::new(1, 0, PAGE, false);
    let others = Tracker::new(Regions::new([other.region()]).unwrap(), log()).unwrap();
    let says = |error: Error| {
        let said = error.to_string();
        assert!(said.starts_with("memory slot 0: its page tables"), "{said}");
    };
    says(TableScan::new(&others, table_memory(&guest.memory)).unwrap_err());
    let mut scan = TableScan::new(&tracker, table_memory(&guest.memory)).unwrap();
    let loaded = [guest.space(0)];
    scan.follow(&loaded).unwrap();
    // More memory changes nothing; memory that is gone does.
    tracker.add_region(other.region()).unwrap();
    scan.follow(&loaded).unwrap();
    tracker.remove_region(0).unwrap();
    says(scan.follow(&loaded).unwrap_err());
    let none = DirtyPages::none_of(&tracker.regions());
    says(scan.clear(&loaded, &none).unwrap_err());
}
