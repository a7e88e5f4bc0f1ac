//! One to five guests at once under one host, as in figures 10 and 11 of the OoH paper, in counts:
//! each guest's log has that guest's pages, as many as if it were alone.

use crate::sys::guest::{Guest, How};
use crate::sys::memory::Memory;
use pagetrail_vmm::{OwnWrites, Start, Tracker};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

const MIB: u64 = 1 << 20;
/// Where what the guests write begins: the code is elsewhere.
const WRITTEN: u64 = 16 * MIB;
const PAGES: u64 = 512;
const GUESTS_MAX: usize = 5;
const ROUNDS: u32 = 8;

fn guest(how: How) -> Result<Guest, String> {
    let bytes = PAGES * pagetrail::page_size();
    let memories = vec![
        Memory::new(0, 0, MIB, true),
        Memory::new(1, WRITTEN, bytes, false),
    ];
    Guest::new(how, memories)
}

/// What guest `number` writes in a round: first page, pages between, how many.
fn pattern(number: usize, round: u32) -> (u64, u64, u64) {
    let number = number as u64;
    (number + u64::from(round), number + 1, 20 + 10 * number)
}

/// The page that the monitor writes for a guest, which the guest does not write.
fn of_monitor(number: usize) -> u64 {
    PAGES - 1 - number as u64
}

fn written(number: usize, round: u32) -> BTreeSet<u64> {
    let (first, stride, count) = pattern(number, round);
    let by_guest = (0..count).map(|at| first + at * stride);
    by_guest.chain([of_monitor(number)]).collect()
}

/// Runs one guest among others; the pages of each of its rounds. Nothing is judged here: the others
/// would wait for ever.
fn run(number: usize, mut guest: Guest, all: &Barrier) -> Vec<BTreeSet<u64>> {
    let page = pagetrail::page_size();
    let own = OwnWrites::new();
    let tracker = Tracker::new(guest.regions(), vec![guest.log(), Box::new(own.clone())]).unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    let mut rounds = Vec::new();
    for round in 0..crate::times(ROUNDS) {
        let (first, stride, count) = pattern(number, round);
        // All guests run at once, and are asked at once.
        all.wait();
        let start = WRITTEN + first * page + 8;
        let value = number as u32 + 1;
        guest.write(start, count as u32, (stride * page) as u32, value, || {
            tracker.drain().unwrap()
        });
        let marked = of_monitor(number) * page;
        guest.memories[1].write(marked, &[value as u8]);
        own.mark(WRITTEN + marked, 1);
        all.wait();
        let collected = consumer.collect().unwrap();
        let dirty = collected.dirty().of_slot(1).unwrap();
        rounds.push(dirty.ranges().flatten().collect());
        collected.commit();
    }
    rounds
}

/// Runs so many guests at once; `None` if this machine has none.
fn run_all(how: How, guests: usize) -> Option<Vec<Vec<BTreeSet<u64>>>> {
    let made: Result<Vec<Guest>, String> = (0..guests).map(|_| guest(how)).collect();
    let made = made
        .map_err(|why| pagetrail_skips::not_here(format!("{how:?}: {why}")))
        .ok()?;
    let all = Barrier::new(guests);
    Some(thread::scope(|scope| {
        let all = &all;
        let start = |(number, guest)| scope.spawn(move || run(number, guest, all));
        let running: Vec<_> = made.into_iter().enumerate().map(start).collect();
        let ends = running.into_iter().map(|thread| thread.join().unwrap());
        ends.collect()
    }))
}

#[test]
fn each_of_several_guests_has_a_log_of_its_own() {
    for how in [How::Log, How::ManualLog, How::Ring(1 << 20)] {
        for guests in 1..=GUESTS_MAX {
            let Some(found) = run_all(how, guests) else {
                break;
            };
            for (number, rounds) in found.into_iter().enumerate() {
                // No less and no more than if it were alone.
                let wanted: Vec<_> = (0..crate::times(ROUNDS))
                    .map(|round| written(number, round))
                    .collect();
                assert_eq!(rounds, wanted, "{how:?}, guest {number} of {guests}");
            }
        }
    }
}
