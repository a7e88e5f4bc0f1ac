//! Memory saved while threads write to it: what is saved is what it held at one instant.
//!
//! Each thread writes the numbers 1, 2, 3, .. to places in an order that is known, so that what its
//! memory holds at an instant follows from how many it has written. Two threads take turns, so that
//! the instants of different ranges are compared, too.

use pagetrail::{PageRange, PageSet, pages_of};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{CowSnapshot, Error, Image, Store, WriterOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Memory of whole pages.
struct Memory(Vec<AtomicU64>);

const WORDS_A_PAGE: usize = 512;

impl Memory {
    fn new(pages: usize) -> Self {
        Self(
            (0..(pages + 1) * WORDS_A_PAGE)
                .map(|_| AtomicU64::new(0))
                .collect(),
        )
    }

    /// The whole pages in it.
    fn range(&self) -> PageRange {
        let page = pagetrail::page_size();
        let around = pages_of(&self.0).expect("it has pages");
        let start = (self.0.as_ptr() as u64).next_multiple_of(page);
        PageRange::new(start, around.end() - page).expect("it has whole pages")
    }

    /// The word that the number `n` is written to.
    fn place(&self, n: u64) -> &AtomicU64 {
        let skipped = (self.range().start() - self.0.as_ptr() as u64) as usize / 8;
        let words = self.range().bytes() / 8;
        &self.0[skipped + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % words as usize]
    }

    fn write(&self, n: u64) {
        self.place(n).store(n, Ordering::SeqCst);
    }

    /// How many numbers were written when it held this, which is checked against writing them
    /// again.
    fn count(&self, held: &[u8]) -> u64 {
        let held: Vec<u64> = held
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let count = held.iter().copied().max().unwrap_or(0);
        let start = self.range().start();
        let mut expected = vec![0; held.len()];
        for n in 1..=count {
            let at = (std::ptr::from_ref(self.place(n)) as u64 - start) as usize / 8;
            expected[at] = n;
        }
        assert!(
            held == expected,
            "a mixture of instants: {count} were written"
        );
        count
    }
}

struct Threads {
    memory: Vec<Arc<Memory>>,
    /// How many numbers each has written for certain.
    written: Arc<Vec<AtomicU64>>,
    /// So many, and no more yet: what a memory should hold is found by writing them again.
    limit: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// The first two take turns; the others write as they can.
    fn start(count: usize, pages: usize) -> Self {
        let memory: Vec<_> = (0..count).map(|_| Arc::new(Memory::new(pages))).collect();
        let written: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let limit = Arc::new(AtomicU64::new(0));
        let running = (0..count).map(|at| {
            let (memory, written, stop) = (memory[at].clone(), written.clone(), stop.clone());
            let limit = limit.clone();
            std::thread::spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::SeqCst) {
                    let may_write = match at {
                        0 => written[1].load(Ordering::SeqCst) == n,
                        1 => written[0].load(Ordering::SeqCst) == n + 1,
                        _ => true,
                    };
                    if !may_write || n == limit.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                        continue;
                    }
                    n += 1;
                    memory.write(n);
                    written[at].store(n, Ordering::SeqCst);
                }
            })
        });
        let running = running.collect();
        Self {
            memory,
            written,
            limit,
            stop,
            running,
        }
    }

    fn ranges(&self) -> PageSet {
        self.memory.iter().map(|memory| memory.range()).collect()
    }

    fn written(&self) -> Vec<u64> {
        self.written
            .iter()
            .map(|written| written.load(Ordering::SeqCst))
            .collect()
    }

    /// Waits until each has written more, and lets them go on.
    fn wait(&self) {
        let before = self.written();
        let most = before.iter().max().copied().unwrap_or(0);
        self.limit.store(most + 2000, Ordering::SeqCst);
        while self
            .written()
            .iter()
            .zip(&before)
            .any(|(now, before)| *now < before + 20)
        {
            std::thread::yield_now();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.running.drain(..) {
            let _ = thread.join();
        }
    }
}

fn take(ranges: &PageSet) -> Option<CowSnapshot> {
    match CowSnapshot::take(ranges) {
        Err(Error::Refused(reason)) if reason.contains(" needs ") => {
            pagetrail_skips::not_here(&reason);
            None
        }
        outcome => Some(outcome.expect("a snapshot")),
    }
}

fn contents(image: &mut Image, range: PageRange) -> Vec<u8> {
    let mut contents = vec![0; range.bytes() as usize];
    image.read(range, &mut contents).expect("it was saved");
    contents
}

#[test]
fn what_is_saved_is_what_the_memory_held_at_one_instant() {
    let threads = Threads::start(5, 300);
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    for n in 1..=10 {
        threads.wait();
        let before = threads.written();
        let Some(snapshot) = take(&threads.ranges()) else {
            return;
        };
        let after = threads.written();
        // They go on, while nothing has been read yet and while it is.
        threads.wait();
        let manifest = snapshot.save(&mut writer, "numbers").unwrap();
        assert_eq!(manifest.number, n);
        assert!(manifest.parent.is_none());
        let mut image = store.image(n).unwrap();
        let counts: Vec<u64> = threads
            .memory
            .iter()
            .map(|memory| memory.count(&contents(&mut image, memory.range())))
            .collect();
        for (at, count) in counts.iter().enumerate() {
            // One that is written may not be counted yet.
            let possible = before[at]..=after[at] + 1;
            assert!(
                possible.contains(count),
                "{count} of thread {at}, not {possible:?}"
            );
        }
        let turn = counts[0] - counts[1].min(counts[0]);
        assert!(
            turn <= 1 && counts[1] <= counts[0],
            "not one instant: {counts:?}"
        );
        threads.wait();
    }
}

#[test]
fn one_that_is_not_read_lets_go_of_the_memory() {
    let threads = Threads::start(3, 64);
    for part in 0..6 {
        let Some(mut snapshot) = take(&threads.ranges()) else {
            return;
        };
        let mut buffer = Vec::new();
        let all = snapshot.bytes_left();
        assert_eq!(all, threads.ranges().bytes());
        for _ in 0..part {
            buffer.clear();
            let range = snapshot.read_next(&mut buffer).unwrap();
            assert_eq!(
                range.map(|range| range.bytes()),
                Some(buffer.len() as u64).filter(|n| *n > 0)
            );
        }
        assert!(part == 0 || snapshot.bytes_left() < all);
        drop(snapshot);
        threads.wait();
    }
}

#[test]
fn the_heap_that_everybody_uses_can_be_saved() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let heap = maps
        .lines()
        .find(|line| line.ends_with("[heap]"))
        .and_then(|line| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let address = |digits| u64::from_str_radix(digits, 16).ok();
            PageRange::new(address(start)?, address(end)?)
        });
    let Some(heap) = heap else {
        return pagetrail_skips::not_here("this process has no [heap]");
    };
    let stop = Arc::new(AtomicBool::new(false));
    let until = stop.clone();
    let allocating = std::thread::spawn(move || {
        let mut kept = std::collections::VecDeque::new();
        let mut n = 0;
        while !until.load(Ordering::SeqCst) {
            n += 1;
            kept.push_back(vec![n as u8; 1 + n % 5000]);
            if kept.len() > 100 {
                kept.pop_front();
            }
        }
    });
    for _ in 0..20 {
        let Some(mut snapshot) = take(&[heap].into_iter().collect()) else {
            break;
        };
        let mut bytes = 0;
        // Both of them allocate while they read.
        while let Some(range) = snapshot.read_next(&mut Vec::new()).unwrap() {
            bytes += range.bytes();
        }
        assert_eq!(bytes, heap.bytes());
    }
    stop.store(true, Ordering::SeqCst);
    allocating.join().unwrap();
}

#[test]
fn memory_that_was_never_touched_is_zeros_whatever_is_written_meanwhile() {
    let page = pagetrail::page_size();
    // Zeroed memory of the allocator's for which the kernel has no pages yet.
    let fresh = vec![0u8; 200 * page as usize];
    let start = (fresh.as_ptr() as u64).next_multiple_of(page);
    let range = PageRange::new(start, start + 199 * page).unwrap();
    let Some(snapshot) = take(&[range].into_iter().collect()) else {
        return;
    };
    let mut fresh = fresh;
    let writing = std::thread::spawn(move || {
        fresh.fill(9);
        fresh
    });
    let fresh = writing.join().unwrap();
    let mut snapshot = snapshot;
    let mut buffer = Vec::new();
    while snapshot.read_next(&mut buffer).unwrap().is_some() {
        assert!(buffer.iter().all(|byte| *byte == 0));
    }
    assert!(fresh.iter().all(|byte| *byte == 9));
}

#[test]
fn what_cannot_be_saved_is_refused_and_nothing_stays_protected() {
    let memory = Memory::new(16);
    let range = memory.range();
    let page = pagetrail::page_size();
    let Some(first) = take(&[range].into_iter().collect()) else {
        return;
    };
    let again = CowSnapshot::take(&[range].into_iter().collect()).unwrap_err();
    assert!(again.to_string().contains("another userfaultfd"), "{again}");
    drop(first);
    let odd = PageRange::new(range.start() + 8, range.end()).unwrap();
    assert!(CowSnapshot::take(&[odd].into_iter().collect()).is_err());
    // The second range is mapped nowhere.
    let nowhere = PageRange::new(page * 16, page * 17).unwrap();
    let both: PageSet = [nowhere, range].into_iter().collect();
    assert!(CowSnapshot::take(&both).is_err());
    assert!(CowSnapshot::take(&PageSet::new()).is_err());
    (1..10_000).for_each(|n| memory.write(n));
}
