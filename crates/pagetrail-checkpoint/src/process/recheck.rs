//! Memory that others may change as well: shared mappings, and the pages of private file mappings
//! that the process has not written, which show what the file holds. Such writes leave no trace in
//! this process, nor does its own `write(2)` to a file that it has mapped. So at each instant all
//! of this memory is read, and what differs from the checkpoint before is stored.
//!
//! What differs is found by hashes: reading and hashing takes less memory than a copy, and hardly
//! more time. Most of that is done once while the process runs, so that little is left to be copied
//! at the instant; reading it all once more is not spared.

use super::staging::Staging;
use crate::error::Result;
use crate::hash::Hash;
use crate::parallel::crew;
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

/// How pages are read.
pub(crate) type Read<'a> = dyn Fn(&[PageRange], &mut [u8]) -> Result<()> + Sync + 'a;

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
        crew(chunks.len(), 4, || -> Result<()> {
            let mut buffer = Vec::new();
            while let Some(ranges) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>();
                buffer.resize(bytes as usize, 0);
                read(ranges, &mut buffer)?;
                let contents: Vec<&[u8]> = buffer.chunks_exact(page_size() as usize).collect();
                let hashes = Hash::of_pages(&contents);
                let addresses = ranges
                    .iter()
                    .flat_map(|range| (range.start()..range.end()).step_by(page_size() as usize));
                let (mut of, mut kept, mut found) = (PageSet::new(), Vec::new(), Vec::new());
                for ((address, hash), page) in addresses.zip(hashes).zip(contents) {
                    if before.get(&address) != Some(&hash) {
                        of.extend(PageRange::new(address, address + page_size()));
                        kept.extend_from_slice(page);
                        found.push((address, hash));
                    }
                }
                if !found.is_empty() {
                    let mut all = differing.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push((of, kept, found));
                }
            }
            Ok(())
        })?;
        let mut count = 0;
        let differing = differing
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for (pages, bytes, found) in differing {
            count += found.len() as u64;
            self.0.extend(found);
            staging.add(pages, bytes);
        }
        Ok(count)
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
