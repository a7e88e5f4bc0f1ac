//! The victim `stamps`, and whether an image of it, or its memory, is of one instant.

#![allow(dead_code, reason = "each test uses its part")]

use crate::common::PAGE;
use crate::support::Victim;
use pagetrail::PageRange;
use pagetrail_checkpoint::{Image, Store};

const BASE: u64 = 0x1000_0000_0000;
const CHURN: u64 = 0x2000_0000_0000;
const CHURN_PAGES: u64 = 64;
const MAGIC: u64 = 0x5350_4d41_5453;

/// Starts it; `None` without a C compiler.
pub(crate) fn start(threads: u32, pages: u32, pause_us: u32) -> Option<Victim> {
    let arguments = [threads, pages, pause_us].map(|n| n.to_string());
    let [threads, pages, pause] = arguments.each_ref().map(String::as_str);
    Victim::start("stamps", &["600", threads, pages, pause])
}

fn word(bytes: &[u8], at: u64) -> u64 {
    let at = at as usize;
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn read(image: &mut Image, from: u64, bytes: u64) -> Vec<u8> {
    let mut buffer = vec![0; bytes as usize];
    let range = PageRange::new(from, from + bytes).unwrap();
    image.read(range, &mut buffer).unwrap();
    buffer
}

/// Fails unless the image is of one instant; gives the progress of each thread.
pub(crate) fn check(image: &mut Image) -> Vec<u64> {
    let header = read(image, BASE, PAGE);
    assert_eq!(word(&header, 0), MAGIC);
    let (threads, pages) = (word(&header, 8), word(&header, 16));
    let (clocks, seens, stamps) = (word(&header, 24), word(&header, 32), word(&header, 40));
    let memory = read(image, BASE, (stamps + threads * pages) * PAGE);
    let at = |page: u64, index: u64| word(&memory, page * PAGE + 8 * index);
    let mut progress = Vec::new();
    for thread in 0..threads {
        let stamp = |step: u64| {
            let place = (step.wrapping_mul(2_654_435_761) + thread * 7) & (pages - 1);
            at(stamps + thread * pages + place, 0)
        };
        let n = stamp(0);
        let mut done = 0;
        for step in 0..pages {
            let expected = if stamp(step) == n && done == step {
                done += 1;
                n
            } else {
                n.wrapping_sub(1)
            };
            assert_eq!(
                stamp(step),
                expected,
                "thread {thread}, step {step} of {pages}, stamp {n}"
            );
        }
        // Before its first step a thread has stamped nothing: zeros are not a round that it has
        // finished.
        let steps = if n == 0 { 0 } else { n * pages + done };
        let clock = at(clocks + thread, 0);
        // A thread publishes its first step after it has stamped the page; rounds count from 1, so
        // does the clock.
        let is_first = clock == 0 && steps <= pages + 1;
        assert!(
            clock < steps.max(1) && (clock + 130 > steps || is_first),
            "thread {thread}: {clock}, {steps}"
        );
        progress.push(steps);
    }
    for thread in 0..threads {
        for other in 0..threads {
            let (seen, clock) = (at(seens + thread, other), at(clocks + other, 0));
            assert!(
                seen <= clock,
                "thread {thread} saw {seen} of {other}, which is at {clock}"
            );
        }
    }
    let churn = read(image, CHURN, CHURN_PAGES * PAGE);
    let newest = (0..CHURN_PAGES)
        .map(|page| word(&churn, page * PAGE))
        .max()
        .unwrap_or(0);
    let mut stamped = 0;
    for step in 0..CHURN_PAGES {
        let place = (step * 5 + newest) % CHURN_PAGES;
        let found = word(&churn, place * PAGE);
        assert!(
            found == newest && stamped == step || found == 0,
            "churn: {found} in mapping {newest}"
        );
        stamped += u64::from(found == newest && newest > 0);
    }
    assert!(stamped <= 8);
    assert_eq!(
        churn.iter().filter(|&&byte| byte != 0).count() > 0,
        newest > 0
    );
    progress
}

/// The header page of a victim with one thread of `pages` pages, and its first page: for tests of
/// [`check`] itself.
pub(crate) fn header(pages: u64) -> (u64, Vec<u8>) {
    let mut page = vec![0; PAGE as usize];
    for (at, word) in [MAGIC, 1, pages, 1, 2, 3].into_iter().enumerate() {
        page[8 * at..8 * at + 8].copy_from_slice(&u64::to_le_bytes(word));
    }
    (BASE / PAGE, page)
}

/// Checks all images of a store; progress never goes back from one to the next.
pub(crate) fn check_all(store: &Store) -> usize {
    let mut before = Vec::new();
    let numbers = store.numbers().unwrap();
    for number in &numbers {
        let now = check(&mut store.image(*number).unwrap());
        let forth = before.iter().zip(&now).all(|(before, now)| before <= now);
        assert!(forth, "checkpoint {number} is older than the one before it");
        before = now;
    }
    numbers.len()
}
