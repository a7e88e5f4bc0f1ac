//! One to five guests at once under one host, as in figures 10 and 11 of the OoH paper, in counts:
//! each guest's log has that guest's pages, as many as if it were alone.

use crate::sys::guest::{Guest, How};
use crate::sys::memory::Memory;
use crate::together::{Member, Together};
use pagetrail_vmm::{OwnWrites, Start, Tracker};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

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

/// Runs one guest among others; the pages of each of its rounds.
fn run(number: usize, mut guest: Guest, all: Member<'_>) -> Vec<BTreeSet<u64>> {
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
    let all = Together::of(guests);
    Some(thread::scope(|scope| {
        let all = &all;
        let start = |(number, guest)| scope.spawn(move || run(number, guest, all.member()));
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

/// What one of several guests has taken, in all rounds but the first.
#[derive(Default)]
struct Cost {
    guest: Duration,
    tracker: Duration,
    pages: u64,
    rings_full: u32,
}

/// Pages that each guest writes in a round, where costs are counted.
const COUNTED_PAGES: u32 = 400;

/// Runs a guest among others that do the same, and counts the processor's time of this thread, in
/// which the guest runs and its log is read. Where time passes by instructions, it counts those.
fn counted(mut guest: Guest, all: Member<'_>) -> Cost {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let page = pagetrail::page_size();
    let tracker = Tracker::new(guest.regions(), vec![guest.log()]).unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    let mut cost = Cost::default();
    for round in 0..=ROUNDS {
        all.wait();
        let began = now();
        guest.write(WRITTEN, COUNTED_PAGES, page as u32, round, || {
            tracker.drain().unwrap()
        });
        let written = now();
        all.wait();
        let begins = now();
        let collected = consumer.collect().unwrap();
        let pages = collected.dirty().of_slot(1).unwrap().count();
        collected.commit();
        let ended = now();
        // The first maps the memory.
        if round > 0 {
            cost.guest += written - began;
            cost.tracker += ended - begins;
            cost.pages += pages;
        }
    }
    cost.rings_full = guest.full;
    cost
}

/// Figures 10 and 11 of the OoH paper by real logs: what tracking one guest takes while others are
/// tracked, too. Prints a line of JSON for each log and number of guests; bytes are those that the
/// monitor reads of the log.
#[test]
#[ignore = "counts, where time passes by instructions: cargo xtask bench ooh guests"]
#[expect(clippy::print_stdout, reason = "its lines are recorded")]
fn what_a_guest_costs_beside_others() {
    const RING_ENTRY_BYTES: u64 = 16;
    let rounds = u64::from(ROUNDS);
    // One of the lines alone.
    let only = std::env::var("PAGETRAIL_TEST_SEVERAL_GUESTS");
    for (name, how) in [
        ("bitmap", How::Log),
        ("bitmap, manual protection", How::ManualLog),
        ("ring", How::Ring(1 << 20)),
    ] {
        for guests in 1..=GUESTS_MAX {
            if only
                .as_ref()
                .is_ok_and(|only| *only != format!("{name}: {guests}"))
            {
                continue;
            }
            let made: Vec<Guest> = (0..guests).map(|_| guest(how).unwrap()).collect();
            let all = &Together::of(guests);
            let costs: Vec<Cost> = thread::scope(|scope| {
                let start = |guest| scope.spawn(move || counted(guest, all.member()));
                let running: Vec<_> = made.into_iter().map(start).collect();
                running.into_iter().map(|it| it.join().unwrap()).collect()
            });
            for cost in &costs {
                assert_eq!(cost.pages, rounds * u64::from(COUNTED_PAGES), "{how:?}");
            }
            let mean = |of: fn(&Cost) -> Duration| {
                let all: Duration = costs.iter().map(of).sum();
                all.as_nanos() as u64 / guests as u64 / rounds
            };
            let log_bytes = match how {
                How::Ring(_) => u64::from(COUNTED_PAGES) * RING_ENTRY_BYTES,
                // A bit for each page of both memslots.
                _ => (PAGES + MIB / pagetrail::page_size()) / 8,
            };
            println!(
                "{{\"log\": \"{name}\", \"guests\": {guests}, \"pages\": {COUNTED_PAGES}, \
                 \"guest_instructions\": {}, \"tracker_instructions\": {}, \"log_bytes\": {log_bytes}, \
                 \"rings_full\": {}}}",
                mean(|cost| cost.guest),
                mean(|cost| cost.tracker),
                costs.iter().map(|cost| cost.rings_full).sum::<u32>(),
            );
        }
    }
}
