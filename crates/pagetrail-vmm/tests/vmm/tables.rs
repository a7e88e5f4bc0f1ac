//! A processor and a kernel in a few lines: page tables at random, accesses through them, processes
//! that end, and pages of tables that become something else. What the scanner says is held against
//! the accesses, and every word of memory against what it must be.

mod limits;

use crate::sys::memory::{Memory, table_memory};
use pagetrail::{PageRange, PageSet};
use pagetrail_tier::source::Source;
use pagetrail_vmm::tables::{AddressSpace, Mode, TableScan, TableSource, Vcpus};
use pagetrail_vmm::{DirtyPages, Error, OwnWrites, Regions, Start, Tracker};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;
const PAGES: u64 = 2048;
/// Guest memory that does not begin at 0.
const BASE: u64 = 0x10_0000;
/// Present, writable, for processes, and written.
const ENTRY: u64 = 0x47;
const ACCESSED: u64 = 1 << 5;
const LARGE: u64 = 1 << 7;
const LARGE_PAGES: u64 = 512;
const PROCESSES: usize = 3;

/// A guest's memory, and what its kernel knows of it.
struct Guest {
    memory: Memory,
    log: OwnWrites,
    levels: u8,
    free: Vec<u64>,
    roots: Vec<u64>,
    random: fastrand::Rng,
}

impl Guest {
    fn new(seed: u64) -> (Self, Tracker) {
        let memory = Memory::new(0, BASE, PAGES * PAGE, false);
        let log = OwnWrites::new();
        let regions = Regions::new([memory.region()]).unwrap();
        let tracker = Tracker::new(regions, vec![Box::new(log.clone())]).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        // Large pages are in the second half.
        let mut free: Vec<u64> = (0..PAGES / 2).map(|page| BASE + page * PAGE).collect();
        random.shuffle(&mut free);
        let mut guest = Self {
            memory,
            log,
            levels: if seed.is_multiple_of(3) { 5 } else { 4 },
            free,
            roots: Vec::new(),
            random,
        };
        guest.roots = (0..PROCESSES).map(|_| guest.take()).collect();
        (guest, tracker)
    }

    fn load(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.region().copy(address - BASE, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&self, address: u64, value: u64) {
        self.memory.write(address - BASE, &value.to_le_bytes());
        self.log.mark(address, 8);
    }

    /// A page of zeros.
    fn take(&mut self) -> u64 {
        let page = self.free.pop().unwrap();
        self.memory.write(page - BASE, &[0; PAGE as usize]);
        self.log.mark(page, PAGE);
        page
    }

    fn space(&self, process: usize) -> AddressSpace {
        let five = if self.levels == 5 { 1 << 12 } else { 0 };
        // With flags for caching in CR3.
        let cr3 = self.roots[process] | 0x18;
        AddressSpace::of(1 << 31, cr3, five, 1 << 10, Mode::Guest).unwrap()
    }

    /// Maps a page, at the second level a page of 2 MiB.
    fn map(&mut self, process: usize, address: u64, page: u64, level: u8) {
        let mut table = self.roots[process];
        for upper in (level + 1..=self.levels).rev() {
            let at = slot(table, address, upper);
            if self.load(at) & 1 == 0 {
                let next = self.take();
                self.store(at, next | ENTRY);
            }
            table = self.load(at) & !0xfff;
        }
        let large = if level == 2 { LARGE } else { 0 };
        self.store(slot(table, address, level), page | ENTRY | large);
    }

    /// Walks as a processor does: all tables on the way are dirty, and the page is accessed.
    fn access(&self, process: usize, address: u64) -> BTreeSet<u64> {
        let mut table = self.roots[process];
        for level in (1..=self.levels).rev() {
            let at = slot(table, address, level);
            let entry = self.load(at);
            if entry & 1 == 0 {
                return BTreeSet::new();
            }
            self.store(at, entry | ACCESSED);
            table = entry & 0x000f_ffff_ffff_f000;
            if level == 2 && entry & LARGE != 0 {
                return (0..LARGE_PAGES).map(|at| table + at * PAGE).collect();
            }
        }
        [table].into()
    }

    /// The tables that a process has.
    fn tables(&self, process: usize) -> BTreeSet<u64> {
        let mut tables = BTreeSet::from([self.roots[process]]);
        let mut level_tables = tables.clone();
        for level in (2..=self.levels).rev() {
            let mut next = BTreeSet::new();
            for table in level_tables {
                let entries = (0..512).map(|at| self.load(table + at * 8));
                let is_table = |entry: &u64| entry & 1 != 0 && (level > 3 || entry & LARGE == 0);
                next.extend(entries.filter(is_table).map(|entry| entry & !0xfff));
            }
            tables.extend(&next);
            level_tables = next;
        }
        tables
    }

    /// A process ends: its tables are taken out of those above them, and become something that
    /// looks like tables. Another process begins.
    fn end(&mut self, process: usize, others: &BTreeSet<u64>) {
        let tables: Vec<u64> = self.tables(process).into_iter().collect();
        let tables = tables.into_iter().filter(|table| !others.contains(table));
        let tables: Vec<u64> = tables.collect();
        for at in (0..512).map(|at| self.roots[process] + at * 8) {
            if self.load(at) != 0 {
                self.store(at, 0);
            }
        }
        for page in tables {
            // Some keep a part of what they had.
            for at in 0..self.random.u64(1..512) {
                let target = BASE + self.random.u64(0..PAGES) * PAGE;
                self.store(page + at * 8, target | ENTRY | ACCESSED);
            }
        }
        self.roots[process] = self.take();
    }

    fn words(&self) -> Vec<u64> {
        let contents = self.memory.contents();
        let (words, _) = contents.as_chunks();
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

/// Where the entry for an address is.
fn slot(table: u64, address: u64, level: u8) -> u64 {
    table + (address >> (12 + 9 * u32::from(level - 1)) & 511) * 8
}

fn pages(set: &DirtyPages) -> BTreeSet<u64> {
    let ranges = set.of_slot(0).unwrap().ranges();
    ranges.flatten().map(|page| BASE + page * PAGE).collect()
}

/// Maps and accesses at random; what was accessed where.
fn run(guest: &mut Guest, process: usize, accessed: &mut BTreeMap<(usize, u64), BTreeSet<u64>>) {
    // The first two processes share tables.
    let forget = |accessed: &mut BTreeMap<(usize, u64), BTreeSet<u64>>, address| {
        accessed.retain(|(of, at), _| *at != address || (*of == 2) != (process == 2));
    };
    for _ in 0..guest.random.usize(0..12) {
        let far = guest.random.u64(0..3) << 39;
        let near = far | guest.random.u64(0..4) << 12;
        let large = far | 1 << 30;
        let is_short = guest.free.len() < 32;
        match guest.random.u8(0..9) {
            0 | 1 if !is_short => {
                let page = guest.take();
                guest.map(process, near, page, 1);
                forget(accessed, near);
            }
            2 if !is_short => {
                let page = BASE + (1 + guest.random.u64(0..2)) * (2 << 20) - BASE % (2 << 20);
                guest.map(process, large, page, 2);
                forget(accessed, large);
            }
            3 => drop(accessed.insert((process, large), guest.access(process, large))),
            _ => drop(accessed.insert((process, near), guest.access(process, near))),
        }
    }
}

#[test]
fn accesses_are_found_and_nothing_else_is_written() {
    let (mut from_log, mut everything) = (0, 0);
    let seeds = if std::env::var_os("PAGETRAIL_LONG").is_some() {
        60
    } else {
        6
    };
    for seed in 0..seeds {
        let (mut guest, tracker) = Guest::new(seed);
        let mut scan = TableScan::new(&tracker, table_memory(&guest.memory)).unwrap();
        let snapshots = tracker.consumer(Start::Now).unwrap();
        let mut copy = guest.words();
        let mut accessed = BTreeMap::new();
        // The first two share what they have in one place.
        let page = guest.take();
        guest.map(0, 2 << 39, page, 1);
        let shared = guest.load(slot(guest.roots[0], 2 << 39, guest.levels));
        guest.store(slot(guest.roots[1], 2 << 39, guest.levels), shared);
        for step in 0..40 {
            let what = format!("seed {seed}, step {step}");
            if guest.random.u8(0..8) == 0 && guest.free.len() > 64 {
                let others = [0, 1]
                    .map(|other| guest.tables(other))
                    .into_iter()
                    .flatten();
                let others = others.collect();
                guest.end(2, &others);
                accessed.retain(|(process, _), _| *process != 2);
            }
            for _ in 0..guest.random.usize(0..2) {
                let before = guest.random.usize(0..PROCESSES);
                run(&mut guest, before, &mut accessed);
                if guest.random.bool() {
                    scan.follow(&[guest.space(before)]).unwrap();
                }
            }
            let process = guest.random.usize(0..PROCESSES);
            run(&mut guest, process, &mut accessed);
            let loaded = [guest.space(process)];
            let before = guest.words();
            let seen = scan.accesses(&loaded).unwrap();
            let (all, read) = scan.read_everything();
            assert_eq!(seen.accessed, all, "{what}");
            (from_log, everything) = (from_log + seen.cost.tables_read, everything + read);
            let found = pages(&seen.accessed);
            for ((_, address), pages) in accessed.iter().filter(|((of, _), _)| *of == process) {
                assert!(pages.is_subset(&found), "{what}: {address:#x}");
            }
            assert!(before == guest.words(), "{what}: looking has written");
            // Some pages are left alone.
            let some = guest.random.u64(0..2 * PAGES);
            let wanted = first_pages(&seen.accessed, some, &tracker);
            scan.clear(&loaded, &wanted).unwrap();
            let cleared = pages(&wanted);
            accessed.retain(|_, pages| pages.is_disjoint(&cleared));
            let (left, _) = scan.read_everything();
            assert!(pages(&left).is_disjoint(&cleared), "{what}");
            let tables = (0..PROCESSES).map(|process| guest.tables(process));
            let tables: BTreeSet<u64> = tables.flatten().collect();
            let after = guest.words();
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let page = BASE + at as u64 * 8 / PAGE * PAGE;
                let is_entry = tables.contains(&page) && *before == after | ACCESSED;
                assert!(before == after || is_entry, "{what}: {page:#x}, word {at}");
            }
            // A snapshot beside it has the cleared bits, too.
            let round = snapshots.collect().unwrap();
            for page in round.dirty().of_slot(0).unwrap().ranges().flatten() {
                let words = page as usize * 512..(page as usize + 1) * 512;
                copy[words.clone()].copy_from_slice(&after[words]);
            }
            round.commit();
            assert!(copy == after, "{what}: the snapshot");
        }
    }
    assert!(from_log < everything / 2, "{from_log} of {everything}");
}

/// The pages of a set that are among the first so many.
fn first_pages(set: &DirtyPages, count: u64, tracker: &Tracker) -> DirtyPages {
    let mut first = DirtyPages::none_of(&tracker.regions());
    let bitmap = first.of_slot_mut(0).unwrap();
    for range in set.of_slot(0).unwrap().ranges() {
        bitmap.insert(range.start..range.end.min(count));
    }
    first
}

/// Two processes whose tables are the same but for their roots are read once.
#[test]
fn tables_that_are_shared_are_read_once() {
    let (mut guest, tracker) = Guest::new(1);
    for at in 0..4 {
        let page = guest.take();
        guest.map(0, at << 21, page, 1);
    }
    let shared = guest.load(guest.roots[0]);
    guest.store(guest.roots[1], shared);
    let mut scan = TableScan::new(&tracker, table_memory(&guest.memory)).unwrap();
    let both = [guest.space(0), guest.space(1)];
    let seen = scan.accesses(&both).unwrap();
    // Two roots, and one, one and four of the other levels.
    assert_eq!((seen.cost.tables, seen.cost.tables_read), (8, 8));
    assert_eq!((seen.cost.spaces, seen.cost.duplicates), (2, 1));
    assert!(seen.accessed.is_empty());
    // One of them accesses a page: its root and three tables are read, of nine the other would.
    let page = guest.access(1, 3 << 21);
    let seen = scan.accesses(&both).unwrap();
    assert_eq!(pages(&seen.accessed), page);
    assert_eq!(seen.cost.tables_read, 4);
    assert_eq!(scan.accesses(&both).unwrap().cost.tables_read, 0);
}

/// A processor that has one of the guest's processes.
struct Standing(AddressSpace);

impl Vcpus for Standing {
    fn while_they_stand(
        &mut self,
        work: &mut dyn FnMut(&[AddressSpace]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        work(&[self.0])
    }
}

/// By the addresses of the monitor, as the tiering loop has them.
#[test]
fn page_tables_are_a_source_of_tiering() {
    let (mut guest, tracker) = Guest::new(1);
    let mut mapped = Vec::new();
    for at in 0..600 {
        let page = guest.take();
        guest.map(0, at << 12, page, 1);
        mapped.push(page);
    }
    let scan = TableScan::new(&tracker, table_memory(&guest.memory)).unwrap();
    let mut source = TableSource::new(scan, Standing(guest.space(0)));
    let host = |pages: &[u64]| -> PageSet {
        let start = |page: &u64| page - BASE + guest.memory.host_address();
        let ranges = pages
            .iter()
            .filter_map(|page| PageRange::new(start(page), start(page) + PAGE));
        let mut ranges: Vec<PageRange> = ranges.collect();
        ranges.sort_unstable();
        ranges.into_iter().collect()
    };
    assert!(source.window().unwrap().accessed.unwrap().is_empty());
    for at in [3, 4, 5, 599] {
        guest.access(0, at << 12);
    }
    guest.store(mapped[4], 1);
    let used = [3, 4, 5, 599].map(|at: usize| mapped[at]);
    let sample = source.window().unwrap();
    assert_eq!(sample.accessed, Some(host(&used)));
    let written = sample.written.unwrap();
    assert!(written.contains(host(&[mapped[4]]).ranges()[0].start()));
    assert!(!written.contains(host(&[mapped[3]]).ranges()[0].start()));
    // A page that is not armed is reported in each window.
    source.rearm(&host(&used[..2])).unwrap();
    assert_eq!(source.window().unwrap().accessed, Some(host(&used[2..])));
    guest.access(0, 3 << 12);
    let found = source.window().unwrap().accessed;
    assert_eq!(found, Some(host(&[used[0], used[2], used[3]])));
    // All guest memory that exists.
    let there = source.mapped().unwrap().present;
    assert!(
        there
            .difference(&host(
                &(0..PAGES)
                    .map(|page| BASE + page * PAGE)
                    .collect::<Vec<_>>()
            ))
            .is_empty()
    );
    assert!(host(&mapped).difference(&there).is_empty());
}

#[test]
fn a_vcpu_without_long_mode_or_in_other_memory_has_no_tables() {
    let of = |cr0, efer, mode| AddressSpace::of(cr0, 0x1000, 0, efer, mode);
    assert_eq!(of(1, 1 << 10, Mode::Guest), None);
    assert_eq!(of(1 << 31, 0, Mode::Guest), None);
    assert!(of(1 << 31, 1 << 10, Mode::Guest).is_some());
    // What KVM returns then is no address of the guest's memory, or of another part of it.
    assert_eq!(of(1 << 31, 1 << 10, Mode::NestedGuest), None);
    assert_eq!(of(1 << 31, 1 << 10, Mode::SystemManagement), None);
}
