//! A pack: the contents of pages in compressed frames, and an index that has the hash of every page.
//!
//! The index hash names the pack, the index has a hash of every frame and every page: one wrong bit anywhere is found.

use super::codec::{self, RAW};
use super::is_page_size;
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::storage::{Name, Object, Storage};
use std::io;

const MAGIC: &[u8; 8] = b"PTPACK\0\x01";
pub(super) const END: &[u8; 8] = b"PTPKEND\n";
pub(super) const HEADER_BYTES: u64 = 16;
/// Offset of the index, its hash, the end mark.
const TRAILER_BYTES: u64 = 8 + 32 + 8;
/// Pages of a frame may be at most this many bytes: a reader makes room for them before it has seen any.
const FRAME_BYTES_MAX: u64 = 1 << 24;

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
    pub(crate) pages: Vec<Hash>,
}

impl Index {
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

    pub(super) fn header(page_size: u32, frame_pages: u32) -> Vec<u8> {
        let mut header = Encoder(MAGIC.to_vec());
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
        out.0
    }

    fn decode(header: &[u8], body: &[u8], offset: u64) -> Decoded<Self> {
        let mut decoder = Decoder(header);
        if decoder.take(MAGIC.len())? != MAGIC {
            return Err(Malformed("it does not begin as a pack"));
        }
        let (page_size, frame_pages) = (decoder.u32()?, decoder.u32()?);
        let frame_bytes = u64::from(page_size) * u64::from(frame_pages);
        if !is_page_size(page_size) || frame_pages == 0 || frame_bytes > FRAME_BYTES_MAX {
            return Err(Malformed("impossible sizes of pages and frames"));
        }
        let mut decoder = Decoder(body);
        let (frames, pages) = (decoder.u32()?, decoder.u32()?);
        if pages == 0 || frames != pages.div_ceil(frame_pages) {
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
        for _ in 0..pages {
            index.pages.push(decoder.hash()?);
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

/// A pack that can be read.
pub(crate) struct Pack {
    pub(crate) index: Index,
    object: Box<dyn Object>,
}

impl Pack {
    pub(crate) fn open(storage: &dyn Storage, name: Hash) -> Result<Self> {
        let failed = |cause| Error::Io {
            what: format!("cannot read {}", Name::Pack(name)),
            cause,
        };
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
        let header = read(0, HEADER_BYTES).map_err(failed)?;
        let body = read(offset, trailer_at).map_err(failed)?;
        let index = Index::decode(&header, &body, offset).map_err(malformed)?;
        if index.name != name {
            return Err(damaged(name, "its index is not the one that was written"));
        }
        Ok(Self { index, object })
    }

    /// The pages of a frame, checked against their hashes.
    pub(crate) fn frame(&self, frame: u32) -> Result<Vec<u8>> {
        let mut stored = Vec::new();
        let mut pages = Vec::new();
        self.frame_into(frame, &mut stored, &mut pages)?;
        Ok(pages)
    }

    /// The same with the memory of earlier frames.
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

    /// The same into as many bytes as the frame's pages have.
    pub(crate) fn decode(&self, frame: u32, stored: &mut Vec<u8>, pages: &mut [u8]) -> Result<()> {
        let name = self.index.name;
        let entry = self
            .index
            .frames
            .get(frame as usize)
            .ok_or_else(|| damaged(name, "a page beyond its end is wanted"))?;
        let hashes = self.index.pages_of(frame);
        let page_size = self.index.page_size as usize;
        let failed = |cause| Error::Io {
            what: format!("cannot read {}", Name::Pack(name)),
            cause,
        };
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

    /// Reads and checks every frame.
    pub(crate) fn verify(&self) -> Result<()> {
        let (mut stored, mut pages) = (Vec::new(), Vec::new());
        (0..self.index.frames.len() as u32)
            .try_for_each(|frame| self.frame_into(frame, &mut stored, &mut pages))
    }
}

fn damaged(name: Hash, reason: &str) -> Error {
    Error::Damaged {
        object: Name::Pack(name).to_string(),
        reason: reason.into(),
    }
}
