//! Stores from elsewhere, made to do harm: nothing outside the store is touched, nothing hangs, and
//! memory and time stay within what the store's own bytes are worth.
//!
//! `PAGETRAIL_FUZZ_ITERATIONS` sets how often the fuzzer tries.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

mod common;
#[path = "common/crafted.rs"]
mod crafted;

use common::{Model, PAGE, contents, range};
use crafted::{Crafted, pack};
use pagetrail_checkpoint::storage::{Directory, InMemory, Name, Storage};
use pagetrail_checkpoint::{Error, Store, WorldWritable, WriterOptions};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store of one checkpoint in a directory.
fn small() -> (tempfile::TempDir, PathBuf, Store, Model) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 10);
    model.write(3, contents(1));
    model.checkpoint(&mut writer).unwrap();
    drop(writer);
    (dir, path, store, model)
}

#[test]
fn drafts_that_are_a_link_lead_nowhere() {
    let (dir, path, store, _) = small();
    let precious = dir.path().join("precious");
    fs::create_dir(&precious).unwrap();
    for name in ["thesis", "1-2"] {
        fs::write(precious.join(name), "important").unwrap();
    }
    fs::remove_dir(path.join("drafts")).unwrap();
    symlink("../precious", path.join("drafts")).unwrap();
    let refused = store.writer(WriterOptions::default()).unwrap_err();
    assert!(
        refused.to_string().contains("drafts is no directory"),
        "{refused}"
    );
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 2);
    // Nor does a directory that is exchanged for a link while the store is open.
    fs::remove_file(path.join("drafts")).unwrap();
    let opened = Directory::create(&path, WorldWritable::Refuse).unwrap();
    fs::remove_dir(path.join("drafts")).unwrap();
    symlink("../precious", path.join("drafts")).unwrap();
    assert!(opened.sweep().is_err() && opened.create().is_err());
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 2);
}

#[test]
fn what_others_put_among_the_drafts_stays_and_is_in_nobodys_way() {
    let (_dir, path, store, mut model) = small();
    let drafts = path.join("drafts");
    let own = std::process::id();
    for name in [
        "x".to_owned(),
        "7-7".into(),
        format!("{own}-0"),
        format!("{own}-1"),
    ] {
        fs::create_dir(drafts.join(name)).unwrap();
    }
    fs::write(drafts.join("letter"), "x").unwrap();
    fs::write(drafts.join("99-4"), "of a killed writer").unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    model.write(4, contents(2));
    let number = model.checkpoint(&mut writer).unwrap().number;
    model.assert_is(&mut store.image(number).unwrap());
    let mut left: Vec<_> = fs::read_dir(&drafts)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert!(
        left.contains(&"letter".into()) && left.contains(&"x".into()),
        "{left:?}"
    );
    assert!(!left.contains(&"99-4".into()), "{left:?}");
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let (_dir, path, store, mut model) = small();
    let fifo = |path: &Path| {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    fifo(&path.join(Name::Manifest(2).to_string()));
    let survey = store.survey().unwrap();
    assert!(
        survey.lost()[&2].contains("not a regular file"),
        "{survey:?}"
    );
    assert_eq!(store.verify().unwrap().lost, [2]);
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    assert_eq!(model.checkpoint(&mut writer).unwrap().number, 3);
    drop(writer);
    let names = Directory::open(&path).unwrap().names().unwrap();
    let pack = names.into_iter().find(|name| matches!(name, Name::Pack(_)));
    let pack = path.join(pack.unwrap().to_string());
    fs::remove_file(&pack).unwrap();
    fifo(&pack);
    assert!(!store.verify().unwrap().is_sound());
    fs::remove_file(path.join("lock")).unwrap();
    fifo(&path.join("lock"));
    assert!(store.writer(WriterOptions::default()).is_err());
    fs::remove_file(path.join("pagetrail.store")).unwrap();
    fifo(&path.join("pagetrail.store"));
    assert!(matches!(Store::open(&path), Err(Error::NotAStore { .. })));
}

/// The most memory that this process had, in bytes.
fn memory_peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn what_is_said_to_be_large_takes_no_memory() {
    let before = memory_peak();
    let (_dir, path, store, mut model) = small();
    // A mapping and a run of four thousand million pages of a pack that has one.
    let (name, bytes) = pack(&[contents(1)]);
    let storage = Directory::open(&path).unwrap();
    let put = |name: Name, bytes: &[u8]| {
        fs::write(path.join(name.to_string()), bytes).unwrap();
    };
    put(Name::Pack(name), &bytes);
    const MANY: u64 = 4_000_000_000;
    for (number, runs) in [(2, [(16, MANY, 2, 0)]), (3, [(16, MANY, 0, 0)])] {
        let crafted = Crafted {
            number,
            mappings: vec![(16 * PAGE, 16 * PAGE + MANY * PAGE, Vec::new())],
            packs: vec![name],
            runs: runs.to_vec(),
            ..Crafted::default()
        };
        put(Name::Manifest(number), &crafted.manifest());
    }
    assert_eq!(store.verify().unwrap().lost, [2]);
    assert!(store.diff(1, 3).unwrap().len() < 10);
    // Files that are long, and have nothing in them.
    let sparse = |name: String, bytes: u64, end: &[u8]| {
        let file = File::create(path.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, end, bytes - end.len() as u64).unwrap();
    };
    sparse(Name::Manifest(4).to_string(), 1 << 32, &[]);
    let empty = pagetrail_checkpoint::Hash::of(b"none");
    let trailer = crafted::trailer(16, empty);
    for bytes in [1 << 30, 1 << 40] {
        sparse(Name::Pack(empty).to_string(), bytes, &trailer);
        let crafted = Crafted {
            number: 5,
            packs: vec![empty],
            runs: vec![(16, 1, 2, 0)],
            ..Crafted::default()
        };
        put(Name::Manifest(5), &crafted.manifest());
        assert_eq!(store.verify().unwrap().lost, [2, 4, 5]);
        assert!(store.image(5).is_err());
    }
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let number = model.checkpoint(&mut writer).unwrap().number;
    assert_eq!(number, 6);
    writer.prune(1).unwrap();
    writer.repair().unwrap();
    assert!(store.verify().unwrap().is_sound());
    assert_eq!(storage.names().unwrap().len(), 3);
    let grown = memory_peak().saturating_sub(before);
    assert!(grown < 512 << 20, "{} MiB", grown >> 20);
}

#[test]
fn a_pack_that_is_named_twice_moves_wholly() {
    let (_dir, path, store, _) = small();
    let pages: Vec<Vec<u8>> = (10..20).map(contents).collect();
    let (name, bytes) = pack(&pages);
    fs::write(path.join(Name::Pack(name).to_string()), bytes).unwrap();
    let crafted = Crafted {
        number: 2,
        mappings: vec![(16 * PAGE, 32 * PAGE, Vec::new())],
        packs: vec![name, name],
        runs: vec![(16, 1, 2, 4), (0, 1, 3, 7)],
        ..Crafted::default()
    };
    fs::write(path.join(Name::Manifest(2).to_string()), crafted.manifest()).unwrap();
    assert!(store.verify().unwrap().is_sound());
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    // Most of the pack is not needed.
    assert_eq!(writer.prune(1).unwrap().repacked, 1);
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    let mut is = vec![0; 2 * PAGE as usize];
    store
        .image(2)
        .unwrap()
        .read(range(16, 18), &mut is)
        .unwrap();
    assert_eq!(is, [contents(14), contents(17)].concat());
}

/// Stores that are made of nonsense with right hashes: every command of a store ends, in an answer
/// or an error.
#[test]
fn nonsense_with_right_hashes_ends_in_an_answer() {
    let iterations = std::env::var("PAGETRAIL_FUZZ_ITERATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1500u64);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..iterations {
        let memory = InMemory::new();
        let store = Store::create_on(Arc::new(memory.clone())).unwrap();
        let pages: Vec<Vec<u8>> = (0..random.u64(1..5)).map(contents).collect();
        let (name, bytes) = match random.bool() {
            true => pack(&pages),
            false => crafted::pack_in_blocks(&pages, random.usize(1..4), |_| {}),
        };
        let (mutated, mutated_bytes) = match random.u32(0..3) {
            0 => crafted::pack_in_strange_blocks(&pages, &mut random),
            _ => crafted::mutate_pack(&bytes, &mut random),
        };
        memory.put(Name::Pack(name), bytes);
        memory.put(Name::Pack(mutated), mutated_bytes);
        let mut parent = None;
        for number in 1..=random.u64(1..5) {
            let mut crafted = Crafted {
                number,
                parent,
                packs: vec![name, mutated],
                mappings: vec![(PAGE, 200 * PAGE, vec![b'x'; random.usize(0..10)])],
                process: random.bool(),
                ..Crafted::default()
            };
            for _ in 0..random.u32(0..6) {
                let run = (
                    random.u64(0..20),
                    random.u64(1..6),
                    random.u64(0..4),
                    random.u64(0..5),
                );
                crafted.runs.push(run);
            }
            let id = crafted.id();
            let bytes = match random.bool() {
                true => crafted::mutate(&crafted.manifest(), &mut random),
                false => crafted.manifest(),
            };
            memory.put(Name::Manifest(number), bytes);
            parent = Some((number, id));
        }
        let found = store.verify().unwrap();
        for number in store.numbers().unwrap() {
            if let Ok(mut image) = store.image(number) {
                let mut page = vec![0; PAGE as usize];
                let pages = image.pages();
                for start in pages.iter_units(PAGE).take(100) {
                    let page_range = range(start / PAGE, start / PAGE + 1);
                    let read = image.read(page_range, &mut page);
                    assert!(read.is_ok() || found.lost.contains(&number), "seed {seed}");
                }
                let _ = store.diff(number, 1);
            }
        }
        let Ok(mut writer) = store.writer(WriterOptions::default()) else {
            continue;
        };
        let mut model = Model::default();
        model.map(0, 10);
        model.write(3, contents(random.u64(0..6)));
        let number = model.checkpoint(&mut writer).unwrap().number;
        let _ = writer.squash(1, number);
        let _ = writer.prune(2);
        model.assert_is(&mut store.image(number).unwrap());
        writer.repair().unwrap();
        let after = store.verify().unwrap();
        assert!(after.is_sound(), "seed {seed}: {after:?}");
        model.assert_is(&mut store.image(number).unwrap());
    }
}
