//! Memory that others may change as well: shared mappings, and the pages of private file mappings
//! that the process has not written, which show what the file holds. Such writes leave no trace in
//! this process, nor does its own `write(2)` to a file that it has mapped. So at each instant all
//! of this memory is read, and what differs from the checkpoint before is stored.
//!
//! What differs is found by hashes: reading and hashing takes less memory than a copy, and hardly
//! more time. Most of that is done once while the process runs, so that little is left to be copied
//! at the instant; reading it all once more is not spared. What several processes of a tree have is
//! read once for all ([`Common`]).

use super::common::{Common, Contents, Piece};
use super::staging::Staging;
use crate::error::Result;
use crate::hash::Hash;
use crate::parallel::on_threads;
use crate::store::intake::chunks;
use crate::store::writer::Draft;
use pagetrail::{PageRange, PageSet, page_size};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Chunks that are looked at before what differs is taken in.
const CHUNKS: usize = 64;

/// What the last checkpoint has of all memory that is read again at each instant.
#[derive(Debug, Default)]
pub(crate) struct Rechecked {
    /// Memory that others may write to.
    pub(crate) shared: Seen,
    /// Pages of private mappings that are as in a file.
    pub(crate) in_files: Seen,
    /// Shared memory that no mapping of the image shows.
    pub(crate) apart: Seen,
}

impl Rechecked {
    /// Forgets pages at which something else has come.
    pub(crate) fn forget(&mut self, pages: &PageSet) {
        self.shared.forget(pages);
        self.in_files.forget(pages);
    }
}

/// How pages are read; gives those that cannot be, which are zeros then.
pub(crate) type Read<'a> = dyn Fn(&[PageRange], &mut [u8]) -> Result<PageSet> + Sync + 'a;

/// Pages that others may change, with the hashes of what was staged or stored of them last.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashMap<u64, Hash>);

impl Seen {
    /// Forgets pages at which something else has come.
    pub(crate) fn forget(&mut self, pages: &PageSet) {
        if !pages.is_empty() {
            self.0.retain(|address, _| !pages.contains(*address));
        }
    }

    /// Forgets all pages but these.
    pub(crate) fn retain(&mut self, pages: &PageSet) {
        self.0.retain(|address, _| pages.contains(*address));
    }

    /// Reads all of `pages` by `read`, stages those that are not as they were seen, and says how
    /// many these are. What memory does not suffice for goes to the draft.
    pub(crate) fn look(
        &mut self,
        read: &Read<'_>,
        pages: &PageSet,
        staging: &mut Staging,
        draft: &mut Draft<'_>,
    ) -> Result<u64> {
        let mut count = 0;
        for chunks in chunks(pages.ranges(), page_size()).chunks(CHUNKS) {
            count += self.look_at(read, chunks, staging)?;
            staging.relieve(draft)?;
        }
        Ok(count)
    }

    fn look_at(
        &mut self,
        read: &Read<'_>,
        chunks: &[Vec<PageRange>],
        staging: &mut Staging,
    ) -> Result<u64> {
        let next = AtomicUsize::new(0);
        let differing = Mutex::new(Vec::new());
        let before = &self.0;
        on_threads(chunks.len(), 4, || -> Result<()> {
            let mut buffer = Vec::new();
            while let Some(ranges) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>();
                buffer.resize(bytes as usize, 0);
                read(ranges, &mut buffer)?;
                let mut found = Differing::default();
                let addresses = ranges
                    .iter()
                    .flat_map(|range| (range.start()..range.end()).step_by(page_size() as usize));
                let hashed = hashed(&buffer);
                for (address, (page, hash)) in addresses.zip(hashed) {
                    found.compare(before, address, hash, page);
                }
                found.add_to(&differing);
            }
            Ok(())
        })?;
        Ok(self.take(differing, staging))
    }

    /// Looks at memory that other processes have as well: what one of them has read, the others do
    /// not read again. Stages those pages that are not as they were seen, and says how many these
    /// are.
    pub(crate) fn look_together(
        &mut self,
        read: &Read<'_>,
        pieces: &[Piece],
        common: &Common,
        staging: &mut Staging,
        draft: &mut Draft<'_>,
    ) -> Result<u64> {
        let (mut count, mut of_others) = (0, Vec::new());
        for pieces in pieces.chunks(CHUNKS) {
            count += self.look_first(read, pieces, common, staging, &mut of_others)?;
            staging.relieve(draft)?;
        }
        let mut rest = PageSet::new();
        for pieces in of_others.chunks(CHUNKS) {
            let all = Mutex::default();
            for piece in pieces {
                let contents = common.wait(piece.block).unwrap_or_default();
                let mut found = Differing::default();
                for (address, number) in piece.pages() {
                    match (contents.hash(number), contents.page(number)) {
                        (Some(hash), _) if self.0.get(&address) == Some(&hash) => {}
                        (Some(hash), Some(page)) => found.add(address, hash, page),
                        // It was not read, or is new only to this process.
                        _ => rest.extend(PageRange::new(address, address + page_size())),
                    }
                }
                found.add_to(&all);
            }
            count += self.take(all, staging);
            staging.relieve(draft)?;
        }
        Ok(count + self.look(read, &rest, staging, draft)?)
    }

    /// Reads the pieces that nobody else has read; gives the others to `of_others`.
    fn look_first<'piece>(
        &mut self,
        read: &Read<'_>,
        pieces: &'piece [Piece],
        common: &Common,
        staging: &mut Staging,
        of_others: &mut Vec<&'piece Piece>,
    ) -> Result<u64> {
        let next = AtomicUsize::new(0);
        let (differing, left) = (Mutex::default(), Mutex::new(Vec::new()));
        let before = &self.0;
        on_threads(pieces.len(), 4, || -> Result<()> {
            let mut buffer = Vec::new();
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(claim) = common.claim(piece.block) else {
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    left.push(piece);
                    continue;
                };
                let ranges = piece.ranges();
                let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>();
                buffer.resize(bytes as usize, 0);
                let unreadable = read(&ranges, &mut buffer)?;
                let (mut found, mut contents) = (Differing::default(), Contents::default());
                for ((address, number), (page, hash)) in piece.pages().zip(hashed(&buffer)) {
                    let differs = found.compare(before, address, hash, page);
                    // Another may be able to read it.
                    if unreadable.contains(address) {
                        continue;
                    }
                    let is_left = differs && claim.take_room(page_size());
                    contents.note(number, hash, is_left.then_some(page));
                }
                claim.leave(contents);
                found.add_to(&differing);
            }
            Ok(())
        })?;
        of_others.extend(left.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(self.take(differing, staging))
    }

    /// Notes and stages what differs; says how many pages these are.
    fn take(&mut self, differing: Mutex<Vec<Differing>>, staging: &mut Staging) -> u64 {
        let mut count = 0;
        let differing = differing.into_inner();
        for found in differing.unwrap_or_else(PoisonError::into_inner) {
            count += found.hashes.len() as u64;
            self.0.extend(found.hashes);
            staging.add(found.pages, found.bytes);
        }
        count
    }

    /// Drops all pages but these, which are all there are; gives the others.
    pub(crate) fn keep(&mut self, pages: &PageSet) -> PageSet {
        let gone = self.0.keys().filter(|address| !pages.contains(**address));
        let mut gone: Vec<u64> = gone.copied().collect();
        gone.sort_unstable();
        self.0.retain(|address, _| pages.contains(*address));
        let ranges = gone
            .into_iter()
            .filter_map(|address| PageRange::new(address, address + page_size()));
        ranges.collect()
    }
}

/// The pages of a buffer with their hashes.
fn hashed(buffer: &[u8]) -> impl Iterator<Item = (&[u8], Hash)> {
    let pages: Vec<&[u8]> = buffer.chunks_exact(page_size() as usize).collect();
    let hashes = Hash::of_pages(&pages);
    pages.into_iter().zip(hashes)
}

/// Pages that are not as they were seen, ascending, with their contents.
#[derive(Default)]
struct Differing {
    pages: PageSet,
    bytes: Vec<u8>,
    hashes: Vec<(u64, Hash)>,
}

impl Differing {
    /// Adds a page unless it is as it was seen; whether it was added.
    fn compare(
        &mut self,
        before: &HashMap<u64, Hash>,
        address: u64,
        hash: Hash,
        page: &[u8],
    ) -> bool {
        let differs = before.get(&address) != Some(&hash);
        if differs {
            self.add(address, hash, page);
        }
        differs
    }

    fn add(&mut self, address: u64, hash: Hash, page: &[u8]) {
        self.pages
            .extend(PageRange::new(address, address + page_size()));
        self.bytes.extend_from_slice(page);
        self.hashes.push((address, hash));
    }

    fn add_to(self, all: &Mutex<Vec<Self>>) {
        if !self.hashes.is_empty() {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::common::{self, identity::Devices};
    use crate::storage::InMemory;
    use crate::store::Store;
    use crate::store::writer::WriterOptions;
    use pagetrail::{Permissions, Region};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    const PAGES: u64 = 700;

    /// Memory that two processes have, at addresses of their own.
    struct Shared {
        contents: Vec<u8>,
        reads: AtomicU64,
    }

    impl Shared {
        /// Reads a process's mapping, which begins at an address.
        fn read(&self, start: u64) -> impl Fn(&[PageRange], &mut [u8]) -> Result<PageSet> + '_ {
            move |ranges, buffer| {
                let mut at = 0;
                for range in ranges {
                    let (from, length) = (range.start() - start, range.bytes() as usize);
                    let from = from as usize;
                    buffer[at..at + length].copy_from_slice(&self.contents[from..from + length]);
                    at += length;
                    self.reads.fetch_add(range.page_count(), Ordering::Relaxed);
                }
                Ok(PageSet::new())
            }
        }

        fn change(&mut self, page: u64, byte: u8) {
            self.contents[(page * page_size()) as usize] = byte;
        }
    }

    /// What a process has seen, and where it has the memory.
    struct Process {
        seen: Seen,
        start: u64,
    }

    impl Process {
        fn new(start: u64) -> Self {
            let seen = Seen::default();
            Self { seen, start }
        }

        /// How many pages differ; all that was seen is as the memory is after this.
        fn look(&mut self, shared: &Shared, common: &Common) -> u64 {
            let end = self.start + PAGES * page_size();
            let range = PageRange::new(self.start, end).unwrap();
            let permissions = Permissions {
                read: true,
                write: true,
                execute: false,
                shared: true,
            };
            let mut region = Region::new(range, permissions);
            (region.device, region.inode) = ((8, 1), 5);
            let contents = PageSet::from_iter([range]);
            let devices = Devices::of_file_systems([(8, 1)]);
            let (pieces, rest) = common::pieces(&[region], &contents, &devices);
            assert!(rest.is_empty());
            let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
            let mut writer = store.writer(WriterOptions::default()).unwrap();
            let mut draft = writer.draft(page_size() as u32);
            let mut staging = Staging::new(u64::MAX);
            let read = shared.read(self.start);
            let looked = self
                .seen
                .look_together(&read, &pieces, common, &mut staging, &mut draft);
            for (page, contents) in (0..).zip(shared.contents.chunks(page_size() as usize)) {
                let address = self.start + page * page_size();
                assert_eq!(
                    self.seen.0.get(&address),
                    Some(&Hash::of_pages(&[contents])[0])
                );
            }
            looked.unwrap()
        }
    }

    #[test]
    fn what_one_process_has_read_another_does_not_read_again() {
        let mut shared = Shared {
            contents: vec![3; (PAGES * page_size()) as usize],
            reads: AtomicU64::new(0),
        };
        let mut processes = [Process::new(0x1000_0000), Process::new(0x2000_3000)];
        let mut look = |shared: &Shared, room| {
            let common = Common::new(room);
            let before = shared.reads.load(Ordering::Relaxed);
            let looked = processes
                .each_mut()
                .map(|process| process.look(shared, &common));
            (looked, shared.reads.load(Ordering::Relaxed) - before)
        };
        assert_eq!(look(&shared, u64::MAX), ([PAGES, PAGES], PAGES));
        // What is new to both is left by the first.
        shared.change(300, 7);
        assert_eq!(look(&shared, u64::MAX), ([1, 1], PAGES));
        // Where there is no room for it, the second reads it, and nothing else.
        shared.change(301, 7);
        assert_eq!(look(&shared, 0), ([1, 1], PAGES + 1));
        assert_eq!(look(&shared, 0), ([0, 0], PAGES));
    }

    #[test]
    fn what_is_new_to_the_second_process_alone_it_reads() {
        let mut shared = Shared {
            contents: vec![3; (PAGES * page_size()) as usize],
            reads: AtomicU64::new(0),
        };
        let (mut first, mut second) = (Process::new(0x1000_0000), Process::new(0x2000_0000));
        first.look(&shared, &Common::new(u64::MAX));
        second.look(&shared, &Common::new(u64::MAX));
        shared.change(9, 1);
        assert_eq!(first.look(&shared, &Common::new(u64::MAX)), 1);
        let common = Common::new(u64::MAX);
        assert_eq!(first.look(&shared, &common), 0);
        assert_eq!(second.look(&shared, &common), 1);
    }
}
