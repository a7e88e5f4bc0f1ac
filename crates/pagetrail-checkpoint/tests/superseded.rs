//! Pages that are put again before a checkpoint is published do not leave what they were in the
//! store, and nothing else is lost by that.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use common::{PAGE, range, store};
use faulty::{Fault, Faulty};
use pagetrail::{PageRange, PageSet, Permissions};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Compression, Description, Draft, Error, Image, Manifest, Mapping, Store, Writer, WriterOptions,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGES: u64 = 160;

/// What a page may hold: zeros, what compresses, one of a few that occur again and again, or what
/// no other page holds.
fn contents(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    let mut of = |seed: u64| fastrand::Rng::with_seed(seed).fill(&mut page);
    match random.u32(0..8) {
        0 => {}
        1 => page.fill(random.u8(1..)),
        2..=4 => of(random.u64(0..40)),
        _ => of(random.u64(..)),
    }
    page
}

fn options(random: &mut fastrand::Rng) -> WriterOptions {
    let all = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    WriterOptions {
        compression: all[random.usize(0..3)],
        frame_pages: random.u32(1..20),
    }
}

fn put(draft: &mut Draft<'_>, pages: &BTreeMap<u64, Vec<u8>>) {
    let ranges: Vec<PageRange> = pages.keys().map(|page| range(*page, page + 1)).collect();
    let contents: Vec<u8> = pages.values().flatten().copied().collect();
    draft.put(&ranges, &contents).unwrap();
}

fn description() -> Description {
    let permissions = Permissions {
        read: true,
        write: true,
        execute: false,
        shared: false,
    };
    let mapping = Mapping {
        range: range(0, PAGES),
        permissions,
        offset: 0,
        device: (0, 0),
        inode: 0,
        name: String::new(),
        build_id: Vec::new(),
        saved: true,
        own_writes_only: false,
    };
    Description {
        mappings: vec![mapping],
        ..Description::default()
    }
}

fn publish(writer: &mut Writer, rounds: &[BTreeMap<u64, Vec<u8>>]) -> Manifest {
    let mut draft = writer.draft(PAGE as u32);
    rounds.iter().for_each(|pages| put(&mut draft, pages));
    draft.publish(description()).unwrap()
}

fn assert_is(image: &mut Image, oracle: &BTreeMap<u64, Vec<u8>>, seed: u64) {
    for (page, contents) in oracle {
        let mut read = vec![1; PAGE as usize];
        image.read(range(*page, page + 1), &mut read).unwrap();
        assert!(read == *contents, "seed {seed}, page {page}");
    }
    // All at once takes another way.
    let mut all = vec![1; (PAGES * PAGE) as usize];
    image.read(range(0, PAGES), &mut all).unwrap();
    for (page, read) in (0..).zip(all.chunks_exact(PAGE as usize)) {
        let is_right = match oracle.get(&page) {
            Some(contents) => read == contents,
            None => read.iter().all(|byte| *byte == 0),
        };
        assert!(is_right, "seed {seed}, page {page} of all");
    }
}

#[test]
fn whatever_is_put_again_the_last_counts() {
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_, store, mut writer) = store(options(&mut random));
        let (mut oracle, mut expected) = (BTreeMap::new(), Vec::new());
        for _ in 0..4 {
            let mut rounds = Vec::new();
            for _ in 0..random.usize(1..6) {
                let count = random.u64(1..PAGES);
                let pages = (0..count).map(|_| (random.u64(0..PAGES), contents(&mut random)));
                let pages: BTreeMap<_, _> = pages.collect();
                oracle.extend(pages.clone());
                rounds.push(pages);
            }
            let manifest = publish(&mut writer, &rounds);
            expected.push((manifest.number, oracle.clone()));
        }
        // A draft that is dropped leaves nothing in the store, nor in what the writer knows of it.
        let mut draft = writer.draft(PAGE as u32);
        for _ in 0..3 {
            let pages = (0..50).map(|page| (page, contents(&mut random)));
            put(&mut draft, &pages.collect());
        }
        drop(draft);
        let again: BTreeMap<_, _> = (0..50).map(|page| (page, contents(&mut random))).collect();
        oracle.extend(again.clone());
        expected.push((publish(&mut writer, &[again]).number, oracle));
        for (number, oracle) in &expected {
            assert_is(&mut store.image(*number).unwrap(), oracle, seed);
        }
        let verified = store.verify().unwrap();
        assert!(verified.is_sound(), "seed {seed}: {:?}", verified.damages);
    }
}

/// Pages, of which every other one is put again, three times.
fn rounds(compress: bool) -> Vec<BTreeMap<u64, Vec<u8>>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut page = || {
        let mut page = vec![random.u8(1..); PAGE as usize];
        let random_bytes = if compress { 64 } else { PAGE as usize };
        random.fill(&mut page[..random_bytes]);
        page
    };
    let first: BTreeMap<_, _> = (0..PAGES).map(|at| (at, page())).collect();
    let again = (0..3).map(|_| (0..PAGES).step_by(2).map(|at| (at, page())).collect());
    std::iter::once(first).chain(again).collect()
}

fn oracle_of(rounds: &[BTreeMap<u64, Vec<u8>>]) -> BTreeMap<u64, Vec<u8>> {
    let mut oracle = rounds[0].clone();
    oracle.extend(rounds[3].clone());
    oracle
}

#[test]
fn what_was_superseded_takes_no_room() {
    let compressions = [Compression::None, Compression::Lz4];
    for (compression, compress) in compressions.map(|c| [(c, false), (c, true)]).concat() {
        let options = WriterOptions {
            compression,
            ..WriterOptions::default()
        };
        let (_, store, mut writer) = store(options);
        let rounds = rounds(compress);
        let manifest = publish(&mut writer, &rounds);
        assert_eq!(manifest.cost.stored_pages, PAGES, "{compression:?}");
        assert_is(
            &mut store.image(manifest.number).unwrap(),
            &oracle_of(&rounds),
            1,
        );
        let pages: PageSet = store.image(manifest.number).unwrap().pages();
        assert_eq!(pages.page_count(), PAGES);
        // What is stored is found by its contents, wherever it came to lie.
        let again = publish(&mut writer, &[oracle_of(&rounds)]);
        assert_eq!(again.cost.stored_pages, 0, "{compression:?}");
    }
}

#[test]
fn pages_whose_mapping_went_take_no_room() {
    let (_, store, mut writer) = store(WriterOptions::default());
    let rounds = rounds(true);
    let mut draft = writer.draft(PAGE as u32);
    put(&mut draft, &rounds[0]);
    let mut half = description();
    half.mappings[0].range = range(PAGES / 2, PAGES);
    let manifest = draft.publish(half).unwrap();
    assert_eq!(manifest.cost.stored_pages, PAGES / 2);
    let mut image = store.image(manifest.number).unwrap();
    for (page, contents) in rounds[0].range(PAGES / 2..) {
        let mut read = vec![1; PAGE as usize];
        image.read(range(*page, page + 1), &mut read).unwrap();
        assert!(read == *contents, "page {page}");
    }
}

/// Takes a checkpoint of pages most of which are superseded, with a fault at a step; gives the
/// number of steps.
fn supersede(memory: &InMemory, at: u64, fault: Fault) -> (u64, Result<Manifest, Error>) {
    let faulty = Faulty::new(memory.clone(), at, fault);
    let steps = faulty.steps();
    let taken = (|| {
        let store = Store::create_on(Arc::new(faulty))?;
        let mut writer = store.writer(WriterOptions::default())?;
        let mut draft = writer.draft(PAGE as u32);
        for pages in rounds(true) {
            let ranges: Vec<PageRange> = pages.keys().map(|page| range(*page, page + 1)).collect();
            draft.put(
                &ranges,
                &pages.values().flatten().copied().collect::<Vec<_>>(),
            )?;
        }
        draft.publish(description())
    })();
    (steps(), taken)
}

#[test]
fn a_fault_at_any_step_leaves_all_or_nothing() {
    let (steps, taken) = supersede(&InMemory::new(), u64::MAX, Fault::Once);
    assert_eq!(taken.unwrap().cost.stored_pages, PAGES);
    let oracle = oracle_of(&rounds(true));
    let mut uncompacted = 0;
    for at in 0..steps {
        for fault in [Fault::Once, Fault::FromThen] {
            let memory = InMemory::new();
            let (_, taken) = supersede(&memory, at, fault);
            let Ok(store) = Store::on(Arc::new(memory)) else {
                assert!(taken.is_err(), "{fault:?} at {at}");
                continue;
            };
            let verified = store.verify().unwrap();
            assert!(verified.is_sound(), "{fault:?} at {at}");
            if let Ok(manifest) = taken {
                assert_is(&mut store.image(manifest.number).unwrap(), &oracle, at);
                uncompacted += u32::from(manifest.cost.stored_pages > PAGES);
            }
        }
    }
    // A full disk is no reason to have no checkpoint: what is superseded stays then.
    assert!(uncompacted > 0);
}
