//! What a watch says of a heap, against what was written: for every number of sub-pages, from the
//! own process.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

use pagetrail::{
    AccessKind, Capabilities, Choice, PageRange, PageSet, Status, Target, Technique, TrackMode,
    Watch,
};
use pagetrail_alloc::{Heap, SubpageCount};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ALIAS_BYTES: u64 = 16 << 20;

/// One test at a time: a watch on the whole process registers other tests' heaps as well, and
/// memory has one userfaultfd.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn can_watch() -> bool {
    let works = Capabilities::probe_one(Technique::PagemapScan);
    if *works != Status::Works {
        pagetrail_skips::not_here(format!("pagemap-scan {works}"));
    }
    *works == Status::Works
}

/// Objects of a heap of one superblock, and where that is.
struct Objects {
    heap: Heap,
    base: u64,
    all: Vec<(NonNull<u8>, u64)>,
}

impl Objects {
    fn new(subpages: SubpageCount, random: &mut fastrand::Rng) -> Self {
        let heap = Heap::new(subpages).unwrap();
        let new = |bytes: usize| {
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            (heap.allocate(layout).unwrap(), bytes as u64)
        };
        let mut all: Vec<_> = (0..3000).map(|_| new(random.usize(16..=600))).collect();
        all.extend((0..300).map(|_| new(random.usize(600..=3800))));
        let least = all.iter().map(|(object, _)| object.as_ptr() as u64).min();
        Self {
            base: least.unwrap() & !((2 << 20) - 1),
            heap,
            all,
        }
    }

    fn aliases(&self) -> PageRange {
        let bytes = ALIAS_BYTES * u64::from(self.heap.subpages_per_page().count());
        PageRange::new(self.base, self.base + bytes).unwrap()
    }

    /// Where an address is in the first alias.
    fn physical(&self, address: u64) -> u64 {
        self.base + (address - self.base) % ALIAS_BYTES
    }

    /// The sub-page of a page of an address's alias.
    fn subpage(&self, address: u64) -> u64 {
        let subpage_bytes = 4096 / u64::from(self.heap.subpages_per_page().count());
        let alias = (address - self.base) / ALIAS_BYTES;
        (self.physical(address) & !4095) + alias * subpage_bytes
    }
}

/// What was really written.
#[derive(Default)]
struct Written {
    bytes: PageSet,
    dirty_subpages: BTreeSet<u64>,
}

/// Writes somewhere in some objects.
fn write(objects: &Objects, random: &mut fastrand::Rng, count: usize) -> Written {
    let mut written = Written::default();
    for _ in 0..count {
        let (object, bytes) = objects.all[random.usize(..objects.all.len())];
        let from = random.u64(0..bytes);
        let to = (from + random.u64(1..=64)).min(bytes);
        for at in from..to {
            // SAFETY: within the object.
            unsafe { object.add(at as usize).write(random.u8(..)) };
            let address = object.as_ptr() as u64 + at;
            let physical = objects.physical(address);
            written.bytes.extend(PageRange::new(physical, physical + 1));
            written.dirty_subpages.insert(objects.subpage(address));
        }
    }
    written
}

#[test]
fn dirty_subpages_are_exactly_those_written() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for subpages in SubpageCount::ALL {
        let mut random = fastrand::Rng::with_seed(seed ^ u64::from(subpages.count()));
        let mut objects = Objects::new(subpages, &mut random);
        let mut watch = Watch::builder()
            .target(Target::ranges([objects.aliases()]))
            .technique(Choice::from(Technique::PagemapScan))
            .start()
            .unwrap();
        for round in 0..12 {
            let count = random.usize(0..300);
            let mut right = write(&objects, &mut random, count);
            if round == 6 {
                // Never committed: it comes back.
                let lost = watch.collect().unwrap();
                assert!(lost.subpages().unwrap().count() >= right.dirty_subpages.len() as u64);
                drop(lost);
                let more = write(&objects, &mut random, 100);
                right.bytes.union_with(&more.bytes);
                right.dirty_subpages.extend(more.dirty_subpages);
            }
            let round = watch.collect().unwrap();
            let dirty_subpages = round.subpages().unwrap();
            assert_eq!(dirty_subpages.subpages_per_page(), subpages.count());
            let missed = right.bytes.difference(dirty_subpages.bytes());
            assert!(missed.is_empty(), "{subpages} sub-pages: {missed:?}");
            let found: BTreeSet<u64> = dirty_subpages
                .dirty()
                .iter_units(dirty_subpages.subpage_bytes())
                .collect();
            assert_eq!(found, right.dirty_subpages, "{subpages} sub-pages");
            assert!(
                dirty_subpages
                    .bytes()
                    .difference(dirty_subpages.pages())
                    .is_empty()
            );
            let pages: BTreeSet<u64> = right
                .dirty_subpages
                .iter()
                .map(|subpage| subpage & !4095)
                .collect();
            assert_eq!(dirty_subpages.pages().page_count(), pages.len() as u64);
            round.commit();
        }
        // Other objects in the same memory: pages count whole, until that is settled.
        for (object, _) in objects.all.drain(..) {
            // SAFETY: the test does not use the object any more.
            unsafe { objects.heap.free(object) };
        }
        for _ in 0..6 {
            for _ in 0..500 {
                let bytes = random.usize(16..=3000);
                let layout = Layout::from_size_align(bytes, 16).unwrap();
                objects
                    .all
                    .push((objects.heap.allocate(layout).unwrap(), bytes as u64));
            }
            let right = write(&objects, &mut random, 200);
            let round = watch.collect().unwrap();
            let missed = right.bytes.difference(round.subpages().unwrap().bytes());
            assert!(missed.is_empty(), "{subpages} sub-pages: {missed:?}");
            round.commit();
        }
    }
}

/// Reads something in some objects; the sub-pages in which they begin.
fn read(objects: &Objects, random: &mut fastrand::Rng, count: usize) -> BTreeSet<u64> {
    let mut touched = BTreeSet::new();
    for _ in 0..count {
        let (object, bytes) = objects.all[random.usize(..objects.all.len())];
        let at = random.u64(0..bytes);
        // SAFETY: within the object.
        unsafe { object.add(at as usize).read_volatile() };
        touched.insert(objects.subpage(object.as_ptr() as u64 + at));
    }
    touched
}

#[test]
fn subpages_that_were_only_read_are_reported_when_reads_are_tracked() {
    let _alone = alone();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for technique in [Technique::AccessScan, Technique::Mprotect] {
        let works = Capabilities::probe_one(technique);
        if *works != Status::Works {
            println!("not here: {technique} {works}");
            continue;
        }
        for subpages in SubpageCount::ALL {
            let mut random = fastrand::Rng::with_seed(seed ^ u64::from(subpages.count()));
            let objects = Objects::new(subpages, &mut random);
            let mut watch = Watch::builder()
                .target(Target::ranges([objects.aliases()]))
                .technique(Choice::from(technique))
                .track(TrackMode::Accesses)
                .start()
                .unwrap();
            for _ in 0..6 {
                let (reads, writes) = (random.usize(0..200), random.usize(0..100));
                let mut right = read(&objects, &mut random, reads);
                right.extend(write(&objects, &mut random, writes).dirty_subpages);
                let round = watch.collect().unwrap();
                assert_eq!(round.access_kind(), AccessKind::Accesses);
                let dirty_subpages = round.subpages().unwrap();
                let found: BTreeSet<u64> = dirty_subpages
                    .dirty()
                    .iter_units(dirty_subpages.subpage_bytes())
                    .collect();
                assert_eq!(found, right, "{technique}, {subpages} sub-pages");
                round.commit();
            }
        }
    }
}

#[test]
fn objects_that_share_pages_without_aliases_are_reported_by_page() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for subpages in SubpageCount::ALL {
        let mut random = fastrand::Rng::with_seed(seed ^ u64::from(subpages.count()));
        let heap = Heap::new(subpages).unwrap();
        let layout = Layout::from_size_align(4368, 16).unwrap();
        let objects: Vec<_> = (0..1000).map(|_| heap.allocate(layout).unwrap()).collect();
        let least = objects.iter().map(|object| object.as_ptr() as u64).min();
        let base = least.unwrap() & !((2 << 20) - 1);
        let mut watch = Watch::builder()
            .target(Target::ranges(PageRange::new(base, base + (16 << 20))))
            .technique(Choice::from(Technique::PagemapScan))
            .start()
            .unwrap();
        // So that no page is touched for the first time.
        for object in &objects {
            // SAFETY: it has so many bytes.
            unsafe { object.write_bytes(1, 4368) };
        }
        watch.collect().unwrap().commit();
        for _ in 0..6 {
            let mut right = BTreeSet::new();
            for _ in 0..random.usize(0..100) {
                let at = random.usize(..4368);
                // SAFETY: within the object.
                let place = unsafe { objects[random.usize(..objects.len())].add(at) };
                // SAFETY: `place` is within an object of the heap.
                unsafe { place.write(random.u8(..)) };
                right.insert(place.as_ptr() as u64 & !4095);
            }
            let round = watch.collect().unwrap();
            assert!(round.subpages().is_none(), "{subpages} sub-pages");
            let found: BTreeSet<u64> = round.dirty().iter_units(4096).collect();
            assert_eq!(found, right, "{subpages} sub-pages");
            round.commit();
        }
    }
}

#[test]
fn a_new_heap_is_found_and_what_it_never_used_is_not_written() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let mut watch = Watch::builder()
        .target(Target::own())
        .technique(Choice::from(Technique::PagemapScan))
        .start()
        .unwrap();
    watch.collect().unwrap().commit();
    let mut random = fastrand::Rng::with_seed(1);
    let objects = Objects::new(SubpageCount::new(16).unwrap(), &mut random);
    let right = write(&objects, &mut random, 1000);
    let round = watch.collect().unwrap();
    let here = PageSet::from_iter([objects.aliases()]);
    let dirty_subpages = round.subpages().unwrap();
    assert!(right.bytes.difference(dirty_subpages.bytes()).is_empty());
    assert!(dirty_subpages.aliases().covers(objects.aliases()));
    // 16 aliases of 16 MiB are new, and 2 MiB of memory are used.
    let pages = round.dirty().intersection(&here).bytes();
    assert!(pages < 64 << 20, "{pages} bytes of new aliases");
    assert!(dirty_subpages.pages().intersection(&here).bytes() < 4 << 20);
    round.commit();
    drop(objects);
    let round = watch.collect().unwrap();
    let gone = round
        .subpages()
        .is_none_or(|dirty_subpages| dirty_subpages.aliases().intersection(&here).is_empty());
    assert!(gone);
    round.commit();
}

/// The pages that are written in any alias, each alias by itself: as many faults.
fn faults(round: &pagetrail::Round<'_>) -> u64 {
    round.dirty().page_count()
}

#[test]
fn a_nursery_is_tracked_by_pages_until_its_objects_stay() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    const YOUNG: usize = 20_000;
    let heap = Heap::new(SubpageCount::DEFAULT).unwrap();
    let layout = Layout::from_size_align(48, 16).unwrap();
    let other = Layout::from_size_align(320, 16).unwrap();
    let lasting: Vec<_> = (0..2000).map(|_| heap.allocate(other).unwrap()).collect();
    let base = lasting[0].as_ptr() as u64 & !((2 << 20) - 1);
    let aliases = PageRange::new(base, base + 8 * ALIAS_BYTES).unwrap();
    let physical = |address: u64| base + (address - base) % ALIAS_BYTES;
    let alias = |object: &NonNull<u8>| (object.as_ptr() as u64 - base) / ALIAS_BYTES;
    let mut watch = Watch::builder()
        .target(Target::ranges([aliases]))
        .technique(Choice::from(Technique::PagemapScan))
        .merge_subpages(true)
        .start()
        .unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut kept = Vec::new();
    let (mut apart, mut merged) = (0, 0);
    for number in 0..60 {
        let mut right = PageSet::new();
        let mut write = |object: NonNull<u8>, bytes: usize| {
            // SAFETY: the object has so many bytes.
            unsafe { object.write_bytes(number, bytes) };
            let at = physical(object.as_ptr() as u64);
            right.extend(PageRange::new(at, at + bytes as u64));
        };
        let young: Vec<_> = (0..YOUNG).map(|_| heap.allocate(layout).unwrap()).collect();
        young.iter().for_each(|object| write(*object, 48));
        let sparse = &lasting[random.usize(..lasting.len())];
        write(*sparse, 320);
        for object in young {
            // The last rounds keep some, which are written from then on.
            if number > 40 && random.usize(..20) == 0 {
                kept.push(object);
            } else {
                // SAFETY: the test does not use the object any more.
                unsafe { heap.free(object) };
            }
        }
        kept.iter().for_each(|object| write(*object, 48));
        let round = watch.collect().unwrap();
        let subpages = round.subpages().unwrap();
        let missed = right.difference(subpages.bytes());
        assert!(missed.is_empty(), "round {number}: {missed:?}");
        // What is not of the nursery is distinguished by sub-pages in all rounds.
        let page = physical(sparse.as_ptr() as u64) & !4095;
        let page = PageSet::from_iter([PageRange::new(page, page + 4096).unwrap()]);
        if number > 1 {
            let of_page = subpages.dirty().intersection(&page).bytes();
            assert!(of_page < 4096, "round {number}");
        }
        match number {
            2..4 => apart += faults(&round),
            30..32 => merged += faults(&round),
            _ => {}
        }
        round.commit();
    }
    println!("faults of two rounds: {apart} by sub-pages, {merged} merged");
    assert!(merged * 4 < apart, "{merged} {apart}");
    // Objects that stay have ended that: new slabs have all aliases again.
    let new: Vec<_> = (0..YOUNG).map(|_| heap.allocate(layout).unwrap()).collect();
    assert!(new.iter().any(|object| alias(object) > 0));
    for object in new.into_iter().chain(kept).chain(lasting) {
        // SAFETY: the test does not use the object any more.
        unsafe { heap.free(object) };
    }
}

/// The description of the only heap of this process.
fn description() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = maps
        .lines()
        .filter(|line| line.contains("/memfd:pagetrail-heap"));
    let (line, more) = (found.next().unwrap(), found.next());
    assert_eq!(more, None);
    usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

#[test]
fn advice_reaches_heaps_and_no_other_memory() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    const BYTES: usize = 65536;
    let heap = Heap::new(SubpageCount::DEFAULT).unwrap();
    let layout = Layout::from_size_align(48, 16).unwrap();
    let first = heap.allocate(layout).unwrap();
    let base = first.as_ptr() as u64 & !((2 << 20) - 1);
    let aliases = PageRange::new(base, base + 8 * ALIAS_BYTES).unwrap();
    let description = description();
    // SAFETY: the word of the description that trackers write, which the heap reads as an atomic
    // one; it is not used after the heap.
    let advice = unsafe { AtomicU64::from_ptr((description + 32) as *mut u64) };
    // A tracker that was killed has left this.
    advice.store(1 << 20, Ordering::Relaxed);
    let mut watch = Watch::builder()
        .target(Target::ranges([aliases]))
        .technique(Choice::from(Technique::PagemapScan))
        .merge_subpages(true)
        .start()
        .unwrap();
    (0..4).for_each(|_| watch.collect().unwrap().commit());
    assert_eq!(advice.load(Ordering::Relaxed), 0);
    let merges = (0..100).any(|_| {
        let young: Vec<_> = (0..20_000)
            .map(|_| heap.allocate(layout).unwrap())
            .collect();
        for object in young {
            // SAFETY: the object has so many bytes, and is not used any more after that.
            unsafe {
                object.write_bytes(1, 48);
                heap.free(object);
            }
        }
        watch.collect().unwrap().commit();
        advice.load(Ordering::Relaxed) != 0
    });
    assert!(merges);
    // SAFETY: the object is not used any more.
    unsafe { heap.free(first) };
    drop(heap);
    // The program has other memory there, and the watch is dropped, which takes its advice back.
    // SAFETY: nothing else is there, or this fails.
    let other = unsafe {
        use rustix::mm::{MapFlags, ProtFlags};
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let at = description as *mut _;
        rustix::mm::mmap_anonymous(at, BYTES, protection, flags).unwrap()
    };
    // SAFETY: mapped above with this length.
    unsafe { other.cast::<u8>().write_bytes(0xff, BYTES) };
    drop(watch);
    // SAFETY: mapped above, written whole, and unmapped when nothing uses it any more.
    unsafe {
        let bytes = std::slice::from_raw_parts(other.cast::<u8>(), BYTES);
        assert_eq!(bytes.iter().position(|byte| *byte != 0xff), None);
        rustix::mm::munmap(other, BYTES).unwrap();
    }
}
