//! [`PackWriter`]: a pack that is being written.
//!
//! Contents pass through three hands, so that several threads can be at it: [`Gather`] takes pages
//! in their order and hands out whole frames as a [`Parcel`]; the parcel is packed by the thread
//! that has it; [`Frames`] writes what was packed, in the same order. A page that is neither
//! compressed nor cut off at the end of its parcel is never copied.

mod compact;

use super::codec::{Compression, RAW};
use super::index::{Frame, HEADER_BYTES, Index};
use super::pack::END;
use super::patch::{FIRST_PATCH, Patch, Patched};
use super::wire::Encoder;
use crate::hash::Hash;
use crate::storage::{Draft, Name, Publish, Storage};
use std::io;

/// A pack that is being written.
pub(crate) struct PackWriter {
    pub(crate) gather: Gather,
    pub(crate) frames: Frames,
    pub(crate) packing: Packing,
    /// Pages that other packs have but for some bytes, and these bytes.
    patched: Option<Patched>,
    patch_bytes: Vec<u8>,
}

/// How frames are made.
#[derive(Clone, Copy)]
pub(crate) struct Packing {
    page_size: u32,
    frame_pages: u32,
    compression: Compression,
}

impl Packing {
    fn frame_bytes(&self) -> usize {
        (self.frame_pages * self.page_size) as usize
    }
}

/// The pages so far, and those that do not fill a frame yet.
pub(crate) struct Gather {
    pub(crate) pages: Vec<Hash>,
    rest: Vec<u8>,
    frame_bytes: usize,
}

/// Contents of whole frames, piece by piece.
pub(crate) struct Parcel<'a> {
    /// What was left of the parcel before.
    head: Vec<u8>,
    pieces: Vec<&'a [u8]>,
}

/// Frames as they are to be written.
#[derive(Default)]
pub(crate) struct Packed<'a> {
    frames: Vec<Frame>,
    head: Vec<u8>,
    pieces: Vec<&'a [u8]>,
}

/// The frames so far, in a draft of the storage that is begun with the first.
pub(crate) struct Frames {
    written: Vec<Frame>,
    offset: u64,
    draft: Option<Box<dyn Draft>>,
    header: Vec<u8>,
}

impl Gather {
    /// Adds the contents of pages, whose hashes have been put to [`Self::pages`]; gives the frames
    /// that are whole now.
    pub(crate) fn add<'a>(&mut self, mut pieces: Vec<&'a [u8]>) -> Parcel<'a> {
        let mut head = std::mem::take(&mut self.rest);
        let bytes = head.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut over = bytes % self.frame_bytes;
        if bytes < self.frame_bytes {
            pieces.drain(..).for_each(|piece| head.extend(piece));
            self.rest = std::mem::take(&mut head);
            return Parcel { head, pieces };
        }
        let mut behind = Vec::new();
        while over > 0
            && let Some(last) = pieces.pop()
        {
            let (kept, cut) = last.split_at(last.len().saturating_sub(over));
            over -= cut.len();
            behind.push(cut);
            if !kept.is_empty() {
                pieces.push(kept);
            }
        }
        behind.iter().rev().for_each(|cut| self.rest.extend(*cut));
        Parcel { head, pieces }
    }

    /// What is left in the end, a frame that is not full.
    fn end(&mut self) -> Parcel<'static> {
        Parcel {
            head: std::mem::take(&mut self.rest),
            pieces: Vec::new(),
        }
    }
}

impl<'a> Parcel<'a> {
    /// Compresses the frames, as far as it saves something.
    pub(crate) fn pack(self, packing: Packing) -> Packed<'a> {
        let frame_bytes = packing.frame_bytes();
        if packing.compression == Compression::None {
            let bytes =
                self.head.len() + self.pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let frames = (0..bytes).step_by(frame_bytes).map(|at| Frame {
                codec: RAW,
                offset: 0,
                stored_bytes: (bytes - at).min(frame_bytes) as u32,
                hash: Hash::default(),
            });
            return Packed {
                frames: frames.collect(),
                head: self.head,
                pieces: self.pieces,
            };
        }
        let mut frames = Vec::new();
        let mut joined = Vec::new();
        let mut compressed = Vec::new();
        self.for_each_frame(frame_bytes, |frame| {
            let codec = packing.compression.compress(frame, &mut compressed);
            let (stored, hash) = match codec {
                RAW => (frame, Hash::default()),
                _ => (&compressed[..], Hash::of(&compressed)),
            };
            frames.push(Frame {
                codec,
                offset: 0,
                stored_bytes: stored.len() as u32,
                hash,
            });
            joined.extend_from_slice(stored);
        });
        Packed {
            frames,
            head: joined,
            pieces: Vec::new(),
        }
    }

    /// Frames that lie in one piece are handed out where they are, others put together.
    fn for_each_frame(&self, frame_bytes: usize, mut each: impl FnMut(&[u8])) {
        let mut open = Vec::new();
        for mut piece in std::iter::once(&self.head[..]).chain(self.pieces.iter().copied()) {
            while !piece.is_empty() {
                let count = piece.len().min(frame_bytes - open.len());
                let (now, behind) = piece.split_at(count);
                piece = behind;
                if count == frame_bytes {
                    each(now);
                    continue;
                }
                open.extend_from_slice(now);
                if open.len() == frame_bytes {
                    each(&open);
                    open.clear();
                }
            }
        }
        if !open.is_empty() {
            each(&open);
        }
    }
}

impl Frames {
    /// Whether pages that were written can be replaced.
    pub(crate) fn can_rewrite(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.can_rewrite())
    }

    /// Whether a page was written, and as it is.
    pub(crate) fn is_plain(&self, page: u32, packing: Packing) -> bool {
        let frame = self.written.get((page / packing.frame_pages) as usize);
        frame.is_some_and(|frame| frame.codec == RAW)
    }

    /// Puts the contents of pages in the places of others, which were written as they are. The
    /// hashes are the caller's to replace.
    pub(crate) fn rewrite(&mut self, pages: &[(u32, &[u8])], packing: Packing) -> io::Result<()> {
        let lacks = || io::Error::from(io::ErrorKind::InvalidInput);
        for (page, bytes) in pages {
            let frame = (page / packing.frame_pages) as usize;
            let frame = self.written.get(frame).ok_or_else(lacks)?;
            let within = u64::from(page % packing.frame_pages) * u64::from(packing.page_size);
            let draft = self.draft.as_mut().ok_or_else(lacks)?;
            draft.rewrite(frame.offset + within, bytes)?;
        }
        Ok(())
    }

    /// Writes frames after those before.
    pub(crate) fn append(&mut self, packed: &Packed<'_>, storage: &dyn Storage) -> io::Result<()> {
        if packed.frames.is_empty() {
            return Ok(());
        }
        let draft = match &mut self.draft {
            Some(draft) => draft,
            none => {
                let mut draft = storage.create()?;
                draft.write(&self.header)?;
                none.insert(draft)
            }
        };
        for frame in &packed.frames {
            self.written.push(Frame {
                offset: self.offset,
                ..*frame
            });
            self.offset += u64::from(frame.stored_bytes);
        }
        let pieces = std::iter::once(&packed.head[..]).chain(packed.pieces.iter().copied());
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            draft.write(piece)?;
        }
        Ok(())
    }

    /// Writes what follows the frames.
    fn end(&self, mut draft: Box<dyn Draft>, index: &mut Index) -> io::Result<()> {
        let encoded = index.encode();
        let root_at = self.offset + encoded.blocks.len() as u64;
        index.name = Index::seal(&self.header, &encoded.root, root_at);
        draft.write(&encoded.blocks)?;
        draft.write(&encoded.root)?;
        let mut trailer = Encoder::default();
        trailer.u64(root_at);
        trailer.hash(&index.name);
        trailer.0.extend(END);
        draft.write(&trailer.0)?;
        // What has this name already has these contents.
        draft.publish(Name::Pack(index.name), Publish::Replacing)
    }
}

impl PackWriter {
    pub(crate) fn new(page_size: u32, frame_pages: u32, compression: Compression) -> Self {
        let packing = Packing {
            page_size,
            frame_pages,
            compression,
        };
        Self {
            gather: Gather {
                pages: Vec::new(),
                rest: Vec::new(),
                frame_bytes: packing.frame_bytes(),
            },
            frames: Frames {
                written: Vec::new(),
                offset: HEADER_BYTES,
                draft: None,
                header: Index::header(page_size, frame_pages, false),
            },
            packing,
            patched: None,
            patch_bytes: Vec::new(),
        }
    }

    /// Makes it a pack that may have patches; false if it has begun without.
    pub(crate) fn allow_patches(&mut self) -> bool {
        if self.patched.is_none() && self.frames.draft.is_none() {
            let Packing {
                page_size,
                frame_pages,
                ..
            } = self.packing;
            self.frames.header = Index::header(page_size, frame_pages, true);
            self.patched = Some(Patched::default());
        }
        self.patched.is_some()
    }

    /// Adds a page that is `base`'s but for some bytes of `page`; says its place among the pages.
    /// `None` if the pack has begun without patches.
    pub(crate) fn patch(&mut self, base: Hash, mut patch: Patch, page: &[u8]) -> Option<u32> {
        let patched = self.patched.as_mut()?;
        let known = patched.bases.iter().rposition(|known| *known == base);
        patch.base = known.unwrap_or_else(|| {
            patched.bases.push(base);
            patched.bases.len() - 1
        }) as u32;
        for &(start, length) in &patch.ranges {
            let bytes = &page[start as usize..][..length as usize];
            self.patch_bytes.extend_from_slice(bytes);
        }
        patched.patches.push(patch);
        Some(FIRST_PATCH + (patched.patches.len() - 1) as u32)
    }

    /// Adds the bytes of patches as pages of their own, after all others.
    fn put_patch_bytes(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let Some(patched) = &mut self.patched else {
            return Ok(());
        };
        patched.data_from = self.gather.pages.len() as u32;
        let page_size = self.packing.page_size as usize;
        let mut bytes = std::mem::take(&mut self.patch_bytes);
        bytes.resize(bytes.len().next_multiple_of(page_size), 0);
        let pages: Vec<&[u8]> = bytes.chunks_exact(page_size).collect();
        self.gather.pages.extend(Hash::of_pages(&pages));
        let packed = self.gather.add(vec![&bytes]).pack(self.packing);
        self.frames.append(&packed, storage)
    }

    /// Adds a page; says its place among the pages.
    pub(crate) fn push(
        &mut self,
        page: &[u8],
        hash: Hash,
        storage: &dyn Storage,
    ) -> io::Result<u32> {
        let place = self.gather.pages.len() as u32;
        self.gather.pages.push(hash);
        let packed = self.gather.add(vec![page]).pack(self.packing);
        self.frames.append(&packed, storage)?;
        Ok(place)
    }

    /// Writes the index and gives the pack its name; `None` when there is nothing in it. Pages that
    /// could not be published stay in [`Gather::pages`].
    pub(crate) fn publish(&mut self, storage: &dyn Storage) -> io::Result<Option<Index>> {
        self.put_patch_bytes(storage)?;
        let last = self.gather.end().pack(self.packing);
        self.frames.append(&last, storage)?;
        let Some(draft) = self.frames.draft.take() else {
            return Ok(None);
        };
        let mut index = Index {
            name: Hash::default(),
            page_size: self.packing.page_size,
            frame_pages: self.packing.frame_pages,
            frames: std::mem::take(&mut self.frames.written),
            pages: std::mem::take(&mut self.gather.pages),
            patched: self.patched.take(),
        };
        match self.frames.end(draft, &mut index) {
            Ok(()) => Ok(Some(index)),
            Err(error) => {
                self.gather.pages = index.pages;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::Pack;
    use super::*;
    use crate::storage::InMemory;

    #[test]
    fn pages_come_back_however_they_were_cut_into_parcels() {
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..50 {
            let count = random.usize(1..200);
            let mut contents = vec![0; count * 4096];
            // Half of it does not compress.
            random.fill(&mut contents[..count * 2048]);
            let compression = [Compression::None, Compression::Lz4][round % 2];
            let storage = InMemory::new();
            let mut writer = PackWriter::new(4096, random.u32(1..20), compression);
            let hashes: Vec<Hash> = contents.chunks(4096).map(Hash::of).collect();
            let mut rest = &contents[..];
            writer.gather.pages.clone_from(&hashes);
            while !rest.is_empty() {
                let mut pieces = Vec::new();
                for _ in 0..random.usize(0..5) {
                    let pages = random.usize(1..30);
                    let (piece, behind) = rest.split_at(rest.len().min(pages * 4096));
                    rest = behind;
                    pieces.extend((!piece.is_empty()).then_some(piece));
                }
                let packed = writer.gather.add(pieces).pack(writer.packing);
                writer.frames.append(&packed, &storage).unwrap();
            }
            let index = writer.publish(&storage).unwrap().unwrap();
            assert_eq!(index.pages, hashes);
            let pack = Pack::open(&storage, index.name).unwrap();
            let (mut stored, mut pages) = (Vec::new(), Vec::new());
            for page in 0..count {
                let (frame, at) = pack.find(page as u32);
                pack.frame_into(frame, &mut stored, &mut pages).unwrap();
                assert_eq!(pages[at..at + 4096], contents[page * 4096..][..4096]);
                assert_eq!(pack.hash_of(page as u32).unwrap(), Some(hashes[page]));
            }
            assert_eq!(pack.into_index().unwrap(), index);
        }
    }
}
