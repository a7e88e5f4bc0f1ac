//! [`Known`]: which contents the packs of a store have already, so that equal pages are stored
//! once.

use crate::format::index::Index;
use crate::format::patch::Patched;
use crate::hash::Hash;
use crate::map::Source;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Contents by hash. Packs are numbered in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) packs: Vec<Hash>,
    contents: Vec<Vec<Hash>>,
    patched: Vec<Option<Patched>>,
    /// By the first bytes of the hash; of two contents that agree in these one is forgotten, and
    /// may be stored twice.
    places: HashMap<u64, (u32, u32), BuildHasherDefault<Identity>>,
}

/// Hashes are random enough as they are.
#[derive(Debug, Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl Known {
    /// The number that the next pack gets.
    pub(crate) fn next(&self) -> u32 {
        self.packs.len() as u32
    }

    pub(crate) fn add(&mut self, index: Index) {
        let pack = self.next();
        for (page, hash) in (0..).zip(&index.pages) {
            self.places.entry(hash.short()).or_insert((pack, page));
        }
        self.packs.push(index.name);
        self.contents.push(index.pages);
        self.patched.push(index.patched);
    }

    /// The hash of a page that is stored, its pack's name, and how many patches it is made of.
    pub(crate) fn stored(&self, pack: u32, place: u32) -> Option<(Hash, Hash, u8)> {
        let name = *self.packs.get(pack as usize)?;
        if let Some(hash) = self.contents[pack as usize].get(place as usize) {
            return Some((*hash, name, 0));
        }
        let patch = self.patched[pack as usize].as_ref()?.at(place)?;
        Some((patch.hash, name, patch.depth))
    }

    /// Notes a page of the pack to come, which [`Self::add`] or [`Self::forget`] settles.
    pub(crate) fn expect(&mut self, hash: Hash, page: u32) {
        let pack = self.next();
        self.places.entry(hash.short()).or_insert((pack, page));
    }

    /// What the pack to come had at a place it has there no more.
    pub(crate) fn forget_at(&mut self, hash: &Hash, page: u32) {
        if self.places.get(&hash.short()) == Some(&(self.next(), page)) {
            self.places.remove(&hash.short());
        }
    }

    /// The pack with these pages did not come.
    pub(crate) fn forget(&mut self, pages: &[Hash]) {
        let pack = self.next();
        for hash in pages {
            if self
                .places
                .get(&hash.short())
                .is_some_and(|at| at.0 == pack)
            {
                self.places.remove(&hash.short());
            }
        }
    }

    /// Where some contents are; `coming` are the pages of the pack to come.
    pub(crate) fn find(&self, hash: &Hash, coming: &[Hash]) -> Option<Source> {
        let &(pack, page) = self.places.get(&hash.short())?;
        let pages = self
            .contents
            .get(pack as usize)
            .map_or(coming, Vec::as_slice);
        (pages.get(page as usize) == Some(hash)).then_some(Source::Stored { pack, page })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_until_they_are_forgotten() {
        let hashes: Vec<Hash> = (0..10u8).map(|n| Hash::of(&[n])).collect();
        let mut known = Known::default();
        known.packs.push(Hash::of(b"pack"));
        known.contents.push(hashes[..5].to_vec());
        known.patched.push(None);
        for (page, hash) in (0..5).zip(&hashes) {
            known.places.insert(hash.short(), (0, page));
        }
        let stored = |pack, page| Some(Source::Stored { pack, page });
        assert_eq!(known.find(&hashes[3], &[]), stored(0, 3));
        assert_eq!(known.find(&hashes[5], &[]), None);
        let coming = &hashes[4..7];
        for (page, hash) in (0..).zip(coming) {
            known.expect(*hash, page);
        }
        assert_eq!(known.find(&hashes[4], coming), stored(0, 4));
        assert_eq!(known.find(&hashes[6], coming), stored(1, 2));
        known.forget(coming);
        assert_eq!(known.find(&hashes[6], &[]), None);
        assert_eq!(known.find(&hashes[4], &[]), stored(0, 4));
        let mut same_start = hashes[0];
        same_start.0[31] ^= 1;
        assert_eq!(known.find(&same_start, &[]), None);
    }
}
