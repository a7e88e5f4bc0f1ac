//! The technique on memory of this process, round by round: situations that no test from outside
//! can cause at will.

use super::release::CALLS_MAX;
use super::{Adaptive, Costs, FalsePositiveCost, Precision};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::scratch::Scratch;
use crate::sys::uffd::{Faults, Uffd};
use crate::technique::Tracker;
use crate::technique::pagemap_scan::{HugePages, block_bytes};
use crate::types::PredictionStats;
use crate::types::Technique;
use crate::{Capabilities, Status};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that the test writes to, and also the hook between the scan and the calls that re-arm. It
/// begins with a block: what is decided for a block depends on which pages are in it.
#[derive(Clone)]
struct Shared {
    memory: Arc<Mutex<Scratch>>,
    range: PageRange,
}

impl Shared {
    fn new(pages: u64) -> Self {
        let bytes = pages * page_size();
        let memory = Scratch::new(bytes + block_bytes()).unwrap();
        let start = memory.range().start().next_multiple_of(block_bytes());
        let shared = Self {
            range: PageRange::new(start, start + bytes).unwrap(),
            memory: Arc::new(Mutex::new(memory)),
        };
        (0..pages).for_each(|page| shared.write(page));
        shared
    }

    fn range(&self) -> PageRange {
        self.range
    }

    fn write(&self, page: u64) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.range.start() - memory.range().start();
        memory.write(before + page * page_size(), 1);
    }

    fn address(&self, page: u64) -> u64 {
        self.range().start() + page * page_size()
    }

    fn pages(&self, numbers: impl IntoIterator<Item = u64>) -> PageSet {
        numbers
            .into_iter()
            .filter_map(|page| PageRange::new(self.address(page), self.address(page + 1)))
            .collect()
    }
}

/// Tracks the memory with costs that are the same on every machine; `None` if the technique does
/// not work here.
fn watch(memory: &Shared) -> Option<Adaptive> {
    let status = Capabilities::probe_one(Technique::Adaptive);
    if *status != Status::Works {
        pagetrail_skips::not_here(format!("adaptive {status}"));
        return None;
    }
    let fd = Uffd::create(Faults::UserMode).unwrap();
    let false_positive = FalsePositiveCost::default();
    let mut watch = Adaptive::new(
        fd,
        None,
        HugePages::Split,
        false_positive,
        Precision::AsDetected,
    )
    .unwrap();
    watch.costs = Costs::of(1_000, 1_500);
    assert!(watch.arm(&Region::scratch(memory.range())).is_ok());
    Some(watch)
}

/// What a call that re-arms costs, in nanoseconds, unless a test says otherwise.
const CALL_NS: i64 = 1_000;

fn round(watch: &mut Adaptive) -> (PageSet, PredictionStats) {
    round_with(watch, CALL_NS)
}

/// A round in which a call costs what the test says: what is measured differs from machine to
/// machine, and on a busy one from round to round.
fn round_with(watch: &mut Adaptive, call_ns: i64) -> (PageSet, PredictionStats) {
    watch.call_ns = call_ns;
    let mut out = PageSet::new();
    let collected = watch.collect(&[], &mut out).unwrap();
    (out, collected.prediction.unwrap())
}

/// A call that re-arms may span armed pages. If one of these is written between the scan and the
/// call, the call arms it again, and no later scan reports it; so this round must.
#[test]
fn a_write_between_scan_and_call_is_reported() {
    let memory = Shared::new(512);
    let Some(mut watch) = watch(&memory) else {
        return;
    };
    let late = Arc::new(Mutex::new(Vec::new()));
    let (writer, noted) = (memory.clone(), Arc::clone(&late));
    watch.between = Some(Box::new(move |spans, reported| {
        for span in spans {
            let start = writer.range().start();
            let pages = (span.start() - start) / page_size()..(span.end() - start) / page_size();
            let unseen = |page: &u64| !reported.contains(writer.address(*page));
            if let Some(page) = pages.into_iter().find(unseen) {
                writer.write(page);
                noted.lock().unwrap().push(page);
            }
        }
    }));
    let mut tried = 0;
    for number in 0..200 {
        // Hot pages, and two others with an armed page between them.
        let hot = (0..40).map(|n| n * 4);
        let cold = 200 + number % 16 * 17;
        let written: Vec<u64> = hot.chain([cold, cold + 2]).collect();
        written.iter().for_each(|page| memory.write(*page));
        let (out, _) = round(&mut watch);
        let late = std::mem::take(&mut *late.lock().unwrap());
        tried += late.len();
        let missed = memory
            .pages(written.into_iter().chain(late))
            .difference(&out);
        assert!(missed.is_empty(), "round {number} misses {missed:?}");
    }
    assert!(tried > 0, "no call reached over an armed page");
}

/// While a sweep continues, its faults are avoided, its pages are reported, and few others.
#[test]
fn pages_ahead_of_a_sweep_are_released() {
    const PAGES: u64 = 8192;
    const STEP: u64 = 300;
    let memory = Shared::new(PAGES);
    let Some(mut watch) = watch(&memory) else {
        return;
    };
    let (mut reported, mut avoided, mut ahead) = (0, 0, 0);
    let mut at = 0;
    for _ in 0..20 {
        let written = at..at + STEP;
        written.clone().for_each(|page| memory.write(page));
        at += STEP;
        let (out, stats) = round(&mut watch);
        let missed = memory.pages(written).difference(&out);
        assert!(missed.is_empty(), "before page {at}: {missed:?}");
        reported += out.page_count();
        avoided += stats.faults_avoided;
        ahead += stats.ahead;
    }
    assert!(avoided > 13 * STEP, "{avoided} of {at} faults avoided");
    assert!(reported < at + at / 20, "{reported} of {at} reported");
    assert_eq!(ahead, avoided);
    // The sweep stops: the released pages are reported once more, and then nothing.
    let (out, stats) = round(&mut watch);
    assert!((1..=STEP).contains(&out.page_count()));
    assert_eq!(stats.faults_avoided, 0);
    assert_eq!(stats.false_positives, out.page_count());
    assert_eq!(round(&mut watch).0.page_count(), 0);
    // It continues elsewhere, and no write is lost.
    (10..20).for_each(|page| memory.write(page));
    assert_eq!(round(&mut watch).0, memory.pages(10..20));
}

/// Pages that are written in four of five rounds are worth predicting, also after a check has found
/// one unwritten.
#[test]
fn pages_written_in_most_rounds_cost_few_faults() {
    const HOT: u64 = 50;
    let memory = Shared::new(2048);
    let Some(mut watch) = watch(&memory) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(5);
    let (mut written_count, mut reported, mut avoided) = (0, 0, 0);
    for number in 0..400 {
        let written: Vec<u64> = (0..HOT)
            .filter(|_| random.u8(..5) != 0)
            .map(|n| n * 37)
            .collect();
        written.iter().for_each(|page| memory.write(*page));
        let (out, stats) = round(&mut watch);
        let written = memory.pages(written);
        assert!(written.difference(&out).is_empty());
        if number >= 100 {
            written_count += written.page_count();
            reported += out.page_count();
            avoided += stats.faults_avoided;
        }
    }
    assert!(
        avoided * 10 > written_count * 6,
        "{avoided} of {written_count} faults avoided"
    );
    assert!(
        reported * 10 < written_count * 13,
        "{reported} of {written_count} reported"
    );
}

/// Whatever faults and calls cost: pages written in every round, rarely, or no longer are left
/// unprotected, wait, or are checked in turns, and in the end nothing is reported.
#[test]
fn an_idle_program_is_soon_reported_as_idle() {
    for (fault_ns, call_ns) in [
        (1_000, 1_500),
        (20_000, 10_000),
        (20_000, 300_000),
        (100_000, 50_000),
    ] {
        let memory = Shared::new(1536);
        let Some(mut watch) = watch(&memory) else {
            return;
        };
        watch.costs = Costs::of(fault_ns, 1_500);
        let mut random = fastrand::Rng::with_seed(11);
        let mut turn = |writes: bool| {
            if writes {
                (0..12).for_each(|page| memory.write(page * 17));
                memory.write(random.u64(..1536));
            }
            round_with(&mut watch, call_ns).0.page_count()
        };
        for phase in 0..3 {
            (0..28).for_each(|_| assert!(turn(true) >= 12));
            let quiet = (0..90).take_while(|_| turn(false) > 0).count();
            assert!(
                quiet < 90,
                "fault {fault_ns} ns, call {call_ns} ns, phase {phase}: reported for ever"
            );
        }
    }
}

/// Where a fault is dear enough that one write makes a page worth predicting, it faults in one
/// round, and not once more until a scan has left its block. What is written between the scan that
/// armed it and its release is reported.
#[test]
fn pages_that_are_hot_at_once_are_released_at_once() {
    let memory = Shared::new(512);
    let Some(mut watch) = watch(&memory) else {
        return;
    };
    watch.costs = Costs::of(16_000, 1_500);
    let hot = || 100..300;
    hot().for_each(|page| memory.write(page));
    let (out, stats) = round(&mut watch);
    assert_eq!((out, stats.predicted), (memory.pages(hot()), 0));
    // They are not protected any more, and so are reported whether they are written or not, and
    // nothing else is.
    memory.write(400);
    let (out, stats) = round(&mut watch);
    assert_eq!(out, memory.pages(hot().chain([400])));
    assert_eq!(stats.predicted, 200);
    // Where it is as dear as usual, one write shows nothing.
    let memory = Shared::new(512);
    let Some(mut watch) = self::watch(&memory) else {
        return;
    };
    hot().for_each(|page| memory.write(page));
    round(&mut watch);
    let (out, _) = round(&mut watch);
    assert!(out.is_empty(), "{out:?}");
}

/// Pages here and there take a call each to release, and a collect makes no more than so many.
#[test]
fn a_collect_releases_so_many_pages_that_lie_apart() {
    let most = u64::from(CALLS_MAX);
    let memory = Shared::new(4 * most);
    let Some(mut watch) = watch(&memory) else {
        return;
    };
    watch.costs = Costs::of(16_000, 1_500);
    let hot = || (0..2 * most).map(|page| page * 2);
    hot().for_each(|page| memory.write(page));
    round(&mut watch);
    let (out, _) = round(&mut watch);
    assert_eq!(out, memory.pages(hot().take(CALLS_MAX as usize)));
}
