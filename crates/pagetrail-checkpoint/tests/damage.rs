//! Damage: every changed byte of a store is found by `verify`, and whatever the bytes are, reading
//! ends in an answer.
//!
//! `PAGETRAIL_FUZZ_ITERATIONS` sets how often the fuzzer tries.

mod common;

use common::{Model, contents, store};
use pagetrail_checkpoint::storage::{InMemory, Name, Storage};
use pagetrail_checkpoint::{Compression, Hash, Store, WriterOptions};
use std::sync::Arc;

/// A small store of three checkpoints, with a page that is a patch of a patch.
fn small(compression: Compression) -> (InMemory, Store) {
    let (memory, store, mut writer) = store(WriterOptions {
        compression,
        frame_pages: 2,
    });
    let mut model = Model::default();
    model.map(0, 8);
    for page in 0..3 {
        model.write(page, contents(page));
    }
    model.checkpoint(&mut writer).unwrap();
    model.write(1, contents(100));
    model.write(2, vec![0; common::PAGE as usize]);
    let mut random = fastrand::Rng::with_seed(1);
    model.write_parts(0, &mut random);
    model.checkpoint(&mut writer).unwrap();
    model.write_parts(0, &mut random);
    model.checkpoint(&mut writer).unwrap();
    let packs = memory.names().unwrap().into_iter().filter_map(|name| {
        let bytes = memory.get(name)?;
        matches!(name, Name::Pack(_)).then_some(bytes[7])
    });
    assert_eq!(packs.filter(|version| *version == 2).count(), 2);
    (memory, store)
}

/// Reads everything there is, whatever comes of it.
fn read_all(store: &Store) {
    for number in store.numbers().unwrap() {
        if let Ok(mut image) = store.image(number) {
            let pages = image.pages();
            for range in pages
                .ranges()
                .iter()
                .filter(|range| range.bytes() < 1 << 24)
            {
                let mut buffer = vec![0; range.bytes() as usize];
                let _ = image.read(*range, &mut buffer);
            }
        }
    }
}

#[test]
fn every_changed_byte_is_found() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let (memory, store) = small(compression);
        assert!(store.verify().unwrap().is_sound());
        for name in memory.names().unwrap() {
            let whole = memory.get(name).unwrap();
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                // A low bit, a high bit, all bits, in turn.
                damaged[at] ^= [1, 0x80, 0xff][at % 3];
                memory.put(name, damaged);
                let found = match Store::on(Arc::new(memory.clone())) {
                    Ok(store) => !store.verify().unwrap().is_sound(),
                    Err(_) => name == Name::Marker,
                };
                assert!(found, "byte {at} of {name} ({compression:?})");
            }
            for shorter in 0..whole.len() {
                memory.put(name, whole[..shorter].to_vec());
                let sound = Store::on(Arc::new(memory.clone()))
                    .is_ok_and(|store| store.verify().unwrap().is_sound());
                assert!(!sound, "{name} cut to {shorter}");
            }
            let mut longer = whole.clone();
            longer.push(0);
            memory.put(name, longer);
            let sound = Store::on(Arc::new(memory.clone()))
                .is_ok_and(|store| store.verify().unwrap().is_sound());
            assert!(!sound, "{name} with a byte more");
            memory.put(name, whole);
        }
    }
}

/// Changes bytes and makes the hashes right again where that is easy: for a manifest.
#[test]
fn whatever_the_bytes_are_reading_ends() {
    let iterations = std::env::var("PAGETRAIL_FUZZ_ITERATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(40_000u64);
    let (memory, store) = small(Compression::Lz4);
    let names = memory.names().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..iterations {
        let name = names[random.usize(1..names.len())];
        let whole = memory.get(name).unwrap();
        let mut bytes = whole.clone();
        for _ in 0..random.u32(1..4) {
            let at = random.usize(0..bytes.len());
            match random.u32(0..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(0..5)],
                2 => drop(bytes.drain(at..bytes.len().min(at + random.usize(1..20)))),
                _ => bytes.insert(at, random.u8(..)),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        if matches!(name, Name::Manifest(_)) && bytes.len() > 32 {
            let at = bytes.len() - 32;
            let hash = Hash::of(&bytes[..at]).to_string();
            for (byte, digits) in bytes[at..].iter_mut().zip(hash.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
            }
        }
        memory.put(name, bytes);
        let _ = store.verify().unwrap();
        read_all(&store);
        memory.put(name, whole);
    }
    assert!(store.verify().unwrap().is_sound());
}
