//! Random damage: never a panic, never data that was not recorded.
//!
//! `PAGETRAIL_FUZZ_ITERATIONS` makes a run longer, `PAGETRAIL_SEED` repeats one.

mod common;

use common::forge;
use pagetrail_trail::{Analysis, Heatmap, ReadError, Trail};

/// Changes, inserts, doubles, drops or cuts bytes, or zeroes the rest.
fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..4) {
        let at = random.usize(0..=bytes.len());
        let end = bytes.len().min(at + random.usize(0..20));
        match random.u8(0..8) {
            0 | 1 => bytes[at..end]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= random.u8(1..)),
            2 => bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte = random.u8(..)),
            3 => drop(bytes.splice(at..at, (0..random.u8(1..9)).map(|_| random.u8(..)))),
            4 => drop(bytes.drain(at..end)),
            5 => bytes.truncate(at),
            6 => {
                let copy = bytes[at..end].to_vec();
                let to = random.usize(0..=bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => bytes[at..end].fill([0, 0x7f, 0x80, 0xff][random.usize(0..4)]),
        }
    }
}

#[test]
fn mutated_files_give_an_error_or_a_part_of_what_was_recorded() {
    common::for_seeds(30_000, |random| {
        let trail = common::trail(random);
        let mut bytes = Vec::new();
        trail.write(&mut bytes).unwrap();
        mutate(random, &mut bytes);
        match Trail::read(&bytes[..]) {
            Ok(read) => {
                assert_eq!(read.header, trail.header);
                assert!(trail.rounds.starts_with(&read.rounds));
                assert!(trail.mappings.starts_with(&read.mappings));
                assert!(trail.stacks.stacks.starts_with(&read.stacks.stacks));
                assert!(read.end.is_none() || read == trail);
            }
            Err(ReadError::Damaged { offset, .. }) => assert!(offset <= bytes.len() as u64),
            Err(ReadError::NotATrail | ReadError::NoHeader) => {}
            Err(other) => panic!("{other}"),
        }
    });
}

/// Hostile files: the payloads are mutated and all checksums right. Whatever is read can be
/// analysed, drawn, and written again.
#[test]
fn forged_files_do_no_harm() {
    common::for_seeds(20_000, |random| {
        let mut bytes = Vec::new();
        common::trail(random).write(&mut bytes).unwrap();
        let mut records = forge::records(&bytes);
        for _ in 0..random.usize(1..3) {
            let victim = random.usize(0..records.len());
            mutate(random, &mut records[victim].1);
            if random.u8(0..8) == 0 {
                let other = random.usize(0..records.len());
                records.swap(victim, other);
            }
        }
        let forged = forge::file(random.u16(0..4), &records);
        match Trail::read(&forged[..]) {
            Ok(read) => {
                let mut again = Vec::new();
                read.write(&mut again).unwrap();
                assert_eq!(Trail::read(&again[..]).unwrap(), read);
                let analysis = Analysis::of(&read);
                assert!(analysis.distinct_pages <= analysis.page_writes);
                for writer in read.rounds.iter().flat_map(|r| &r.attribution) {
                    let stacks = writer.writers.iter().map(|writer| writer.stack);
                    for stack in stacks {
                        let frames = &read.stacks.stacks[stack as usize].frames;
                        assert_eq!(read.stacks.frames_of(stack).count(), frames.len());
                    }
                }
                let heatmap = Heatmap::of(&read, random.usize(0..20), random.usize(0..5));
                assert!(heatmap.cells.iter().all(|cell| (0.0..=1.0).contains(cell)));
            }
            Err(ReadError::Damaged { offset, .. }) => assert!(offset <= forged.len() as u64),
            Err(other) => panic!("{other}"),
        }
    });
}
