//! Memory that grows while it is tracked: it stays in few mappings, as it does untracked, so that
//! calls that depend on it succeed, and no limit is exhausted; and it is tracked from when it is
//! followed.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{AccessScan, Adaptive, Compare, PagemapScan, SoftDirty, Userfaultfd};
use pagetrail::{Target, Watch};
use std::time::Duration;
use support::{Victim, row, working};

#[test]
fn memory_that_grows_while_tracked_stays_one_mapping() {
    let subject = "growth: grower";
    let techniques = [
        PagemapScan,
        Adaptive,
        AccessScan,
        Userfaultfd,
        SoftDirty,
        Compare,
    ];
    for technique in working(subject, &techniques) {
        let Some(mut victim) = Victim::start("grower", &[]) else {
            return;
        };
        let target = Target::process(victim.pid()).unwrap();
        let builder = Watch::builder().target(target).technique(technique);
        let mut watch = builder.start().unwrap();
        victim.signal(rustix::process::Signal::USR1);
        let mut rounds = 0;
        while victim.is_running() {
            match watch.collect() {
                Ok(round) => round.commit(),
                Err(_) => break,
            }
            rounds += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = victim.finish();
        println!("{technique}: {rounds} rounds, {}", said.trim());
        row(subject, technique.name(), "works", "");
    }
}

/// Not beside tests of other watches on memory of their own: this one takes all memory of this
/// process, theirs included.
#[test]
fn mappings_followed_before_a_collect_are_in_its_round() {
    let subject = "growth: own process";
    for technique in working(subject, &[PagemapScan]) {
        let builder = Watch::builder().target(Target::own());
        let mut watch = builder.technique(technique).start().unwrap();
        watch.collect().unwrap().commit();
        let mut buffer = vec![1_u8; 8 << 20];
        let address = |buffer: &[u8]| &raw const buffer[5 << 20] as u64;
        watch.follow_mappings().unwrap();
        let round = watch.collect().unwrap();
        assert!(round.dirty().contains(address(&buffer)));
        round.commit();
        watch.follow_mappings().unwrap();
        buffer[5 << 20] = 2;
        let round = watch.collect().unwrap();
        assert!(round.dirty().contains(address(&buffer)));
        round.commit();
        row(subject, technique.name(), "works", "");
    }
}
