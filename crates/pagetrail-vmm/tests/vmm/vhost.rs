//! The log of devices that are not in the monitor: threads that write and set bits as vhost does.

use crate::sys::memory::{Memory, regions};
use pagetrail_vmm::{Start, Tracker, VhostLog};
use rustix::io::{pread, pwrite};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const MIB: u64 = 1 << 20;
const LOG_PAGE: u64 = 4096;

/// Has a device log a page: it sets its bit in the file, of which it has a mapping of its own.
/// (Here by system calls, so no other may change the byte at that time.)
fn log(file: BorrowedFd<'_>, guest_address: u64) {
    let page = guest_address / LOG_PAGE;
    let mut byte = [0];
    pread(file, &mut byte, page / 8).unwrap();
    byte[0] |= 1 << (page % 8);
    pwrite(file, &byte, page / 8).unwrap();
}

fn memories() -> Vec<Memory> {
    vec![
        Memory::new(0, 0, MIB, false),
        Memory::new(1, 4 * MIB, MIB, false),
    ]
}

#[test]
fn pages_that_devices_log_are_dirty_once() {
    let memories = memories();
    let vhost = VhostLog::new(5 * MIB).unwrap();
    assert_eq!(vhost.bytes(), 5 * MIB / LOG_PAGE / 8);
    assert_ne!(vhost.address(), 0);
    let tracker = Tracker::new(regions(&memories), vec![Box::new(vhost.clone())]).unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    let page = pagetrail::page_size();
    for _ in 0..200 {
        let mut written = BTreeSet::new();
        for _ in 0..random.u32(0..60) {
            // Also where no memory is.
            let at = random.u64(0..5 * MIB);
            log(vhost.file(), at);
            if !(MIB..4 * MIB).contains(&at) {
                written.insert(at / page * page);
            }
        }
        let round = consumer.collect().unwrap();
        let found: BTreeSet<u64> = round
            .ranges()
            .flat_map(|range| {
                (range.guest_address..range.guest_address + range.bytes).step_by(page as usize)
            })
            .collect();
        assert_eq!(found, written);
        round.commit();
    }
}

/// Devices count in pages, and log each time; the monitor copies what they log. In the end its
/// copy is what they wrote.
#[test]
fn nothing_is_lost_while_devices_write() {
    const WRITES: u64 = 20_000;
    let memory = Memory::new(0, 0, 64 * LOG_PAGE, false);
    let vhost = VhostLog::new(memory.bytes).unwrap();
    let tracker = Tracker::new(
        regions(std::slice::from_ref(&memory)),
        vec![Box::new(vhost.clone())],
    )
    .unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    // As vhost in the kernel does it: an atomic operation on the bitmap's words.
    let words = crate::sys::memory::mapped_words(vhost.file().as_fd(), vhost.bytes());
    let done = AtomicU64::new(0);
    let mut copy = vec![0; memory.bytes as usize];
    let mut follow = || {
        let round = consumer.collect().unwrap();
        for range in round.ranges() {
            let start = range.region_offset as usize;
            let bytes = &mut copy[start..start + range.bytes as usize];
            memory.region().copy(range.region_offset, bytes);
        }
        round.commit();
    };
    thread::scope(|scope| {
        for device in 0..2 {
            let (memory, words, done) = (&memory, &words, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(device);
                for count in 1..=WRITES {
                    let page = random.u64(0..32) * 2 + device;
                    memory.write(page * LOG_PAGE + 8, &count.to_le_bytes());
                    let (word, bit) = ((page / 64) as usize, page % 64);
                    words.words()[word].fetch_or(1 << bit, Ordering::AcqRel);
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
        while done.load(Ordering::Acquire) < 2 {
            follow();
        }
    });
    follow();
    assert!(copy == memory.contents());
}

#[test]
fn memory_beyond_the_log_is_refused() {
    let memories = memories();
    let vhost = VhostLog::new(4 * MIB).unwrap();
    let error = Tracker::new(regions(&memories), vec![Box::new(vhost)]).unwrap_err();
    let said = "memory slot 1: it ends beyond 0x400000, where the log of vhost ends";
    assert_eq!(error.to_string(), said);
}
