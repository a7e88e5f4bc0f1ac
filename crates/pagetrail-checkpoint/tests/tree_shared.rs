//! Memory that several processes of a tree have, and that others change as well: each image has
//! what was there at the instant, wherever its process has mapped it.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print their seed")]

mod common;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use common::PAGE;
use pagetrail::{Memory, PageRange, Target};
use pagetrail_checkpoint::{
    Mode, ProcessOptions, TreeCheckpointer, TreeInstant, TreeStore, WorldWritable, WriterOptions,
};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::FileExt;
use support::{Victim, random, row, times};

const PAGES: u64 = 600;
/// Processes that have the file mapped; the last of them privately.
const KINDS: [&[&str]; 4] = [&[], &[], &[], &["private"]];

struct Mapper {
    victim: Victim,
    range: PageRange,
    memory: Memory,
}

impl Mapper {
    fn start(path: &str, kind: &[&str]) -> Option<Self> {
        let pages = PAGES.to_string();
        let victim = Victim::start("shared_file", &[&["600", path, &pages], kind].concat())?;
        let start = u64::from_str_radix(&victim.said[0], 16).unwrap();
        Some(Self {
            range: PageRange::new(start, start + PAGES * PAGE).unwrap(),
            memory: Memory::of(victim.pid()).unwrap(),
            victim,
        })
    }

    fn stand_still(&self) {
        self.victim.signal(Signal::STOP);
        while support::state(self.victim.pid()) != 'T' {
            std::thread::yield_now();
        }
    }

    /// How many pages its image of an instant has that are not as its memory is.
    fn wrong(&self, store: &TreeStore, instant: &TreeInstant) -> usize {
        let mut parts = instant.processes.iter();
        let part = parts.find(|part| part.pid == self.victim.pid()).unwrap();
        let process = store.process(part.process).unwrap();
        let (mut is, mut then) = (vec![0; self.range.bytes() as usize], Vec::new());
        self.memory.read(&[self.range], &mut is).unwrap();
        then.resize(is.len(), 0);
        let mut image = process.image(part.checkpoint).unwrap();
        image.read(self.range, &mut then).unwrap();
        let pages = is.chunks(PAGE as usize).zip(then.chunks(PAGE as usize));
        pages.filter(|(is, then)| is != then).count()
    }
}

/// A file where its inode is known to be its alone, and one where it may not be.
#[test]
fn every_process_has_what_is_in_the_memory_that_they_share() {
    for directory in [std::env::temp_dir(), "/dev/shm".into()] {
        let Ok(mut file) = tempfile::Builder::new().tempfile_in(&directory) else {
            let place = directory.display();
            row(&format!("a file in {place}"), "any", "absent", "");
            continue;
        };
        file.write_all(&vec![9; (PAGES / 2 * PAGE) as usize])
            .unwrap();
        file.as_file().set_len(PAGES * PAGE).unwrap();
        let path = file.path().to_str().unwrap();
        let mappers = KINDS.iter().map(|kind| Mapper::start(path, kind));
        let Some(mappers) = mappers.collect::<Option<Vec<_>>>() else {
            return;
        };
        let pids = || mappers.iter().map(|mapper| mapper.victim.pid());
        let mut random = random("memory that a tree shares");
        for (mode, buffer_bytes) in [
            (Mode::Precopy, 1 << 28),
            (Mode::Stop, 1 << 28),
            // Nothing is left to others, and the store takes copies early.
            (Mode::Precopy, 0),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let store =
                TreeStore::create(&directory.path().join("store"), WorldWritable::Allow).unwrap();
            let options = ProcessOptions {
                mode,
                buffer_bytes,
                ..ProcessOptions::default()
            };
            let target = Target::tree(pids()).unwrap();
            let writing = WriterOptions::default();
            let mut tree = TreeCheckpointer::attach(target, store.clone(), options, writing);
            let tree = tree.as_mut().unwrap();
            for round in 0..times(5, 200) {
                for mapper in &mappers {
                    if random.bool() {
                        mapper.victim.signal(Signal::USR1);
                    }
                }
                mappers.iter().for_each(Mapper::stand_still);
                for _ in 0..random.u32(0..40) {
                    let at = random.u64(0..(PAGES - 1) * PAGE / 8) * 8;
                    let number = random.u64(..).to_le_bytes();
                    file.as_file().write_all_at(&number, at).unwrap();
                }
                let (instant, manifests) = tree.checkpoint().unwrap();
                assert_eq!(manifests.len(), KINDS.len());
                for (number, mapper) in mappers.iter().enumerate() {
                    let wrong = mapper.wrong(&store, &instant);
                    assert_eq!(wrong, 0, "{mode:?}, round {round}, process {number}");
                }
                for mapper in &mappers {
                    mapper.victim.signal(Signal::CONT);
                }
            }
            assert_eq!(store.verify().unwrap(), Vec::<String>::new());
        }
        for mapper in mappers {
            mapper.victim.is_clean(true);
            mapper.victim.finish();
        }
    }
    row("shared memory of trees", "any", "works", "");
}
