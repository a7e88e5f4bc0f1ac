//! Promise 1 as a whole: a copy of a program's memory that is updated by rounds alone equals its
//! memory, byte for byte, whatever calls the program makes.
//!
//! The programs are random (`tests/victims/turmoil.c`): `PAGETRAIL_SEED` repeats one,
//! `PAGETRAIL_SEEDS` sets their number.
//!
//! A page that is not in the page table reads as its file, of which shared memory has one, too. Its
//! contents are read from there: reading the program's memory would bring the page into the table.
//! It can come there without a write all the same, as something that only this program owns: a
//! program that is stopped between the fault of its store and the store itself has a page that it
//! has not written.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{Adaptive, Compare, PagemapScan, SoftDirty, Userfaultfd};
use pagetrail::{PageRange, PageSet, Region, Round, Target, Technique, Watch, page_size};
use rustix::process::Signal;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{row, state, times, victim_program, working};

/// How long a program is tracked.
const RUN: Duration = Duration::from_millis(350);

/// Bits of an entry of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// The entry of a write-protection marker, which reads as swapped, of the last type
/// (`pte_to_pagemap_entry` in `fs/proc/task_mmu.c`).
const MARKER: u64 = SWAPPED | 0x1f;

/// The contents of a page when it was last reported, as far as they are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Contents(u64),
    /// The page did not exist: it reads as zeros.
    Nothing,
}

struct Replica {
    pid: u32,
    memory: File,
    pagemap: File,
    hasher: RandomState,
    pages: HashMap<u64, Held>,
    /// Pages that were reported while they were inaccessible.
    unread: PageSet,
    zeros: u64,
}

impl Replica {
    fn of(pid: u32) -> Self {
        let open = |name| File::open(format!("/proc/{pid}/{name}")).unwrap();
        let hasher = RandomState::new();
        let zeros = hasher.hash_one(&vec![0u8; page_size() as usize][..]);
        Self {
            pid,
            memory: open("mem"),
            pagemap: open("pagemap"),
            hasher,
            pages: HashMap::new(),
            unread: PageSet::new(),
            zeros,
        }
    }

    fn entries(&self, start: u64, end: u64) -> Vec<u64> {
        let mut bytes = vec![0; ((end - start) / page_size() * 8) as usize];
        let read = self.pagemap.read_at(&mut bytes, start / page_size() * 8);
        bytes.truncate(read.unwrap_or(0));
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn held(&self, address: u64, entry: u64) -> Option<Held> {
        if is_absent(entry) {
            return Some(Held::Nothing);
        }
        let mut bytes = vec![0; page_size() as usize];
        let read = self.memory.read_exact_at(&mut bytes, address);
        read.ok()
            .map(|()| Held::Contents(self.hasher.hash_one(&bytes[..])))
    }

    /// The contents of an absent page in a mapping of a file, `None` if the mapping is gone.
    fn in_file(&self, address: u64, region: &Region, file: &io::Result<File>) -> Option<Held> {
        let mut bytes = vec![0; page_size() as usize];
        let at = region.offset + (address - region.range.start());
        match file {
            Ok(file) => match file.read_at(&mut bytes, at).ok()? {
                0 => Some(Held::Nothing),
                _ => Some(Held::Contents(self.hasher.hash_one(&bytes[..]))),
            },
            // Nobody but root may open it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(Held::Nothing),
            Err(_) => None,
        }
    }

    /// Copies pages that were reported; `regions`: the mappings as they were a moment ago.
    fn copy(&mut self, range: &PageRange, regions: &[Region]) {
        let mut start = range.start();
        let first = regions.partition_point(|region| region.range.end() <= start);
        for region in &regions[first..] {
            let Some(part) = region.range.intersection(range) else {
                break;
            };
            // Mappings that change while they are read may overlap.
            let (from, end) = (part.start().max(start), part.end().max(start));
            // Where no mapping is any more nothing can be compared.
            self.copy_part(start, from, None);
            self.copy_part(from, end, Some(region));
            start = end;
        }
        self.copy_part(start, range.end(), None);
    }

    fn copy_part(&mut self, start: u64, end: u64, region: Option<&Region>) {
        if start == end {
            return;
        }
        let entries = self.entries(start, end);
        let region = region.filter(|region| region.inode != 0 || region.permissions.shared);
        let mut file = None;
        for (address, entry) in (start..end).step_by(page_size() as usize).zip(entries) {
            let held = match region {
                Some(region) if is_absent(entry) => {
                    let file = file.get_or_insert_with(|| mapped_file(self.pid, region));
                    self.in_file(address, region, file)
                }
                _ => self.held(address, entry),
            };
            match held {
                Some(held) => self.pages.insert(address, held),
                None => {
                    self.unread
                        .insert(PageRange::new(address, address + page_size()).unwrap());
                    self.pages.remove(&address)
                }
            };
        }
    }

    fn begin(&mut self, regions: &[Region]) {
        // Inaccessible pages are copied once they are accessible.
        for region in regions.iter().filter(|region| is_memory(region)) {
            self.copy(&region.range, regions);
        }
    }

    fn follow(&mut self, round: &Round<'_>) {
        let remapped = round.remapped();
        if !remapped.is_empty() {
            self.pages.retain(|address, _| !remapped.contains(*address));
        }
        let unread = std::mem::take(&mut self.unread).union(round.dirty());
        let regions = Region::of_process(self.pid).unwrap();
        for range in unread.ranges() {
            self.copy(range, &regions);
        }
    }

    /// Whether a page that was not reported may have these contents: it was created without a
    /// write.
    fn is_unwritten(&self, address: u64, entry: u64, now: u64, region: &Region) -> bool {
        if now == self.zeros {
            return true;
        }
        if region.permissions.shared || region.inode == 0 {
            return false;
        }
        let file = mapped_file(self.pid, region);
        entry & OF_FILE != 0 || self.in_file(address, region, &file) == Some(Held::Contents(now))
    }

    /// The number of pages whose contents differ from the replica, and a description of some.
    fn lost(&self, regions: &[Region], not_watched: &PageSet) -> (u64, Vec<String>) {
        let (mut compared, mut lost) = (0, Vec::new());
        for region in regions.iter().filter(|region| is_memory(region)) {
            let (start, end) = (region.range.start(), region.range.end());
            let entries = self.entries(start, end);
            for (address, entry) in (start..end).step_by(page_size() as usize).zip(entries) {
                let Some(Held::Contents(now)) = self.held(address, entry) else {
                    continue;
                };
                if not_watched.contains(address) {
                    continue;
                }
                compared += 1;
                let same = match self.pages.get(&address) {
                    Some(Held::Contents(before)) => *before == now,
                    _ => self.is_unwritten(address, entry, now, region),
                };
                if !same {
                    let known = self.pages.contains_key(&address);
                    lost.push(format!(
                        "{address:#x} in {region} (known: {known}, entry {entry:#x})"
                    ));
                }
            }
        }
        (compared, lost)
    }
}

/// Whether a page is not in the page table, where a marker counts as nothing.
fn is_absent(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) == 0 || entry & (PRESENT | MARKER) == MARKER
}

/// The file of a mapping, by `proc_pid_map_files(5)`.
fn mapped_file(pid: u32, region: &Region) -> io::Result<File> {
    let (start, end) = (region.range.start(), region.range.end());
    File::open(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
}

fn is_memory(region: &Region) -> bool {
    region.is_trackable() && region.range.bytes() < 1 << 30
}

/// Shared memory of files that were opened for reading (`proc_pid_smaps(5)`), which no write can
/// change.
fn read_only(pid: u32) -> PageSet {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut found, mut mapping) = (PageSet::new(), None);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).ok();
            mapping = number(start).zip(number(end));
        } else if first == "VmFlags:" {
            let flags: Vec<&str> = words.collect();
            if flags.contains(&"ms") && !flags.contains(&"mw") {
                found.extend(mapping.and_then(|(start, end)| PageRange::new(start, end)));
            }
        }
    }
    found
}

/// A random program; it is killed when dropped.
struct Program {
    child: Option<Child>,
    pid: u32,
}

impl Program {
    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid as i32).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    fn all_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        tasks.flatten().all(|task| {
            let name = task.file_name();
            let thread = name.to_string_lossy().parse().unwrap();
            // The directory of a thread has the same status file as that of a process.
            matches!(state(thread), 'T' | 't')
        })
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(60);
        // The threads stop one after the other.
        while !self.all_stopped() {
            assert_ne!(state(self.pid), 'Z', "{} has ended by itself", self.pid);
            assert!(Instant::now() < deadline, "{} does not stop", self.pid);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

/// The kind of a program that is tracked with a budget.
const WITHIN_BUDGET: &str = "a process, within a budget";

/// Tracks one random program; returns how many pages were compared, and which differed.
fn run(
    victim: &str,
    seed: u64,
    technique: Technique,
    launched: bool,
    max_overhead: Option<f64>,
) -> (u64, Vec<String>) {
    // The copies of `compare` are made while the program is stopped, and the same must hold here.
    let stopping = matches!(technique, Compare | Userfaultfd);
    let mut command = Command::new(victim_program(victim).unwrap());
    command
        .args(["600", &seed.to_string()])
        .stdout(Stdio::null());
    if victim == "turmoil" && !stopping {
        // Memory that the program itself tracks is compared, which needs a program that is stopped.
        command.arg("plain");
    }
    let start = |target: Target| {
        let watch = Watch::builder().target(target).technique(technique);
        let watch = match max_overhead {
            Some(share) => watch.max_overhead(share),
            None => watch,
        };
        watch
            .start()
            .unwrap_or_else(|error| panic!("{technique}: {error}"))
    };
    let (mut watch, program) = if launched {
        let watch = start(Target::command(command));
        let pid = watch.pid();
        (watch, Program { child: None, pid })
    } else {
        let child = command.spawn().unwrap();
        let pid = child.id();
        let program = Program {
            child: Some(child),
            pid,
        };
        std::thread::sleep(Duration::from_millis(20));
        (start(Target::process(pid).unwrap()), program)
    };
    let mut replica = Replica::of(program.pid);
    if stopping {
        program.stop();
        watch.collect().unwrap().commit();
    }
    replica.begin(&Region::of_process(program.pid).unwrap());
    program.signal(Signal::CONT);
    let mut random = fastrand::Rng::with_seed(seed);
    let began = Instant::now();
    while began.elapsed() < RUN {
        std::thread::sleep(Duration::from_micros(random.u64(100..6000)));
        if stopping {
            program.stop();
        }
        let round = watch.collect().unwrap();
        replica.follow(&round);
        round.commit();
        if stopping {
            program.signal(Signal::CONT);
        }
    }
    program.stop();
    let mut not_watched = PageSet::new();
    for _ in 0..2 {
        let round = watch.collect().unwrap();
        replica.follow(&round);
        let untracked = round
            .untracked()
            .iter()
            .filter(|untracked| !untracked.compared);
        not_watched = untracked.map(|untracked| untracked.region.range).collect();
        round.commit();
    }
    let regions = Region::of_process(program.pid).unwrap();
    not_watched.union_with(&read_only(program.pid));
    let outcome = replica.lost(&regions, &not_watched);
    drop(program);
    outcome
}

fn replicas(technique: Technique, launched: bool) {
    let kind = if launched { "a command" } else { "a process" };
    replicas_of("turmoil", kind, technique, launched);
}

fn replicas_of(victim: &str, kind: &str, technique: Technique, launched: bool) {
    let subject = format!("replica of {kind}");
    if working(&subject, &[technique]).is_empty() || victim_program(victim).is_none() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds: Vec<u64> = match (number("PAGETRAIL_SEED"), number("PAGETRAIL_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, many) => (0..many.unwrap_or(u64::from(times(8, 200))))
            .map(|_| fastrand::u64(..1 << 32))
            .collect(),
    };
    let mut compared = 0;
    for seed in seeds {
        println!("{technique}, {kind}: PAGETRAIL_SEED={seed}");
        let max_overhead = (kind == WITHIN_BUDGET).then_some(0.001);
        let (pages, lost) = run(victim, seed, technique, launched, max_overhead);
        assert!(
            lost.is_empty(),
            "{technique}, {kind}, PAGETRAIL_SEED={seed}: {} of {pages} pages lost: {:#?}",
            lost.len(),
            &lost[..lost.len().min(12)]
        );
        assert!(pages > 100, "{pages} pages only");
        compared += pages;
    }
    row(
        &subject,
        technique.name(),
        "works",
        &format!("{compared} pages compared"),
    );
}

#[test]
fn rounds_of_pagemap_scan_make_a_replica() {
    replicas(PagemapScan, false);
}

#[test]
fn rounds_of_pagemap_scan_make_a_replica_of_a_command() {
    replicas(PagemapScan, true);
}

#[test]
fn rounds_of_adaptive_make_a_replica() {
    replicas(Adaptive, false);
}

/// The budget is far too small, so that as much is predicted as can be.
#[test]
fn rounds_within_a_budget_make_a_replica() {
    replicas_of("turmoil", WITHIN_BUDGET, Adaptive, false);
}

#[test]
fn rounds_of_soft_dirty_make_a_replica() {
    replicas(SoftDirty, false);
}

#[test]
fn rounds_of_compare_make_a_replica() {
    replicas(Compare, false);
}

#[test]
fn rounds_of_userfaultfd_make_a_replica() {
    replicas(Userfaultfd, false);
}

#[test]
fn pages_of_split_huge_pages_are_not_overlooked() {
    for technique in [PagemapScan, Adaptive, SoftDirty, Compare, Userfaultfd] {
        replicas_of("splits", "split huge pages", technique, false);
    }
}

/// Programs whose mappings take each other's place: state that is kept by address must not outlive
/// the mapping that it is about.
fn tangles(technique: Technique) {
    replicas_of("tangle", "a tangle of mappings", technique, false);
}

#[test]
fn rounds_of_pagemap_scan_make_a_replica_of_a_tangle() {
    tangles(PagemapScan);
}

#[test]
fn rounds_of_adaptive_make_a_replica_of_a_tangle() {
    tangles(Adaptive);
}

#[test]
fn rounds_of_soft_dirty_make_a_replica_of_a_tangle() {
    tangles(SoftDirty);
}

#[test]
fn rounds_of_compare_make_a_replica_of_a_tangle() {
    tangles(Compare);
}

#[test]
fn rounds_of_userfaultfd_make_a_replica_of_a_tangle() {
    tangles(Userfaultfd);
}
