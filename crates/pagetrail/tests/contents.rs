//! Which pages have contents, whatever the kernel does to them meanwhile.

mod support;

use pagetrail::{
    PageRange, PageSet, Permissions, Region, Target, Technique, Watch, owned_pages, page_size,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{Victim, random, times, working};

/// While a huge page is split, its pages are not in the page table for a moment.
#[test]
fn owned_pages_are_complete_while_a_huge_page_is_split() {
    const PAGES: usize = 2 * 512;
    let page = page_size() as usize;
    let length = PAGES * page;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, of which the kernel chooses the place.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let start = start as usize;
    let advise = |at: usize, pages: usize, advice| {
        // SAFETY: the memory is this test's, and no advice given here changes its contents.
        unsafe { libc::madvise((start + at * page) as *mut _, pages * page, advice) }
    };
    advise(0, PAGES, libc::MADV_HUGEPAGE);
    // SAFETY: the memory has this length, and is writable.
    unsafe { (start as *mut u8).write_bytes(1, length) };
    let range = PageRange::new(start as u64, start as u64 + length as u64).unwrap();
    let permissions = Permissions {
        read: true,
        write: true,
        execute: false,
        shared: false,
    };
    let region = Region::new(range, permissions);
    let done = AtomicBool::new(false);
    let mut numbers = random("splits");
    std::thread::scope(|scope| {
        let splits = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                advise(numbers.usize(..PAGES - 3), 3, libc::MADV_COLD);
                advise(0, PAGES, libc::MADV_COLLAPSE);
            }
        });
        for _ in 0..times(3_000, 100_000) {
            let owned = owned_pages(std::process::id(), &region).unwrap();
            if owned != PageSet::from_iter([range]) {
                done.store(true, Ordering::Relaxed);
                panic!("{} of {PAGES} pages", owned.page_count());
            }
        }
        done.store(true, Ordering::Relaxed);
        splits.join().unwrap();
    });
    // SAFETY: nothing refers to it any more.
    unsafe { libc::munmap(start as *mut _, length) };
}

/// Other processes store to shared anonymous memory, which changes the times of its file. A process
/// that only sleeps has written none of it; what it removes and reads again has changed.
#[test]
fn shared_memory_that_others_write_is_not_an_idle_process_write() {
    for technique in working("shared with others", &[Technique::PagemapScan]) {
        let Some(victim) = Victim::start("sharing", &["600"]) else {
            return;
        };
        let watch = Watch::builder().target(Target::process(victim.pid()).unwrap());
        let mut watch = watch.technique(technique).start().unwrap();
        let region = Region::of_process(victim.pid()).unwrap();
        let shared = region.iter().find(|region| region.permissions.shared);
        let shared = shared.unwrap().range;
        let mut collect = || {
            let round = watch.collect().unwrap();
            let found = round.dirty().intersection(&PageSet::from_iter([shared]));
            round.commit();
            found
        };
        // The first find out how many faults it takes.
        collect();
        collect();
        let mut reported = 0;
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(3));
            reported += collect().page_count();
        }
        assert_eq!(reported, 0, "{technique}: pages of an idle process");
        let pid = rustix::process::Pid::from_raw(victim.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        let removed = shared.start() + 40 * page_size();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !collect().contains(removed) {
            assert!(Instant::now() < deadline, "{technique}: it is not reported");
            std::thread::sleep(Duration::from_millis(3));
        }
        victim.finish();
    }
}
