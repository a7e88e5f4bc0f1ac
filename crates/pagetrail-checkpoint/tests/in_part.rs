//! The index of a pack is read in part: what it takes to open an image does not depend on its size,
//! a damaged block costs its own pages, and packs of older versions are read as they were.

mod common;
#[path = "common/crafted.rs"]
mod crafted;

use common::{Model, PAGE, contents, range, store};
use crafted::Crafted;
use pagetrail_checkpoint::storage::{Draft, InMemory, Name, Object, Storage};
use pagetrail_checkpoint::{Compression, Store, WriterOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes that are read.
#[derive(Debug, Default)]
struct Counting {
    memory: InMemory,
    bytes: Arc<AtomicU64>,
}

struct Counted {
    object: Box<dyn Object>,
    bytes: Arc<AtomicU64>,
}

impl Object for Counted {
    fn bytes(&self) -> u64 {
        self.object.bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.object.read_at(offset, buffer)
    }
}

impl Storage for Counting {
    fn place(&self) -> String {
        self.memory.place()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        self.memory.names()
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        let object = self.memory.open(name)?;
        let bytes = Arc::clone(&self.bytes);
        Ok(Box::new(Counted { object, bytes }))
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        self.memory.create()
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.memory.remove(name)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        self.memory.lock()
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.memory.set_aside(name)
    }

    fn sweep(&self) -> io::Result<()> {
        self.memory.sweep()
    }
}

/// A store with one checkpoint of so many different pages.
fn of_pages(pages: u64, compression: Compression) -> (InMemory, Store, Model) {
    let (memory, store, mut writer) = store(WriterOptions {
        compression,
        ..WriterOptions::default()
    });
    let mut model = Model::default();
    model.map(0, pages);
    (0..pages).for_each(|page| model.write(page, contents(page)));
    model.checkpoint(&mut writer).unwrap();
    (memory, store, model)
}

/// The pack of a store with one.
fn pack_of(memory: &InMemory) -> Name {
    let names = memory.names().unwrap();
    let mut packs = names.into_iter().filter(|n| matches!(n, Name::Pack(_)));
    let pack = packs.next().unwrap();
    assert_eq!(packs.next(), None);
    pack
}

#[test]
fn opening_an_image_and_reading_a_page_reads_little_of_the_index() {
    let read = |pages: u64| {
        let (memory, _, _) = of_pages(pages, Compression::Lz4);
        let bytes = Arc::new(AtomicU64::new(0));
        let counting = Counting {
            memory,
            bytes: Arc::clone(&bytes),
        };
        let store = Store::on(Arc::new(counting)).unwrap();
        let mut image = store.newest_image().unwrap();
        let opened = bytes.swap(0, Ordering::Relaxed);
        let mut page = vec![0; PAGE as usize];
        let number = pages / 2;
        image.read(range(number, number + 1), &mut page).unwrap();
        assert_eq!(page, contents(number));
        (opened, bytes.load(Ordering::Relaxed))
    };
    let (small, large) = (read(64), read(16 * 1024));
    // A root has 40 bytes for each 256 pages, whose hashes alone are 8 KiB.
    assert!(large.0 < small.0 + 64 * 40 + 100, "{small:?} {large:?}");
    assert!(large.1 < 80 << 10, "{large:?}");
}

#[test]
fn a_damaged_block_costs_its_own_pages() {
    const PAGES: u64 = 1024;
    for compression in [Compression::None, Compression::Lz4] {
        let (memory, store, model) = of_pages(PAGES, compression);
        let name = pack_of(&memory);
        let whole = memory.get(name).unwrap();
        assert_eq!(whole[7], 3);
        let end = whole.len() - 48;
        let root = u64::from_le_bytes(whole[end..][..8].try_into().unwrap()) as usize;
        // Four blocks of 16 frames of 16 pages.
        assert_eq!(end - root, 12 + 4 * 40);
        let block = 16 * (37 + 16 * 32);
        for (number, at) in [(0, 5), (2, 0), (3, block - 1)] {
            let mut damaged = whole.clone();
            damaged[root - (4 - number as usize) * block + at] ^= 1;
            memory.put(name, damaged);
            let found = store.verify().unwrap();
            assert_eq!(found.damages.len(), 1, "{found:?}");
            let says = format!("block {number} of its index has changed");
            assert!(found.damages[0].contains(&says), "{found:?}");
            assert_eq!(found.lost, [1]);
            let mut image = store.image(1).unwrap();
            let mut page = vec![0; PAGE as usize];
            for page_number in (0..PAGES).step_by(7) {
                let read = image.read(range(page_number, page_number + 1), &mut page);
                assert_eq!(read.is_err(), page_number / 256 == number, "{page_number}");
                assert!(read.is_err() || page == contents(page_number));
            }
            // A writer does not build on it.
            assert!(store.writer(WriterOptions::default()).unwrap().damages()[0].contains(&says));
        }
        memory.put(name, whole);
        assert!(store.verify().unwrap().is_sound());
        model.assert_is(&mut store.image(1).unwrap());
    }
}

#[test]
fn packs_of_all_versions_lie_in_one_store() {
    let pages: Vec<Vec<u8>> = (0..40).map(contents).collect();
    let packs = [
        crafted::pack(&pages[..20]),
        crafted::pack_in_blocks(&pages[20..], 3, |_| {}),
    ];
    let memory = InMemory::new();
    let store = Store::create_on(Arc::new(memory.clone())).unwrap();
    let crafted = Crafted {
        number: 1,
        mappings: vec![(16 * PAGE, 64 * PAGE, Vec::new())],
        packs: packs.iter().map(|(name, _)| *name).collect(),
        runs: vec![(16, 20, 2, 0), (0, 20, 3, 0)],
        ..Crafted::default()
    };
    for (name, bytes) in packs {
        memory.put(Name::Pack(name), bytes);
    }
    memory.put(Name::Manifest(1), crafted.manifest());
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    let mut is = vec![0; 40 * PAGE as usize];
    let mut image = store.image(1).unwrap();
    image.read(range(16, 56), &mut is).unwrap();
    assert_eq!(is, pages.concat());
    // What is there already is not stored again, by whichever version it is known.
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut model = Model::default();
    model.map(0, 40);
    (0..40).for_each(|page| model.write(page, contents(39 - page)));
    assert_eq!(model.checkpoint(&mut writer).unwrap().cost.stored_pages, 0);
    model.assert_is(&mut store.image(2).unwrap());
}
