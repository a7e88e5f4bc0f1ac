//! [`Packs`]: packs to be read, and those that their patched pages are made of.

use super::Store;
use super::places::Places;
use crate::error::{Error, Result};
use crate::format::pack::Pack;
use crate::format::patch::{FIRST_PATCH, Patch};
use crate::hash::Hash;
use crate::limits;
use crate::parallel::try_each;
use crate::storage::Name;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// How many bytes of unpacked frames are kept: neighbours mostly come from the same.
const KEPT_BYTES: usize = 1 << 20;
/// How many frames are kept at most, so that small ones are found as fast.
const KEPT_MOST: usize = 32;
/// For so many pages it is worth to start a thread that unpacks them.
const PAGES_PER_THREAD: u32 = 64;

/// Open packs. Those that were asked for have the numbers of their names; those that patches need
/// follow when they do: a patch that nobody needs may be of a pack that has gone.
pub(crate) struct Packs {
    store: Store,
    packs: Vec<Arc<Pack>>,
    /// Of all of them, in bytes.
    index_bytes: u64,
    numbers: BTreeMap<Hash, u32>,
    /// Frames that were unpacked for some of their pages, the last one last.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    stored: Vec<u8>,
}

/// A frame that was unpacked.
struct Kept {
    pack: u32,
    frame: u32,
    contents: Vec<u8>,
    /// Which of its pages have been held against their hashes.
    is_checked: Vec<bool>,
}

/// Pages that lie one after the other in a pack, and where they belong.
pub(crate) struct Piece<'o> {
    pub(crate) pack: u32,
    pub(crate) place: u32,
    pub(crate) out: &'o mut [u8],
}

/// A part of a frame, from byte `at` on, and where it belongs.
struct Part<'o> {
    pack: u32,
    frame: u32,
    at: usize,
    out: &'o mut [u8],
}

impl Part<'_> {
    /// Whether both are of one frame.
    fn is_beside(&self, other: &Self) -> bool {
        (self.pack, self.frame) == (other.pack, other.frame)
    }
}

/// The memory of a thread that unpacks frames.
#[derive(Default)]
pub(crate) struct Memory {
    stored: Vec<u8>,
    pages: Vec<u8>,
}

impl Packs {
    pub(crate) fn open(store: &Store, names: &[Hash]) -> Result<Self> {
        let mut all = Self {
            store: store.clone(),
            packs: Vec::new(),
            index_bytes: 0,
            numbers: BTreeMap::new(),
            kept: VecDeque::new(),
            kept_bytes: KEPT_BYTES,
            stored: Vec::new(),
        };
        for name in names {
            all.add(*name)?;
        }
        Ok(all)
    }

    /// Shares the packs with another thread.
    pub(crate) fn share(&self) -> Self {
        Self {
            store: self.store.clone(),
            packs: self.packs.clone(),
            index_bytes: self.index_bytes,
            numbers: self.numbers.clone(),
            kept: VecDeque::new(),
            kept_bytes: KEPT_BYTES,
            stored: Vec::new(),
        }
    }

    /// Keeps so many bytes of frames that were unpacked for some of their pages.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn add(&mut self, name: Hash) -> Result<u32> {
        let pack = Pack::open(self.store.storage(), name)?;
        self.index_bytes += pack.index_bytes();
        if self.index_bytes > limits::bytes_at_once() {
            let reason = "the packs that a checkpoint needs have more pages than this machine has memory to list";
            return Err(Error::Refused(reason.into()));
        }
        let number = self.packs.len() as u32;
        self.numbers.insert(name, number);
        self.packs.push(Arc::new(pack));
        Ok(number)
    }

    /// The number of a pack, which is opened if it was not yet.
    pub(crate) fn number(&mut self, name: Hash) -> Result<u32> {
        match self.numbers.get(&name) {
            Some(number) => Ok(*number),
            None => self.add(name),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// A pack that was asked for.
    pub(crate) fn pack(&self, pack: u32) -> &Pack {
        &self.packs[pack as usize]
    }

    /// Reads what the packs that were asked for say of their pages, all of it.
    pub(crate) fn read_blocks(&self) -> Result<()> {
        self.packs.iter().try_for_each(|pack| pack.read_blocks())
    }

    /// Copies pages that lie one after the other in a pack.
    pub(crate) fn read(&mut self, pack: u32, place: u32, out: &mut [u8]) -> Result<()> {
        if place < FIRST_PATCH {
            return self.read_plain(pack, place, out);
        }
        let page_size = self.pack(pack).page_size() as usize;
        for (place, page) in (place..).zip(out.chunks_exact_mut(page_size)) {
            self.read_patched(pack, place, page)?;
        }
        Ok(())
    }

    /// The parts of frames that pages are which lie one after the other, and where these belong.
    /// None of them is patched.
    fn parts<'o>(&self, piece: Piece<'o>, parts: &mut Vec<Part<'o>>) {
        let Piece {
            pack,
            mut place,
            out: mut rest,
        } = piece;
        let of = &self.packs[pack as usize];
        let page_size = of.page_size() as usize;
        while !rest.is_empty() {
            let (frame, at) = of.find(place);
            let count = of.frame_bytes(frame).saturating_sub(at).min(rest.len());
            if count == 0 {
                // Beyond the end of the pack, which to decode it says.
                let out = rest;
                return parts.push(Part {
                    pack,
                    frame,
                    at,
                    out,
                });
            }
            let (out, after) = std::mem::take(&mut rest).split_at_mut(count);
            rest = after;
            place += (count / page_size) as u32;
            parts.push(Part {
                pack,
                frame,
                at,
                out,
            });
        }
    }

    /// The frames of pages, each with all its parts, so that it is unpacked once.
    fn frames_of<'o>(&self, pieces: Vec<Piece<'o>>) -> Vec<Vec<Part<'o>>> {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            self.parts(piece, &mut parts);
        }
        parts.sort_by_key(|part| (part.pack, part.frame));
        let mut frames: Vec<Vec<Part<'o>>> = Vec::new();
        for part in parts {
            match frames.last_mut() {
                Some(frame) if frame[0].is_beside(&part) => frame.push(part),
                _ => frames.push(vec![part]),
            }
        }
        frames
    }

    /// Unpacks a frame to where its parts belong.
    fn unpack(&self, mut parts: Vec<Part<'_>>, memory: &mut Memory) -> Result<()> {
        let Some(Part { pack, frame, .. }) = parts.first() else {
            return Ok(());
        };
        let (of, frame) = (&self.packs[*pack as usize], *frame);
        let bytes = of.frame_bytes(frame);
        let wanted = parts.iter().map(|part| part.out.len()).sum();
        self.store.progress().add(wanted);
        if let [whole] = &mut parts[..]
            && whole.out.len() == bytes
        {
            return of.decode(frame, &mut memory.stored, whole.out);
        }
        of.frame_into(frame, &mut memory.stored, &mut memory.pages)?;
        for part in parts {
            let from = part.at..part.at + part.out.len();
            let contents = memory
                .pages
                .get(from)
                .ok_or_else(|| self.lacks(part.pack))?;
            part.out.copy_from_slice(contents);
        }
        Ok(())
    }

    /// Copies pages that are not patched, by all processors.
    pub(crate) fn read_each(&self, pieces: Vec<Piece<'_>>) -> Result<()> {
        let frames = self.frames_of(pieces);
        try_each(frames, 4, |frame, memory| self.unpack(frame, memory))
    }

    /// Copies pages that are not patched, by the calling thread alone: for several that read at the
    /// same time.
    pub(crate) fn read_alone(&self, pieces: Vec<Piece<'_>>, memory: &mut Memory) -> Result<()> {
        let frames = self.frames_of(pieces);
        let mut frames = frames.into_iter();
        frames.try_for_each(|frame| self.unpack(frame, memory))
    }

    /// Whole frames by all processors, to where they belong; parts of frames by way of the frame
    /// that is kept.
    fn read_plain(&mut self, pack: u32, place: u32, out: &mut [u8]) -> Result<()> {
        let page_size = self.pack(pack).page_size() as usize;
        let mut whole = Vec::new();
        let mut place = place;
        let mut rest = out;
        while !rest.is_empty() {
            let of = &self.packs[pack as usize];
            let (frame, at) = of.find(place);
            let frame_bytes = of.frame_bytes(frame);
            let count = frame_bytes.saturating_sub(at).min(rest.len());
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(count);
            rest = behind;
            self.store.progress().add(count);
            place += (count / page_size) as u32;
            if count == frame_bytes && count > 0 {
                whole.push((frame, part));
                continue;
            }
            if !of.read_uncompressed(frame, at, part)? {
                let contents = self.frame(pack, frame, at..at + count)?;
                part.copy_from_slice(&contents[at..at + count]);
            }
        }
        let of = &self.packs[pack as usize];
        let few = (PAGES_PER_THREAD / of.frame_pages()).max(1) as usize;
        try_each(whole, few, |(frame, part), stored: &mut Vec<u8>| {
            of.decode(frame, stored, part)
        })
    }

    /// The contents of a frame, of which the pages that have bytes of a part are checked.
    fn frame(&mut self, pack: u32, frame: u32, part: Range<usize>) -> Result<&[u8]> {
        let of = &self.packs[pack as usize];
        let is_it = |kept: &Kept| (kept.pack, kept.frame) == (pack, frame);
        let mut kept = match self.kept.iter().rposition(is_it) {
            Some(at) => self.kept.remove(at),
            None => None,
        };
        if kept.is_none() {
            let frame_bytes = of.frame_bytes(frame);
            let mut contents = Vec::new();
            let most = (self.kept_bytes / frame_bytes.max(1)).clamp(1, KEPT_MOST);
            while self.kept.len() >= most {
                contents = self.kept.pop_front().map_or(contents, |old| old.contents);
            }
            of.unpack(frame, &mut self.stored, &mut contents)?;
            let is_checked = vec![false; contents.len() / of.page_size() as usize];
            kept = Some(Kept {
                pack,
                frame,
                contents,
                is_checked,
            });
        }
        let mut kept = kept.ok_or_else(|| self.lacks(pack))?;
        let of = &self.packs[pack as usize];
        let page_size = of.page_size() as usize;
        let pages = part.start / page_size..part.end.div_ceil(page_size);
        let is_checked = kept.is_checked.get(pages.clone());
        if !is_checked.is_some_and(|all| all.iter().all(|one| *one)) {
            let bytes = pages.start * page_size..pages.end * page_size;
            let bytes = kept.contents.get(bytes).ok_or_else(|| self.lacks(pack))?;
            of.check_pages(frame, pages.start, bytes)?;
            kept.is_checked[pages].fill(true);
        }
        self.kept.push_back(kept);
        Ok(self.kept.back().map_or(&[], |kept| &kept.contents))
    }

    /// Puts a page together: what it is a patch of, and so on, then the patches, the oldest first.
    fn read_patched(&mut self, pack: u32, place: u32, page: &mut [u8]) -> Result<()> {
        let mut patches: Vec<(u32, u32, Patch)> = Vec::new();
        let (mut pack, mut place) = (pack, place);
        while place >= FIRST_PATCH {
            let of = self.pack(pack);
            let patch = of.patched.as_ref().and_then(|p| p.at(place)).cloned();
            let (Some(patch), Some((base, next_place))) = (patch, of.base_of(place)) else {
                return Err(self.lacks(pack));
            };
            let next = self.number(base)?;
            // Each is of fewer patches than the one before, down to none.
            if patches
                .last()
                .is_some_and(|(.., above)| above.depth != patch.depth + 1)
            {
                return Err(self.lacks(pack));
            }
            patches.push((pack, place, patch));
            (pack, place) = (next, next_place);
        }
        let fits = self.pack(pack).has(place, 1)
            && self.pack(pack).page_size() as usize == page.len()
            && patches.last().is_none_or(|(.., patch)| patch.depth == 1);
        if !fits {
            return Err(self.lacks(pack));
        }
        self.read_plain(pack, place, page)?;
        let mut data = Vec::new();
        for (pack, place, patch) in patches.iter().rev() {
            data.clear();
            while let Some((of, at, count)) =
                self.packs[*pack as usize].patch_bytes(*place, data.len() as u64)
            {
                let (frame, begin) = self.pack(*pack).find(of);
                let part = begin + at..begin + at + count;
                let contents = self.frame(*pack, frame, part.clone())?;
                data.extend_from_slice(&contents[part]);
            }
            patch.apply(&data, page);
        }
        Ok(())
    }

    fn lacks(&self, pack: u32) -> Error {
        Error::Damaged {
            object: Name::Pack(self.pack(pack).name).to_string(),
            reason: "a page that a patch is of is not as the patch has it".into(),
        }
    }

    /// Reads every frame of a pack, and of its patched pages those that are `needed`; gives the
    /// places of the pages that are not what they were, and the first reason.
    pub(crate) fn verify(&mut self, pack: u32, needed: &Places) -> (Places, Option<Error>) {
        let progress = self.store.progress();
        let (mut bad, mut reason) = self.packs[pack as usize].verify(progress);
        let mut page = vec![0; self.pack(pack).page_size() as usize];
        let there = Places::of(self.pack(pack));
        for place in needed.patches().intersection(&there).iter() {
            let outcome = self.read_patched(pack, place, &mut page).and_then(|()| {
                if Some(Hash::of(&page)) == self.pack(pack).hash_of(place)? {
                    return Ok(());
                }
                Err(Error::Damaged {
                    object: Name::Pack(self.pack(pack).name).to_string(),
                    reason: "a page of which only the changes were stored had others besides: \
                             the program wrote past the end of an object"
                        .into(),
                })
            });
            if let Err(error) = outcome {
                bad.add(place);
                reason.get_or_insert(error);
            }
        }
        (bad, reason)
    }
}
