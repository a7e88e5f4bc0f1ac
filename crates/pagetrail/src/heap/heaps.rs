//! [`Heaps`]: the sub-page heaps of one process, from round to round.
//!
//! A page tells which part was written; which objects begin there is for the heap's table to say, and a slab may have been
//! used for something else meanwhile. Each use has a number, its generation. The table is read after each harvest; if it says
//! what it said after the one two before, nothing changed between the last harvest and this one, and the table tells what the
//! program wrote to. (One more is kept, for rounds that take turns.) Otherwise the page counts as written whole.

use super::description::{self, BYTES, Superblock};
use super::slab::Word;
use super::units::{self, Units};
use crate::page_set::PageSet;
use crate::region::Region;
use crate::sys::remote_memory;
use std::collections::VecDeque;

/// How many tables are kept: after the last harvest, the one before it, ..
const TABLES: usize = 3;

/// The sub-page heaps of one process, from round to round. A [`Watch`](crate::Watch) has its own; this is for who learns of
/// writes by other means.
#[derive(Debug)]
pub struct Heaps {
    pid: u32,
    found: Vec<Followed>,
}

/// A superblock and what its table said, the latest last.
#[derive(Debug)]
struct Followed {
    superblock: Superblock,
    tables: VecDeque<Vec<Word>>,
    /// What it said before the first write that no committed round has.
    base: Option<Vec<Word>>,
}

impl Heaps {
    /// None known so far.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            found: Vec::new(),
        }
    }

    /// Looks at the heaps before the first write is noticed.
    pub(crate) fn begin(&mut self, regions: &[Region]) {
        self.find(regions);
        for followed in &mut self.found {
            if let Some(table) = read_table(self.pid, &followed.superblock) {
                followed.tables = std::iter::repeat_n(table, TABLES).collect();
            }
        }
    }

    /// Makes units of the pages written since the last call, before which nothing was lost; `None` without heaps. To be called
    /// after each round, with the mappings of that moment.
    ///
    /// Takes out of `written` what only seems to be so: pages of new mappings in which nothing ever was.
    pub fn units_of(&mut self, regions: &[Region], written: &mut PageSet) -> Option<Units> {
        self.units(regions, None, false, written, &mut PageSet::default())
    }

    /// Makes units of what was harvested; `None` without heaps, or where none is `within` what is watched. `carried`: some of it is of a round that was not committed.
    ///
    /// Takes out of `written` what only seems to be so: pages of new mappings in which nothing ever was.
    pub(crate) fn units(
        &mut self,
        regions: &[Region],
        within: Option<&PageSet>,
        carried: bool,
        written: &mut PageSet,
        fresh: &mut PageSet,
    ) -> Option<Units> {
        self.find(regions);
        let mut units = Units::default();
        let mut untouched = Vec::new();
        for followed in &mut self.found {
            let windows = followed.superblock.windows();
            if within.is_some_and(|within| !within.intersects(windows)) {
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
            units.parts = units.parts.max(followed.superblock.parts);
            units.windows.insert(windows);
            units.superblocks.push(followed.superblock);
            units::add(&mut units, &followed.superblock, written, base, &table);
            untouched.extend(units::untouched(&followed.superblock, &table));
            while followed.tables.len() >= TABLES {
                followed.tables.pop_front();
            }
            followed.tables.push_back(table);
        }
        if units.windows.is_empty() {
            return None;
        }
        let untouched: PageSet = untouched.into_iter().collect();
        *written = written.difference(&untouched);
        *fresh = fresh.difference(&untouched);
        Some(units)
    }

    /// Learns of superblocks that are new, and forgets those that are gone.
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
        // What is no shared memory can be no window.
        let shared: PageSet = regions
            .iter()
            .filter(|region| region.permissions.shared)
            .map(|region| region.range)
            .collect();
        superblocks.retain(|superblock| shared.covers(superblock.windows()));
        let mut known = std::mem::take(&mut self.found).into_iter().peekable();
        for superblock in description::within_limits(superblocks) {
            // Both are sorted.
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

fn read_table(pid: u32, superblock: &Superblock) -> Option<Vec<Word>> {
    let mut bytes = vec![0; superblock.slabs() * 8];
    let read = remote_memory::read(pid, superblock.table, &mut bytes).ok()?;
    let words = bytes.chunks_exact(8).map(|word| {
        let word = word.try_into().unwrap_or_default();
        Word(u64::from_le_bytes(word))
    });
    (read == bytes.len()).then(|| words.collect())
}
