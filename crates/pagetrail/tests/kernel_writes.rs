//! What the kernel writes to a target's memory past the page tables is in the rounds, and its
//! threads within the target, and a parent that waits in `vfork(2)`, go on while it is attached to.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{Adaptive, Compare, PagemapScan};
use pagetrail::{Hold, Target, Watch, page_size};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, row, times, working};

/// The ring is written some thousand times a second: it must be in rounds over and over, not only
/// in the first, in which all memory is new.
fn is_reported(how: &str) {
    let subject = format!("kernel's writes: {how}");
    for technique in working(&subject, &[PagemapScan, Adaptive, Compare]) {
        let Some(mut victim) = Victim::start("rings", &["600", how]) else {
            return;
        };
        let ring = u64::from_str_radix(&victim.said[0], 16).unwrap();
        let target = Target::process(victim.pid()).unwrap();
        let watch = Watch::builder().target(target).technique(technique);
        let mut watch = watch.start().unwrap_or_else(|error| victim.blame(&error));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut reported = 0;
        for _ in 0..3 {
            watch.collect().unwrap().commit();
        }
        while reported < 20 {
            assert!(
                Instant::now() < deadline,
                "{technique}: the ring is in {reported} rounds"
            );
            std::thread::sleep(Duration::from_millis(5));
            let round = watch.collect().unwrap();
            let ring = ring..ring + page_size();
            reported += u32::from(
                round
                    .dirty_ranges()
                    .any(|range| ring.start < range.end() && range.start() < ring.end),
            );
            round.commit();
        }
        drop(watch);
        victim.is_clean(true);
        victim.finish();
        row(&subject, technique.name(), "works", "");
    }
}

#[test]
fn the_ring_of_asynchronous_requests_is_reported() {
    is_reported("aio");
}

#[test]
fn frames_of_a_packet_socket_are_reported() {
    is_reported("packet");
}

/// Attaches to and holds a victim over and over; it must find nothing wrong.
fn goes_on(victim: &str, arguments: &[&str]) {
    let subject = format!("attach: {victim}");
    for technique in working(&subject, &[PagemapScan]) {
        let Some(mut victim) = Victim::start(victim, arguments) else {
            return;
        };
        let mut refused = 0;
        let count = times(40, 1000);
        for _ in 0..count {
            match attach_once(victim.pid(), technique, 1, Duration::from_millis(1)) {
                Ok(_) => {}
                // A parent that waits in vfork(2) all the time may be refused, and unharmed.
                Err(pagetrail::Error::NotStopping { .. }) => refused += 1,
                Err(error) => victim.blame(&error),
            }
            match Hold::process(victim.pid()) {
                Ok(hold) => drop(hold),
                Err(pagetrail::Error::NotStopping { .. }) => refused += 1,
                Err(error) => victim.blame(&error),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(refused < count, "{refused} of {count} were refused");
        victim.is_clean(false);
        victim.finish();
        row(&subject, technique.name(), "works", "");
    }
}

#[test]
fn requests_of_io_uring_come_back() {
    goes_on("rings", &["600", "uring"]);
}

#[test]
fn children_of_vfork_end_as_they_should() {
    goes_on("vforker", &["600"]);
}
