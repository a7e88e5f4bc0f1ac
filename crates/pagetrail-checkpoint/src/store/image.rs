//! [`Image`]: a checkpoint's memory, to be read.

use super::intake::chunks;
use super::packs::{Memory, Packs, Piece};
use super::touches::Lineage;
use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::patch::FIRST_PATCH;
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use crate::parallel::try_each;
use crate::progress::Progress;
use crate::storage::Name;
use pagetrail::{PageRange, PageSet};
use std::sync::Arc;

/// From so many bytes on, each frame is unpacked once, and by any processor. Fewer are likely to be
/// followed by their neighbours, for which the frame read last is kept.
const MANY_BYTES: u64 = 1 << 18;

/// A checkpoint with its contents. Every page that is read is checked against its hash.
pub struct Image {
    manifest: Manifest,
    pub(crate) map: PageMap,
    pub(super) packs: Packs,
    /// This checkpoint, the last, and those that it builds on.
    pub(super) lineage: Lineage,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("number", &self.manifest.number)
            .finish_non_exhaustive()
    }
}

impl Image {
    pub(super) fn new(store: &Store, mut chain: Vec<Manifest>) -> Result<Self> {
        let (map, names) = flatten(&chain);
        let lineage = chain.iter().map(|manifest| (manifest.number, manifest.id));
        let lineage = lineage.collect();
        let manifest = chain.pop().ok_or(Error::Empty)?;
        let packs = open_all(store, &manifest, &map, &names)?;
        Ok(Self {
            manifest,
            map,
            packs,
            lineage,
        })
    }

    /// Shares the image with another thread. Its packs are open once.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            manifest: self.manifest.clone(),
            map: self.map.clone(),
            packs: self.packs.share(),
            lineage: self.lineage.clone(),
        }
    }

    /// The checkpoint's description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The pages that the store has contents of; the others are zeros.
    pub fn stored_pages(&self) -> PageSet {
        let is_stored = |run: &&Run| matches!(run.source, Source::Stored { .. });
        let stored = self.map.runs().iter().filter(is_stored);
        let end = |run: &Run| run.start + run.pages * self.map.page_size();
        stored
            .filter_map(|run| PageRange::new(run.start, end(run)))
            .collect()
    }

    /// How far long work on the image's store is ([`Store::progress`]).
    pub fn progress(&self) -> &Arc<Progress> {
        self.packs.store().progress()
    }

    /// The pages that the image has contents of, other than zeros.
    pub fn pages(&self) -> PageSet {
        self.map.addresses()
    }

    /// The hash of a page's contents; `None` where it is zero, or not in the image.
    pub(crate) fn hash_at(&self, source: Source) -> Result<Option<Hash>> {
        match source {
            Source::Stored { pack, page } => self.packs.pack(pack).hash_of(page),
            Source::Zero | Source::Absent => Ok(None),
        }
    }

    /// The pages around an address that [`read`](Self::read) takes from the store in one piece, its
    /// own included: reading some of them costs as much as reading all.
    /// `None` where the image has no contents.
    pub fn block(&self, address: u64) -> Option<PageRange> {
        let page_size = self.map.page_size();
        let run = self.map.run_at(address)?;
        let Source::Stored { pack, page } = run.source else {
            return None;
        };
        let within = (address - run.start) / page_size;
        let together = self.packs.pack(pack).together(page + within as u32);
        // In pages from the beginning of the run.
        let from = u64::from(together.start.saturating_sub(page));
        let to = u64::from(together.end - page).min(run.pages);
        PageRange::new(run.start + from * page_size, run.start + to * page_size)
    }

    /// Copies whole pages of the image to `buffer`, which is as long as the range. What is not in
    /// it is zeros.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails.
    pub fn read(&mut self, range: PageRange, buffer: &mut [u8]) -> Result<()> {
        if range.bytes() >= MANY_BYTES
            && let Some(pieces) = self.pieces(range, buffer)
        {
            return self.packs.read_each(pieces);
        }
        let page_size = self.map.page_size() as usize;
        let runs: Vec<_> = self.map.within(range).collect();
        let mut filled = 0;
        for run in runs {
            let from = (run.start - range.start()) as usize;
            buffer[filled..from].fill(0);
            filled = from + run.pages as usize * page_size;
            let out = &mut buffer[from..filled];
            match run.source {
                Source::Zero | Source::Absent => out.fill(0),
                Source::Stored { pack, page } => self.packs.read(pack, page, out)?,
            }
        }
        buffer[filled..].fill(0);
        Ok(())
    }

    /// Reads ranges of whole pages by all processors. `work` is given each with its contents, by
    /// the thread that read it; which comes first is open.
    ///
    /// # Errors
    ///
    /// The first of `work`, or as for [`read`](Self::read); some ranges have been worked on then.
    pub fn read_each<E: From<Error> + Send>(
        &self,
        ranges: Vec<PageRange>,
        work: impl Fn(PageRange, &[u8]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        type Own = (Vec<u8>, Memory, Option<Image>);
        try_each(ranges, 1, |range, (buffer, memory, shared): &mut Own| {
            buffer.resize(range.bytes() as usize, 0);
            if !self.read_alone(range, buffer, memory)? {
                let own = shared.get_or_insert_with(|| self.share());
                own.read(range, buffer)?;
            }
            work(range, buffer)
        })
    }

    /// Copies whole pages to `buffer` as [`read`](Self::read) does, by the calling thread alone;
    /// false, and nothing is copied, if some of them are patched.
    pub(crate) fn read_alone(
        &self,
        range: PageRange,
        buffer: &mut [u8],
        memory: &mut Memory,
    ) -> Result<bool> {
        let Some(pieces) = self.pieces(range, buffer) else {
            return Ok(false);
        };
        self.packs.read_alone(pieces, memory).map(|()| true)
    }

    /// The parts of a range that the store has contents of, the others of which are filled with
    /// zeros; `None` if some of them are patched.
    fn pieces<'o>(&self, range: PageRange, buffer: &'o mut [u8]) -> Option<Vec<Piece<'o>>> {
        let is_patched = |run: Run| match run.source {
            Source::Stored { page, .. } => page >= FIRST_PATCH,
            Source::Zero | Source::Absent => false,
        };
        if self.map.within(range).any(is_patched) {
            return None;
        }
        let page_size = self.map.page_size();
        let mut pieces = Vec::new();
        let (mut rest, mut at) = (buffer, range.start());
        for run in self.map.within(range) {
            let Source::Stored { pack, page: place } = run.source else {
                continue;
            };
            let (gap, after) = rest.split_at_mut((run.start - at) as usize);
            gap.fill(0);
            let (out, after) = after.split_at_mut((run.pages * page_size) as usize);
            rest = after;
            at = run.start + run.pages * page_size;
            pieces.push(Piece { pack, place, out });
        }
        rest.fill(0);
        Some(pieces)
    }

    /// Reads all pages that the store has contents of, for nothing but their hashes.
    pub(super) fn read_all(&mut self) -> Result<()> {
        let stored = self.stored_pages();
        self.progress().begin("reading pages", stored.bytes());
        let mut buffer = Vec::new();
        for chunk in chunks(stored.ranges(), self.map.page_size()) {
            for range in chunk {
                buffer.resize(range.bytes() as usize, 0);
                self.read(range, &mut buffer)?;
            }
        }
        Ok(())
    }
}

/// Opens the packs of a map, and makes sure that they have the pages that it wants.
pub(crate) fn open_all(
    store: &Store,
    manifest: &Manifest,
    map: &PageMap,
    names: &[Hash],
) -> Result<Packs> {
    let packs = Packs::open(store, names)?;
    for run in map.runs() {
        if let Source::Stored { pack, page } = run.source {
            let pack = packs.pack(pack);
            if !pack.has(page, run.pages) || pack.page_size() != manifest.page_size {
                let name = Name::Manifest(manifest.number);
                return Err(store.damaged(name, "a pack lacks a page that it needs"));
            }
        }
    }
    Ok(packs)
}
