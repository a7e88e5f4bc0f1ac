//! Transactions and consumers, without KVM: a log that says what was marked, and one that fails.

use crate::sys::memory::{Memory, regions};
use pagetrail_vmm::{
    Consumer, DirtyLog, DirtyPages, Error, OwnWrites, Regions, Result, Round, Start, Tracker,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn memories() -> Vec<Memory> {
    vec![
        Memory::new(0, 0, MIB, false),
        Memory::new(1, 4 * MIB, MIB, false),
    ]
}

fn pages(round: &Round) -> Vec<u64> {
    let page = pagetrail::page_size();
    let starts = round.ranges().flat_map(|range| {
        (range.guest_address..range.guest_address + range.bytes).step_by(page as usize)
    });
    starts.map(|address| address / page).collect()
}

fn tracked(memories: &[Memory]) -> (Tracker, OwnWrites) {
    let own = OwnWrites::new();
    let tracker = Tracker::new(regions(memories), vec![Box::new(own.clone())]).unwrap();
    (tracker, own)
}

fn mark(own: &OwnWrites, page: u64) {
    own.mark(page * pagetrail::page_size(), 1);
}

fn committed(consumer: &Consumer) -> Vec<u64> {
    let round = consumer.collect().unwrap();
    let found = pages(&round);
    round.commit();
    found
}

/// firecracker#4545: a snapshot that failed had emptied the log.
#[test]
fn pages_of_a_failed_snapshot_are_in_the_next() {
    let memories = memories();
    let (tracker, own) = tracked(&memories);
    let consumer = tracker.consumer(Start::Now).unwrap();
    mark(&own, 1);
    let first = consumer.collect().unwrap();
    mark(&own, 2);
    let second = consumer.collect().unwrap();
    assert_eq!((pages(&first), pages(&second)), (vec![1], vec![2]));
    mark(&own, 3);
    drop(first);
    second.commit();
    // The second has been published, the first has not.
    let third = consumer.collect().unwrap();
    assert_eq!(pages(&third), [1, 3]);
    assert_eq!(third.index(), 1);
    third.abort();
    assert_eq!(committed(&consumer), [1, 3]);
    assert!(committed(&consumer).is_empty());
}

/// The paper's `enabled_by_guest` and `enabled_by_hyp`: one log, two who want it.
#[test]
fn consumers_take_no_pages_from_each_other() {
    let memories = memories();
    let (tracker, own) = tracked(&memories);
    let [snapshot, guest] = [(); 2].map(|()| tracker.consumer(Start::Now).unwrap());
    mark(&own, 1);
    assert_eq!(committed(&snapshot), [1]);
    mark(&own, 2);
    assert_eq!(committed(&guest), [1, 2]);
    guest.disable();
    assert!(tracker.is_wanted());
    assert!(guest.collect().is_err());
    mark(&own, 3);
    assert_eq!(committed(&snapshot), [2, 3]);
    guest.enable(Start::Now).unwrap();
    mark(&own, 4);
    assert_eq!(committed(&guest), [4]);
    guest.disable();
    guest.enable(Start::Everything).unwrap();
    assert_eq!(
        committed(&guest).len() as u64,
        2 * MIB / pagetrail::page_size()
    );
    guest.disable();
    assert_eq!(committed(&snapshot), [4]);
    drop(snapshot);
    assert!(!tracker.is_wanted());
}

/// A log that fails after the others gave what they had.
struct Fails(Arc<AtomicBool>);

impl DirtyLog for Fails {
    fn drain(&mut self, _regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            dirty.of_slot_mut(0).unwrap().insert(9..10);
            return Err(Error::Refused("on purpose".into()));
        }
        Ok(())
    }
}

#[test]
fn a_log_that_fails_loses_nothing_of_its_own_or_of_others() {
    let memories = memories();
    let own = OwnWrites::new();
    let fails = Arc::new(AtomicBool::new(false));
    for order in [true, false] {
        let mut logs: Vec<Box<dyn DirtyLog>> =
            vec![Box::new(Fails(fails.clone())), Box::new(own.clone())];
        if order {
            logs.reverse();
        }
        let tracker = Tracker::new(regions(&memories), logs).unwrap();
        let [first, second] = [(); 2].map(|()| tracker.consumer(Start::Now).unwrap());
        mark(&own, 5);
        fails.store(true, Ordering::Relaxed);
        assert!(first.collect().is_err());
        fails.store(false, Ordering::Relaxed);
        assert_eq!(committed(&first), [5, 9]);
        assert_eq!(committed(&second), [5, 9]);
    }
}

#[test]
fn marks_reach_every_page_that_they_touch_and_nothing_else() {
    let memories = memories();
    let (tracker, own) = tracked(&memories);
    let consumer = tracker.consumer(Start::Now).unwrap();
    let page = pagetrail::page_size();
    let last = MIB / page - 1;
    own.mark(page - 1, 2);
    own.mark(5 * page, 0);
    own.mark(MIB - 1, 5 * MIB);
    own.mark(2 * MIB, page);
    own.mark(u64::MAX, u64::MAX);
    let second = 4 * MIB / page;
    let mut expected = vec![0, 1, last];
    expected.extend(second..second + MIB / page);
    assert_eq!(committed(&consumer), expected);
}

#[test]
fn memory_that_is_plugged_in_is_dirty_and_memory_that_goes_is_not() {
    let memories = memories();
    let (tracker, own) = tracked(&memories[..1]);
    let consumer = tracker.consumer(Start::Now).unwrap();
    mark(&own, 3);
    let open = consumer.collect().unwrap();
    tracker.add_region(memories[1].region()).unwrap();
    assert!(tracker.add_region(memories[1].region()).is_err());
    mark(&own, 4);
    drop(open);
    let page = pagetrail::page_size();
    let mut expected = vec![3, 4];
    expected.extend(4 * MIB / page..5 * MIB / page);
    assert_eq!(committed(&consumer), expected);
    mark(&own, 6);
    mark(&own, 4 * MIB / page + 1);
    let open = consumer.collect().unwrap();
    assert_eq!(pages(&open).len(), 2);
    tracker.remove_region(1).unwrap();
    assert!(tracker.remove_region(1).is_err());
    drop(open);
    mark(&own, 4 * MIB / page + 1);
    assert_eq!(committed(&consumer), [6]);
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let memory = Memory::new(0, 0, MIB, false);
    let alias = Memory::new(1, MIB / 2, MIB, false);
    let same = Memory::new(0, 8 * MIB, MIB, false);
    let odd = Memory::new(4, 12, MIB, false);
    let end = Memory::new(5, !0xffff, MIB, false);
    for (others, word) in [
        (vec![&memory, &alias], "guest addresses with slot 0"),
        (vec![&memory, &same], "two regions"),
        (vec![&odd], "multiple"),
        (vec![&end], "beyond all addresses"),
    ] {
        let error = Regions::new(others.into_iter().map(Memory::region)).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(Tracker::new(regions(&[memory]), Vec::new()).is_err());
}

/// Threads mark while another collects: every mark is in a round that is collected after it.
#[test]
fn marks_of_many_threads_are_all_found() {
    let memories = memories();
    let (tracker, own) = tracked(&memories);
    let consumer = tracker.consumer(Start::Now).unwrap();
    let count = MIB / pagetrail::page_size();
    let mut found = vec![0u32; count as usize];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let own = own.clone();
                scope.spawn(move || {
                    (0..count)
                        .filter(|n| n % 2 == thread)
                        .for_each(|n| mark(&own, n))
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            committed(&consumer)
                .into_iter()
                .for_each(|page| found[page as usize] += 1);
        }
    });
    committed(&consumer)
        .into_iter()
        .for_each(|page| found[page as usize] += 1);
    assert!(found.iter().all(|times| *times == 1));
}
