//! [`OwnWrites`]: pages that the monitor itself, or a device of its own, wrote.
//!
//! KVM logs what a guest writes. What the monitor writes to guest memory (virtio queues, data of
//! disks and networks, a kernel that it loads) is in no log of KVM, and a snapshot without it is
//! torn.

use crate::error::Result;
use crate::log::DirtyLog;
use crate::pages::{Bitmap, DirtyPages};
use crate::regions::Regions;
use pagetrail::page_size;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A bit per page, set by many threads.
#[derive(Debug, Default)]
pub(crate) struct AtomicPages {
    words: Box<[AtomicU64]>,
    pages: u64,
}

impl AtomicPages {
    pub(crate) fn new(bytes: u64) -> Self {
        let pages = bytes.div_ceil(page_size());
        Self {
            words: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            pages,
        }
    }

    /// Adds the pages of bytes that have been written.
    pub(crate) fn insert(&self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let end = (offset.saturating_add(bytes - 1) / page_size() + 1).min(self.pages);
        for page in offset / page_size()..end {
            // The contents were written before, and who takes the bit sees them (AcqRel there).
            self.words[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Release);
        }
    }

    #[cfg(feature = "vm-memory")]
    pub(crate) fn contains(&self, offset: u64) -> bool {
        let page = offset / page_size();
        let word = |page| self.words[(page / 64) as usize].load(Ordering::Acquire);
        page < self.pages && word(page) >> (page % 64) & 1 != 0
    }

    /// Moves all pages into a bitmap.
    pub(crate) fn take_into(&self, bitmap: &mut Bitmap) {
        let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::AcqRel),
        };
        let words: Vec<u64> = self.words.iter().map(take).collect();
        bitmap.insert_words(&words);
    }
}

/// Pages of each region, set by many threads.
pub(crate) type AtomicRegions = Arc<RwLock<Vec<(crate::Region, Arc<AtomicPages>)>>>;

/// Makes a set for each region, and keeps those that are there.
pub(crate) fn follow(sets: &AtomicRegions, regions: &Regions) {
    let mut sets = sets.write().unwrap_or_else(PoisonError::into_inner);
    let made = regions.iter().map(|region| {
        let old = sets.iter().find(|(old, _)| old == region);
        let set = old.map(|(_, set)| set.clone());
        let set = set.unwrap_or_else(|| Arc::new(AtomicPages::new(region.bytes())));
        (region.clone(), set)
    });
    *sets = made.collect();
}

/// Moves all pages of all sets to `dirty`.
pub(crate) fn take(sets: &[(crate::Region, Arc<AtomicPages>)], dirty: &mut DirtyPages) {
    for (region, set) in sets {
        if let Some(bitmap) = dirty.of_slot_mut(region.slot()) {
            set.take_into(bitmap);
        }
    }
}

/// The pages that the monitor has written to; its copies are one set.
///
/// Mark bytes *after* they have been written: a page that is marked before may be collected, and
/// read, in between. Memory whose contents were discarded (a balloon's pages, by `MADV_DONTNEED`)
/// has changed, too, without any write that a log could see: mark it.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites {
    sets: AtomicRegions,
}

impl OwnWrites {
    /// Makes an empty set. A tracker that gets it as a log gives it the regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the pages of bytes at guest-physical addresses, which have been written. Bytes that are
    /// in no region have no page.
    pub fn mark(&self, guest_address: u64, bytes: u64) {
        let end = guest_address.saturating_add(bytes);
        for (region, set) in &*self.sets.read().unwrap_or_else(PoisonError::into_inner) {
            let start = guest_address.max(region.guest_address());
            let end = end.min(region.guest_address() + region.bytes());
            set.insert(start - region.guest_address(), end.saturating_sub(start));
        }
    }
}

impl DirtyLog for OwnWrites {
    fn drain(&mut self, _regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        take(&sets, dirty);
        Ok(())
    }

    fn regions_changed(&mut self, regions: &Regions) -> Result<()> {
        follow(&self.sets, regions);
        Ok(())
    }
}
