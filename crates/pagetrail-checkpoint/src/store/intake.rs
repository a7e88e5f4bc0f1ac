//! Taking contents into a draft: what is there already is found by its hash, the rest goes to the
//! pack.
//!
//! Every processor takes a chunk at a time and does all of it: reads and hashes the pages, looks
//! them up, compresses what is new, writes it. Looking up and writing are done in the order of the
//! chunks, each by one thread at a time, while others read, hash and compress theirs; a chunk is
//! small enough to stay in a processor's cache meanwhile.

use super::known::Known;
use super::writer::Draft;
use crate::error::{Error, Result};
use crate::format::pack_writer::{Frames, Gather, Parcel};
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use crate::parallel::{InOrder, on_threads};
use pagetrail::PageRange;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much is taken in at a time, in bytes: half of a usual second-level cache.
const CHUNK_BYTES: u64 = 1 << 20;

/// Page ranges in chunks of a size to be taken in at a time, in their order.
pub(crate) fn chunks(ranges: &[PageRange], page_size: u64) -> Vec<Vec<PageRange>> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    let chunk_bytes = CHUNK_BYTES.max(page_size);
    let mut room = chunk_bytes;
    for range in ranges {
        let mut start = range.start();
        while let Some(part) = PageRange::new(start, range.end().min(start + room)) {
            chunk.push(part);
            room -= part.bytes();
            start = part.end();
            if room == 0 {
                chunks.push(std::mem::take(&mut chunk));
                room = chunk_bytes;
            }
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

impl Draft<'_> {
    /// Puts the contents of whole pages, range after range. A page that was put before gets the
    /// new contents.
    ///
    /// # Errors
    ///
    /// The storage fails; the draft is of no more use.
    pub fn put(&mut self, ranges: &[PageRange], contents: &[u8]) -> Result<()> {
        let chunks = chunks(ranges, self.page_size.into());
        let mut ends = Vec::with_capacity(chunks.len());
        let mut end = 0;
        for chunk in &chunks {
            end += chunk.iter().map(PageRange::bytes).sum::<u64>() as usize;
            ends.push(end);
        }
        self.put_each(&chunks, |at, _| {
            let from = at.checked_sub(1).map_or(0, |before| ends[before]);
            Ok(Some(&contents[from..ends[at]]))
        })
    }

    /// Puts chunks of pages, no page twice. `contents` fills the buffer with those of the chunk
    /// numbered, or says where they are; several threads call it.
    pub(crate) fn put_each<'c>(
        &mut self,
        chunks: &[Vec<PageRange>],
        contents: impl Fn(usize, &mut Vec<u8>) -> Result<Option<&'c [u8]>> + Sync,
    ) -> Result<()> {
        let page_size = self.page_size as usize;
        let free = self.superseded(chunks);
        let (writer, pack) = (&mut *self.writer, &mut self.pack);
        let (storage, packing) = (writer.store.storage(), pack.packing);
        let progress = writer.store.progress();
        let lookup = InOrder::new(Lookup {
            known: &mut writer.known,
            gather: &mut pack.gather,
            free,
            runs: Vec::new(),
        });
        let frames = InOrder::new(&mut pack.frames);
        let next = AtomicUsize::new(0);
        on_threads(chunks.len(), 2, || -> Result<()> {
            let mut buffer = Vec::new();
            let leaving = (lookup.leaving(), frames.leaving());
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(ranges) = chunks.get(at) else {
                    std::mem::forget(leaving);
                    return Ok(());
                };
                let elsewhere = contents(at, &mut buffer)?;
                let bytes = elsewhere.unwrap_or(&buffer);
                progress.add(bytes.len());
                let hashed = Hashed::new(bytes, page_size);
                let parcel = lookup.pass(at, |lookup| lookup.take(ranges, &hashed));
                let packed = parcel.map(|(parcel, replaced)| (parcel.pack(packing), replaced));
                let written = packed.and_then(|(packed, replaced)| {
                    frames.pass(at, |frames: &mut &mut Frames| {
                        frames.append(&packed, storage)?;
                        frames.rewrite(&replaced, packing)
                    })
                });
                match written {
                    // Another thread has failed, and says why.
                    None => return Ok(()),
                    Some(outcome) => outcome
                        .map_err(Error::io(format!("cannot write to {}", storage.place())))?,
                }
            }
        })?;
        let mut runs = lookup.into_inner().runs;
        runs.sort_by_key(|run| run.start);
        let mut batch = PageMap::new(page_size as u64);
        runs.into_iter().for_each(|run| batch.push(run));
        self.staged.overlay(&batch);
        Ok(())
    }
}

/// The pages of a chunk with their hashes, `None` for pages of zeros.
struct Hashed<'a> {
    bytes: &'a [u8],
    page_size: usize,
    hashes: Vec<Option<Hash>>,
}

impl<'a> Hashed<'a> {
    fn new(bytes: &'a [u8], page_size: usize) -> Self {
        let pages = || bytes.chunks_exact(page_size);
        let zero: Vec<bool> = pages().map(is_zero).collect();
        let others = pages().zip(&zero).filter(|(_, zero)| !**zero);
        let others: Vec<&[u8]> = others.map(|(page, _)| page).collect();
        let mut hashes = Hash::of_pages(&others).into_iter();
        let hashes = zero.iter().map(|zero| match zero {
            true => None,
            false => hashes.next(),
        });
        Self {
            bytes,
            page_size,
            hashes: hashes.collect(),
        }
    }
}

/// Where contents are, and what is known of the pages so far.
struct Lookup<'d> {
    known: &'d mut Known,
    gather: &'d mut Gather,
    /// Places of pages that nothing needs any more.
    free: BTreeSet<u32>,
    runs: Vec<Run>,
}

/// Contents to be put in the places of others.
type Replaced<'a> = Vec<(u32, &'a [u8])>;

impl Lookup<'_> {
    /// Finds a place for each page; gives the contents that are new, and those that take a place
    /// that is free.
    fn take<'a>(
        &mut self,
        ranges: &[PageRange],
        hashed: &Hashed<'a>,
    ) -> (Parcel<'a>, Replaced<'a>) {
        let page_size = hashed.page_size;
        let addresses = ranges
            .iter()
            .flat_map(|range| (range.start()..range.end()).step_by(page_size));
        // New pages that are neighbours are one piece.
        let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
        let mut replaced = Vec::new();
        for ((start, hash), at) in addresses.zip(&hashed.hashes).zip((0..).step_by(page_size)) {
            let source = match hash {
                None => Source::Zero,
                Some(hash) => {
                    let found = self.known.find(hash, &self.gather.pages);
                    if let Some(Source::Stored { pack, page }) = found
                        && pack == self.known.next()
                    {
                        self.free.remove(&page);
                    }
                    found.unwrap_or_else(|| {
                        if let Some(place) = self.free.pop_first() {
                            replaced.push((place, &hashed.bytes[at..at + page_size]));
                            return self.replace(place, *hash);
                        }
                        match pieces.last_mut() {
                            Some(piece) if piece.end == at => piece.end += page_size,
                            _ => pieces.push(at..at + page_size),
                        }
                        self.expect(*hash)
                    })
                }
            };
            let pages = 1;
            self.runs.push(Run {
                start,
                pages,
                source,
            });
        }
        let pieces = pieces.into_iter().map(|piece| &hashed.bytes[piece]);
        (self.gather.add(pieces.collect()), replaced)
    }

    /// Puts another page in a place.
    fn replace(&mut self, place: u32, hash: Hash) -> Source {
        let before = std::mem::replace(&mut self.gather.pages[place as usize], hash);
        self.known.forget_at(&before, place);
        self.known.expect(hash, place);
        Source::Stored {
            pack: self.known.next(),
            page: place,
        }
    }

    fn expect(&mut self, hash: Hash) -> Source {
        let page = self.gather.pages.len() as u32;
        self.gather.pages.push(hash);
        self.known.expect(hash, page);
        Source::Stored {
            pack: self.known.next(),
            page,
        }
    }
}

/// Whether all bytes are zero, found out a word at a time.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64)
        .all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::PageSet;

    #[test]
    fn chunks_are_the_pages_in_order_and_not_too_large() {
        let page = 4096;
        let mut random = fastrand::Rng::with_seed(5);
        let pages: PageSet = (0..300)
            .filter_map(|_| {
                let start = random.u64(0..10_000);
                PageRange::new(start * page, (start + random.u64(1..2000)) * page)
            })
            .collect();
        let chunks = chunks(pages.ranges(), page);
        let all: PageSet = chunks.iter().flatten().copied().collect();
        assert_eq!(all, pages);
        let bytes = |chunk: &Vec<PageRange>| chunk.iter().map(PageRange::bytes).sum::<u64>();
        assert_eq!(chunks.iter().map(bytes).sum::<u64>(), pages.bytes());
        assert!(chunks.iter().all(|chunk| bytes(chunk) <= CHUNK_BYTES));
    }
}
