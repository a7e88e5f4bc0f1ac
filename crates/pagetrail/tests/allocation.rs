//! A watch on ranges of the own process allocates nothing between collect and commit once it has
//! reserved memory, as a garbage collector needs it at a safepoint: one of the stopped threads may
//! be inside the allocator.

use pagetrail::{Capabilities, PageRange, Target, Technique, Watch, page_size};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if COUNTS.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all methods forward to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: `pointer` comes from `alloc`, that is, from `System`, with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAGES: usize = 2000;

#[test]
fn with_room_a_round_allocates_nothing() {
    COUNTS.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    COUNTS.store(false, Ordering::Relaxed);
    assert_eq!(CALLS.load(Ordering::Relaxed), 2, "the counter counts");
    let page = page_size() as usize;
    let mut tried = 0;
    for technique in [Technique::PagemapScan, Technique::Mprotect] {
        if !Capabilities::probe().works(technique) {
            continue;
        }
        // Only the page-aligned middle of it is tracked.
        let mut memory = vec![1u8; (PAGES + 2) * page];
        let start = (memory.as_ptr() as u64).next_multiple_of(page as u64);
        let skip = (start - memory.as_ptr() as u64) as usize;
        let range = PageRange::new(start, start + (PAGES * page) as u64).unwrap();
        let mut watch = Watch::builder()
            .target(Target::ranges([range]))
            .technique(technique)
            .start()
            .unwrap();
        watch.reserve(PAGES / 2);
        watch.collect().unwrap().commit();
        let mut write = |pages: &mut dyn Iterator<Item = usize>| {
            pages.for_each(|i| memory[skip + i * page] = memory[skip + i * page].wrapping_add(1));
        };
        for round in 1..=3 {
            // Every second page is written, which gives as many ranges as possible.
            write(&mut (0..PAGES).step_by(2));
            CALLS.store(0, Ordering::Relaxed);
            COUNTS.store(true, Ordering::Relaxed);
            let found = watch.collect().map(|round| {
                let found = round.dirty_ranges().len();
                round.commit();
                found
            });
            COUNTS.store(false, Ordering::Relaxed);
            assert_eq!(found.unwrap(), PAGES / 2, "{technique}, round {round}");
            let calls = CALLS.load(Ordering::Relaxed);
            assert_eq!(calls, 0, "{technique}, round {round}");
        }
        tried += 1;
    }
    // `mprotect` works on every machine.
    assert!(tried > 0);
}
