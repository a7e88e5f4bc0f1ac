//! [`Heaps`]: the sub-page heaps of one process, from round to round.
//!
//! A dirty page of an alias shows which sub-page was written; the heap's table shows which objects
//! begin there, but the slab may have been reused meanwhile. Each use has a number, its generation.
//! The table is read after each collect; if it is unchanged since the one read two collects ago, no
//! slab was reused between the last collect and this one, and the table describes the objects that
//! the program wrote. (One more table is kept, for alternating rounds.) Otherwise all of the page
//! counts as written.

use super::areas::Areas;
use super::description::{self, ADVICE_BYTES, BYTES, MERGED_AT, Superblock};
use super::slab::Word;
use super::subpages::{self, Subpages};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::sys::remote_memory;
use std::collections::VecDeque;

/// The number of tables that are kept: the one after the last collect, the one before it, ..
const TABLES: usize = 3;

/// The sub-page heaps of one process, from round to round. A [`Watch`](crate::Watch) has its own;
/// use this if dirty pages are found by other means.
#[derive(Debug)]
pub struct Heaps {
    pid: u32,
    found: Vec<Followed>,
    areas: Areas,
    /// Whether heaps are to merge slabs.
    merges: bool,
    /// The descriptions of the heaps, and the last advice to each.
    advised: Vec<(u64, u64)>,
}

/// A superblock and the last contents of its table, the latest last.
#[derive(Debug)]
struct Followed {
    superblock: Superblock,
    tables: VecDeque<Vec<Word>>,
    /// The contents of the table before the first write that is in no committed round.
    base: Option<Vec<Word>>,
}

impl Heaps {
    /// Starts without known heaps.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            found: Vec::new(),
            areas: Areas::default(),
            merges: false,
            advised: Vec::new(),
        }
    }

    /// Has heaps merge slabs of objects, where sub-pages cost faults and show nothing
    /// ([`WatchBuilder::merge_subpages`](crate::WatchBuilder::merge_subpages)).
    pub(crate) fn merge(&mut self) {
        self.merges = true;
    }

    /// Advises the heaps which classes to merge, where something was decided.
    fn advise_all(&mut self) {
        if !self.merges {
            return;
        }
        let Some(merged) = self.areas.end_round() else {
            return;
        };
        let superblocks = self.found.iter().map(|followed| followed.superblock);
        let heaps = superblocks.filter(|superblock| superblock.takes_advice);
        let mut advised: Vec<(u64, u64)> = Vec::new();
        for description in heaps.map(|superblock| superblock.description) {
            if advised.iter().all(|(heap, _)| *heap != description) {
                let before = self.advised.iter().find(|(heap, _)| *heap == description);
                // A heap that is new here may have the advice of a tracker that was killed.
                if before.map(|(_, merged)| *merged) != Some(merged) {
                    advise(self.pid, description, merged);
                }
                advised.push((description, merged));
            }
        }
        self.advised = advised;
    }

    /// The memory of the heaps that the last round has found: the addresses of the first alias, and
    /// the number of aliases, which follow each other.
    pub fn aliased(&self) -> impl Iterator<Item = (PageRange, u32)> + '_ {
        let superblocks = self.found.iter().map(|followed| &followed.superblock);
        superblocks.map(|superblock| (superblock.first_alias(), superblock.subpages_per_page))
    }

    /// Reads the tables of the heaps before the first write is detected.
    pub(crate) fn begin(&mut self, regions: &[Region]) {
        self.find(regions);
        for followed in &mut self.found {
            if let Some(table) = read_table(self.pid, &followed.superblock) {
                followed.tables = std::iter::repeat_n(table, TABLES).collect();
            }
        }
    }

    /// Resolves the pages written since the last call to sub-pages; `None` without heaps. Call it
    /// after each round, with the mappings of that moment.
    ///
    /// Removes pages from `written` that were never used: pages of new mappings.
    pub fn subpages_of(&mut self, regions: &[Region], written: &mut PageSet) -> Option<Subpages> {
        self.resolve(regions, None, false, written, &mut PageSet::default())
    }

    /// Resolves collected pages to sub-pages; `None` without heaps, or if no heap is `within` the
    /// tracked memory. `carried`: some of the pages belong to a round that was not committed.
    ///
    /// Removes pages from `written` and `fresh` that were never used: pages of new mappings.
    pub(crate) fn resolve(
        &mut self,
        regions: &[Region],
        within: Option<&PageSet>,
        carried: bool,
        written: &mut PageSet,
        fresh: &mut PageSet,
    ) -> Option<Subpages> {
        self.find(regions);
        let mut subpages = Subpages::default();
        let mut untouched = Vec::new();
        for followed in &mut self.found {
            let aliases = followed.superblock.aliases();
            if within.is_some_and(|within| !within.intersects(aliases)) {
                continue;
            }
            let Some(table) = read_table(self.pid, &followed.superblock) else {
                continue;
            };
            if !carried {
                let is_full = followed.tables.len() == TABLES;
                followed.base = is_full.then(|| followed.tables.pop_front()).flatten();
            }
            let base = followed.base.as_deref();
            subpages.subpages_per_page = subpages
                .subpages_per_page
                .max(followed.superblock.subpages_per_page);
            subpages.aliases.insert(aliases);
            subpages.superblocks.push(followed.superblock);
            let areas = &mut self.areas;
            subpages::add(
                &mut subpages,
                &followed.superblock,
                written,
                base,
                &table,
                areas,
            );
            untouched.extend(subpages::untouched(&followed.superblock, &table));
            while followed.tables.len() >= TABLES {
                followed.tables.pop_front();
            }
            followed.tables.push_back(table);
        }
        if subpages.aliases.is_empty() {
            return None;
        }
        self.advise_all();
        let untouched: PageSet = untouched.into_iter().collect();
        *written = written.difference(&untouched);
        *fresh = fresh.difference(&untouched);
        Some(subpages)
    }

    /// Finds new superblocks, and forgets those that are gone.
    fn find(&mut self, regions: &[Region]) {
        let described = regions
            .iter()
            .filter(|region| description::is_named(&region.name) && !region.permissions.shared)
            .take(description::DESCRIPTIONS_MAX);
        let mut superblocks: Vec<Superblock> = described
            .filter_map(|region| {
                let start = region.range.start();
                let mut bytes = vec![0; BYTES.min(region.range.bytes() as usize)];
                let read = remote_memory::read(self.pid, start, &mut bytes).ok()?;
                description::superblocks(&bytes[..read], start)
            })
            .flatten()
            .collect();
        if superblocks.is_empty() {
            self.found.clear();
            return;
        }
        // Every alias is shared memory.
        let shared: PageSet = regions
            .iter()
            .filter(|region| region.permissions.shared)
            .map(|region| region.range)
            .collect();
        superblocks.retain(|superblock| shared.covers(superblock.aliases()));
        let mut known = std::mem::take(&mut self.found).into_iter().peekable();
        for superblock in description::within_limits(superblocks) {
            // Both lists are sorted by address.
            while (known.next_if(|known| known.superblock.base < superblock.base)).is_some() {}
            let known = known.next_if(|known| known.superblock == superblock);
            self.found.push(known.unwrap_or(Followed {
                superblock,
                tables: VecDeque::new(),
                base: None,
            }));
        }
    }
}

/// New slabs have all aliases again when nobody tracks.
impl Drop for Heaps {
    fn drop(&mut self) {
        for (description, merged) in self.advised.drain(..) {
            if merged != 0 {
                advise(self.pid, description, 0);
            }
        }
    }
}

/// Advises a heap which classes to merge. A heap that is gone needs no advice, and at its address
/// may be other memory by now: the program's, or that of a program which was executed in its place.
fn advise(pid: u32, address: u64, merged: u64) {
    let mut bytes = [0; ADVICE_BYTES];
    let read = remote_memory::read(pid, address, &mut bytes).unwrap_or(0);
    let before = description::advice(&bytes[..read], address);
    if before.is_some_and(|before| before != merged) {
        let _ = remote_memory::write(pid, address + MERGED_AT, &merged.to_le_bytes());
    }
}

fn read_table(pid: u32, superblock: &Superblock) -> Option<Vec<Word>> {
    let mut bytes = vec![0; superblock.slabs() * 8];
    let read = remote_memory::read(pid, superblock.table, &mut bytes).ok()?;
    let words = bytes.chunks_exact(8).map(|word| {
        let word = word.try_into().unwrap_or_default();
        Word(u64::from_le_bytes(word))
    });
    (read == bytes.len()).then(|| words.collect())
}
