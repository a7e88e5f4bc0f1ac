//! Damage costs the checkpoints that need what is damaged, and no others: the store goes on past
//! it, says what is lost, and can be repaired.

mod common;

use common::{Model, contents, store};
use pagetrail_checkpoint::storage::{Directory, InMemory, Name, Storage};
use pagetrail_checkpoint::{Error, Pruned, Retention, Store, WorldWritable, Writer, WriterOptions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Five checkpoints, 2 to 5 increments over the one before.
fn chain() -> (InMemory, Store, BTreeMap<u64, Model>, Model) {
    let (memory, store, mut writer) = store(WriterOptions {
        frame_pages: 2,
        ..WriterOptions::default()
    });
    let mut model = Model::default();
    model.map(0, 20);
    let mut oracle = BTreeMap::new();
    for step in 0..5 {
        for page in 0..6 {
            model.write(page + step, contents(100 * step + page));
        }
        let manifest = model.checkpoint(&mut writer).unwrap();
        oracle.insert(manifest.number, model.clone());
    }
    (memory, store, oracle, model)
}

fn damage(memory: &InMemory, name: Name, at: usize) {
    let mut bytes = memory.get(name).unwrap();
    bytes[at] ^= 0x40;
    memory.put(name, bytes);
}

fn whole(store: &Store) -> Vec<u64> {
    let survey = store.survey().unwrap();
    survey.whole().map(|manifest| manifest.number).collect()
}

#[test]
fn a_damaged_manifest_costs_what_builds_on_it_and_nothing_else() {
    let (memory, store, oracle, mut model) = chain();
    damage(&memory, Name::Manifest(3), 100);
    let survey = store.survey().unwrap();
    assert_eq!(whole(&store), [1, 2]);
    let damages = survey.damages();
    assert_eq!(damages.len(), 1, "{damages:?}");
    assert!(
        damages[0].contains("checkpoint 3 cannot be read, nor can 4, 5"),
        "{damages:?}"
    );
    assert_eq!(store.verify().unwrap().lost, [3, 4, 5]);

    // The next checkpoint is a base with all there is.
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    assert_eq!(writer.damages(), damages);
    let packs = |memory: &InMemory| {
        let names = memory.names().unwrap().into_iter();
        names.filter(|name| matches!(name, Name::Pack(_))).count()
    };
    assert_eq!(packs(&memory), 5, "what a lost checkpoint may need stays");
    model.write(9, contents(900));
    let manifest = model.checkpoint(&mut writer).unwrap();
    assert_eq!((manifest.number, manifest.parent), (6, None));
    model.assert_is(&mut store.image(6).unwrap());

    // Pruning counts those that can be read.
    let pruned = writer.prune(2).unwrap();
    assert_eq!((pruned.checkpoints, pruned.damaged), (1, 3));
    assert_eq!(store.numbers().unwrap(), [2, 3, 4, 5, 6]);
    oracle[&2].assert_is(&mut store.image(2).unwrap());
    writer.squash(2, 6).unwrap();
    assert_eq!(store.numbers().unwrap(), [3, 4, 5, 6]);
    model.assert_is(&mut store.image(6).unwrap());

    let repaired = writer.repair().unwrap();
    assert_eq!((&repaired.lost[..], repaired.whole), (&[3, 4, 5][..], 1));
    assert!(store.verify().unwrap().is_sound());
    assert_eq!(store.numbers().unwrap(), [6]);
    model.assert_is(&mut store.image(6).unwrap());
    assert_eq!(writer.repair().unwrap().damages, Vec::<String>::new());
}

#[test]
fn every_damaged_byte_of_a_store_is_repaired() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..150 {
        let (memory, store, mut oracle, mut model) = chain();
        let names = memory.names().unwrap();
        let mut hit = Vec::new();
        for _ in 0..random.u32(1..3) {
            let name = names[random.usize(1..names.len())];
            let Some(bytes) = memory.get(name) else {
                continue;
            };
            if random.u32(0..6) == 0 {
                memory.remove(name).unwrap();
            } else {
                damage(&memory, name, random.usize(0..bytes.len()));
            }
            hit.push(name);
        }
        let found = store.verify().unwrap();
        // That the newest is missing nothing says.
        let newest_gone = !store.numbers().unwrap().contains(&5);
        assert!(!found.is_sound() || newest_gone, "round {round}: {hit:?}");
        for (number, model) in &oracle {
            let there = store.numbers().unwrap().contains(number);
            if there && !found.lost.contains(number) {
                model.assert_is(&mut store.image(*number).unwrap());
            }
        }
        // Before the repair as after it.
        for repair in [false, true] {
            let mut writer = store.writer(WriterOptions::default()).unwrap();
            if repair {
                writer.repair().unwrap();
                let after = store.verify().unwrap();
                assert!(after.is_sound(), "round {round}: {hit:?}: {after:?}");
            }
            model.write(3, contents(1000 + u64::from(repair)));
            let number = model.checkpoint(&mut writer).unwrap().number;
            // A writer does not read the packs in which it finds pages by their hashes; verifying
            // does.
            if repair || !store.verify().unwrap().lost.contains(&number) {
                model.assert_is(&mut store.image(number).unwrap());
            }
            // Of a newest checkpoint that was removed, the number comes again.
            oracle.insert(number, model.clone());
            writer.prune(3).unwrap();
            for manifest in store.survey().unwrap().whole() {
                let lost = store.verify().unwrap().lost;
                if let Some(model) = oracle.get(&manifest.number)
                    && !lost.contains(&manifest.number)
                {
                    model.assert_is(&mut store.image(manifest.number).unwrap());
                }
            }
        }
    }
}

#[test]
fn what_is_damaged_is_set_aside_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 10);
    model.write(1, contents(1));
    model.checkpoint(&mut writer).unwrap();
    let manifest = Name::Manifest(1).to_string();
    std::fs::write(path.join(&manifest), "no manifest").unwrap();
    let repaired = writer.repair().unwrap();
    assert_eq!(repaired.lost, [1]);
    let kept = std::fs::read(path.join("damaged").join(&manifest)).unwrap();
    assert_eq!(kept, b"no manifest");
    assert!(store.verify().unwrap().is_sound());
    model.checkpoint(&mut writer).unwrap();
    drop(writer);
    // It is still a store.
    Directory::create(&path, WorldWritable::Refuse).unwrap();
    assert!(Store::open(&path).unwrap().verify().unwrap().is_sound());
}

/// Damage of an object, `None` where it is gone.
type Damage = fn(&[u8]) -> Option<Vec<u8>>;

#[test]
fn damaged_checkpoints_displace_no_whole_ones() {
    let without_index: [Damage; 4] = [
        |_| None,
        |whole| Some(vec![0; whole.len()]),
        |whole| Some(whole[..whole.len() - 1].to_vec()),
        |whole| Some([whole, &[7; 100]].concat()),
    ];
    let changed: Damage = |whole| {
        let mut bytes = whole.to_vec();
        bytes[20] ^= 1;
        Some(bytes)
    };
    for (damage, reading) in without_index
        .iter()
        .flat_map(|damage| [(*damage, false), (*damage, true)])
        .chain([(changed, true)])
    {
        let (memory, store, mut writer) = store(WriterOptions::default());
        let mut model = Model::default();
        model.map(0, 20);
        model.write(0, contents(0));
        let mut oracle = BTreeMap::new();
        let mut packs = Vec::new();
        for number in 1..=4 {
            model.write(number, contents(number));
            model.checkpoint(&mut writer).unwrap();
            oracle.insert(number, model.clone());
            let names = memory.names().unwrap().into_iter();
            let is_new = |name: &Name| matches!(name, Name::Pack(_)) && !packs.contains(name);
            packs.extend(names.filter(is_new).collect::<Vec<_>>());
            assert_eq!(packs.len() as u64, number);
        }
        // Of checkpoint 3, and so of 4.
        let whole = memory.get(packs[2]).unwrap();
        match damage(&whole) {
            Some(bytes) => memory.put(packs[2], bytes),
            None => memory.remove(packs[2]).unwrap(),
        }
        let refused = writer.squash(1, 4).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
        assert_eq!(store.numbers().unwrap(), [1, 2, 3, 4]);
        let pruned = match reading {
            true => writer.prune_verified(&Retention::last(1)).unwrap(),
            false => writer.prune(1).unwrap(),
        };
        assert_eq!((pruned.checkpoints, pruned.damaged), (1, 2));
        assert_eq!(store.numbers().unwrap(), [2, 3, 4]);
        oracle[&2].assert_is(&mut store.image(2).unwrap());
        // What was damaged comes back: nothing that it needs has gone.
        memory.put(packs[2], whole);
        assert!(store.verify().unwrap().is_sound());
        for number in 2..=4 {
            oracle[&number].assert_is(&mut store.image(number).unwrap());
        }
    }
}

#[test]
fn whole_checkpoints_stay_whole_that_build_on_one_without_its_pack() {
    type Shorten = fn(&mut Writer) -> Pruned;
    let ways: [(Shorten, &[u64]); 3] = [
        (|writer| writer.prune(1).unwrap(), &[4]),
        (
            |writer| writer.prune_verified(&Retention::last(1)).unwrap(),
            &[4],
        ),
        (|writer| writer.squash(1, 3).unwrap(), &[3, 4]),
    ];
    for (shorten, left) in ways {
        let (memory, store, mut writer) = store(WriterOptions::default());
        let mut model = Model::default();
        model.map(0, 20);
        let (mut oracle, mut packs) = (BTreeMap::new(), Vec::new());
        for number in 1..=4 {
            // All that 2 writes 3 writes anew: only 2 needs its pack.
            model.write(9, contents(number));
            model.checkpoint(&mut writer).unwrap();
            oracle.insert(number, model.clone());
            let names = memory.names().unwrap().into_iter();
            let is_new = |name: &Name| matches!(name, Name::Pack(_)) && !packs.contains(name);
            packs.extend(names.filter(is_new).collect::<Vec<_>>());
        }
        memory.remove(packs[1]).unwrap();
        assert_eq!(store.verify().unwrap().lost, [2]);
        shorten(&mut writer);
        assert_eq!(store.verify().unwrap().lost, [2]);
        let numbers = store.numbers().unwrap();
        assert_eq!(numbers, [&[2], left].concat());
        for number in left {
            oracle[number].assert_is(&mut store.image(*number).unwrap());
        }
    }
}

#[test]
fn a_number_that_no_other_follows_is_refused() {
    let (memory, store, mut writer) = store(WriterOptions::default());
    let mut model = Model::default();
    model.map(0, 10);
    model.checkpoint(&mut writer).unwrap();
    drop(writer);
    memory.put(Name::Manifest(u64::MAX), b"PTIMAGE\x01".to_vec());
    let refused = store.writer(WriterOptions::default()).unwrap_err();
    assert!(
        refused.to_string().contains("no number is left"),
        "{refused}"
    );
    assert_eq!(store.numbers().unwrap(), [1, u64::MAX]);
}

#[test]
fn a_reader_beside_a_writer_that_prunes_finds_no_damage() {
    let (_, store, mut writer) = store(WriterOptions {
        frame_pages: 2,
        ..WriterOptions::default()
    });
    let mut random = fastrand::Rng::with_seed(5);
    let mut model = Model::default();
    model.map(0, 40);
    model.checkpoint(&mut writer).unwrap();
    let done = AtomicBool::new(false);
    let (store, done) = (&store, &done);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut looks = 0;
                    while !done.load(Ordering::Relaxed) || looks < 20 {
                        let found = store.verify().unwrap();
                        assert!(found.is_sound() && found.lost.is_empty(), "{found:?}");
                        assert_eq!(store.survey().unwrap().damages(), Vec::<String>::new());
                        let (number, _) = store
                            .newest_image()
                            .map(|i| (i.manifest().number, i))
                            .unwrap();
                        assert!(number > 0);
                        looks += 1;
                    }
                })
            })
            .collect();
        for _ in 0..400 {
            model.change(&mut random);
            model.checkpoint(&mut writer).unwrap();
            writer.prune(random.usize(1..4)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
