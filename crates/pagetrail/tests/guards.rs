//! Guard pages that a target has within its private memory (`MADV_GUARD_INSTALL`) stay guards, and
//! pages of which the guard was removed are in the rounds.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{Adaptive, Compare, PagemapScan, SoftDirty, Userfaultfd};
use pagetrail::{PageRange, PageSet, Target, Watch, page_size};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, row, times, working};

const PAGES: u64 = 32;
const KEPT: u64 = 4;

#[test]
fn guard_pages_stay_and_what_was_guarded_is_reported() {
    let subject = "guard pages";
    for technique in working(
        subject,
        &[PagemapScan, Adaptive, Userfaultfd, SoftDirty, Compare],
    ) {
        let Some(mut victim) = Victim::start("guards", &[]) else {
            return;
        };
        let start = u64::from_str_radix(&victim.said[0], 16).unwrap();
        let page = |number: u64| start + number * page_size();
        let used = PageSet::from(PageRange::new(page(KEPT), page(PAGES)).unwrap());
        let target = Target::process(victim.pid()).unwrap();
        let watch = Watch::builder().target(target).technique(technique);
        let mut watch = watch.start().unwrap_or_else(|error| victim.blame(&error));
        // The first round has what was written before.
        watch.collect().unwrap().commit();
        for _ in 0..times(3, 50) {
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut written = PageSet::new();
            while written.page_count() < PAGES - KEPT {
                assert!(Instant::now() < deadline, "{technique}: {written:?}");
                std::thread::sleep(Duration::from_millis(2));
                let round = watch.collect().unwrap();
                written.union_with(&(round.dirty() & &used));
                round.commit();
            }
        }
        drop(watch);
        for _ in 0..times(10, 200) {
            if let Err(error) = attach_once(victim.pid(), technique, 2, Duration::from_millis(1)) {
                victim.blame(&error);
            }
        }
        victim.is_clean(true);
        victim.finish();
        row(subject, technique.name(), "works", "");
    }
}
