//! A random program that checks what comes of each of its calls (`tests/victims/chaos.c`) finds
//! nothing wrong while checkpoints of it are made every few milliseconds, and no checkpoint fails.
//!
//! `PAGETRAIL_SEED` repeats a program.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::Technique::{Compare, PagemapScan};
use pagetrail::{Choice, Technique};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Error, Mode, ProcessCheckpointer, ProcessOptions, Store, WriterOptions,
};
use std::sync::Arc;
use std::time::Duration;
use support::{Victim, random, row, times, working};

/// How many checks each thread of a program makes.
const STEPS: &str = "200";

#[test]
fn random_programs_find_nothing() {
    let subject = "transparency: checkpoints";
    for technique in working(subject, &[PagemapScan, Compare]) {
        let mut random = random(subject);
        for index in 0..times(4, 100) {
            let mode = match (index % 4, technique) {
                (0, _) | (1 | 3, Compare) => Mode::Precopy,
                (2, _) => Mode::Stop,
                _ => Mode::Cow,
            };
            let seed = random.u64(..).to_string();
            println!("{subject}, {technique}, {mode:?}: chaos 600 {seed} {STEPS}");
            let Some(victim) = Victim::start("chaos", &["600", &seed, STEPS]) else {
                return;
            };
            let count = checkpoint_until_the_end(victim, technique, mode);
            println!("{count} checkpoints");
        }
        row(subject, technique.name(), "works", "");
    }
}

fn checkpoint_until_the_end(mut victim: Victim, technique: Technique, mode: Mode) -> u32 {
    let options = ProcessOptions {
        mode,
        technique: Choice::Technique(technique),
        ..ProcessOptions::default()
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let attached = ProcessCheckpointer::attach(victim.pid(), options);
    let mut process = attached.unwrap_or_else(|error| panic!("{error}"));
    let mut count = 0;
    loop {
        match process.checkpoint(&mut writer) {
            Ok(_) => count += 1,
            Err(error) if victim.is_ending() => {
                println!("the last one: {error}");
                break;
            }
            Err(Error::Process(error)) => victim.blame(&error),
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(12));
    }
    victim.ends();
    assert!(store.verify().unwrap().is_sound());
    count
}
