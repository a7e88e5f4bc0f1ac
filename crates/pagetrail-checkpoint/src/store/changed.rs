//! Putting pages of which it is known what may have changed: the rest the store has.
//!
//! A unit that was written to has changed in a part of it, mostly. Where the store can be read as
//! fast as a disk, the page that it has is held against the new one, and what differs is stored:
//! wherever it is, so that nothing depends on the word of the caller. Otherwise the units are.

use super::packs::Packs;
use super::writer::Draft;
use crate::format::patch::{self, Patch};
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use pagetrail::{PageRange, PageSet};

/// A page is patched where so many quarters of it have changed at most. What a patch takes besides
/// is a hundredth of a page; but reading takes all patches that lie upon each other.
const PATCH_QUARTERS_MOST: u64 = 3;
/// How much is kept of what was unpacked, in bytes.
const KEPT_BYTES: usize = 4 << 20;

impl Draft<'_> {
    /// Makes room for pages of which only the changes are stored ([`Self::put_changed`]); to be
    /// called before any are put.
    pub fn allow_changes(&mut self) {
        if self.over {
            self.pack.allow_patches();
        }
    }

    /// Of whole pages, range after range, puts those in `pages` whose contents are what the last
    /// checkpoint has, but for the bytes at the addresses in `changed`; tells which it has put. The
    /// others must be put whole: the last checkpoint does not have them, much has changed, or many
    /// changes lie upon each other already.
    ///
    /// That nothing else has changed is the caller's word where the storage is not
    /// [near](crate::storage::Storage::is_near). `changed` should begin and end at multiples of 16.
    pub fn put_changed(
        &mut self,
        ranges: &[PageRange],
        contents: &[u8],
        pages: &PageSet,
        changed: &PageSet,
    ) -> PageSet {
        if pages.is_empty() {
            return PageSet::new();
        }
        let page_size = u64::from(self.page_size);
        let addresses = ranges
            .iter()
            .flat_map(|range| (range.start()..range.end()).step_by(page_size as usize));
        let mut stored = self.stored.take().or_else(|| Stored::of(self));
        let mut found = Vec::new();
        for (start, page) in addresses.zip(contents.chunks_exact(page_size as usize)) {
            if !pages.contains(start) {
                continue;
            }
            let base = PageRange::new(start, start + page_size).and_then(|page| self.base(page));
            let Some(base) = base else {
                continue;
            };
            let parts = match &mut stored {
                Some(stored) => stored.differing(&base, page),
                None => parts(start, page_size, changed),
            };
            found.extend(parts.map(|parts| (base, page, parts)));
        }
        self.stored = stored;
        let contents: Vec<&[u8]> = found.iter().map(|(_, page, _)| *page).collect();
        let hashes = Hash::of_pages(&contents);
        let mut put = PageMap::new(page_size);
        for ((base, page, parts), hash) in found.into_iter().zip(hashes) {
            if let Some(source) = self.find_or_patch(&base, page, parts, hash) {
                put.push(Run {
                    start: base.start,
                    pages: 1,
                    source,
                });
            }
        }
        self.staged.overlay(&put);
        put.addresses()
    }

    /// What the last checkpoint has of a page, unless it is not to be built on.
    fn base(&self, page: PageRange) -> Option<Base> {
        let head = self.writer.head.as_ref().filter(|_| self.over)?;
        // What this draft says of it already is newer than the last checkpoint.
        if self.staged.within(page).next().is_some() {
            return None;
        }
        let source = head.map.within(page).next()?.source;
        let Source::Stored { pack, page: place } = source else {
            return None;
        };
        let (hash, name, depth) = self.writer.known.stored(pack, place)?;
        (depth < patch::DEPTH_MAX).then_some(Base {
            start: page.start(),
            source,
            place,
            hash,
            name,
            depth,
        })
    }

    fn find_or_patch(
        &mut self,
        base: &Base,
        page: &[u8],
        ranges: Vec<(u32, u32)>,
        hash: Hash,
    ) -> Option<Source> {
        if hash == base.hash {
            return Some(base.source);
        }
        if ranges.is_empty() {
            return None;
        }
        if let Some(source) = self.writer.known.find(&hash, &self.pack.gather.pages) {
            return Some(source);
        }
        let patch = Patch {
            hash,
            base: 0,
            place: base.place,
            depth: base.depth + 1,
            ranges,
        };
        Some(Source::Stored {
            pack: self.writer.known.next(),
            page: self.pack.patch(base.name, patch, page)?,
        })
    }
}

/// A page as the last checkpoint has it.
struct Base {
    start: u64,
    source: Source,
    place: u32,
    hash: Hash,
    /// The name of its pack.
    name: Hash,
    depth: u8,
}

/// What the store has of pages, to be held against what they are now.
pub(super) struct Stored {
    packs: Packs,
    page: Vec<u8>,
}

impl Stored {
    /// `None` where it takes longer to read the store than to write more to it.
    fn of(draft: &Draft<'_>) -> Option<Self> {
        let store = &draft.writer.store;
        if !draft.over || !store.storage().is_near() {
            return None;
        }
        let mut packs = Packs::open(&store.aside(), &[]).ok()?;
        // Of each patch of a page another frame.
        packs.keep(KEPT_BYTES);
        Some(Self {
            packs,
            page: vec![0; draft.page_size as usize],
        })
    }

    /// The parts of a page that are not as the store has them; `None` if much differs, or if what
    /// the store has cannot be read.
    fn differing(&mut self, base: &Base, page: &[u8]) -> Option<Vec<(u32, u32)>> {
        let number = self.packs.number(base.name).ok()?;
        self.packs.read(number, base.place, &mut self.page).ok()?;
        let steps = (0..).step_by(patch::STEP as usize).zip(
            page.chunks_exact(patch::STEP as usize)
                .zip(self.page.chunks_exact(patch::STEP as usize)),
        );
        let (mut parts, mut bytes): (Vec<(u32, u32)>, u64) = (Vec::new(), 0);
        for (at, _) in steps.filter(|(_, (now, then))| now != then) {
            match parts.last_mut() {
                Some(last) if last.0 + last.1 == at => last.1 += patch::STEP as u32,
                _ => parts.push((at, patch::STEP as u32)),
            }
            bytes += patch::STEP;
        }
        is_little(bytes, page.len() as u64).then_some(parts)
    }
}

/// Whether so many bytes of a page are worth a patch.
fn is_little(bytes: u64, page_size: u64) -> bool {
    bytes * 4 <= page_size * PATCH_QUARTERS_MOST
}

/// The changed parts of the page at `start`, first byte and length in it; `None` if there is too
/// much or nothing.
fn parts(start: u64, page_size: u64, changed: &PageSet) -> Option<Vec<(u32, u32)>> {
    let page = PageRange::new(start, start + page_size)?;
    let ranges = changed.ranges();
    let from = ranges.partition_point(|range| range.end() <= start);
    let within = ranges[from..]
        .iter()
        .map_while(|range| range.intersection(&page));
    let (mut parts, mut bytes): (Vec<(u32, u32)>, u64) = (Vec::new(), 0);
    for range in within {
        let range = range.align_outwards(patch::STEP);
        let (at, length) = ((range.start() - start) as u32, range.bytes() as u32);
        match parts.last_mut() {
            Some(last) if last.0 + last.1 >= at => last.1 = at + length - last.0,
            _ => parts.push((at, length)),
        }
        bytes += range.bytes();
    }
    (bytes > 0 && is_little(bytes, page_size)).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(ranges: &[(u64, u64)]) -> PageSet {
        let ranges = ranges
            .iter()
            .filter_map(|&(from, to)| PageRange::new(from, to));
        ranges.collect()
    }

    #[test]
    fn parts_are_whole_steps_within_the_page() {
        let of = |ranges: &[(u64, u64)]| parts(8192, 4096, &changed(ranges));
        assert_eq!(of(&[(8192, 8208)]), Some(vec![(0, 16)]));
        assert_eq!(
            of(&[(8000, 8300), (9001, 9002)]),
            Some(vec![(0, 112), (800, 16)])
        );
        assert_eq!(of(&[(8193, 8194), (8200, 8210)]), Some(vec![(0, 32)]));
        assert_eq!(of(&[(12280, 12300)]), Some(vec![(4080, 16)]));
        assert_eq!(of(&[(8192, 11264)]), Some(vec![(0, 3072)]));
        assert_eq!(of(&[(8192, 11265)]), None);
        assert_eq!(of(&[(8192, 12288)]), None);
        assert_eq!(of(&[(0, 8192), (12288, 20000)]), None);
    }
}
