//! The store against an oracle: whatever happens to a memory, every checkpoint has what was there
//! at its time, also after pruning, squashing, failing writes, and by another writer.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use common::{Model, PAGE, contents, range, store};
use faulty::{Fault, Faulty};
use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::storage::{self, Directory, InMemory, Name, Object, Storage};
use pagetrail_checkpoint::{Compression, Error, Store, WorldWritable, WriterOptions};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

fn options(random: &mut fastrand::Rng) -> WriterOptions {
    let all = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    WriterOptions {
        compression: all[random.usize(0..3)],
        frame_pages: random.u32(1..20),
    }
}

#[test]
fn every_checkpoint_has_what_was_there() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_, store, mut writer) = store(options(&mut random));
        let mut model = Model::default();
        model.map(0, 40);
        let mut oracle: BTreeMap<u64, Model> = BTreeMap::new();
        for _ in 0..25 {
            model.change(&mut random);
            let manifest = model.checkpoint(&mut writer).unwrap();
            oracle.insert(manifest.number, model.clone());
            match random.u32(0..8) {
                0 => {
                    let keep = random.usize(1..8);
                    writer.prune(keep).unwrap();
                    while oracle.len() > keep {
                        oracle.pop_first();
                    }
                }
                1 => {
                    let numbers = store.numbers().unwrap();
                    let first = numbers[random.usize(0..numbers.len())];
                    let last = numbers[random.usize(0..numbers.len())];
                    if first > last {
                        writer.squash(first, last).unwrap_err();
                        continue;
                    }
                    writer.squash(first, last).unwrap();
                    oracle.retain(|number, _| !(first..last).contains(number));
                }
                2 => {
                    drop(writer);
                    writer = store.writer(options(&mut random)).unwrap();
                }
                _ => {}
            }
            let numbers: Vec<u64> = oracle.keys().copied().collect();
            assert_eq!(store.numbers().unwrap(), numbers, "seed {seed}");
        }
        for (number, model) in &oracle {
            model.assert_is(&mut store.image(*number).unwrap());
        }
        let verified = store.verify().unwrap();
        assert!(verified.is_sound(), "seed {seed}: {:?}", verified.damages);
        assert_eq!(verified.unused_packs, 0, "seed {seed}");
    }
}

#[test]
fn equal_pages_are_stored_once_and_zeros_not_at_all() {
    let (memory, store, mut writer) = store(WriterOptions::default());
    let mut model = Model::default();
    model.map(0, 3000);
    for page in 0..1000 {
        model.write(page, contents(page % 10));
        model.write(page + 1000, vec![0; PAGE as usize]);
    }
    let first = model.checkpoint(&mut writer).unwrap();
    assert_eq!(first.cost.stored_pages, 10);
    for page in 2000..2100 {
        model.write(page, contents(page % 11));
    }
    let second = model.checkpoint(&mut writer).unwrap();
    assert_eq!(second.cost.stored_pages, 1);
    assert_eq!(second.changed_pages(), 100);
    // The next writer knows what there is; its base has all pages and stores none.
    drop(writer);
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let third = model.checkpoint(&mut writer).unwrap();
    assert_eq!((third.parent, third.cost.stored_pages), (None, 0));
    assert_eq!(third.changed_pages(), 1100);
    let packs = memory.names().unwrap();
    let packs = packs.iter().filter(|name| matches!(name, Name::Pack(_)));
    assert_eq!(packs.count(), 2);
}

/// Takes three checkpoints and prunes, with a fault at step `at`; says how many steps there were.
fn story(memory: &InMemory, at: u64, fault: Fault) -> (Vec<Model>, u64) {
    let mut random = fastrand::Rng::with_seed(7);
    let faulty = Faulty::new(memory.clone(), at, fault);
    let steps = faulty.steps();
    let mut published = Vec::new();
    let tell = || -> Result<(), Error> {
        let store = Store::create_on(Arc::new(faulty))?;
        let mut writer = store.writer(WriterOptions {
            frame_pages: 2,
            ..WriterOptions::default()
        })?;
        let mut model = Model::default();
        model.map(0, 50);
        for _ in 0..5 {
            for _ in 0..5 {
                model.change(&mut random);
            }
            // Tried again, it has all that the failed one should have had.
            if model.checkpoint(&mut writer).is_err() {
                model.checkpoint(&mut writer)?;
            }
            published.push(model.clone());
        }
        let pruned = writer.prune(2);
        pruned.or_else(|_| writer.prune(2))?;
        Ok(())
    };
    let outcome = tell();
    assert!(
        outcome.is_ok() || fault != Fault::Once || at < 3,
        "step {at}: {outcome:?}"
    );
    (published, steps())
}

#[test]
fn a_writer_that_fails_at_any_step_leaves_the_store_whole() {
    let (all, steps) = story(&InMemory::new(), u64::MAX, Fault::Once);
    assert!(all.len() == 5 && steps > 25, "{steps}");
    for at in 0..steps {
        for fault in [Fault::Once, Fault::FromThen] {
            let memory = InMemory::new();
            let (published, _) = story(&memory, at, fault);
            let Ok(store) = Store::on(Arc::new(memory.clone())) else {
                assert!(published.is_empty());
                continue;
            };
            let verified = store.verify().unwrap();
            assert!(
                verified.is_sound(),
                "{fault:?} at {at}: {:?}",
                verified.damages
            );
            let mut there = store.numbers().unwrap();
            assert!(published.is_empty() || !there.is_empty());
            if fault == Fault::FromThen && there.len() > published.len() {
                // Its manifest was published, and the sync after that failed.
                there.pop();
            }
            // Numbers count from 1.
            for number in there {
                published[number as usize - 1].assert_is(&mut store.image(number).unwrap());
            }
            // The next writer cleans up.
            drop(store.writer(WriterOptions::default()).unwrap());
            assert_eq!(store.verify().unwrap().unused_packs, 0);
        }
    }
}

#[test]
fn a_store_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let writer = store.writer(WriterOptions::default()).unwrap();
    let again = Store::open(&path).unwrap();
    assert!(matches!(
        again.writer(WriterOptions::default()),
        Err(Error::Busy { .. })
    ));
    drop(writer);
    again.writer(WriterOptions::default()).unwrap();
}

#[test]
fn files_are_for_their_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 10);
    model.write(3, contents(1));
    model.checkpoint(&mut writer).unwrap();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let mut files = 0;
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap().path();
        let expected = if entry.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&entry), expected, "{entry:?}");
        files += u32::from(entry.is_file());
    }
    assert_eq!(files, 4, "marker, lock, manifest, pack");
}

#[test]
fn exposed_and_foreign_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let inside = open.join("store");
    for _ in 0..2 {
        assert!(matches!(
            Store::create(&inside, WorldWritable::Refuse),
            Err(Error::WorldWritable { .. })
        ));
        assert!(matches!(
            Store::create(&open, WorldWritable::Refuse),
            Err(Error::WorldWritable { .. })
        ));
        Store::create(&inside, WorldWritable::Allow).unwrap();
    }
    // Deeper below as well, as long as somebody could put another directory there.
    let deeper = open.join("own/store");
    assert!(matches!(
        Store::create(&deeper, WorldWritable::Refuse),
        Err(Error::WorldWritable { .. })
    ));

    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter"), "x").unwrap();
    assert!(matches!(
        Store::create(&foreign, WorldWritable::Refuse),
        Err(Error::NotAStore { .. })
    ));
    assert!(matches!(
        Store::open(&foreign),
        Err(Error::NotAStore { .. })
    ));
    assert!(matches!(
        Store::open(&dir.path().join("no")),
        Err(Error::NotAStore { .. })
    ));
}

#[test]
fn links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 10);
    model.write(3, contents(1));
    model.checkpoint(&mut writer).unwrap();
    let manifest = path.join(Name::Manifest(1).to_string());
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(&manifest, &elsewhere).unwrap();
    symlink(&elsewhere, &manifest).unwrap();
    assert!(store.image(1).is_err());
    assert!(!store.verify().unwrap().is_sound());
}

#[test]
fn what_is_missing_is_said() {
    let (memory, store, mut writer) = store(WriterOptions::default());
    assert!(matches!(store.newest(), Err(Error::Empty)));
    let mut model = Model::default();
    model.map(0, 10);
    for page in 0..3 {
        model.write(page, contents(page));
        model.checkpoint(&mut writer).unwrap();
    }
    assert!(matches!(
        store.image(4),
        Err(Error::NoSuchCheckpoint { number: 4, .. })
    ));
    for name in memory.names().unwrap() {
        if name == Name::Marker || name == Name::Manifest(3) {
            continue;
        }
        let kept = memory.get(name).unwrap();
        memory.remove(name).unwrap();
        let verified = store.verify().unwrap();
        assert!(!verified.is_sound(), "without {name}");
        assert!(store.image(3).is_err());
        memory.put(name, kept);
    }
    assert!(store.verify().unwrap().is_sound());
    // Another checkpoint in its place.
    let other = memory.get(Name::Manifest(1)).unwrap();
    memory.put(Name::Manifest(2), other);
    assert!(!store.verify().unwrap().is_sound());
}

/// A page as good as incompressible.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut page = vec![0; PAGE as usize];
    random.fill(&mut page);
    page
}

#[test]
fn of_pages_that_changed_in_parts_the_parts_are_stored() {
    const PAGES: u64 = 64;
    for compression in [Compression::None, Compression::Lz4] {
        let (_, store, mut writer) = store(WriterOptions {
            compression,
            ..WriterOptions::default()
        });
        let mut random = fastrand::Rng::with_seed(7);
        let mut model = Model::default();
        model.map(0, PAGES);
        (0..PAGES).for_each(|page| model.write(page, noise(page)));
        let base = model.checkpoint(&mut writer).unwrap().cost.stored_bytes;
        let mut models = vec![model.clone()];
        // More than patches may lie upon each other.
        for number in 1..80 {
            for page in 0..PAGES {
                let mut contents = model.pages[&page].clone();
                let at = random.usize(0..30) * 128;
                random.fill(&mut contents[at..at + 128]);
                model.pages.insert(page, contents);
                let start = page * PAGE + at as u64;
                model
                    .changed
                    .insert(PageRange::new(start, start + 128).unwrap());
                model.written.insert(range(page, page + 1));
            }
            let cost = model.checkpoint(&mut writer).unwrap().cost;
            assert_eq!(cost.stored_pages, PAGES);
            // 128 bytes of contents, 32 of a hash, a few more.
            let is_whole = number % 33 == 0;
            assert_eq!(cost.stored_bytes > base / 2, is_whole, "{number}: {cost:?}");
            assert!(
                is_whole || cost.stored_bytes < PAGES * 184 + 8192,
                "{cost:?}"
            );
            models.push(model.clone());
        }
        assert!(store.verify().unwrap().is_sound());
        for (number, model) in (1..).zip(&models) {
            model.assert_is(&mut store.image(number).unwrap());
        }
        // What is left is the last whole copies and the patches upon them.
        writer.prune(1).unwrap();
        let found = store.verify().unwrap();
        assert!(found.is_sound() && found.unused_packs == 0, "{found:?}");
        assert!(found.packs <= 33, "{found:?}");
        model.assert_is(&mut store.image(80).unwrap());
    }
}

/// A storage that takes long to read.
#[derive(Debug)]
struct Far(InMemory);

impl Storage for Far {
    fn place(&self) -> String {
        self.0.place()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        self.0.names()
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        self.0.open(name)
    }

    fn create(&self) -> io::Result<Box<dyn storage::Draft>> {
        self.0.create()
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.0.remove(name)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        self.0.lock()
    }

    fn is_near(&self) -> bool {
        false
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.0.set_aside(name)
    }

    fn sweep(&self) -> io::Result<()> {
        self.0.sweep()
    }
}

/// Two checkpoints of pages, of one of which more has changed than is said.
fn changed_unsaid(storage: Arc<dyn Storage>) -> (Store, Model) {
    let store = Store::create_on(storage).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 4);
    (0..4).for_each(|page| model.write(page, noise(page)));
    model.checkpoint(&mut writer).unwrap();
    let mut contents = noise(2);
    (contents[100], contents[3000]) = (1, 2);
    model.write(2, contents);
    model.whole.clear();
    let said = PageRange::new(2 * PAGE + 96, 2 * PAGE + 112).unwrap();
    model.changed.insert(said);
    model.checkpoint(&mut writer).unwrap();
    (store, model)
}

#[test]
fn bytes_that_changed_unsaid_are_found_by_verifying_where_reading_takes_long() {
    let (store, _) = changed_unsaid(Arc::new(Far(InMemory::new())));
    let found = store.verify().unwrap();
    assert_eq!(found.damages.len(), 1, "{found:?}");
    assert!(found.damages[0].contains("past the end of an object"));
}

#[test]
fn bytes_that_changed_unsaid_are_stored_where_the_store_is_near() {
    let (store, model) = changed_unsaid(Arc::new(InMemory::new()));
    assert!(store.verify().unwrap().is_sound());
    model.assert_is(&mut store.newest_image().unwrap());
}

/// Of what is said to have changed, what has is stored.
#[test]
fn of_units_that_changed_what_differs_is_stored() {
    const PAGES: u64 = 256;
    let stored = |storage: Arc<dyn Storage>| {
        let store = Store::create_on(storage).unwrap();
        let mut writer = store.writer(WriterOptions::default()).unwrap();
        let mut random = fastrand::Rng::with_seed(9);
        let mut model = Model::default();
        model.map(0, PAGES);
        (0..PAGES).for_each(|page| model.write(page, noise(page)));
        model.checkpoint(&mut writer).unwrap();
        let mut bytes = 0;
        for _ in 0..5 {
            for page in 0..PAGES {
                // A record of 64 bytes in each unit of 512.
                for unit in 0..8 {
                    let at = unit * 512 + random.usize(0..8) * 64;
                    let contents = model.pages.get_mut(&page).unwrap();
                    random.fill(&mut contents[at..at + 64]);
                }
                model.changed.insert(range(page, page + 1));
                model.written.insert(range(page, page + 1));
            }
            let cost = model.checkpoint(&mut writer).unwrap().cost;
            bytes += cost.stored_bytes;
            model.assert_is(&mut store.newest_image().unwrap());
        }
        assert!(store.verify().unwrap().is_sound());
        bytes / (5 * PAGES)
    };
    let (near, far) = (
        stored(Arc::new(InMemory::new())),
        stored(Arc::new(Far(InMemory::new()))),
    );
    // 512 bytes differ, a hash takes 32, and where they are takes 16.
    assert!((512..600).contains(&near), "{near}");
    assert!(far >= PAGE, "{far}");
}

#[test]
fn what_cannot_be_read_of_the_last_checkpoint_is_stored_whole() {
    let memory = InMemory::new();
    let store = Store::create_on(Arc::new(memory.clone())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 4);
    (0..4).for_each(|page| model.write(page, noise(page)));
    model.checkpoint(&mut writer).unwrap();
    let pack = memory
        .names()
        .unwrap()
        .into_iter()
        .find(|n| matches!(n, Name::Pack(_)));
    let (pack, at) = (pack.unwrap(), 16 + 2 * PAGE as usize);
    let mut bytes = memory.get(pack).unwrap();
    bytes[at] ^= 1;
    memory.put(pack, bytes);
    for page in 1..3 {
        model.pages.get_mut(&page).unwrap()[100] ^= 1;
        model.written.insert(range(page, page + 1));
        model.changed.insert(range(page, page + 1));
    }
    let cost = model.checkpoint(&mut writer).unwrap().cost;
    assert!((PAGE..2 * PAGE).contains(&cost.stored_bytes), "{cost:?}");
    let mut image = store.newest_image().unwrap();
    let mut page = vec![0; PAGE as usize];
    for number in 1..3 {
        image.read(range(number, number + 1), &mut page).unwrap();
        assert_eq!(page, model.pages[&number]);
    }
}

#[test]
fn differences_are_listed_by_mapping() {
    let (_, store, mut writer) = store(WriterOptions::default());
    let mut model = Model::default();
    model.map(0, 10);
    model.map(20, 30);
    model.map(50, 60);
    model.write(1, contents(1));
    model.write(55, contents(4));
    model.checkpoint(&mut writer).unwrap();
    model.write(1, contents(1));
    model.write(21, contents(2));
    model.write(22, contents(3));
    model.unmap(50, 60);
    model.map(70, 71);
    model.checkpoint(&mut writer).unwrap();
    let diff = store.diff(1, 2).unwrap();
    assert_eq!(diff.len(), 3);
    assert_eq!(diff[0].range, range(20, 30));
    assert_eq!(diff[0].pages, PageSet::from_iter([range(21, 23)]));
    assert_eq!(
        (diff[1].present, diff[1].pages.page_count()),
        ((true, false), 1)
    );
    assert_eq!(
        (diff[2].present, diff[2].pages.page_count()),
        ((false, true), 0)
    );
    assert!(store.diff(2, 2).unwrap().is_empty());
}

#[test]
fn a_directory_is_a_storage_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Directory::create(&dir.path().join("store"), WorldWritable::Refuse).unwrap();
    let mut draft = storage.create().unwrap();
    draft.write(b"lost").unwrap();
    drop(draft);
    let mut draft = storage.create().unwrap();
    draft.write(b"swept").unwrap();
    std::mem::forget(draft);
    storage.sweep().unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path().join("store/drafts"))
            .unwrap()
            .count(),
        0
    );
    assert!(storage.names().unwrap().is_empty());
}
