//! A pack: the contents of pages in compressed frames, and an index that has the hash of every page.
//!
//! The index hash names the pack, the index has a hash of every frame and every page: one wrong bit anywhere is found.

use super::codec::{self, Compression, RAW};
use super::is_page_size;
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::parallel::in_parallel;
use crate::storage::{Draft, Name, Object, Storage};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

const MAGIC: &[u8; 8] = b"PTPACK\0\x01";
const END: &[u8; 8] = b"PTPKEND\n";
const HEADER_BYTES: u64 = 16;
/// Offset of the index, its hash, the end mark.
const TRAILER_BYTES: u64 = 8 + 32 + 8;
/// Pages of a frame may be at most this many bytes: a reader makes room for them before it has seen any.
const FRAME_BYTES_MAX: u64 = 1 << 24;

/// A frame in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    codec: u8,
    offset: u64,
    stored_bytes: u32,
    /// Of the stored bytes; compressed ones only, the pages' hashes say it for the others.
    hash: Hash,
}

/// What a pack holds and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) name: Hash,
    pub(crate) page_size: u32,
    frame_pages: u32,
    frames: Vec<Frame>,
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
    fn seal(header: &[u8], body: &[u8], offset: u64) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(header)
            .update(body)
            .update(&offset.to_le_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    fn header(page_size: u32, frame_pages: u32) -> Vec<u8> {
        let mut header = Encoder(MAGIC.to_vec());
        header.u32(page_size);
        header.u32(frame_pages);
        header.0
    }

    fn encode(&self) -> Vec<u8> {
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

/// A pack that is being written.
///
/// A thread of its own writes, so that hashing and compressing need not wait for it. What goes wrong there shows at a later
/// page, or in the end.
pub(crate) struct PackWriter {
    /// `None` once it is to end.
    to_write: Option<SyncSender<Vec<u8>>>,
    /// What has been written, to be used again.
    written: Receiver<Vec<u8>>,
    scribe: Option<JoinHandle<io::Result<Box<dyn Draft>>>>,
    index: Index,
    offset: u64,
    compression: Compression,
    /// Pages that are not written yet.
    open: Vec<u8>,
}

/// Frames that are compressed at a time, by all processors.
const BATCH: usize = 64;
/// Batches that wait to be written.
const QUEUE: usize = 2;

impl PackWriter {
    pub(crate) fn new(
        storage: &dyn Storage,
        page_size: u32,
        frame_pages: u32,
        compression: Compression,
    ) -> io::Result<Self> {
        let mut draft = storage.create()?;
        draft.write(&Index::header(page_size, frame_pages))?;
        let (to_write, from) = sync_channel::<Vec<u8>>(QUEUE);
        let (back, written) = channel();
        let scribe = std::thread::Builder::new().name("pagetrail-pack".into());
        let scribe = scribe.spawn(move || {
            for bytes in from {
                draft.write(&bytes)?;
                // Nobody wants it back in the end.
                let _ = back.send(bytes);
            }
            Ok(draft)
        })?;
        Ok(Self {
            to_write: Some(to_write),
            written,
            scribe: Some(scribe),
            index: Index {
                name: Hash::default(),
                page_size,
                frame_pages,
                frames: Vec::new(),
                pages: Vec::new(),
            },
            offset: HEADER_BYTES,
            compression,
            open: Vec::new(),
        })
    }

    /// The hashes of the pages so far.
    pub(crate) fn pages(&self) -> &[Hash] {
        &self.index.pages
    }

    fn frame_bytes(&self) -> usize {
        (self.index.frame_pages * self.index.page_size) as usize
    }

    /// Adds a page; says its place among the pages.
    pub(crate) fn push(&mut self, page: &[u8], hash: Hash) -> io::Result<u32> {
        let place = self.index.pages.len() as u32;
        self.open.extend_from_slice(page);
        self.index.pages.push(hash);
        if self.open.len() == self.frame_bytes() * BATCH {
            self.flush()?;
        }
        Ok(place)
    }

    /// Writes what is open as frames, the last of which need not be full.
    fn flush(&mut self) -> io::Result<()> {
        let frames: Vec<&[u8]> = self.open.chunks(self.frame_bytes()).collect();
        let compression = self.compression;
        let compressed = in_parallel(&frames, 4, |frame| {
            let mut out = Vec::new();
            let codec = compression.compress(frame, &mut out);
            let hash = match codec {
                RAW => Hash::default(),
                _ => Hash::of(&out),
            };
            (codec, hash, out)
        });
        let as_they_are = compressed.iter().all(|(codec, ..)| *codec == RAW);
        let mut joined = self.written.try_recv().unwrap_or_default();
        joined.clear();
        for (frame, (codec, hash, out)) in frames.iter().zip(&compressed) {
            let stored: &[u8] = if *codec == RAW { frame } else { out };
            self.index.frames.push(Frame {
                codec: *codec,
                offset: self.offset,
                stored_bytes: stored.len() as u32,
                hash: *hash,
            });
            self.offset += stored.len() as u64;
            if !as_they_are {
                joined.extend_from_slice(stored);
            }
        }
        if as_they_are {
            std::mem::swap(&mut self.open, &mut joined);
        }
        self.open.clear();
        self.write(joined)
    }

    fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let sent = self.to_write.as_ref().map(|queue| queue.send(bytes));
        match sent {
            Some(Ok(())) => Ok(()),
            // It has ended, and says why.
            _ => self.end().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until everything is written.
    fn end(&mut self) -> io::Result<Box<dyn Draft>> {
        self.to_write = None;
        let scribe = self.scribe.take().ok_or(io::ErrorKind::BrokenPipe)?;
        scribe
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Writes the index and gives the pack its name; `None` when there is nothing in it.
    pub(crate) fn publish(mut self) -> io::Result<Option<Index>> {
        if self.index.pages.is_empty() {
            return Ok(None);
        }
        if !self.open.is_empty() {
            self.flush()?;
        }
        let body = self.index.encode();
        let header = Index::header(self.index.page_size, self.index.frame_pages);
        self.index.name = Index::seal(&header, &body, self.offset);
        self.write(body)?;
        let mut trailer = Encoder::default();
        trailer.u64(self.offset);
        trailer.hash(&self.index.name);
        trailer.0.extend(END);
        self.write(trailer.0)?;
        self.end()?.publish(Name::Pack(self.index.name))?;
        Ok(Some(Index {
            frames: std::mem::take(&mut self.index.frames),
            pages: std::mem::take(&mut self.index.pages),
            ..self.index
        }))
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        if self.scribe.is_some() {
            // The draft is gone when this returns.
            let _ = self.end();
        }
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
        for (page, hash) in pages.chunks_exact(page_size).zip(hashes) {
            if Hash::of(page) != *hash {
                return Err(damaged(
                    name,
                    &format!("a page of frame {frame} has changed"),
                ));
            }
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
