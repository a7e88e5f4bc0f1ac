//! Compacting a pack before it is published: pages that nothing needs any more leave it.
//!
//! Frames follow each other without gaps, so a page in a compressed frame cannot be replaced where
//! it lies. Where much of a pack is superseded it is written once more: pages from its end come to
//! the places of those that leave, and a frame in which nothing changes is copied as it is. The
//! pack is there unchanged until all of that has succeeded.

use super::{Frames, PackWriter, Packed, Packing, Parcel};
use crate::format::codec::{self, RAW};
use crate::format::index::{Frame, HEADER_BYTES};
use crate::format::wire::Malformed;
use crate::hash::Hash;
use crate::parallel::{InOrder, on_threads};
use crate::storage::{Object, Storage};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// How much a thread takes at a time, in bytes of pages.
const GROUP_BYTES: usize = 1 << 20;

/// Pages that got other places: from where, to where; both ascending.
pub(crate) type Moves = Vec<(u32, u32)>;

/// Which pages leave, and which come to their places.
struct Plan {
    /// How many pages stay.
    kept: u32,
    moves: Moves,
}

impl Plan {
    /// `dead`: the places of pages that nothing needs, ascending.
    fn new(pages: u32, dead: &[u32]) -> Self {
        let kept = pages - dead.len() as u32;
        let (holes, gone) = dead.split_at(dead.partition_point(|place| *place < kept));
        let mut gone = gone.iter().copied().peekable();
        let movers = (kept..pages).filter(|place| gone.next_if_eq(place).is_none());
        Self {
            kept,
            moves: movers.zip(holes.iter().copied()).collect(),
        }
    }

    /// The moves into some places.
    fn moves_to(&self, places: Range<u32>) -> &[(u32, u32)] {
        let before = |end| self.moves.partition_point(|(_, to)| *to < end);
        &self.moves[before(places.start)..before(places.end)]
    }
}

/// A pack as it was written so far.
struct Written<'a> {
    /// `None` where there are no frames.
    object: Option<&'a dyn Object>,
    frames: &'a [Frame],
    /// The pages of the last frame, which is not full.
    rest: &'a [u8],
    packing: Packing,
}

impl Written<'_> {
    /// The stored bytes of some frames, which follow each other.
    fn stored(&self, frames: &[Frame]) -> io::Result<Vec<u8>> {
        let bytes = frames.iter().map(|frame| frame.stored_bytes as usize).sum();
        let mut stored = vec![0; bytes];
        if let Some(first) = frames.first() {
            let object = self.object.ok_or(ErrorKind::Unsupported)?;
            object.read_at(first.offset, &mut stored)?;
        }
        Ok(stored)
    }

    /// The pages of a frame.
    fn pages(&self, frame: u32, out: &mut Vec<u8>) -> io::Result<()> {
        match self.frames.get(frame as usize..=frame as usize) {
            Some(frames) => self.unpack(&frames[0], &self.stored(frames)?, out),
            None => {
                out.clear();
                out.extend_from_slice(self.rest);
                Ok(())
            }
        }
    }

    fn unpack(&self, frame: &Frame, stored: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        // Every frame that was written is full.
        out.resize(self.packing.frame_bytes(), 0);
        if frame.codec != RAW && Hash::of(stored) != frame.hash {
            let reason = "what was written a moment ago reads differently";
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
        let unpacked = codec::decompress(frame.codec, stored, out);
        unpacked.map_err(|Malformed(reason)| io::Error::new(ErrorKind::InvalidData, reason))
    }

    /// Makes some frames anew, `frames` of the new pack; gives besides the pages of the last one if
    /// it is not full.
    fn remake(&self, plan: &Plan, frames: Range<u32>) -> io::Result<(Packed<'static>, Vec<u8>)> {
        let Packing {
            page_size,
            frame_pages,
            ..
        } = self.packing;
        let page_size = page_size as usize;
        let there = self.frames.len().min(frames.end as usize);
        let old = &self.frames[there.min(frames.start as usize)..there];
        let stored = self.stored(old)?;
        let (mut packed, mut rest) = (Packed::default(), Vec::new());
        let (mut pages, mut moved, mut moved_from) = (Vec::new(), Vec::new(), None);
        let mut at = 0;
        for number in frames.clone() {
            let bytes = match old.get((number - frames.start) as usize) {
                Some(frame) => &stored[at..at + frame.stored_bytes as usize],
                None => &[],
            };
            at += bytes.len();
            let first = number * frame_pages;
            let count = frame_pages.min(plan.kept - first);
            let moves = plan.moves_to(first..first + count);
            match old.get((number - frames.start) as usize) {
                Some(frame) if moves.is_empty() && count == frame_pages => {
                    packed.frames.push(*frame);
                    packed.head.extend_from_slice(bytes);
                    continue;
                }
                Some(frame) => self.unpack(frame, bytes, &mut pages)?,
                None => self.pages(number, &mut pages)?,
            }
            for &(from, to) in moves {
                if moved_from != Some(from / frame_pages) {
                    self.pages(from / frame_pages, &mut moved)?;
                    moved_from = Some(from / frame_pages);
                }
                let from = (from % frame_pages) as usize * page_size;
                let to = (to % frame_pages) as usize * page_size;
                pages[to..to + page_size].copy_from_slice(&moved[from..from + page_size]);
            }
            pages.truncate(count as usize * page_size);
            if count < frame_pages {
                rest = std::mem::take(&mut pages);
                continue;
            }
            let parcel = Parcel {
                head: Vec::new(),
                pieces: vec![&pages],
            };
            packed.extend(&parcel.pack(self.packing));
        }
        Ok((packed, rest))
    }

    /// Makes all frames anew, on all processors; gives the pages of the last one if it is not full.
    fn remake_all(
        &self,
        plan: &Plan,
        anew: &mut Frames,
        storage: &dyn Storage,
    ) -> io::Result<Vec<u8>> {
        let frames = plan.kept.div_ceil(self.packing.frame_pages);
        let group = (GROUP_BYTES / self.packing.frame_bytes()).max(1) as u32;
        let groups = frames.div_ceil(group);
        let out = InOrder::new((anew, Vec::new()));
        let next = AtomicU32::new(0);
        on_threads(groups as usize, 2, || -> io::Result<()> {
            let leaving = out.leaving();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= groups {
                    std::mem::forget(leaving);
                    return Ok(());
                }
                let group = at * group..frames.min((at + 1) * group);
                let (packed, rest) = self.remake(plan, group)?;
                let append = |(anew, last): &mut (&mut Frames, Vec<u8>)| {
                    last.extend(rest);
                    anew.append(&packed, storage)
                };
                match out.pass(at as usize, append) {
                    Some(outcome) => outcome?,
                    // Another thread has failed, and says why.
                    None => return Ok(()),
                }
            }
        })?;
        Ok(out.into_inner().1)
    }
}

impl Packed<'_> {
    fn extend(&mut self, other: &Packed<'_>) {
        self.frames.extend(&other.frames);
        self.head.extend_from_slice(&other.head);
        other
            .pieces
            .iter()
            .for_each(|piece| self.head.extend_from_slice(piece));
    }
}

impl PackWriter {
    /// Writes the pack once more without the pages at the places `dead`, ascending; tells which
    /// pages got other places. `None`, and nothing has happened, where the storage cannot read what
    /// is not published yet, or has no room.
    ///
    /// # Errors
    ///
    /// The storage fails.
    pub(crate) fn compact(
        &mut self,
        dead: &[u32],
        storage: &dyn Storage,
    ) -> io::Result<Option<Moves>> {
        let plan = Plan::new(self.gather.pages.len() as u32, dead);
        let object = match &self.frames.draft {
            None => None,
            Some(draft) => match draft.written() {
                None => return Ok(None),
                object => object,
            },
        };
        let written = Written {
            object,
            frames: &self.frames.written,
            rest: &self.gather.rest,
            packing: self.packing,
        };
        let mut anew = Frames {
            written: Vec::new(),
            offset: HEADER_BYTES,
            draft: None,
            header: self.frames.header.clone(),
        };
        let rest = match written.remake_all(&plan, &mut anew, storage) {
            Err(error) if is_lack_of_room(&error) => return Ok(None),
            outcome => outcome?,
        };
        self.frames = anew;
        self.gather.rest = rest;
        let pages = &mut self.gather.pages;
        plan.moves
            .iter()
            .for_each(|&(from, to)| pages[to as usize] = pages[from as usize]);
        pages.truncate(plan.kept as usize);
        Ok(Some(plan.moves))
    }
}

fn is_lack_of_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::codec::Compression;
    use crate::format::pack::Pack;
    use crate::storage::InMemory;
    use std::collections::BTreeMap;

    #[test]
    fn pages_from_the_end_come_to_the_places_of_those_that_leave() {
        let plan = Plan::new(10, &[1, 4, 7, 9]);
        assert_eq!((plan.kept, &plan.moves[..]), (6, &[(6, 1), (8, 4)][..]));
        assert_eq!(plan.moves_to(2..6), &[(8, 4)]);
        let none = Plan::new(3, &[0, 1, 2]);
        assert_eq!((none.kept, none.moves.len()), (0, 0));
        let end = Plan::new(5, &[3, 4]);
        assert_eq!((end.kept, end.moves.len()), (3, 0));
    }

    fn page(random: &mut fastrand::Rng) -> Vec<u8> {
        let mut page = vec![random.u8(..); 4096];
        if random.bool() {
            random.fill(&mut page);
        }
        page
    }

    #[test]
    fn what_stays_is_as_it_was_whatever_leaves() {
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let compression = [Compression::None, Compression::Lz4][random.usize(0..2)];
            let storage = InMemory::new();
            let mut writer = PackWriter::new(4096, random.u32(1..20), compression);
            let count = random.usize(1..800);
            let contents: Vec<Vec<u8>> = (0..count).map(|_| page(&mut random)).collect();
            for page in &contents {
                writer.push(page, Hash::of(page), &storage).unwrap();
            }
            let share = random.f64();
            let dead: Vec<u32> = (0..count as u32).filter(|_| random.f64() < share).collect();
            let moves = writer.compact(&dead, &storage).unwrap().unwrap();
            let mut expected: BTreeMap<u32, &Vec<u8>> = (0..).zip(&contents).collect();
            expected.retain(|place, _| dead.binary_search(place).is_err());
            for (from, to) in moves {
                let page = expected.remove(&from).unwrap();
                assert!(expected.insert(to, page).is_none(), "seed {seed}");
            }
            // Others may come after it.
            let more = page(&mut random);
            let place = writer.push(&more, Hash::of(&more), &storage).unwrap();
            expected.insert(place, &more);
            let index = writer.publish(&storage).unwrap().unwrap();
            assert_eq!(index.pages.len(), expected.len(), "seed {seed}");
            let pack = Pack::open(&storage, index.name).unwrap();
            let (mut stored, mut pages) = (Vec::new(), Vec::new());
            for (place, contents) in expected {
                let (frame, at) = pack.find(place);
                pack.frame_into(frame, &mut stored, &mut pages).unwrap();
                assert!(pages[at..at + 4096] == **contents, "seed {seed}");
            }
        }
    }
}
