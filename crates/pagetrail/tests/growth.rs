//! Memory that grows while it is tracked stays in few mappings, as it does untracked: calls that
//! depend on it succeed, and no limit is exhausted.

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
