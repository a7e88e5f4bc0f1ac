//! A pack: the contents of pages in compressed frames, and an index that has the hash of every
//! page.
//!
//! A pack may have patches as well: pages that are another pack's but for some bytes.
//!
//! The hash of the index's root names the pack, the root has a hash of every block of the index, a
//! block has a hash of every frame and every page: one wrong bit anywhere is found. A block is read
//! when a page of it is needed, so that opening a large pack takes as long as a small one.

use super::codec::{self, RAW};
use super::index::{
    Block, COUNTS_BYTES, Entry, Frame, HEADER_BYTES, Index, Parts, Root, Shape, check_length,
};
use super::patch::{FIRST_PATCH, Patched};
use super::wire::{Decoder, Malformed};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::limits;
use crate::parallel::try_each;
use crate::progress::Progress;
use crate::storage::{Name, Object, Storage};
use crate::store::places::Places;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

pub(super) const END: &[u8; 8] = b"PTPKEND\n";
/// Offset of the root, its hash, the end mark.
const TRAILER_BYTES: u64 = 8 + 32 + 8;
/// For so many frames it is worth to start a thread that checks them.
const FRAMES_PER_THREAD: usize = 32;

impl Index {
    /// Length of the whole pack, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let encoded = self.encode();
        let index = encoded.blocks.len() + encoded.root.len();
        HEADER_BYTES + self.frames_bytes() + index as u64 + TRAILER_BYTES
    }
}

/// A pack that can be read.
pub(crate) struct Pack {
    pub(crate) name: Hash,
    shape: Shape,
    pub(crate) patched: Option<Patched>,
    /// Where among the patches' bytes each begins.
    starts: Vec<u64>,
    /// Where the blocks are, with their hashes; none where there is one that was read already.
    entries: Vec<Entry>,
    blocks: Vec<OnceLock<Block>>,
    /// Where the blocks begin.
    blocks_at: u64,
    object: Box<dyn Object>,
}

impl Pack {
    pub(crate) fn open(storage: &dyn Storage, name: Hash) -> Result<Self> {
        let failed = |cause| Error::reading(Name::Pack(name), cause);
        let object = match storage.open(Name::Pack(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(name, "it is missing"));
            }
            outcome => outcome.map_err(failed)?,
        };
        let bytes = object.bytes();
        if bytes < HEADER_BYTES + TRAILER_BYTES {
            return Err(damaged(name, "it is too short"));
        }
        let read = |from: u64, to: u64| {
            let mut buffer = vec![0; (to - from) as usize];
            object.read_at(from, &mut buffer).map(|()| buffer)
        };
        let trailer_at = bytes - TRAILER_BYTES;
        let trailer = read(trailer_at, bytes).map_err(failed)?;
        let mut trailer = Decoder(&trailer);
        let malformed = |Malformed(reason)| damaged(name, reason);
        let offset = trailer.u64().map_err(malformed)?;
        let sealed = trailer.hash().map_err(malformed)?;
        if trailer.0 != END || sealed != name {
            return Err(damaged(name, "its end is not its own"));
        }
        if !(HEADER_BYTES..=trailer_at).contains(&offset) {
            return Err(damaged(name, "its index is nowhere in it"));
        }
        let root_bytes = trailer_at - offset;
        if root_bytes > limits::bytes_at_once() {
            return Err(damaged(name, "its index is impossibly long"));
        }
        // A root that is not as long as its numbers say is not worth its memory.
        let header = read(0, HEADER_BYTES).map_err(failed)?;
        let counts = read(offset, trailer_at.min(offset + COUNTS_BYTES)).map_err(failed)?;
        check_length(&header, &counts, root_bytes).map_err(malformed)?;
        let body = read(offset, trailer_at).map_err(failed)?;
        if Index::seal(&header, &body, offset) != name {
            return Err(damaged(name, "its index is not the one that was written"));
        }
        let Root { shape, parts } = Root::decode(&header, &body, offset).map_err(malformed)?;
        let (entries, blocks, patched, blocks_at) = match parts {
            Parts::Blocks(entries) => {
                let blocks = entries.iter().map(|_| OnceLock::new()).collect();
                (entries, blocks, None, offset - shape.bytes_of_all())
            }
            Parts::Whole(block, patched) => {
                (Vec::new(), vec![OnceLock::from(block)], patched, offset)
            }
        };
        let starts = patched.as_ref().map(Patched::starts);
        Ok(Self {
            name,
            shape,
            patched,
            starts: starts.unwrap_or_default(),
            entries,
            blocks,
            blocks_at,
            object,
        })
    }

    /// The block of a number, read if it was not yet.
    fn block(&self, number: u32) -> Result<&Block> {
        let beyond = || damaged(self.name, "a page beyond its end is wanted");
        let place = self.blocks.get(number as usize).ok_or_else(beyond)?;
        if let Some(block) = place.get() {
            return Ok(block);
        }
        let bytes = self.shape.bytes_of(number);
        let mut buffer = vec![0; (bytes.end - bytes.start) as usize];
        let failed = |cause| Error::reading(Name::Pack(self.name), cause);
        let read = self
            .object
            .read_at(self.blocks_at + bytes.start, &mut buffer);
        read.map_err(failed)?;
        let block = self.decode_block(number, &buffer)?;
        // Another thread may have read it meanwhile.
        Ok(place.get_or_init(|| block))
    }

    fn decode_block(&self, number: u32, bytes: &[u8]) -> Result<Block> {
        let at = number as usize;
        let Some(entry) = self.entries.get(at).filter(|e| Hash::of(bytes) == e.hash) else {
            let reason = format!("block {number} of its index has changed");
            return Err(damaged(self.name, &reason));
        };
        let next = self.entries.get(at + 1);
        let place = entry.offset..next.map_or(self.blocks_at, |next| next.offset);
        Block::decode(bytes, &self.shape, number, place)
            .map_err(|Malformed(reason)| damaged(self.name, reason))
    }

    /// Reads all blocks that were not read yet.
    pub(crate) fn read_blocks(&self) -> Result<()> {
        if self.blocks.iter().all(|block| block.get().is_some()) {
            return Ok(());
        }
        let length = self.shape.bytes_of_all();
        if length > limits::bytes_at_once() {
            return Err(damaged(self.name, "its index is impossibly long"));
        }
        let mut buffer = vec![0; length as usize];
        let failed = |cause| Error::reading(Name::Pack(self.name), cause);
        self.object
            .read_at(self.blocks_at, &mut buffer)
            .map_err(failed)?;
        for (number, place) in (0..).zip(&self.blocks) {
            let bytes = self.shape.bytes_of(number);
            let bytes = &buffer[bytes.start as usize..bytes.end as usize];
            let block = self.decode_block(number, bytes)?;
            place.get_or_init(|| block);
        }
        Ok(())
    }

    /// All that the pack says of its pages.
    pub(crate) fn into_index(self) -> Result<Index> {
        self.read_blocks()?;
        let mut blocks = self.blocks.into_iter().filter_map(OnceLock::into_inner);
        let (mut frames, mut pages) = match blocks.next() {
            Some(Block { frames, pages }) => (frames, pages),
            None => (Vec::new(), Vec::new()),
        };
        frames.reserve_exact(self.shape.frames as usize - frames.len());
        pages.reserve_exact(self.shape.pages as usize - pages.len());
        for block in blocks {
            frames.extend(block.frames);
            pages.extend(block.pages);
        }
        Ok(Index {
            name: self.name,
            page_size: self.shape.page_size,
            frame_pages: self.shape.frame_pages,
            frames,
            pages,
            patched: self.patched,
        })
    }

    /// The length of a page, in bytes.
    pub(crate) fn page_size(&self) -> u32 {
        self.shape.page_size
    }

    /// Pages in frames.
    pub(crate) fn plain_pages(&self) -> u32 {
        self.shape.pages
    }

    /// Pages of which the pack has changes alone.
    pub(crate) fn patched_pages(&self) -> u32 {
        let patches = self.patched.as_ref().map_or(0, |p| p.patches.len());
        patches as u32
    }

    /// How many pages it can be asked for, patched ones included.
    pub(crate) fn page_count(&self) -> u64 {
        let plain = match &self.patched {
            None => self.shape.pages,
            Some(patched) => patched.data_from,
        };
        u64::from(plain) + u64::from(self.patched_pages())
    }

    /// The hash of the page at a place, if there is one.
    pub(crate) fn hash_of(&self, place: u32) -> Result<Option<Hash>> {
        if place >= FIRST_PATCH {
            let patch = self.patched.as_ref().and_then(|p| p.at(place));
            return Ok(patch.map(|patch| patch.hash));
        }
        if place >= self.shape.pages {
            return Ok(None);
        }
        let (block_pages, frame) = (self.block_pages(), place / self.shape.frame_pages);
        let block = self.block(frame / self.shape.block_frames)?;
        let within = u64::from(place) % block_pages;
        Ok(block.pages.get(within as usize).copied())
    }

    /// Pages in each block but the last.
    fn block_pages(&self) -> u64 {
        u64::from(self.shape.block_frames) * u64::from(self.shape.frame_pages)
    }

    /// Whether there are pages at all places from this one on.
    pub(crate) fn has(&self, place: u32, pages: u64) -> bool {
        let (from, count) = match place.checked_sub(FIRST_PATCH) {
            None => (place, self.shape.pages),
            Some(at) => (at, self.patched_pages()),
        };
        u64::from(from) + pages <= u64::from(count)
    }

    /// The pack and the place of the page that the one at a place is a patch of, if it is one.
    pub(crate) fn base_of(&self, place: u32) -> Option<(Hash, u32)> {
        let patched = self.patched.as_ref()?;
        let patch = patched.at(place)?;
        Some((*patched.bases.get(patch.base as usize)?, patch.place))
    }

    /// In which frame a page is, and at which byte of its contents.
    pub(crate) fn find(&self, page: u32) -> (u32, usize) {
        let within = page % self.shape.frame_pages;
        let at = within * self.shape.page_size;
        (page / self.shape.frame_pages, at as usize)
    }

    /// The places of the pages that are unpacked together with the one at a place.
    pub(crate) fn together(&self, place: u32) -> Range<u32> {
        if place >= FIRST_PATCH {
            return place..place + 1;
        }
        let first = place - place % self.shape.frame_pages;
        first..first + self.shape.frame_pages
    }

    /// What the index says of a frame and its pages.
    fn frame(&self, frame: u32) -> Result<(&Frame, &[Hash])> {
        let beyond = || damaged(self.name, "a page beyond its end is wanted");
        let block = self.block(frame / self.shape.block_frames)?;
        let within = frame % self.shape.block_frames;
        let entry = block.frames.get(within as usize).ok_or_else(beyond)?;
        let from = within as usize * self.shape.frame_pages as usize;
        let pages = &block.pages[from..][..self.shape.pages_of(frame) as usize];
        Ok((entry, pages))
    }

    /// The pages of a frame, checked against their hashes, with the memory of earlier frames.
    pub(crate) fn frame_into(
        &self,
        frame: u32,
        stored: &mut Vec<u8>,
        pages: &mut Vec<u8>,
    ) -> Result<()> {
        pages.resize(self.frame_bytes(frame), 0);
        self.decode(frame, stored, pages)
    }

    /// The length of a frame's pages.
    pub(crate) fn frame_bytes(&self, frame: u32) -> usize {
        self.shape.pages_of(frame) as usize * self.shape.page_size as usize
    }

    /// Unpacks a frame into as many bytes as its pages have, and checks them.
    pub(crate) fn decode(&self, frame: u32, stored: &mut Vec<u8>, pages: &mut [u8]) -> Result<()> {
        let entry = self.frame(frame)?.0;
        if entry.codec == RAW {
            let failed = |cause| Error::reading(Name::Pack(self.name), cause);
            self.object.read_at(entry.offset, pages).map_err(failed)?;
        } else {
            self.read_stored(entry, stored)?;
            if Hash::of(stored) != entry.hash {
                let reason = format!("frame {frame} has changed");
                return Err(damaged(self.name, &reason));
            }
            self.decompress(entry, stored, pages)?;
        }
        self.check_pages(frame, 0, pages)
    }

    /// Unpacks a frame of which single pages are needed: these are for the caller to check, which
    /// says of them all that the frame's own hash could.
    pub(crate) fn unpack(
        &self,
        frame: u32,
        stored: &mut Vec<u8>,
        pages: &mut Vec<u8>,
    ) -> Result<()> {
        pages.resize(self.frame_bytes(frame), 0);
        let entry = self.frame(frame)?.0;
        self.read_stored(entry, stored)?;
        self.decompress(entry, stored, pages)
    }

    fn read_stored(&self, entry: &Frame, stored: &mut Vec<u8>) -> Result<()> {
        let failed = |cause| Error::reading(Name::Pack(self.name), cause);
        stored.resize(entry.stored_bytes as usize, 0);
        self.object.read_at(entry.offset, stored).map_err(failed)
    }

    fn decompress(&self, entry: &Frame, stored: &[u8], pages: &mut [u8]) -> Result<()> {
        let decompressed = codec::decompress(entry.codec, stored, pages);
        decompressed.map_err(|Malformed(reason)| damaged(self.name, reason))
    }

    /// Reads whole pages of a frame, from byte `at` of it on, and checks them; false, and nothing
    /// is read, if the frame is compressed.
    pub(crate) fn read_uncompressed(&self, frame: u32, at: usize, out: &mut [u8]) -> Result<bool> {
        let entry = self.frame(frame)?.0;
        if entry.codec != RAW {
            return Ok(false);
        }
        let failed = |cause| Error::reading(Name::Pack(self.name), cause);
        let offset = entry.offset + at as u64;
        self.object.read_at(offset, out).map_err(failed)?;
        let first = at / self.shape.page_size as usize;
        self.check_pages(frame, first, out).map(|()| true)
    }

    /// Holds pages of a frame, from its page `first` on, against their hashes.
    pub(crate) fn check_pages(&self, frame: u32, first: usize, pages: &[u8]) -> Result<()> {
        let (_, hashes) = self.frame(frame)?;
        let page_size = self.shape.page_size as usize;
        let is_right = match pages.len() == page_size {
            true => hashes.get(first) == Some(&Hash::of(pages)),
            false => {
                let pages: Vec<&[u8]> = pages.chunks_exact(page_size).collect();
                hashes.get(first..first + pages.len()) == Some(&Hash::of_pages(&pages))
            }
        };
        match is_right {
            true => Ok(()),
            false => {
                let reason = format!("a page of frame {frame} has changed");
                Err(damaged(self.name, &reason))
            }
        }
    }

    /// Pages that are compressed together.
    pub(crate) fn frame_pages(&self) -> u32 {
        self.shape.frame_pages
    }

    /// Of the bytes of the patch at a place, those from `from` on: the page in frames and the byte
    /// there at which they begin, and how many are in that page.
    pub(crate) fn patch_bytes(&self, place: u32, from: u64) -> Option<(u32, usize, usize)> {
        let patched = self.patched.as_ref()?;
        let at = place.checked_sub(FIRST_PATCH)? as usize;
        let (start, end) = (self.starts.get(at)? + from, *self.starts.get(at + 1)?);
        let page_size = u64::from(self.shape.page_size);
        let page = patched.data_from + (start / page_size) as u32;
        let within = start % page_size;
        let count = end.checked_sub(start)?.min(page_size - within);
        (count > 0).then_some((page, within as usize, count as usize))
    }

    /// Reads and checks every frame; gives the places of the pages that are not what they were, and
    /// the first reason.
    pub(crate) fn verify(&self, progress: &Progress) -> (Places, Option<Error>) {
        let frames: Vec<u32> = (0..self.shape.frames).collect();
        let found = Mutex::new(BTreeMap::new());
        let each = |frame, (stored, pages): &mut (Vec<u8>, Vec<u8>)| {
            if let Err(error) = self.frame_into(frame, stored, pages) {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.insert(frame, error);
            }
            progress.add(self.frame_bytes(frame));
            Ok::<(), Infallible>(())
        };
        let Ok(()) = try_each(frames, FRAMES_PER_THREAD, each);
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut bad, mut reason) = (Places::default(), None);
        for (frame, error) in found {
            let count = u64::from(self.shape.pages_of(frame));
            bad.insert(frame * self.shape.frame_pages, count);
            reason.get_or_insert(error);
        }
        if let Some(patched) = &self.patched
            && bad.intersects(
                patched.data_from,
                u64::from(FIRST_PATCH - patched.data_from),
            )
        {
            // Which patches these bytes are of is not worth finding out.
            bad.insert(FIRST_PATCH, patched.patches.len() as u64);
        }
        (bad, reason)
    }

    /// How much memory the index takes once all of it was needed, as its length in the file.
    pub(crate) fn index_bytes(&self) -> u64 {
        (u64::from(self.shape.pages) + u64::from(self.shape.frames)) * Hash::BYTES as u64
    }
}

fn damaged(name: Hash, reason: &str) -> Error {
    Error::Damaged {
        object: Name::Pack(name).to_string(),
        reason: reason.into(),
    }
}
