//! [`Image`]: a checkpoint's memory, to be read.

use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::pack::Pack;
use crate::hash::Hash;
use crate::map::{PageMap, Source};
use crate::parallel::try_each;
use crate::storage::Name;
use pagetrail::{PageRange, PageSet};

/// A checkpoint with its contents. Every page that is read is checked against its hash.
pub struct Image {
    manifest: Manifest,
    pub(crate) map: PageMap,
    packs: Vec<Pack>,
    /// The frame read last: neighbours mostly come from the same.
    frame: Option<(u32, u32)>,
    stored: Vec<u8>,
    contents: Vec<u8>,
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
        let manifest = chain.pop().ok_or(Error::Empty)?;
        let packs = open_all(store, &manifest, &map, &names)?;
        Ok(Self {
            manifest,
            map,
            packs,
            frame: None,
            stored: Vec::new(),
            contents: Vec::new(),
        })
    }

    /// The checkpoint's description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The pages that the image has contents of, other than zeros.
    pub fn pages(&self) -> PageSet {
        self.map.addresses()
    }

    /// The hash of a page's contents; `None` where it is zero, or not in the image.
    pub(crate) fn hash_at(&self, source: Source) -> Option<Hash> {
        match source {
            Source::Stored { pack, page } => {
                Some(self.packs[pack as usize].index.pages[page as usize])
            }
            Source::Zero | Source::Absent => None,
        }
    }

    /// Copies whole pages of the image to `buffer`, which is as long as the range. What is not in it is zeros.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails.
    pub fn read(&mut self, range: PageRange, buffer: &mut [u8]) -> Result<()> {
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
                Source::Stored { pack, page } => self.read_stored(pack, page, out)?,
            }
        }
        buffer[filled..].fill(0);
        Ok(())
    }

    /// Copies pages that lie one behind the other in a pack: whole frames by all processors, to where they belong; parts of
    /// frames by way of the frame that is kept.
    fn read_stored(&mut self, pack: u32, page: u32, out: &mut [u8]) -> Result<()> {
        let page_size = self.map.page_size() as usize;
        let mut whole = Vec::new();
        let mut page = page;
        let mut rest = out;
        while !rest.is_empty() {
            let of = &self.packs[pack as usize];
            let (frame, at) = of.index.find(page);
            let frame_bytes = of.frame_bytes(frame);
            let count = frame_bytes.saturating_sub(at).min(rest.len());
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(count);
            rest = behind;
            page += (count / page_size) as u32;
            if count == frame_bytes && count > 0 {
                whole.push((frame, part));
                continue;
            }
            if self.frame != Some((pack, frame)) {
                self.frame = None;
                of.frame_into(frame, &mut self.stored, &mut self.contents)?;
                self.frame = Some((pack, frame));
            }
            part.copy_from_slice(&self.contents[at..at + count]);
        }
        let of = &self.packs[pack as usize];
        try_each(whole, 4, |(frame, part), stored: &mut Vec<u8>| {
            of.decode(frame, stored, part)
        })
    }
}

/// Opens the packs of a map, and makes sure that they have the pages that it wants.
pub(crate) fn open_all(
    store: &Store,
    manifest: &Manifest,
    map: &PageMap,
    names: &[Hash],
) -> Result<Vec<Pack>> {
    let packs: Vec<Pack> = names
        .iter()
        .map(|name| Pack::open(store.storage(), *name))
        .collect::<Result<_>>()?;
    for run in map.runs() {
        if let Source::Stored { pack, page } = run.source {
            let index = &packs[pack as usize].index;
            let last = u64::from(page) + run.pages;
            if last > index.pages.len() as u64 || index.page_size != manifest.page_size {
                let name = Name::Manifest(manifest.number);
                return Err(store.damaged(name, "a pack lacks a page that it needs"));
            }
        }
    }
    Ok(packs)
}
