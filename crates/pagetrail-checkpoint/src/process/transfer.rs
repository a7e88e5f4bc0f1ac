//! [`Transfer`]: one checkpoint's pages on their way from the process into the store.
//!
//! A page that was copied is in one of three places: with the [`Staging`] in memory, in the
//! [`Draft`], or, of memory that is read again at each instant, known by its hash
//! ([`Rechecked`]). An address at which something else has come is voided here, once, and none of
//! the three keeps what was there.

use super::common::{Common, Piece};
use super::recheck::Rechecked;
use super::staging::{Parts, Staging};
use super::state::memory::Apart;
use crate::error::Result;
use crate::format::manifest::{Cost, Manifest, Mapping, Process};
use crate::store::writer::{Description, Draft};
use pagetrail::{Frozen, Memory, PageRange, PageSet};
use std::time::{Duration, Instant};

/// What becomes of copies for which memory does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// The store takes them at once, and the process may have to wait for it.
    Store,
    /// They stay in memory, however many they are.
    Stay,
}

/// So many pages must have been copied for a measurement.
const PAGES_MEASURED: u64 = 1024;
/// How long the copy of a page takes where nothing was measured.
const PAGE_COPY: Duration = Duration::from_micros(1);

/// The way to read the memory of a process.
fn of(memory: &Memory) -> impl Fn(&[PageRange], &mut [u8]) -> Result<PageSet> + Sync + '_ {
    |ranges, buffer| Ok(memory.read(ranges, buffer)?)
}

/// A checkpoint that is being taken. Dropped, it leaves the store as it was.
pub(crate) struct Transfer<'writer> {
    draft: Draft<'writer>,
    staging: Staging,
    rechecked: Rechecked,
    began: Instant,
    /// How long pages were copied to memory, and how many.
    copying: Duration,
    staged_pages: u64,
    /// What it took so far.
    pub(crate) cost: Cost,
}

impl<'writer> Transfer<'writer> {
    /// Begins with what the last checkpoint has of memory that is read again at each instant, and
    /// keeps at most `bytes_max` bytes of copies before the store takes them.
    pub(crate) fn new(draft: Draft<'writer>, rechecked: Rechecked, bytes_max: u64) -> Self {
        // The first of a chain must have all pages.
        let rechecked = match draft.is_base() {
            true => Rechecked::default(),
            false => rechecked,
        };
        draft.progress().begin("saving pages", 0);
        Self {
            draft,
            staging: Staging::new(bytes_max),
            rechecked,
            began: Instant::now(),
            copying: Duration::ZERO,
            staged_pages: 0,
            cost: Cost::default(),
        }
    }

    /// Whether all pages must be copied, and not only those written since the last checkpoint.
    pub(crate) fn is_base(&self) -> bool {
        self.draft.is_base()
    }

    /// Allows to store only the changes of pages of which it is known what has changed; to be
    /// called before anything is copied.
    pub(crate) fn allow_changes(&mut self) {
        self.draft.allow_changes();
    }

    /// Other mappings have come to these addresses: what was copied of them, what older checkpoints
    /// have there, and what is known of them from reading them, is void.
    pub(crate) fn remap(&mut self, addresses: &PageSet) {
        self.void(addresses);
        self.rechecked.forget(addresses);
    }

    /// Nothing is at these addresses, or nothing that belongs into the image: what was copied of
    /// them, and what older checkpoints have there, is void.
    pub(crate) fn void(&mut self, addresses: &PageSet) {
        if !addresses.is_empty() {
            self.staging.forget(addresses);
            self.draft.forget(addresses);
        }
    }

    /// Copies pages of the process.
    pub(crate) fn copy(
        &mut self,
        memory: &Memory,
        pages: &PageSet,
        overflow: Overflow,
    ) -> Result<()> {
        self.draft.progress().expect(pages.bytes());
        let draft = match overflow {
            Overflow::Store => Some(&mut self.draft),
            Overflow::Stay => None,
        };
        let is_staged = draft.is_none() || self.staging.has_room(pages);
        let began = Instant::now();
        self.staging.copy(memory, pages, draft)?;
        if is_staged {
            self.copying += began.elapsed();
            self.staged_pages += pages.page_count();
        }
        self.cost.copied_pages += pages.page_count();
        Ok(())
    }

    /// Copies pages that are kept as they were at an instant; false if one of them is not known any
    /// more.
    pub(crate) fn copy_frozen(&mut self, frozen: &dyn Frozen) -> Result<bool> {
        let whole = self.staging.copy_frozen(frozen, &mut self.draft)?;
        if whole {
            self.cost.copied_pages += frozen.pages().page_count();
        }
        Ok(whole)
    }

    /// How long it would take to copy so many pages to memory, by what that has taken so far.
    pub(crate) fn estimate(&self, pages: u64) -> Duration {
        let copied = self.staged_pages;
        match copied >= PAGES_MEASURED {
            true => self.copying.mul_f64(pages as f64 / copied as f64),
            false => PAGE_COPY * u32::try_from(pages).unwrap_or(u32::MAX),
        }
    }

    /// Reads a part of memory that others may write to, and copies what is not as it was read last;
    /// `contents` is all of it that holds anything.
    pub(crate) fn look_at_shared(
        &mut self,
        memory: &Memory,
        contents: &PageSet,
        part: &PageSet,
    ) -> Result<()> {
        let gone = self.rechecked.shared.keep(contents);
        self.void(&gone);
        let seen = &mut self.rechecked.shared;
        let differing = seen.look(&of(memory), part, &mut self.staging, &mut self.draft)?;
        self.cost.copied_pages += differing;
        Ok(())
    }

    /// Reads what other processes have not read of the memory that they have as well, and copies
    /// what is not as it was read last.
    pub(crate) fn look_at_common(
        &mut self,
        memory: &Memory,
        pieces: &[Piece],
        common: &Common,
    ) -> Result<()> {
        let seen = &mut self.rechecked.shared;
        let (staging, draft) = (&mut self.staging, &mut self.draft);
        self.cost.copied_pages +=
            seen.look_together(&of(memory), pieces, common, staging, draft)?;
        Ok(())
    }

    /// Reads shared memory that no mapping shows, and copies what is not as it was read last;
    /// `contents` is all of it that holds anything.
    pub(crate) fn look_at_apart(&mut self, apart: &Apart, contents: &PageSet) -> Result<()> {
        let gone = self.rechecked.apart.keep(contents);
        self.void(&gone);
        let read = |ranges: &[PageRange], buffer: &mut [u8]| apart.read(ranges, buffer);
        let seen = &mut self.rechecked.apart;
        let differing = seen.look(&read, contents, &mut self.staging, &mut self.draft)?;
        self.cost.copied_pages += differing;
        Ok(())
    }

    /// Reads the pages that are as in a file, and copies what is not as it was read last.
    ///
    /// Of a page that the process has written meanwhile, and discarded then, there may be a newer
    /// copy than what was read last: those are `written`.
    pub(crate) fn look_at_files(
        &mut self,
        memory: &Memory,
        in_files: &PageSet,
        written: &PageSet,
    ) -> Result<()> {
        let seen = &mut self.rechecked.in_files;
        seen.forget(written);
        seen.retain(in_files);
        let differing = seen.look(&of(memory), in_files, &mut self.staging, &mut self.draft)?;
        self.cost.copied_pages += differing;
        Ok(())
    }

    /// Hands what is staged to the store, without what has come and gone at the addresses
    /// `left_out` between two looks, and publishes.
    ///
    /// Gives besides what the checkpoint has of memory that is read again at each instant, for the
    /// next.
    pub(crate) fn publish(
        self,
        parts: &Parts,
        left_out: &PageSet,
        process: Process,
        mappings: Vec<Mapping>,
    ) -> Result<(Manifest, Rechecked)> {
        let Self {
            mut draft, staging, ..
        } = self;
        staging.drain(&mut draft, parts)?;
        draft.forget(left_out);
        let manifest = draft.publish(Description {
            process: Some(process),
            mappings,
            cost: self.cost,
            elapsed: self.began.elapsed(),
        })?;
        Ok((manifest, self.rechecked))
    }
}
