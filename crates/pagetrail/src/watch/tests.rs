//! Rounds of a watch on the own process.

use super::*;
use crate::error::ErrorKind;
use crate::page_set::page_size;
use crate::source::DirtySource;
use crate::sys::scratch::Scratch;
use crate::target::Target;

/// A watch with a budget on a buffer, in which a fault costs what the test says, with intervals of
/// a millisecond at least.
fn with_budget(
    technique: Technique,
    range: PageRange,
    share: f64,
    fault: Duration,
) -> Option<Watch> {
    with_intervals(technique, range, share, fault, Duration::from_millis(1))
}

/// Such a watch with longer intervals.
fn with_intervals(
    technique: Technique,
    range: PageRange,
    share: f64,
    fault: Duration,
    shortest: Duration,
) -> Option<Watch> {
    let builder = Watch::builder()
        .target(Target::ranges([range]))
        .technique(technique)
        .max_overhead(share)
        .intervals(shortest..=Duration::from_secs(3600));
    match builder.start() {
        Ok(mut watch) => {
            watch.budget.as_mut().unwrap().set_price(fault);
            Some(watch)
        }
        Err(error) => {
            pagetrail_skips::not_here(&error);
            None
        }
    }
}

/// What a round costs is known where faults cost far more than anything else, and so is when the
/// next is due.
#[test]
fn the_interval_is_what_the_price_of_faults_allows() {
    for technique in [Technique::PagemapScan, Technique::Adaptive] {
        let mut memory = Scratch::new(64 * page_size()).unwrap();
        (0..64).for_each(|page| memory.write(page * page_size(), 1));
        let fault = Duration::from_secs(1);
        let Some(mut watch) = with_budget(technique, memory.range(), 0.5, fault) else {
            return;
        };
        (0..10).for_each(|page| memory.write(page * page_size(), 2));
        let before = Instant::now();
        let round = watch.collect().unwrap();
        let overhead = round.overhead().unwrap();
        assert_eq!(round.dirty().page_count(), 10, "{technique}");
        assert_eq!(
            (overhead.faults, overhead.fault),
            (10, fault),
            "{technique}"
        );
        assert_eq!(overhead.reported_per_written, 1.0);
        // Ten seconds of faults in a round of far less: twenty seconds are needed at half of the
        // time, and what this round had too much is saved in eight. But they slow down all that
        // this process does, other tests included, which run on as many processors as there are.
        assert!(overhead.share > 0.5, "{overhead:?}");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Half, since two clocks are compared over a moment.
        let least = Duration::from_secs(20) / (2 * processors as u32);
        let needed = least..Duration::from_secs(3600);
        assert!(needed.contains(&overhead.next), "{overhead:?}");
        round.commit();
        let due = watch.next_collect().unwrap();
        assert!(due >= before + overhead.next);
    }
}

/// Nothing but collects costs anything, and they are far below the budget, also where a busy
/// machine makes one take some milliseconds.
#[test]
fn faults_that_cost_nothing_leave_the_shortest_interval() {
    let mut memory = Scratch::new(64 * page_size()).unwrap();
    (0..64).for_each(|page| memory.write(page * page_size(), 1));
    let (price, shortest) = (Duration::ZERO, Duration::from_secs(1));
    let technique = Technique::PagemapScan;
    let Some(mut watch) = with_intervals(technique, memory.range(), 1.0, price, shortest) else {
        return;
    };
    for value in 2..20 {
        std::thread::sleep(Duration::from_millis(2));
        (0..64).for_each(|page| memory.write(page * page_size(), value));
        let round = watch.collect().unwrap();
        assert_eq!(round.dirty().page_count(), 64);
        let overhead = round.overhead().unwrap();
        assert_eq!(overhead.next, shortest, "{overhead:?}");
        assert!(overhead.is_kept && overhead.faults <= 64);
        round.commit();
    }
}

/// Where faults are dear, pages that are written in most rounds are predicted, as few faults as
/// possible are left, and all that was written is in its round.
#[test]
fn what_is_dear_is_predicted() {
    let mut memory = Scratch::new(512 * page_size()).unwrap();
    (0..512).for_each(|page| memory.write(page * page_size(), 1));
    let fault = Duration::from_millis(10);
    let Some(mut watch) = with_budget(Technique::Adaptive, memory.range(), 0.01, fault) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(3);
    let (mut faults, mut pages) = (0, 0);
    for value in 0..120 {
        // Written in seven rounds of ten.
        let written: Vec<u64> = (0..400).filter(|_| random.u8(..10) < 7).collect();
        written
            .iter()
            .for_each(|page| memory.write(page * page_size(), value));
        let round = watch.collect().unwrap();
        let address = |page: &u64| memory.range().start() + page * page_size();
        let missed = written
            .iter()
            .find(|page| !round.dirty().contains(address(page)));
        assert_eq!(missed, None, "round {value}");
        if value >= 60 {
            faults += round.overhead().unwrap().faults;
            pages += written.len() as u64;
        }
        round.commit();
    }
    assert!(faults < pages / 2, "{faults} faults for {pages} pages");
}

#[test]
fn a_budget_that_makes_no_sense_is_refused() {
    let start = |share, intervals| {
        let builder = Watch::builder().technique(Technique::None);
        builder.max_overhead(share).intervals(intervals).start()
    };
    let ms = Duration::from_millis;
    for (share, intervals) in [
        (0.0, ms(10)..=ms(20)),
        (f64::NAN, ms(10)..=ms(20)),
        (2.0, ms(10)..=ms(20)),
        (0.1, ms(0)..=ms(20)),
        (0.1, ms(30)..=ms(20)),
    ] {
        let error = start(share, intervals).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{error}");
    }
    let watch = start(0.1, ms(10)..=ms(20)).unwrap();
    assert!(watch.next_collect().is_some());
}

/// Mappings side by side are armed at once: each write is reported, in those that had pages before
/// and in those that had none, and nothing else is.
#[test]
fn mappings_side_by_side_are_tracked_as_each_by_itself() {
    for technique in [Technique::PagemapScan, Technique::Adaptive] {
        let page = page_size();
        let mut memory = Scratch::new(64 * page).unwrap();
        (0..16).for_each(|at| memory.write(at * page, 1));
        (1..32).for_each(|at| memory.make_read_only((2 * at + 1) * page, page).unwrap());
        let builder = Watch::builder().target(Target::ranges([memory.range()]));
        let mut watch = match builder.technique(technique).start() {
            Ok(watch) => watch,
            Err(error) => {
                pagetrail_skips::not_here(&error);
                return;
            }
        };
        let mut round = |written: &[u64]| {
            written.iter().for_each(|at| memory.write(at * page, 2));
            let round = watch.collect().unwrap();
            let dirty = round.dirty().iter_units(page);
            let dirty = dirty.map(|address| (address - memory.range().start()) / page);
            assert_eq!(dirty.collect::<Vec<_>>(), written, "{technique}");
            round.commit();
        };
        round(&[]);
        round(&[0, 6, 14, 16, 40, 62]);
        round(&[6, 18, 40]);
        round(&[]);
    }
}

/// Where a watch says that it reports discards, it reports each page that existed when it said so,
/// also one that came after the last collect.
#[test]
fn discards_are_reported_where_the_watch_says_so() {
    let (page, pages) = (page_size(), 4096);
    let mut memory = Scratch::new(pages * page).unwrap();
    (0..100).for_each(|at| memory.write(at * page, 1));
    let builder = Watch::builder().target(Target::ranges([memory.range()]));
    let mut watch = match builder.technique(Technique::PagemapScan).start() {
        Ok(watch) => watch,
        Err(error) => {
            pagetrail_skips::not_here(&error);
            return;
        }
    };
    let first = memory.range().start();
    let is_followed =
        |watch: &Watch, at: u64| watch.reports_discards_in().contains(first + at * page);
    assert!((0..100).all(|at| is_followed(&watch, at)));
    let mut random = fastrand::Rng::with_seed(11);
    let mut followed = 0;
    for _ in 0..200 {
        let written: Vec<u64> = (0..random.u64(0..20))
            .map(|_| random.u64(0..pages))
            .collect();
        written.iter().for_each(|at| memory.write(at * page, 2));
        let expected: Vec<u64> = written
            .into_iter()
            .filter(|at| is_followed(&watch, *at))
            .collect();
        for at in &expected {
            memory.discard(at * page, page).unwrap();
        }
        let round = watch.collect().unwrap();
        for at in &expected {
            assert!(round.dirty().contains(first + at * page), "page {at}");
        }
        round.commit();
        followed += expected.len();
    }
    assert!(followed > 1000, "{followed}");
}
