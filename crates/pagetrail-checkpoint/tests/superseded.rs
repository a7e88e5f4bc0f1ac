//! Pages that are put again before a checkpoint is published do not leave what they were in the
//! store, and nothing else is lost by that.

mod common;

use common::{PAGE, range, store};
use pagetrail::{PageRange, PageSet, Permissions};
use pagetrail_checkpoint::{
    Compression, Description, Draft, Image, Manifest, Mapping, Writer, WriterOptions,
};
use std::collections::BTreeMap;

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

#[test]
fn what_was_superseded_takes_no_room() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut page = || {
        let mut page = vec![0; PAGE as usize];
        random.fill(&mut page);
        page
    };
    for compression in [Compression::None, Compression::Lz4] {
        let options = WriterOptions {
            compression,
            ..WriterOptions::default()
        };
        let (_, store, mut writer) = store(options);
        let first: BTreeMap<_, _> = (0..PAGES).map(|at| (at, page())).collect();
        let again = (0..3).map(|_| (0..PAGES).step_by(2).map(|at| (at, page())).collect());
        let rounds: Vec<_> = std::iter::once(first).chain(again).collect();
        let manifest = publish(&mut writer, &rounds);
        assert_eq!(manifest.cost.stored_pages, PAGES);
        let mut oracle = rounds[0].clone();
        oracle.extend(rounds[3].clone());
        assert_is(&mut store.image(manifest.number).unwrap(), &oracle, 1);
        let pages: PageSet = store.image(manifest.number).unwrap().pages();
        assert_eq!(pages.page_count(), PAGES);
    }
}
