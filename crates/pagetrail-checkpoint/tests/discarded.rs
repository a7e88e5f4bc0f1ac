//! Memory that a process discards and does not touch again: no technique sees a write, and every
//! image has zeros there.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

mod common;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use common::PAGE;
use pagetrail::{Choice, Memory, PageRange, Technique};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Mode, ProcessCheckpointer, ProcessOptions, Store, WriterOptions};
use rustix::process::Signal;
use std::sync::Arc;
use support::{Victim, random, times, working};

const PAGES: u64 = 300;

#[test]
fn images_have_zeros_where_memory_was_discarded() {
    let techniques = [
        Technique::PagemapScan,
        Technique::Adaptive,
        Technique::Userfaultfd,
        Technique::SoftDirty,
        Technique::Compare,
    ];
    for technique in working("checkpoints of discarded memory", &techniques) {
        for mode in [Mode::Precopy, Mode::Stop] {
            let mut random = random("discarded memory");
            let (seed, pages) = (random.u64(..).to_string(), PAGES.to_string());
            let Some(victim) = Victim::start("discarder", &["600", &seed, &pages]) else {
                return;
            };
            let starts = victim.said[0].split(' ');
            let ranges: Vec<PageRange> = starts
                .map(|start| {
                    let start = u64::from_str_radix(start, 16).unwrap();
                    PageRange::new(start, start + PAGES * PAGE).unwrap()
                })
                .collect();
            let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
            let mut writer = store.writer(WriterOptions::default()).unwrap();
            let options = ProcessOptions {
                mode,
                technique: Choice::Technique(technique),
                ..ProcessOptions::default()
            };
            let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
            let memory = Memory::of(victim.pid()).unwrap();
            for round in 0..times(20, 300) {
                for _ in 0..random.u32(1..4) {
                    victim.signal(Signal::USR1);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                victim.signal(Signal::STOP);
                while support::state(victim.pid()) != 'T' {
                    std::thread::yield_now();
                }
                let number = process.checkpoint(&mut writer).unwrap().number;
                let mut image = store.image(number).unwrap();
                for range in &ranges {
                    let mut is = vec![0; range.bytes() as usize];
                    let mut then = is.clone();
                    memory.read(&[*range], &mut is).unwrap();
                    image.read(*range, &mut then).unwrap();
                    let wrong = is
                        .chunks(PAGE as usize)
                        .zip(then.chunks(PAGE as usize))
                        .filter(|(is, then)| is != then);
                    assert_eq!(
                        wrong.count(),
                        0,
                        "{technique} {mode:?}, round {round}, {range}"
                    );
                }
                victim.signal(Signal::CONT);
            }
            drop(process);
            victim.is_clean(true);
            victim.finish();
        }
    }
}
