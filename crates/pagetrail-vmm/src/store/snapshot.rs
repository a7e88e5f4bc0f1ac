//! [`Snapshots`] and [`Snapshot`]: increments of a guest's memory, copied while the guest runs and
//! completed while it stands still.

use crate::error::{Error, Result};
use crate::pages::{DirtyPages, DirtyRange};
use crate::regions::{Regions, guest_pages};
use crate::sys::memory::Region;
use crate::tracker::{Consumer, Round};
use pagetrail::{PageRange, Permissions, page_size};
use pagetrail_checkpoint::{Cost, Description, Draft, Manifest, Mapping, Writer};
use std::time::Instant;

/// How much is copied at a time, in bytes.
const COPY_BYTES_MAX: u64 = 8 << 20;

/// Takes snapshots of a guest's memory.
#[derive(Debug)]
pub struct Snapshots {
    writer: Writer,
    consumer: Consumer,
}

impl Snapshots {
    /// Takes snapshots with the pages of a consumer, which has this as its only use.
    ///
    /// The first snapshot of a writer is a base: it reads all memory, whatever the consumer says.
    pub fn new(writer: Writer, consumer: Consumer) -> Self {
        Self { writer, consumer }
    }

    /// Begins a snapshot.
    ///
    /// # Errors
    ///
    /// The store cannot be written to.
    pub fn begin(&mut self) -> Result<Snapshot<'_>> {
        self.writer.catch_up()?;
        let draft = self.writer.draft(page_size() as u32);
        Ok(Snapshot {
            needs_everything: draft.is_base(),
            draft,
            consumer: &self.consumer,
            rounds: Vec::new(),
            copied_pages: 0,
            began: Instant::now(),
        })
    }

    /// Takes a snapshot of a guest that stands still.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::copy`] and [`Snapshot::publish`]; the next snapshot has everything.
    pub fn take(&mut self) -> Result<Manifest> {
        let mut snapshot = self.begin()?;
        snapshot.copy()?;
        snapshot.publish()
    }

    /// The writer, to prune, say.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }
}

/// A snapshot that is being taken. If it is dropped instead of published, the store is as it was,
/// and the pages are in the next snapshot.
pub struct Snapshot<'a> {
    draft: Draft<'a>,
    consumer: &'a Consumer,
    /// Rounds whose pages are in the draft; they are committed with it.
    rounds: Vec<Round>,
    needs_everything: bool,
    copied_pages: u64,
    began: Instant,
}

impl std::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("rounds", &self.rounds.len())
            .field("copied_pages", &self.copied_pages)
            .finish_non_exhaustive()
    }
}

impl Snapshot<'_> {
    /// Copies what was written since the last copy; returns how many pages. Call it while the guest
    /// runs, as long as that makes the numbers fall, and a last time while the guest stands still:
    /// the vCPUs outside `KVM_RUN`, devices at rest. Then the guest may go on.
    ///
    /// Memory that is being restored by another thread ([`LazyRestore`](super::LazyRestore)) is
    /// waited for.
    ///
    /// # Errors
    ///
    /// A log or the store fails: drop the snapshot.
    pub fn copy(&mut self) -> Result<u64> {
        let round = self.consumer.collect()?;
        let everything = self.needs_everything;
        let all = everything.then(|| DirtyPages::all_of(round.regions()));
        let copied = self.put(round.regions(), all.as_ref().unwrap_or(round.dirty()));
        // Even if only a part was put: it is given back with the others.
        self.rounds.push(round);
        let pages = copied?;
        self.needs_everything = false;
        self.copied_pages += pages;
        Ok(pages)
    }

    fn put(&mut self, regions: &Regions, dirty: &DirtyPages) -> Result<u64> {
        let mut batch = Batch::default();
        let mut copied = 0;
        for region in regions {
            let bitmap = dirty.of_slot(region.slot());
            for pages in bitmap.into_iter().flat_map(|bitmap| bitmap.ranges()) {
                copied += pages.end - pages.start;
                let range = DirtyRange::new(region, pages);
                let end = range.region_offset + range.bytes;
                let mut offset = range.region_offset;
                while offset < end {
                    let bytes = batch.room().min(end - offset);
                    batch.add(region, offset, bytes);
                    offset += bytes;
                    if batch.room() == 0 {
                        batch.put(&mut self.draft)?;
                    }
                }
            }
        }
        batch.put(&mut self.draft)?;
        Ok(copied)
    }

    /// Makes it a checkpoint of the store. When this returns it survives a loss of power.
    ///
    /// # Errors
    ///
    /// Nothing was copied, or the store fails; the next snapshot has all pages of this one.
    pub fn publish(self) -> Result<Manifest> {
        let Some(last) = self.rounds.last() else {
            let reason = "nothing was copied for this snapshot";
            return Err(Error::Refused(reason.into()));
        };
        let manifest = self.draft.publish(Description {
            process: None,
            mappings: last.regions().iter().map(mapping).collect(),
            cost: Cost {
                copied_pages: self.copied_pages,
                ..Cost::default()
            },
            elapsed: self.began.elapsed(),
        })?;
        self.rounds.into_iter().for_each(Round::commit);
        Ok(manifest)
    }
}

/// Pages on their way into a draft.
#[derive(Default)]
struct Batch {
    ranges: Vec<PageRange>,
    contents: Vec<u8>,
}

impl Batch {
    fn room(&self) -> u64 {
        COPY_BYTES_MAX - self.contents.len() as u64
    }

    fn add(&mut self, region: &Region, offset: u64, bytes: u64) {
        let start = region.guest_address() + offset;
        self.ranges.extend(PageRange::new(start, start + bytes));
        let from = self.contents.len();
        self.contents.resize(from + bytes as usize, 0);
        region.copy(offset, &mut self.contents[from..]);
    }

    fn put(&mut self, draft: &mut Draft<'_>) -> Result<()> {
        draft.put(&self.ranges, &self.contents)?;
        self.ranges.clear();
        self.contents.clear();
        Ok(())
    }
}

fn mapping(region: &Region) -> Mapping {
    Mapping {
        range: guest_pages(region),
        permissions: Permissions {
            read: true,
            write: true,
            execute: true,
            shared: region.file_offset().is_some(),
        },
        offset: region.file_offset().unwrap_or(0),
        device: (0, 0),
        inode: 0,
        name: format!("slot {}", region.slot()),
        build_id: Vec::new(),
        saved: true,
        own_writes_only: false,
    }
}
