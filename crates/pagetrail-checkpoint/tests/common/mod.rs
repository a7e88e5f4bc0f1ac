//! What the tests of the store share: a memory in a few lines, which changes at random and is the
//! oracle for images.

#![allow(dead_code, reason = "each test uses its part")]

use pagetrail::{PageRange, PageSet, Permissions};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Description, Draft, Image, Manifest, Mapping, Result, Store, Writer, WriterOptions,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub(crate) const PAGE: u64 = 4096;

/// Pages by number, and mappings as ranges of pages. Pages that are not there are zero.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) pages: BTreeMap<u64, Vec<u8>>,
    pub(crate) mapped: PageSet,
    /// Written since the last checkpoint, and addresses with a new mapping.
    pub(crate) written: PageSet,
    pub(crate) remapped: PageSet,
    /// Of what was written, pages that have changed as a whole; of the others, the bytes that have
    /// changed.
    pub(crate) whole: PageSet,
    pub(crate) changed: PageSet,
}

pub(crate) fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(from * PAGE, to * PAGE).unwrap()
}

impl Model {
    pub(crate) fn map(&mut self, from: u64, to: u64) {
        self.mapped.insert(range(from, to));
        self.remapped.insert(range(from, to));
        self.pages.retain(|page, _| !(from..to).contains(page));
    }

    pub(crate) fn unmap(&mut self, from: u64, to: u64) {
        self.mapped.remove(range(from, to));
        self.written.remove(range(from, to));
        self.remapped.remove(range(from, to));
        self.pages.retain(|page, _| !(from..to).contains(page));
    }

    pub(crate) fn write(&mut self, page: u64, contents: Vec<u8>) {
        self.pages.insert(page, contents);
        self.written.insert(range(page, page + 1));
        self.whole.insert(range(page, page + 1));
    }

    /// Changes a few bytes of a page.
    pub(crate) fn write_parts(&mut self, page: u64, random: &mut fastrand::Rng) {
        let zeros = || vec![0; PAGE as usize];
        let contents = self.pages.entry(page).or_insert_with(zeros);
        for _ in 0..random.usize(1..5) {
            let start = random.usize(0..250) * 16;
            let length = random.usize(1..=6) * 16;
            contents[start..start + length].fill(random.u8(..));
            let at = page * PAGE + start as u64;
            let range = PageRange::new(at, at + length as u64).unwrap();
            self.changed.insert(range);
        }
        self.written.insert(range(page, page + 1));
    }

    /// Something happens.
    pub(crate) fn change(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..random.u32(0..30) {
            let page = random.u64(0..64);
            match random.u32(0..30) {
                0 => self.map(page, page + random.u64(1..8)),
                1 => self.unmap(page, page + random.u64(1..8)),
                _ if !self.mapped.contains(page * PAGE) => {}
                2 => self.write(page, vec![0; PAGE as usize]),
                // Few different contents, so that equal ones occur.
                3..10 => self.write(page, contents(random.u64(0..10))),
                20.. => self.write_parts(page, random),
                _ => self.write(page, contents(random.u64(..))),
            }
        }
    }

    /// The pages to put, and what the draft has to forget.
    pub(crate) fn put(&self, draft: &mut Draft<'_>) -> Result<()> {
        let pages = if draft.is_base() {
            self.pages
                .keys()
                .map(|page| range(*page, page + 1))
                .collect()
        } else {
            draft.forget(&self.remapped);
            self.written.clone()
        };
        draft.allow_changes();
        let in_parts = pages.difference(&self.whole);
        for range in pages.ranges() {
            let contents = self.read(*range);
            let put = draft.put_changed(&[*range], &contents, &in_parts, &self.changed);
            let rest = PageSet::from_iter([*range]).difference(&put);
            for range in rest.ranges() {
                draft.put(&[*range], &self.read(*range))?;
            }
        }
        Ok(())
    }

    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        let mapping = |range: &PageRange| Mapping {
            range: *range,
            permissions: Permissions {
                read: true,
                write: true,
                execute: false,
                shared: false,
            },
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: "model".into(),
            build_id: Vec::new(),
            saved: true,
            own_writes_only: false,
        };
        self.mapped.ranges().iter().map(mapping).collect()
    }

    /// Takes a checkpoint; on success nothing counts as written any more.
    pub(crate) fn checkpoint(&mut self, writer: &mut Writer) -> Result<Manifest> {
        let mut draft = writer.draft(PAGE as u32);
        self.put(&mut draft)?;
        let manifest = draft.publish(Description {
            mappings: self.mappings(),
            ..Description::default()
        })?;
        self.written.clear();
        self.remapped.clear();
        self.whole.clear();
        self.changed.clear();
        Ok(manifest)
    }

    pub(crate) fn read(&self, range: PageRange) -> Vec<u8> {
        let mut out = Vec::new();
        for page in range.start() / PAGE..range.end() / PAGE {
            match self.pages.get(&page) {
                Some(contents) => out.extend(contents),
                None => out.extend([0; PAGE as usize]),
            }
        }
        out
    }

    /// Compares all of an image with this.
    pub(crate) fn assert_is(&self, image: &mut Image) {
        let mapped: PageSet = image.manifest().mappings.iter().map(|m| m.range).collect();
        assert_eq!(mapped, self.mapped);
        for range in self.mapped.ranges() {
            let mut contents = vec![1; range.bytes() as usize];
            image.read(*range, &mut contents).unwrap();
            assert!(contents == self.read(*range), "{range} differs");
        }
        let part = 3 * PAGE;
        let parts = self.mapped.ranges().iter().flat_map(|range| {
            let starts = (range.start()..range.end()).step_by(part as usize);
            starts.filter_map(|start| PageRange::new(start, range.end().min(start + part)))
        });
        let parts: Vec<PageRange> = parts.collect();
        let seen = Mutex::new(PageSet::new());
        let compared = image.read_each(parts, |range, contents| -> Result<()> {
            assert!(contents == self.read(range), "{range} differs in parts");
            seen.lock().unwrap().insert(range);
            Ok(())
        });
        compared.unwrap();
        assert_eq!(seen.into_inner().unwrap(), self.mapped);
    }
}

/// A page that compresses well.
pub(crate) fn contents(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut page = vec![0; PAGE as usize];
    page[random.usize(0..4000)..].fill(random.u8(1..));
    page[..8].copy_from_slice(&(seed + 1).to_le_bytes());
    page
}

/// A store in memory, and its writer.
pub(crate) fn store(options: WriterOptions) -> (InMemory, Store, Writer) {
    let memory = InMemory::new();
    let store = Store::create_on(Arc::new(memory.clone())).unwrap();
    let writer = store.writer(options).unwrap();
    (memory, store, writer)
}
