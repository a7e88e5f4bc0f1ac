//! Encrypted stores: they hold what others hold, whatever fails; nothing in them tells what that
//! is; and every changed byte is found.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use common::{Model, PAGE, contents, range};
use faulty::{Fault, Faulty};
use pagetrail_checkpoint::storage::{Encrypted, InMemory, Key, Name, Storage};
use pagetrail_checkpoint::{Compression, Description, Error, Hash, Label, Store, WriterOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

fn key(n: u8) -> Key {
    Key::new([n; 32])
}

fn open(memory: &InMemory, key: &Key) -> Result<Store, Error> {
    Store::on(Arc::new(Encrypted::open(memory.clone(), key)?))
}

fn options() -> WriterOptions {
    WriterOptions {
        compression: Compression::None,
        ..WriterOptions::default()
    }
}

/// Checkpoints of a memory that changes at random, pruned now and then; with a fault at a step.
/// What each checkpoint that was taken has, and the number of steps.
fn story(storage: impl Storage + Clone + 'static, at: u64, fault: Fault) -> (Vec<Model>, u64) {
    let faulty = Arc::new(Faulty::new(storage, at, fault));
    let steps = faulty.steps();
    let mut taken = Vec::new();
    let mut tell = || -> Result<(), Error> {
        let encrypted = Encrypted::create(Arc::clone(&faulty), &key(1))?;
        let store = Store::create_on(Arc::new(encrypted))?;
        let mut writer = store.writer(options())?;
        let mut random = fastrand::Rng::with_seed(5);
        let mut model = Model::default();
        model.map(0, 64);
        for n in 0..5 {
            model.change(&mut random);
            if n == 1 {
                writer.label_next(Label::new("second")?);
            }
            // One that failed is taken again, as the command does.
            if model.checkpoint(&mut writer).is_err() {
                model.checkpoint(&mut writer)?;
            }
            taken.push(model.clone());
            if n == 3 {
                writer.prune(1)?;
            }
        }
        Ok(())
    };
    let _ = tell();
    (taken, steps())
}

#[test]
fn a_writer_that_fails_at_any_step_leaves_the_store_whole() {
    let (taken, steps) = story(InMemory::new(), u64::MAX, Fault::Once);
    assert!(taken.len() == 5 && steps > 25, "{steps}");
    for at in 0..steps {
        for fault in [Fault::Once, Fault::FromThen] {
            let memory = InMemory::new();
            let (taken, _) = story(memory.clone(), at, fault);
            let Ok(store) = open(&memory, &key(1)) else {
                assert!(taken.is_empty(), "{fault:?} at {at}");
                continue;
            };
            let verified = store.verify().unwrap();
            assert!(
                verified.is_sound(),
                "{fault:?} at {at}: {:?}",
                verified.damages
            );
            let mut there = store.numbers().unwrap();
            if fault == Fault::FromThen && there.last() > Some(&(taken.len() as u64)) {
                // Its manifest was published, and the sync after that failed.
                there.pop();
            }
            for number in there {
                if fault == Fault::FromThen {
                    let model = &taken[number as usize - 1];
                    model.assert_is(&mut store.image(number).unwrap());
                }
            }
            if let Some(newest) = taken.last() {
                match fault {
                    Fault::Once => newest.assert_is(&mut store.newest_image().unwrap()),
                    _ => assert!(store.newest().is_ok()),
                }
            }
            drop(store.writer(options()).unwrap());
            assert_eq!(store.verify().unwrap().unused_packs, 0);
        }
    }
}

#[test]
fn nothing_in_the_objects_or_their_names_tells_what_they_hold() {
    let memory = InMemory::new();
    let (taken, _) = story(memory.clone(), u64::MAX, Fault::Once);
    let plain = InMemory::new();
    let store = Store::create_on(Arc::new(plain.clone())).unwrap();
    let mut writer = store.writer(options()).unwrap();
    let mut model = taken[0].clone();
    model.checkpoint(&mut writer).unwrap();
    // Contents, their hashes and the words of the formats, which are all in a plain store.
    let page = taken[0]
        .pages
        .values()
        .find(|page| page.iter().any(|b| *b != 0))
        .unwrap();
    let hash: Vec<u8> = (0..32)
        .map(|n| u8::from_str_radix(&Hash::of(page).to_string()[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    let telling: [&[u8]; 6] = [
        &page[page.len() - 64..],
        &hash,
        b"PTPACK",
        b"PTPKEND",
        b"PTIMAGE",
        b"second",
    ];
    let finds = |memory: &InMemory, what: &[u8]| {
        memory.names().unwrap().into_iter().any(|name| {
            let bytes = memory.get(name).unwrap();
            bytes.windows(what.len()).any(|window| window == what)
        })
    };
    for what in telling {
        assert!(!finds(&memory, what), "{:?}", String::from_utf8_lossy(what));
    }
    for what in &telling[..5] {
        assert!(finds(&plain, what), "the test looks for the wrong bytes");
    }
    let encrypted = Encrypted::open(memory.clone(), &key(1)).unwrap();
    let own: BTreeSet<Name> = encrypted.names().unwrap().into_iter().collect();
    let stored = memory.names().unwrap().into_iter();
    let packs: Vec<Name> = stored
        .filter(|name| matches!(name, Name::Pack(_)))
        .collect();
    assert!(!packs.is_empty() && packs.iter().all(|name| !own.contains(name)));
}

#[test]
fn equal_pages_are_stored_once_in_a_store_and_look_different_in_another() {
    let written = |key: &Key| {
        let memory = InMemory::new();
        let encrypted = Encrypted::create(memory.clone(), key).unwrap();
        let store = Store::create_on(Arc::new(encrypted)).unwrap();
        let mut writer = store.writer(options()).unwrap();
        let mut model = Model::default();
        model.map(0, 64);
        (0..32).for_each(|page| model.write(page, contents(1)));
        assert_eq!(model.checkpoint(&mut writer).unwrap().cost.stored_pages, 1);
        writer.begin_anew();
        assert_eq!(model.checkpoint(&mut writer).unwrap().cost.stored_pages, 0);
        memory
    };
    let (first, second) = (written(&key(1)), written(&key(1)));
    let bytes = |memory: &InMemory| -> BTreeSet<(Name, Vec<u8>)> {
        let names = memory.names().unwrap().into_iter();
        names
            .map(|name| (name, memory.get(name).unwrap()))
            .collect()
    };
    assert!(bytes(&first).is_disjoint(&bytes(&second)));
    let packs = |memory: &InMemory| -> BTreeSet<Name> {
        let names = memory.names().unwrap().into_iter();
        names.filter(|name| matches!(name, Name::Pack(_))).collect()
    };
    assert!(packs(&first).len() == 1 && packs(&first).is_disjoint(&packs(&second)));
}

#[test]
fn the_wrong_key_and_none_and_one_too_many_are_refused() {
    let memory = InMemory::new();
    story(memory.clone(), u64::MAX, Fault::Once);
    open(&memory, &key(1)).unwrap();
    assert!(matches!(open(&memory, &key(2)), Err(Error::Refused(_))));
    assert!(matches!(
        Encrypted::create(memory.clone(), &key(2)),
        Err(Error::Refused(_))
    ));
    let plainly = Store::on(Arc::new(memory.clone()));
    assert!(matches!(plainly, Err(Error::Encrypted { .. })));
    let plain = InMemory::new();
    Store::create_on(Arc::new(plain.clone())).unwrap();
    for outcome in [
        Encrypted::open(plain.clone(), &key(1)),
        Encrypted::create(plain.clone(), &key(1)),
    ] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("is not encrypted"), "{error}");
    }
    let empty = Encrypted::open(InMemory::new(), &key(1));
    assert!(matches!(empty, Err(Error::NotAStore { .. })));
}

#[test]
fn every_damaged_object_is_found_and_repaired_as_others_are() {
    let memory = InMemory::new();
    story(memory.clone(), u64::MAX, Fault::Once);
    let mut random = fastrand::Rng::with_seed(9);
    let is_sound = || open(&memory, &key(1)).is_ok_and(|store| store.verify().unwrap().is_sound());
    assert!(is_sound());
    let names = memory.names().unwrap();
    for name in &names {
        let whole = memory.get(*name).unwrap();
        for _ in 0..40 {
            let mut wrong = whole.clone();
            wrong[random.usize(0..whole.len())] ^= 1 << random.u8(0..8);
            memory.put(*name, wrong);
            assert!(!is_sound(), "{name}");
            memory.put(*name, whole[..random.usize(0..whole.len())].to_vec());
            assert!(!is_sound(), "{name} cut");
            memory.put(
                *name,
                (0..random.usize(0..300)).map(|_| random.u8(..)).collect(),
            );
            assert!(!is_sound(), "{name} replaced");
        }
        // What another object holds, in this one's place.
        for other in &names {
            let bytes = memory.get(*other).unwrap();
            if bytes != whole {
                memory.put(*name, bytes);
                assert!(!is_sound(), "{other} as {name}");
            }
        }
        memory.put(*name, whole);
    }
    assert!(is_sound());
    // One pack gone bad: what it costs is set aside, and the store is whole again.
    let pack = names
        .iter()
        .find(|name| matches!(name, Name::Pack(_)))
        .unwrap();
    let mut wrong = memory.get(*pack).unwrap();
    *wrong.last_mut().unwrap() ^= 1;
    memory.put(*pack, wrong);
    let store = open(&memory, &key(1)).unwrap();
    let mut writer = store.writer(options()).unwrap();
    let repaired = writer.repair().unwrap();
    assert!(!repaired.damages.is_empty() && !repaired.lost.is_empty());
    assert!(is_sound());
}

#[test]
fn superseded_pages_leave_an_encrypted_store_too() {
    let mut random = fastrand::Rng::with_seed(3);
    let encrypted = Encrypted::create(InMemory::new(), &key(1)).unwrap();
    let store = Store::create_on(Arc::new(encrypted)).unwrap();
    for compression in [Compression::None, Compression::Lz4] {
        let mut writer = store
            .writer(WriterOptions {
                compression,
                ..WriterOptions::default()
            })
            .unwrap();
        let mut model = Model::default();
        model.map(0, 200);
        let mut draft = writer.draft(PAGE as u32);
        for step in [1, 2, 3] {
            for page in (0..200).step_by(step) {
                model.write(page, contents(random.u64(..)));
                let range = range(page, page + 1);
                draft.put(&[range], &model.read(range)).unwrap();
            }
        }
        let manifest = draft
            .publish(Description {
                mappings: model.mappings(),
                ..Description::default()
            })
            .unwrap();
        assert_eq!(manifest.cost.stored_pages, 200, "{compression:?}");
        model.assert_is(&mut store.image(manifest.number).unwrap());
    }
    assert!(store.verify().unwrap().is_sound());
}
