//! Memory that other processes change as well, shared mappings and private mappings of files: every
//! image has what was there at its instant, no matter who wrote it and how.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use common::PAGE;
use faulty::{Fault, Faulty};
use pagetrail::{Choice, Memory, PageRange, Technique};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Mode, ProcessCheckpointer, ProcessOptions, Store, WriterOptions};
use rustix::process::Signal;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use support::{Victim, random, row, times, working};

const PAGES: u64 = 600;

fn at_rest(victim: &Victim) {
    victim.signal(Signal::STOP);
    while support::state(victim.pid()) != 'T' {
        std::thread::yield_now();
    }
}

/// A process that has the file mapped, shared or as `kind` says.
fn mapper(file: &tempfile::NamedTempFile, kind: &[&str]) -> Option<Victim> {
    let pages = PAGES.to_string();
    let path = file.path().to_str()?;
    Victim::start("shared_file", &[&["600", path, &pages], kind].concat())
}

/// A file in memory, and a victim that has it mapped.
fn start(kind: &[&str]) -> Option<(tempfile::NamedTempFile, Victim, PageRange)> {
    let file = tempfile::Builder::new().tempfile_in("/dev/shm");
    let mut file = match file {
        Ok(file) => file,
        Err(error) => {
            row("a file in /dev/shm", "any", "absent", &error.to_string());
            return None;
        }
    };
    file.write_all(&vec![9; (PAGES / 2 * PAGE) as usize])
        .unwrap();
    file.as_file().set_len(PAGES * PAGE).unwrap();
    let victim = mapper(&file, kind)?;
    let start = u64::from_str_radix(&victim.said[0], 16).unwrap();
    let range = PageRange::new(start, start + PAGES * PAGE).unwrap();
    Some((file, victim, range))
}

/// Something that another process does to the file.
fn change(file: &File, random: &mut fastrand::Rng) {
    for _ in 0..random.u32(0..40) {
        let page = random.u64(0..PAGES - 1);
        match random.u32(0..13) {
            // Copies that a private mapping has of the pages after the new end go as well.
            1 if random.u32(0..4) == 0 => {
                file.set_len(page * PAGE + random.u64(0..PAGE)).unwrap();
                file.set_len(PAGES * PAGE).unwrap();
            }
            0 => {
                // Pages go, and read as zeros.
                let flags =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                let count = random.u64(1..5).min(PAGES - 1 - page);
                rustix::fs::fallocate(file, flags, page * PAGE, count * PAGE).unwrap();
            }
            2 => file.write_all_at(&[0; PAGE as usize], page * PAGE).unwrap(),
            _ => {
                let at = page * PAGE + random.u64(0..PAGE / 8) * 8;
                file.write_all_at(&random.u64(..).to_le_bytes(), at)
                    .unwrap();
            }
        }
    }
}

#[test]
fn images_have_what_others_wrote_to_shared_memory() {
    compare_images_with_memory("shared memory", &[]);
}

#[test]
fn images_have_what_others_wrote_to_files_mapped_privately() {
    compare_images_with_memory("private mappings of files", &["private"]);
}

fn compare_images_with_memory(what: &str, kind: &[&str]) {
    let techniques = [Technique::PagemapScan, Technique::Compare];
    for technique in working(&format!("checkpoints of {what}"), &techniques) {
        for mode in [Mode::Precopy, Mode::Stop] {
            let Some((file, victim, range)) = start(kind) else {
                return;
            };
            let Some(other) = mapper(&file, &[]) else {
                return;
            };
            let mut random = random(what);
            let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
            let mut writer = store.writer(WriterOptions::default()).unwrap();
            let options = ProcessOptions {
                mode,
                technique: Choice::Technique(technique),
                buffer_bytes: [1 << 28, 1 << 16][random.usize(0..2)],
                ..ProcessOptions::default()
            };
            let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
            let memory = Memory::of(victim.pid()).unwrap();
            for round in 0..times(15, 300) {
                let (first, second) = match random.bool() {
                    true => (&victim, &other),
                    false => (&other, &victim),
                };
                for process in [first, second] {
                    if random.bool() {
                        process.signal(Signal::USR1);
                    }
                }
                // Not before both stand still: a store beyond the end of the file is a SIGBUS.
                at_rest(first);
                at_rest(second);
                change(file.as_file(), &mut random);
                // What is beyond the end of the file nobody can read.
                let end = match random.u32(0..4) {
                    0 => random.u64(1..PAGES * PAGE),
                    _ => PAGES * PAGE,
                };
                file.as_file().set_len(end).unwrap();
                let number = process.checkpoint(&mut writer).unwrap().number;
                let readable =
                    PageRange::new(range.start(), range.start() + end.next_multiple_of(PAGE));
                let readable = readable.unwrap();
                let mut is = vec![0; readable.bytes() as usize];
                memory.read(&[readable], &mut is).unwrap();
                let mut image = store.image(number).unwrap();
                let mut then = vec![0; is.len()];
                image.read(readable, &mut then).unwrap();
                let wrong = is
                    .chunks(PAGE as usize)
                    .zip(then.chunks(PAGE as usize))
                    .filter(|(is, then)| is != then);
                assert_eq!(wrong.count(), 0, "{technique} {mode:?}, round {round}");
                file.as_file().set_len(PAGES * PAGE).unwrap();
                victim.signal(Signal::CONT);
                other.signal(Signal::CONT);
            }
            assert!(store.verify().unwrap().is_sound());
            drop(process);
            victim.is_clean(true);
            victim.finish();
            other.finish();
        }
    }
}

#[test]
fn images_that_trust_own_writes_say_so() {
    let Some((file, victim, range)) = start(&[]) else {
        return;
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    for trust_shared in [false, true] {
        let options = ProcessOptions {
            trust_shared,
            ..ProcessOptions::default()
        };
        let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
        writer.begin_anew();
        process.checkpoint(&mut writer).unwrap();
        file.as_file().write_all_at(&[7], 5 * PAGE).unwrap();
        let manifest = process.checkpoint(&mut writer).unwrap();
        let mapping = manifest.mappings.iter().find(|m| m.range == range).unwrap();
        assert_eq!(mapping.own_writes_only, trust_shared);
        assert!(manifest.parent.is_some());
    }
    victim.is_clean(true);
    victim.finish();
}

/// Whichever step fails of the second checkpoint, the third does not have the pages that have gone
/// since the first.
#[test]
fn pages_that_go_before_a_checkpoint_fails_are_not_in_the_next() {
    let Some((file, victim, range)) = start(&[]) else {
        return;
    };
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let page = PageRange::new(range.start() + 5 * PAGE, range.start() + 6 * PAGE).unwrap();
    let mut failed = 0;
    at_rest(&victim);
    for step in 1.. {
        let faulty = Faulty::new(InMemory::new(), step, Fault::Once);
        let Ok(store) = Store::create_on(Arc::new(faulty)) else {
            continue;
        };
        let Ok(mut writer) = store.writer(WriterOptions::default()) else {
            continue;
        };
        let options = ProcessOptions::default();
        let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
        file.as_file()
            .write_all_at(&[9; PAGE as usize], 5 * PAGE)
            .unwrap();
        if process.checkpoint(&mut writer).is_err() {
            continue;
        }
        rustix::fs::fallocate(file.as_file(), flags, 5 * PAGE, PAGE).unwrap();
        // Something to be stored, so that there is a pack.
        file.as_file()
            .write_all_at(&step.to_le_bytes(), 7 * PAGE)
            .unwrap();
        let outcome = process.checkpoint(&mut writer);
        if outcome.is_ok() {
            break;
        }
        failed += 1;
        let number = process.checkpoint(&mut writer).unwrap().number;
        let mut then = [1; PAGE as usize];
        store.image(number).unwrap().read(page, &mut then).unwrap();
        assert!(then == [0; PAGE as usize], "step {step}");
    }
    assert!(failed >= 2, "{failed} steps failed");
    victim.signal(Signal::CONT);
    victim.finish();
}
