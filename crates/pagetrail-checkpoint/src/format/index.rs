//! [`Index`]: what a pack holds and where, as it is written; and its parts as they are read.
//!
//! The index is in [`Block`]s, each of some neighbouring frames and their pages, and a root has the
//! hash of each: who needs a single page reads the root and one block. Packs with patches, and
//! those of version 1, have all in one block, which is the root.

use super::codec::RAW;
use super::is_page_size;
use super::patch::{FIRST_PATCH, Patched, STEP};
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::hash::Hash;

/// Of an index in one block.
const MAGIC_WHOLE: &[u8; 8] = b"PTPACK\0\x01";
/// Of a pack with patches.
const MAGIC_PATCHED: &[u8; 8] = b"PTPACK\0\x02";
/// Of an index in blocks.
const MAGIC_BLOCKS: &[u8; 8] = b"PTPACK\0\x03";
pub(super) const HEADER_BYTES: u64 = 16;
/// Pages of a frame may be at most this many bytes: a reader makes room for them before it has seen
/// any.
const FRAME_BYTES_MAX: u64 = 1 << 24;
/// A block takes at most this many bytes, for the same reason.
const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// A frame in a block: how it is stored, its length and hash.
const ENTRY_BYTES: u64 = 1 + 4 + Hash::BYTES as u64;
/// A block in the root: where its frames begin, its hash.
const ROOT_ENTRY_BYTES: u64 = 8 + Hash::BYTES as u64;
/// Numbers of frames, of pages, and of frames in a block.
pub(super) const COUNTS_BYTES: u64 = 12;
/// A block has this many frames, so that a page that is needed alone costs little ..
const BLOCK_FRAMES: u32 = 16;
/// .. unless there would be more blocks than these: reading the root shall cost little as well.
const BLOCKS_MOST: u32 = 4096;
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

/// How the pages of a pack are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) page_size: u32,
    pub(super) frame_pages: u32,
    pub(super) frames: u32,
    /// Pages in frames.
    pub(super) pages: u32,
    pub(super) block_frames: u32,
}

impl Shape {
    /// Checks that there can be such pages and frames.
    fn checked(self) -> Decoded<Self> {
        let frame_bytes = u64::from(self.page_size) * u64::from(self.frame_pages);
        if !is_page_size(self.page_size)
            || self.frame_pages == 0
            || frame_bytes > FRAME_BYTES_MAX
            || self.block_frames == 0
        {
            return Err(Malformed("impossible sizes of pages and frames"));
        }
        let is_possible = self.pages > 0 && self.pages < FIRST_PATCH;
        if !is_possible || self.frames != self.pages.div_ceil(self.frame_pages) {
            return Err(Malformed("its frames do not hold its pages"));
        }
        Ok(self)
    }

    /// How many pages a frame has; 0 if there is no such frame.
    pub(super) fn pages_of(&self, frame: u32) -> u32 {
        let from = u64::from(frame) * u64::from(self.frame_pages);
        let left = u64::from(self.pages).saturating_sub(from);
        left.min(self.frame_pages.into()) as u32
    }

    pub(super) fn blocks(&self) -> u32 {
        self.frames.div_ceil(self.block_frames)
    }

    /// How many frames a block has.
    fn frames_of(&self, block: u32) -> u32 {
        let from = u64::from(block) * u64::from(self.block_frames);
        let left = u64::from(self.frames).saturating_sub(from);
        left.min(self.block_frames.into()) as u32
    }

    /// The bytes of all blocks before one, where blocks are apart from the root.
    fn bytes_before(&self, block: u32) -> u64 {
        let frames = (u64::from(block) * u64::from(self.block_frames)).min(self.frames.into());
        let pages = (frames * u64::from(self.frame_pages)).min(self.pages.into());
        frames * ENTRY_BYTES + pages * Hash::BYTES as u64
    }

    /// The block's bytes among those of all.
    pub(super) fn bytes_of(&self, block: u32) -> std::ops::Range<u64> {
        self.bytes_before(block)..self.bytes_before(block + 1)
    }

    /// The bytes of all blocks.
    pub(super) fn bytes_of_all(&self) -> u64 {
        self.bytes_before(self.blocks())
    }
}

/// What a pack says of some neighbouring frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) frames: Vec<Frame>,
    /// The hashes of their pages.
    pub(super) pages: Vec<Hash>,
}

impl Block {
    fn encode(frames: &[Frame], pages: &[Hash], out: &mut Encoder) {
        for frame in frames {
            out.u8(frame.codec);
            out.u32(frame.stored_bytes);
            out.hash(&frame.hash);
        }
        pages.iter().for_each(|page| out.hash(page));
    }

    /// Reads the block of a number, whose frames take these bytes of the pack.
    pub(super) fn decode(
        bytes: &[u8],
        shape: &Shape,
        number: u32,
        place: std::ops::Range<u64>,
    ) -> Decoded<Self> {
        let mut decoder = Decoder(bytes);
        let frames = read_frames(
            &mut decoder,
            shape.frames_of(number),
            place,
            |input, codec| {
                let hash = input.hash()?;
                match codec == RAW && hash != Hash::default() {
                    true => Err(Malformed("a hash of a frame that is stored as it is")),
                    false => Ok(hash),
                }
            },
        )?;
        let before = number * shape.block_frames;
        let counts = (before..before + frames.len() as u32).map(|frame| shape.pages_of(frame));
        let block = Self {
            pages: read_hashes(&mut decoder, counts.sum())?,
            frames,
        };
        decoder.end()?;
        block.checked(shape, before)
    }

    /// Checks that frames are as long as their pages.
    fn checked(self, shape: &Shape, before: u32) -> Decoded<Self> {
        for (number, frame) in (before..).zip(&self.frames) {
            let bytes = u64::from(shape.pages_of(number)) * u64::from(shape.page_size);
            let stored = u64::from(frame.stored_bytes);
            if frame.codec == RAW && stored != bytes || stored > bytes {
                return Err(Malformed("a frame of the wrong length"));
            }
        }
        Ok(self)
    }
}

/// Frames one after the other, which fill these bytes of the pack.
fn read_frames(
    decoder: &mut Decoder<'_>,
    count: u32,
    place: std::ops::Range<u64>,
    mut hash: impl FnMut(&mut Decoder<'_>, u8) -> Decoded<Hash>,
) -> Decoded<Vec<Frame>> {
    let mut frames = Vec::with_capacity(count as usize);
    let mut offset = place.start;
    for _ in 0..count {
        let (codec, stored_bytes) = (decoder.u8()?, decoder.u32()?);
        let hash = hash(decoder, codec)?;
        frames.push(Frame {
            codec,
            offset,
            stored_bytes,
            hash,
        });
        offset += u64::from(stored_bytes);
    }
    match offset == place.end {
        true => Ok(frames),
        false => Err(Malformed("its frames do not fill it")),
    }
}

/// All at once: there are many.
fn read_hashes(decoder: &mut Decoder<'_>, count: u32) -> Decoded<Vec<Hash>> {
    let (hashes, _) = decoder.take(count as usize * Hash::BYTES)?.as_chunks();
    Ok(hashes.iter().copied().map(Hash).collect())
}

/// Where a block's frames begin, and the block's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: u64,
    pub(super) hash: Hash,
}

/// What is read of a pack's index before anything else.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) shape: Shape,
    pub(super) parts: Parts,
}

#[derive(Debug)]
pub(super) enum Parts {
    /// Blocks are to be read.
    Blocks(Vec<Entry>),
    /// All of it.
    Whole(Block, Option<Patched>),
}

impl Root {
    /// Reads a root of a pack whose frames end where `offset` says, or, where the index is in
    /// blocks, whose blocks do.
    pub(super) fn decode(header: &[u8], body: &[u8], offset: u64) -> Decoded<Self> {
        let mut decoder = Decoder(body);
        let (shape, version) = Header::decode(header)?.shape(&mut decoder)?;
        if version == Version::Blocks {
            let end = offset.checked_sub(shape.bytes_of_all());
            let end = end.ok_or(Malformed("its index is nowhere in it"))?;
            let entries = (0..shape.blocks()).map(|_| {
                Ok(Entry {
                    offset: decoder.u64()?,
                    hash: decoder.hash()?,
                })
            });
            let entries: Vec<Entry> = entries.collect::<Decoded<_>>()?;
            decoder.end()?;
            let starts = entries.iter().map(|entry| entry.offset).chain([end]);
            if !starts.is_sorted() || entries.first().is_none_or(|e| e.offset != HEADER_BYTES) {
                return Err(Malformed("its frames do not fill it"));
            }
            let parts = Parts::Blocks(entries);
            return Ok(Self { shape, parts });
        }
        if u64::from(shape.pages) * Hash::BYTES as u64 > decoder.0.len() as u64 {
            return Err(Malformed("its index is too short"));
        }
        let place = HEADER_BYTES..offset;
        let frames = read_frames(
            &mut decoder,
            shape.frames,
            place,
            |input, codec| match codec {
                RAW => Ok(Hash::default()),
                _ => input.hash(),
            },
        )?;
        let pages = read_hashes(&mut decoder, shape.pages)?;
        let patched = match version {
            Version::Patched => Some(Patched::decode(&mut decoder, shape.page_size, shape.pages)?),
            _ => None,
        };
        decoder.end()?;
        let block = Block { frames, pages }.checked(&shape, 0)?;
        let parts = Parts::Whole(block, patched);
        Ok(Self { shape, parts })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Whole,
    Patched,
    Blocks,
}

/// How a pack begins.
struct Header {
    version: Version,
    page_size: u32,
    frame_pages: u32,
}

impl Header {
    fn decode(header: &[u8]) -> Decoded<Self> {
        let mut decoder = Decoder(header);
        let version = match decoder.take(MAGIC_WHOLE.len())? {
            magic if magic == MAGIC_WHOLE => Version::Whole,
            magic if magic == MAGIC_PATCHED => Version::Patched,
            magic if magic == MAGIC_BLOCKS => Version::Blocks,
            _ => return Err(Malformed("it does not begin as a pack")),
        };
        Ok(Self {
            version,
            page_size: decoder.u32()?,
            frame_pages: decoder.u32()?,
        })
    }

    /// With the numbers at the beginning of the root.
    fn shape(&self, root: &mut Decoder<'_>) -> Decoded<(Shape, Version)> {
        let (frames, pages) = (root.u32()?, root.u32()?);
        let block_frames = match self.version {
            Version::Blocks => root.u32()?,
            _ => frames.max(1),
        };
        let shape = Shape {
            page_size: self.page_size,
            frame_pages: self.frame_pages,
            frames,
            pages,
            block_frames,
        };
        let shape = shape.checked()?;
        if self.version == Version::Blocks
            && u64::from(block_frames) * record_bytes(self.frame_pages) > BLOCK_BYTES_MAX
        {
            return Err(Malformed("impossible sizes of pages and frames"));
        }
        Ok((shape, self.version))
    }
}

/// What a frame and its pages take in a block.
fn record_bytes(frame_pages: u32) -> u64 {
    ENTRY_BYTES + u64::from(frame_pages) * Hash::BYTES as u64
}

/// Whether a root may have so many bytes: its first ones say how many frames and pages it is of.
pub(super) fn check_length(header: &[u8], counts: &[u8], bytes: u64) -> Decoded<()> {
    let header = Header::decode(header)?;
    let mut counts = Decoder(counts);
    let hash = Hash::BYTES as u64;
    let allowed = match header.version {
        Version::Blocks => {
            let (shape, _) = header.shape(&mut counts)?;
            let exactly = COUNTS_BYTES + u64::from(shape.blocks()) * ROOT_ENTRY_BYTES;
            exactly..=exactly
        }
        version => {
            let (frames, pages) = (u64::from(counts.u32()?), u64::from(counts.u32()?));
            let least = 8 + frames * 5 + pages * hash;
            // Each patch, and each range of one, has a step of bytes at least.
            let patches = pages * u64::from(header.page_size) / STEP;
            let patches = patches.saturating_mul(PATCH_BYTES_MOST);
            let most = (least + frames * hash).saturating_add(match version {
                Version::Patched => patches.saturating_add(64),
                _ => 0,
            });
            least..=most
        }
    };
    match allowed.contains(&bytes) {
        true => Ok(()),
        false => Err(Malformed("its index is not as long as it says")),
    }
}

/// What a pack holds and where, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) name: Hash,
    pub(super) page_size: u32,
    pub(super) frame_pages: u32,
    pub(super) frames: Vec<Frame>,
    /// Pages in frames.
    pub(crate) pages: Vec<Hash>,
    pub(crate) patched: Option<Patched>,
}

/// What is written after the frames.
pub(super) struct Encoded {
    pub(super) blocks: Vec<u8>,
    pub(super) root: Vec<u8>,
}

impl Index {
    /// How many pages it can be asked for, patched ones included.
    pub(crate) fn page_count(&self) -> usize {
        match &self.patched {
            None => self.pages.len(),
            Some(patched) => patched.data_from as usize + patched.patches.len(),
        }
    }

    /// Length of all frames, in bytes.
    pub(super) fn frames_bytes(&self) -> u64 {
        let frames = self.frames.iter();
        frames.map(|frame| u64::from(frame.stored_bytes)).sum()
    }

    /// The hash over the root: the pack's name.
    pub(super) fn seal(header: &[u8], root: &[u8], offset: u64) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(header)
            .update(root)
            .update(&offset.to_le_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    pub(super) fn header(page_size: u32, frame_pages: u32, patched: bool) -> Vec<u8> {
        let magic = if patched { MAGIC_PATCHED } else { MAGIC_BLOCKS };
        let mut header = Encoder(magic.to_vec());
        header.u32(page_size);
        header.u32(frame_pages);
        header.0
    }

    pub(super) fn encode(&self) -> Encoded {
        let (mut blocks, mut root) = (Encoder::default(), Encoder::default());
        root.u32(self.frames.len() as u32);
        root.u32(self.pages.len() as u32);
        if let Some(patched) = &self.patched {
            for frame in &self.frames {
                root.u8(frame.codec);
                root.u32(frame.stored_bytes);
                if frame.codec != RAW {
                    root.hash(&frame.hash);
                }
            }
            self.pages.iter().for_each(|page| root.hash(page));
            patched.encode(&mut root);
        } else {
            let block_frames = self.block_frames() as usize;
            root.u32(block_frames as u32);
            let pages = self.pages.chunks(block_frames * self.frame_pages as usize);
            for (frames, pages) in self.frames.chunks(block_frames).zip(pages) {
                let from = blocks.0.len();
                Block::encode(frames, pages, &mut blocks);
                root.u64(frames.first().map_or(0, |frame| frame.offset));
                root.hash(&Hash::of(&blocks.0[from..]));
            }
        }
        Encoded {
            blocks: blocks.0,
            root: root.0,
        }
    }

    fn block_frames(&self) -> u32 {
        let most = (BLOCK_BYTES_MAX / record_bytes(self.frame_pages)).max(1) as u32;
        let few = (self.frames.len() as u32).div_ceil(BLOCKS_MOST);
        few.next_power_of_two().max(BLOCK_FRAMES).min(most)
    }
}
