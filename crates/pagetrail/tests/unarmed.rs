//! `Watch::collect_unarmed`: the pages that it reports cost nothing until they are re-armed, and
//! are in every round until then.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::hint::black_box;

use pagetrail::{
    Capabilities, Error, PageRange, PageSet, Target, Technique, TrackMode, Watch, mapped_pages,
    page_size, pages_of,
};

const PAGES: usize = 64;

struct Buffer {
    bytes: Vec<u8>,
    range: PageRange,
}

impl Buffer {
    fn new() -> Self {
        let bytes = vec![1u8; (PAGES + 2) * page_size() as usize];
        let inner = pages_of(&bytes).unwrap();
        let start = inner.start() + page_size();
        let range = PageRange::new(start, start + PAGES as u64 * page_size()).unwrap();
        Self { bytes, range }
    }

    fn write(&mut self, page: usize) {
        let at = self.range.start() - self.bytes.as_ptr() as u64 + page as u64 * page_size();
        self.bytes[at as usize] = black_box(2);
    }

    fn pages(&self, pages: &[u64]) -> PageSet {
        let start = |page: &u64| self.range.start() + page * page_size();
        pages
            .iter()
            .filter_map(|page| PageRange::new(start(page), start(page) + page_size()))
            .collect()
    }
}

/// The minor faults of this thread only: other tests run in parallel.
fn minor_faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = text.rsplit(") ").next().unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

fn works(technique: Technique) -> bool {
    let status = Capabilities::probe_one(technique);
    let works = *status == pagetrail::Status::Works;
    if !works {
        match technique {
            Technique::PagemapScan => pagetrail_skips::not_here(format!("{technique} is {status}")),
            // A part of tests that go on.
            _ => eprintln!("not tested here: {technique} is {status}"),
        }
    }
    works
}

fn check(technique: Technique) {
    if !works(technique) {
        return;
    }
    let mut buffer = Buffer::new();
    let mut watch = Watch::builder()
        .target(Target::ranges([buffer.range]))
        .technique(technique)
        .start()
        .unwrap();
    let round = |watch: &mut Watch| {
        let round = watch.collect_unarmed().unwrap();
        let pages = round.dirty().clone();
        round.commit();
        pages
    };
    for page in [3, 4, 40] {
        buffer.write(page);
    }
    assert_eq!(round(&mut watch), buffer.pages(&[3, 4, 40]), "{technique}");
    // Nothing was written, and they are reported again, because a write would not be detected.
    assert_eq!(round(&mut watch), buffer.pages(&[3, 4, 40]));
    let before = minor_faults();
    for _ in 0..1000 {
        [3, 4, 40].into_iter().for_each(|page| buffer.write(page));
    }
    assert!(minor_faults() - before < 20, "they are not armed");
    // Page 60 was not reported yet: re-arming it now would lose this write.
    buffer.write(60);
    watch.rearm(&buffer.pages(&[4, 40, 60])).unwrap();
    buffer.write(40);
    buffer.write(50);
    assert_eq!(round(&mut watch), buffer.pages(&[3, 40, 50, 60]));
    // An ordinary collect re-arms everything.
    watch.rearm(&buffer.pages(&[40])).unwrap();
    let ordinary = watch.collect().unwrap();
    assert_eq!(*ordinary.dirty(), buffer.pages(&[3, 50, 60]));
    ordinary.commit();
    assert!(round(&mut watch).is_empty());
}

/// While suspended, the target takes no faults, and the next round has what was written meanwhile,
/// and before.
fn check_suspended(technique: Technique) {
    if !works(technique) {
        return;
    }
    let mut buffer = Buffer::new();
    let mut watch = Watch::builder()
        .target(Target::ranges([buffer.range]))
        .technique(technique)
        .start()
        .unwrap();
    watch.collect_unarmed().unwrap().commit();
    buffer.write(7);
    watch.suspend().unwrap();
    let before = minor_faults();
    (0..PAGES / 2).for_each(|page| buffer.write(page));
    assert!(
        minor_faults() - before < 20,
        "{technique}: nothing is armed"
    );
    let round = watch.collect().unwrap();
    let written: Vec<u64> = (0..PAGES as u64 / 2).collect();
    assert!(buffer.pages(&written).difference(round.dirty()).is_empty());
    round.commit();
    // Armed again.
    buffer.write(9);
    assert_eq!(*watch.collect().unwrap().dirty(), buffer.pages(&[9]));
}

#[test]
fn while_suspended_the_target_takes_no_faults_and_nothing_is_lost() {
    check_suspended(Technique::PagemapScan);
    check_suspended(Technique::AccessScan);
}

#[test]
fn pages_stay_unarmed_until_they_are_armed() {
    check(Technique::PagemapScan);
    check(Technique::AccessScan);
}

#[test]
fn an_uncommitted_round_comes_back() {
    if !works(Technique::PagemapScan) {
        return;
    }
    let mut buffer = Buffer::new();
    let mut watch = Watch::builder()
        .target(Target::ranges([buffer.range]))
        .technique(Technique::PagemapScan)
        .start()
        .unwrap();
    buffer.write(7);
    let pages = watch.collect_unarmed().unwrap().dirty().clone();
    watch.rearm(&pages).unwrap();
    buffer.write(9);
    assert_eq!(
        *watch.collect_unarmed().unwrap().dirty(),
        buffer.pages(&[7, 9])
    );
}

#[test]
fn techniques_that_always_arm_say_so() {
    let buffer = Buffer::new();
    let mut watch = Watch::builder()
        .target(Target::ranges([buffer.range]))
        .technique(Technique::Compare)
        .start()
        .unwrap();
    let refused = watch.collect_unarmed().unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    watch.collect().unwrap().commit();
    if works(Technique::AccessScan) {
        let turns = Watch::builder()
            .target(Target::ranges([buffer.range]))
            .track(TrackMode::Alternate)
            .start();
        assert!(turns.unwrap().collect_unarmed().is_err());
    }
}

#[test]
fn mapped_pages_are_found() {
    let mut buffer = Buffer::new();
    buffer.write(0);
    let all = PageSet::from_iter([buffer.range]);
    let mapped = match mapped_pages(std::process::id(), &all) {
        Ok(mapped) => mapped,
        Err(error) => {
            pagetrail_skips::not_here(&error);
            return;
        }
    };
    assert_eq!(mapped.present, all);
    assert!(mapped.swapped.is_empty());
    let nobody = PageSet::from_iter(PageRange::new(4096, 8192));
    assert!(
        mapped_pages(std::process::id(), &nobody)
            .unwrap()
            .present
            .is_empty()
    );
    assert!(mapped_pages(u32::MAX, &all).is_err());
}
