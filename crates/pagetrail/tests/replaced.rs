//! Mappings that look as if they were still there, and are not: what is mapped instead is reported.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{Adaptive, Compare, PagemapScan, SoftDirty, Userfaultfd};
use pagetrail::{PageRange, Target, Technique, Watch, page_size};
use std::time::{Duration, Instant};
use support::{Victim, is_root, row, working};

/// Where `replaced` has its mapping.
const BASE: u64 = 0x1000_0000_0000;

/// As often others may have been faster, and have got the number of an inode.
const TRIES: u32 = 1000;

/// What a round has of the mapping: whether it is reported as replaced, whether as dirty, and
/// whether the technique still has it.
type Found = (bool, bool, bool);

/// Has a victim `replaced` do that, and says what the next round has; `None` where it cannot.
fn round_after(what: &str, technique: Technique) -> Option<Found> {
    for _ in 0..TRIES {
        if let Some(found) = try_round_after(what, technique)? {
            return Some(found);
        }
    }
    panic!("{what}: others were faster each time");
}

/// One try; `Some(None)` if others were faster.
fn try_round_after(what: &str, technique: Technique) -> Option<Option<Found>> {
    let mut victim = Victim::start("replaced", &["600", what])?;
    let target = Target::process(victim.pid()).unwrap();
    let builder = Watch::builder().target(target).technique(technique);
    let mut watch = builder.start().unwrap();
    for _ in 0..2 {
        watch.collect().unwrap().commit();
    }
    victim.signal(rustix::process::Signal::USR1);
    let name = format!("/proc/{}/comm", victim.pid());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match std::fs::read_to_string(&name).unwrap_or_default().trim() {
            "done" => break,
            "late" => return Some(None),
            _ if !victim.is_running() => panic!("{}", victim.finish()),
            _ => assert!(Instant::now() < deadline, "it replaces nothing"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let round = watch.collect().unwrap();
    let here = PageRange::new(BASE, BASE + 4 * page_size()).unwrap();
    let is_here = |range: PageRange| range.start() == BASE;
    let mut untracked = round.untracked().iter();
    let found = (
        round.remapped().covers(here),
        round.dirty().covers(here),
        !untracked.any(|untracked| is_here(untracked.region.range)),
    );
    round.commit();
    drop(watch);
    victim.finish();
    Some(Some(found))
}

#[test]
fn a_file_with_the_number_of_a_deleted_one_is_another() {
    let subject = "mapping of a deleted file";
    if !is_root() {
        return row(subject, "any", "absent", "needs CAP_CHECKPOINT_RESTORE");
    }
    for technique in working(subject, &[PagemapScan, Adaptive, SoftDirty, Compare]) {
        // With the borders that the mapping had before, and with others.
        for what in ["file", "split"] {
            let Some((is_replaced, ..)) = round_after(what, technique) else {
                return;
            };
            assert!(is_replaced, "{technique}, {what}");
        }
        row(subject, technique.name(), "works", "");
    }
}

/// The program write-protects its pages as the technique does, so that what it has written would
/// read as clean; and what it asks its own userfaultfd about is left to it.
#[test]
fn memory_that_the_program_begins_to_track_itself_is_reported_and_left_to_it() {
    let subject = "mapping that the program tracks";
    for technique in working(subject, &[PagemapScan, Adaptive, Userfaultfd]) {
        // With other borders than the mapping had before, and with the same.
        for what in ["tracked", "same"] {
            let Some(found) = round_after(what, technique) else {
                return;
            };
            assert_eq!(found, (true, true, false), "{technique}, {what}");
        }
        row(subject, technique.name(), "works", "");
    }
}
