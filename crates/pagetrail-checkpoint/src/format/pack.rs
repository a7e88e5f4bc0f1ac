//! A pack: the contents of pages in compressed frames, and an index that has the hash of every
//! page.
//!
//! A pack may have patches as well: pages that are another pack's but for some bytes.
//!
//! The index hash names the pack, the index has a hash of every frame and every page: one wrong bit
//! anywhere is found.

use super::codec::{self, RAW};
use super::is_page_size;
use super::patch::{FIRST_PATCH, Patch, STEP};
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::limits;
use crate::storage::{Name, Object, Storage};
use crate::store::places::Places;
use std::io;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"PTPACK\0\x01";
/// Of a pack with patches.
const MAGIC_PATCHED: &[u8; 8] = b"PTPACK\0\x02";
pub(super) const END: &[u8; 8] = b"PTPKEND\n";
pub(super) const HEADER_BYTES: u64 = 16;
/// Offset of the index, its hash, the end mark.
const TRAILER_BYTES: u64 = 8 + 32 + 8;
/// Pages of a frame may be at most this many bytes: a reader makes room for them before it has seen
/// any.
const FRAME_BYTES_MAX: u64 = 1 << 24;
/// A patch of a single range takes no more bytes in the index, the name of a pack of its own
/// included.
const PATCH_BYTES_MOST: u64 = 96;

/// A frame in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) codec: u8,
    pub(super) offset: u64,
    pub(super) stored_bytes: u32,
    /// Of the stored bytes; compressed ones only, the pages' hashes say it for the others.
    pub(super) hash: Hash,
}

/// What a pack holds and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) name: Hash,
    pub(crate) page_size: u32,
    pub(super) frame_pages: u32,
    pub(super) frames: Vec<Frame>,
    /// Pages in frames.
    pub(crate) pages: Vec<Hash>,
    pub(crate) patched: Option<Patched>,
}

/// The patches of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patched {
    /// The place of the first page in frames that has the patches' bytes, one after the other.
    pub(super) data_from: u32,
    /// The packs whose pages are patched.
    pub(crate) bases: Vec<Hash>,
    pub(crate) patches: Vec<Patch>,
}

impl Patched {
    /// The patch at a place.
    pub(crate) fn at(&self, place: u32) -> Option<&Patch> {
        self.patches.get(place.checked_sub(FIRST_PATCH)? as usize)
    }

    /// Where among the patches' bytes each begins, and in the end how many there are.
    fn starts(&self) -> Vec<u64> {
        let mut starts = vec![0];
        let mut at = 0;
        starts.extend(self.patches.iter().map(|patch| {
            at += patch.bytes();
            at
        }));
        starts
    }
}

impl Index {
    /// The hash of the page at a place, if there is one.
    pub(crate) fn hash_of(&self, place: u32) -> Option<Hash> {
        match place.checked_sub(FIRST_PATCH) {
            None => self.pages.get(place as usize).copied(),
            Some(_) => Some(self.patched.as_ref()?.at(place)?.hash),
        }
    }

    /// Whether there are pages at all places from this one on.
    pub(crate) fn has(&self, place: u32, pages: u64) -> bool {
        let (from, count) = match place.checked_sub(FIRST_PATCH) {
            None => (place, self.pages.len()),
            Some(at) => (at, self.patched.as_ref().map_or(0, |p| p.patches.len())),
        };
        u64::from(from) + pages <= count as u64
    }

    /// The pack and the place of the page that the one at a place is a patch of, if it is one.
    pub(crate) fn base_of(&self, place: u32) -> Option<(Hash, u32)> {
        let patched = self.patched.as_ref()?;
        let patch = patched.at(place)?;
        Some((*patched.bases.get(patch.base as usize)?, patch.place))
    }

    /// How many pages it can be asked for, patched ones included.
    pub(crate) fn page_count(&self) -> usize {
        match &self.patched {
            None => self.pages.len(),
            Some(patched) => patched.data_from as usize + patched.patches.len(),
        }
    }

    /// Length of the whole pack, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let frames = self.frames.iter();
        let frames: u64 = frames.map(|frame| u64::from(frame.stored_bytes)).sum();
        HEADER_BYTES + frames + self.encode().len() as u64 + TRAILER_BYTES
    }

    /// In which frame a page is, and at which byte of its contents.
    pub(crate) fn find(&self, page: u32) -> (u32, usize) {
        let within = page % self.frame_pages;
        (page / self.frame_pages, (within * self.page_size) as usize)
    }

    /// The places of the pages that are unpacked together with the one at a place.
    pub(crate) fn together(&self, place: u32) -> Range<u32> {
        if place >= FIRST_PATCH {
            return place..place + 1;
        }
        let first = place - place % self.frame_pages;
        first..first + self.frame_pages
    }

    fn pages_of(&self, frame: u32) -> &[Hash] {
        let from = frame as usize * self.frame_pages as usize;
        let to = self.pages.len().min(from + self.frame_pages as usize);
        self.pages.get(from..to).unwrap_or_default()
    }

    /// The hash over what is not frames.
    pub(super) fn seal(header: &[u8], body: &[u8], offset: u64) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(header)
            .update(body)
            .update(&offset.to_le_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    pub(super) fn header(page_size: u32, frame_pages: u32, patched: bool) -> Vec<u8> {
        let magic = if patched { MAGIC_PATCHED } else { MAGIC };
        let mut header = Encoder(magic.to_vec());
        header.u32(page_size);
        header.u32(frame_pages);
        header.0
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u32(self.frames.len() as u32);
        out.u32(self.pages.len() as u32);
        for frame in &self.frames {
            out.u8(frame.codec);
            out.u32(frame.stored_bytes);
            if frame.codec != RAW {
                out.hash(&frame.hash);
            }
        }
        self.pages.iter().for_each(|page| out.hash(page));
        if let Some(patched) = &self.patched {
            out.u32(patched.data_from);
            out.list(&patched.bases, Encoder::hash);
            out.list(&patched.patches, |out, patch| patch.encode(out));
        }
        out.0
    }

    fn decode(header: &[u8], body: &[u8], offset: u64) -> Decoded<Self> {
        let mut decoder = Decoder(header);
        let is_patched = match decoder.take(MAGIC.len())? {
            magic if magic == MAGIC => false,
            magic if magic == MAGIC_PATCHED => true,
            _ => return Err(Malformed("it does not begin as a pack")),
        };
        let (page_size, frame_pages) = (decoder.u32()?, decoder.u32()?);
        let frame_bytes = u64::from(page_size) * u64::from(frame_pages);
        if !is_page_size(page_size) || frame_pages == 0 || frame_bytes > FRAME_BYTES_MAX {
            return Err(Malformed("impossible sizes of pages and frames"));
        }
        let mut decoder = Decoder(body);
        let (frames, pages) = (decoder.u32()?, decoder.u32()?);
        if pages == 0 || pages >= FIRST_PATCH || frames != pages.div_ceil(frame_pages) {
            return Err(Malformed("its frames do not hold its pages"));
        }
        if u64::from(pages) * Hash::BYTES as u64 > decoder.0.len() as u64 {
            return Err(Malformed("its index is too short"));
        }
        let mut at = HEADER_BYTES;
        let mut index = Self {
            name: Self::seal(header, body, offset),
            page_size,
            frame_pages,
            frames: Vec::with_capacity(frames as usize),
            pages: Vec::with_capacity(pages as usize),
            patched: None,
        };
        for _ in 0..frames {
            let (codec, stored_bytes) = (decoder.u8()?, decoder.u32()?);
            let hash = match codec {
                RAW => Hash::default(),
                _ => decoder.hash()?,
            };
            index.frames.push(Frame {
                codec,
                offset: at,
                stored_bytes,
                hash,
            });
            at += u64::from(stored_bytes);
        }
        if at != offset {
            return Err(Malformed("its frames do not fill it"));
        }
        // All at once: this is most of what opening a large pack takes.
        let (hashes, _) = decoder.take(pages as usize * Hash::BYTES)?.as_chunks();
        index.pages.extend(hashes.iter().copied().map(Hash));
        if is_patched {
            index.patched = Some(index.decode_patched(&mut decoder)?);
        }
        decoder.end()?;
        for frame in 0..frames {
            let bytes = index.pages_of(frame).len() as u64 * u64::from(page_size);
            let Frame {
                codec,
                stored_bytes,
                ..
            } = index.frames[frame as usize];
            let stored = u64::from(stored_bytes);
            if codec == RAW && stored != bytes || stored > bytes {
                return Err(Malformed("a frame of the wrong length"));
            }
        }
        Ok(index)
    }
}

impl Index {
    fn decode_patched(&self, decoder: &mut Decoder<'_>) -> Decoded<Patched> {
        let data_from = decoder.u32()?;
        let bases = decoder.list(Decoder::hash)?;
        let patches =
            decoder.list(|decoder| Patch::decode(decoder, self.page_size, bases.len()))?;
        let patched = Patched {
            data_from,
            bases,
            patches,
        };
        let bytes = patched.starts().last().copied().unwrap_or(0);
        let data_pages = bytes.div_ceil(self.page_size.into());
        match u64::from(data_from) + data_pages == self.pages.len() as u64 {
            true => Ok(patched),
            false => Err(Malformed("its patches are not as long as their bytes")),
        }
    }
}

/// Whether an index may have so many bytes: its first eight say how many frames and pages it is of.
fn check_length(header: &[u8], counts: &[u8], bytes: u64) -> Decoded<()> {
    let mut header = Decoder(header);
    let is_patched = match header.take(MAGIC.len())? {
        magic if magic == MAGIC => false,
        magic if magic == MAGIC_PATCHED => true,
        _ => return Err(Malformed("it does not begin as a pack")),
    };
    let mut counts = Decoder(counts);
    let page_size = u64::from(header.u32()?);
    let (frames, pages) = (u64::from(counts.u32()?), u64::from(counts.u32()?));
    let hash = Hash::BYTES as u64;
    let least = 8 + frames * 5 + pages * hash;
    // Each patch, and each range of one, has a step of bytes at least.
    let patches = (pages * page_size / STEP).saturating_mul(PATCH_BYTES_MOST);
    let most = (least + frames * hash).saturating_add(match is_patched {
        true => patches.saturating_add(64),
        false => 0,
    });
    if !(least..=most).contains(&bytes) {
        return Err(Malformed("its index is not as long as it says"));
    }
    Ok(())
}

/// A pack that can be read.
pub(crate) struct Pack {
    pub(crate) index: Index,
    /// Where among the patches' bytes each begins.
    starts: Vec<u64>,
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
        let index_bytes = trailer_at - offset;
        if index_bytes > limits::bytes_at_once() {
            return Err(damaged(name, "its index is impossibly long"));
        }
        // An index that is not as long as its numbers say is not worth its memory.
        let header = read(0, HEADER_BYTES).map_err(failed)?;
        let counts = read(offset, trailer_at.min(offset + 8)).map_err(failed)?;
        check_length(&header, &counts, index_bytes).map_err(malformed)?;
        let body = read(offset, trailer_at).map_err(failed)?;
        let index = Index::decode(&header, &body, offset).map_err(malformed)?;
        if index.name != name {
            return Err(damaged(name, "its index is not the one that was written"));
        }
        let starts = index.patched.as_ref().map(Patched::starts);
        Ok(Self {
            index,
            starts: starts.unwrap_or_default(),
            object,
        })
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
        self.index.pages_of(frame).len() * self.index.page_size as usize
    }

    /// Unpacks a frame into as many bytes as its pages have.
    pub(crate) fn decode(&self, frame: u32, stored: &mut Vec<u8>, pages: &mut [u8]) -> Result<()> {
        let name = self.index.name;
        let entry = self
            .index
            .frames
            .get(frame as usize)
            .ok_or_else(|| damaged(name, "a page beyond its end is wanted"))?;
        let hashes = self.index.pages_of(frame);
        let page_size = self.index.page_size as usize;
        let failed = |cause| Error::reading(Name::Pack(name), cause);
        if entry.codec == RAW {
            self.object.read_at(entry.offset, pages).map_err(failed)?;
        } else {
            stored.resize(entry.stored_bytes as usize, 0);
            self.object.read_at(entry.offset, stored).map_err(failed)?;
            if Hash::of(stored) != entry.hash {
                return Err(damaged(name, &format!("frame {frame} has changed")));
            }
            codec::decompress(entry.codec, stored, pages)
                .map_err(|Malformed(reason)| damaged(name, reason))?;
        }
        let pages: Vec<&[u8]> = pages.chunks_exact(page_size).collect();
        if Hash::of_pages(&pages) != hashes {
            return Err(damaged(
                name,
                &format!("a page of frame {frame} has changed"),
            ));
        }
        Ok(())
    }

    /// Of the bytes of the patch at a place, those from `from` on: the page in frames and the byte
    /// there at which they begin, and how many are in that page.
    pub(crate) fn patch_bytes(&self, place: u32, from: u64) -> Option<(u32, usize, usize)> {
        let patched = self.index.patched.as_ref()?;
        let at = place.checked_sub(FIRST_PATCH)? as usize;
        let (start, end) = (self.starts.get(at)? + from, *self.starts.get(at + 1)?);
        let page_size = u64::from(self.index.page_size);
        let page = patched.data_from + (start / page_size) as u32;
        let within = start % page_size;
        let count = end.checked_sub(start)?.min(page_size - within);
        (count > 0).then_some((page, within as usize, count as usize))
    }

    /// Reads and checks every frame; gives the places of the pages that are not what they were, and
    /// the first reason.
    pub(crate) fn verify(&self) -> (Places, Option<Error>) {
        let (mut stored, mut pages) = (Vec::new(), Vec::new());
        let (mut bad, mut reason) = (Places::default(), None);
        let frame_pages = self.index.frame_pages;
        for frame in 0..self.index.frames.len() as u32 {
            if let Err(error) = self.frame_into(frame, &mut stored, &mut pages) {
                let count = self.index.pages_of(frame).len() as u64;
                bad.insert(frame * frame_pages, count);
                reason.get_or_insert(error);
            }
        }
        if let Some(patched) = &self.index.patched
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

    /// How much memory the index takes, as its length in the file.
    pub(crate) fn index_bytes(&self) -> u64 {
        (self.index.pages.len() + self.index.frames.len()) as u64 * Hash::BYTES as u64
    }
}

fn damaged(name: Hash, reason: &str) -> Error {
    Error::Damaged {
        object: Name::Pack(name).to_string(),
        reason: reason.into(),
    }
}
