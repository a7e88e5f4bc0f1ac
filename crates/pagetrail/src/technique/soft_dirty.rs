//! `soft-dirty`: the kernel write-protects a process's page tables on request and sets the
//! soft-dirty bit of each entry whose page is written.
//!
//! `Documentation/admin-guide/mm/soft-dirty.rst`; `proc_pid_clear_refs(5)`, `proc_pid_pagemap(5)`.
//! Old, and absent on many kernels (`CONFIG_MEM_SOFT_DIRTY`); writing to `clear_refs` succeeds
//! there all the same. Its traps:
//!
//! * Reading the bits and clearing them are two steps. A write in between would be lost, so the
//!   whole process is stopped for both (another process), or the caller stops it (the own one).
//! * Clearing affects the whole process: it allows one watch per process and no other user of
//!   `clear_refs`, whose clearing would lose writes. To detect that, each collect writes to a few
//!   pages itself, without changing them, while the process is stopped (*sentinels*: if possible,
//!   pages that the program did not write in this round). If a sentinel's bit is clear at the next
//!   collect, everything counts as written and the round gives the reason. A program that writes to
//!   all sentinels after the foreign clearing hides it. Sentinels are reported.
//! * A new mapping counts as written whole, and if it merges with an older neighbour, so does the
//!   neighbour.
//! * A page of a shared mapping that leaves the page table loses its bit. A page that was present
//!   at the last collect and no longer is counts as written; one that appeared, was written and
//!   disappeared within a round is missed.
//! * hugetlb memory has no soft-dirty bits; it is not tracked.

use super::{ArmError, Armed, Collected, Missed, Tracker};
use crate::attach::hold::Hold;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::{memory_id, threads};
use crate::region::Region;
use crate::sys::pagemap::{Categories, Entry, Pagemap, Query, Vector, existing};
use crate::sys::scratch::Scratch;
use crate::types::Technique;
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// The number of sentinels: more than one, since the program may write to any of them after a
/// foreign clearing.
const SENTINELS: usize = 4;
/// The number of ranges without writes that are searched for sentinels.
const SENTINEL_RANGES_MAX: usize = 64;
/// The number of pages of each range that are searched for sentinels.
const SENTINEL_PAGES_MAX: u64 = 512;

/// The technique's state for one address space.
pub(crate) struct SoftDirty {
    /// `None` for the own process.
    other: Option<u32>,
    /// Whether the caller of a watch on its own process declares that no other thread runs during
    /// collect.
    at_safepoint: bool,
    /// Whether another tracer holds the target, so that it cannot be stopped again.
    held: bool,
    pagemap: Pagemap,
    vector: Vector,
    private: PageSet,
    shared: PageSet,
    /// The pages of `shared` that were in the page table at the last collect.
    present: PageSet,
    /// Pages that were written after the last clearing to set their bits.
    sentinels: Vec<PageRange>,
    /// The page of the own process that serves as sentinel.
    own_sentinel: Option<Scratch>,
}

impl SoftDirty {
    /// Starts without armed memory; `pid` is `None` for the own address space.
    pub(crate) fn new(pid: Option<u32>, at_safepoint: bool) -> Result<Self> {
        Ok(Self {
            other: pid,
            at_safepoint,
            held: false,
            pagemap: Pagemap::open(pid).map_err(Error::io("opening pagemap"))?,
            vector: Vector::new(),
            private: PageSet::new(),
            shared: PageSet::new(),
            present: PageSet::new(),
            sentinels: Vec::new(),
            own_sentinel: match pid {
                Some(_) => None,
                None => Some(Scratch::new(page_size()).map_err(Error::os("mapping a page"))?),
            },
        })
    }

    /// Runs `step` while no thread of the target can write, and then writes to the sentinels; those
    /// of another process are the ones that `step` chose.
    fn while_stopped<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> Result<(T, Duration)> {
        let what = Error::io("reading and clearing soft-dirty bits");
        let Some(pid) = self.other else {
            let alone = self.at_safepoint
                || threads(std::process::id())
                    .map_err(Error::io("counting threads"))?
                    .len()
                    == 1;
            if !alone {
                return Err(Error::WrongTarget {
                    technique: Technique::SoftDirty,
                    target: "the own process while it has other threads",
                    cure: "stop them during each collect and set CollectAt::Safepoint",
                });
            }
            let outcome = step(self).map_err(what)?;
            self.sentinels.clear();
            if let Some(page) = &mut self.own_sentinel {
                page.write(0, 1);
                self.sentinels.push(page.range());
            }
            return Ok((outcome, Duration::ZERO));
        };
        if self.held {
            return Ok((step(self).map_err(what)?, Duration::ZERO));
        }
        let mut hold = Hold::still(pid)?;
        let outcome = step(self).map_err(what);
        let starts = self.sentinels.iter().map(|page| page.start()).collect();
        // Fails if nobody has held the program meanwhile: what it wrote then is not known.
        let written = hold.rewrite(starts);
        let stopped = hold.release();
        let written = written?;
        self.sentinels
            .retain(|page| written.contains(&page.start()));
        Ok((outcome?, stopped))
    }

    /// Whether another process has cleared the bits since the sentinels were written.
    fn cleared_externally(&self) -> io::Result<bool> {
        let mut unmarked_pages = PageSet::new();
        let unmarked = |entry: Entry| entry.is_populated() && !entry.is_soft_dirty();
        for page in &self.sentinels {
            self.pagemap
                .matching_entries(*page, unmarked, &mut unmarked_pages)?;
        }
        Ok(!unmarked_pages.is_empty())
    }

    /// Chooses sentinels: pages that exist and belong to the process alone, preferably ones that
    /// were not `written`.
    fn choose_sentinels(&mut self, written: &PageSet) -> io::Result<()> {
        self.sentinels.clear();
        if self.other.is_none() {
            return Ok(());
        }
        let owned = |entry: Entry| entry.is_present() && !entry.is_file();
        for among in [self.private.difference(written), self.private.clone()] {
            for range in among.ranges().iter().take(SENTINEL_RANGES_MAX) {
                let end = range
                    .end()
                    .min(range.start() + SENTINEL_PAGES_MAX * page_size());
                let mut found = PageSet::new();
                if let Some(beginning) = PageRange::new(range.start(), end) {
                    self.pagemap
                        .matching_entries(beginning, owned, &mut found)?;
                }
                let first = found.ranges().first().map(PageRange::start);
                let page = first.and_then(|start| PageRange::new(start, start + page_size()));
                self.sentinels.extend(page);
                if self.sentinels.len() == SENTINELS {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Adds everything that may have been written.
    fn read_all(&mut self, out: &mut PageSet) -> io::Result<()> {
        out.union_with(&self.shared);
        for range in self.private.ranges() {
            self.pagemap.populated(*range, &mut self.vector, out)?;
        }
        Ok(())
    }

    fn clear(&self) -> io::Result<()> {
        let path = self.other.map_or("/proc/self/clear_refs".into(), |pid| {
            format!("/proc/{}/clear_refs", memory_id(pid))
        });
        std::fs::write(path, "4")
    }

    fn read(&mut self, out: &mut PageSet) -> io::Result<()> {
        let mut marked = |range: PageRange, populated_only: bool| {
            let query = Query {
                all_of: Categories::SOFT_DIRTY,
                any_of: if populated_only {
                    existing(true)
                } else {
                    Categories::NONE
                },
                ..Query::ALL
            };
            match self
                .pagemap
                .scan(range, query, &mut self.vector, |found| out.insert(found))
            {
                Err(Errno::NOTTY) => {}
                outcome => return outcome.map_err(io::Error::from),
            }
            let wanted =
                |entry: Entry| entry.is_soft_dirty() && (!populated_only || entry.is_populated());
            self.pagemap.matching_entries(range, wanted, out)
        };
        self.private
            .ranges()
            .iter()
            .try_for_each(|range| marked(*range, true))?;
        self.shared
            .ranges()
            .iter()
            .try_for_each(|range| marked(*range, false))?;
        let before = std::mem::take(&mut self.present);
        for range in self.shared.clone().ranges() {
            self.add_present(*range)?;
        }
        out.union_with(&before.difference(&self.present));
        Ok(())
    }

    fn add_present(&mut self, range: PageRange) -> io::Result<()> {
        self.pagemap
            .populated(range, &mut self.vector, &mut self.present)
    }
}

impl Tracker for SoftDirty {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        if region.is_hugetlb(self.other) {
            return Err(ArmError::Untrackable(
                "hugetlb memory has no soft-dirty bits".into(),
            ));
        }
        if region.permissions.shared {
            self.shared.insert(region.range);
            self.add_present(region.range)
                .map_err(Error::io("reading pagemap"))?;
        } else {
            self.private.insert(region.range);
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<Duration> {
        // Writes before the first round are not reported, so the target need not be stopped.
        self.clear()
            .map_err(Error::io("clearing soft-dirty bits"))?;
        // A program that is held at its first instruction cannot be stopped again; its first round
        // has no sentinels.
        Ok(self
            .while_stopped(|this| this.choose_sentinels(&PageSet::new()))
            .map_or(Duration::ZERO, |((), stopped)| stopped))
    }

    /// Adds the populated pages. The kernel sets the bits of a new mapping, but the clearing of the
    /// last collect cleared those of a mapping that was created just before it and not read.
    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            out.insert(region.range);
            return Ok(());
        }
        self.pagemap
            .populated(region.range, &mut self.vector, out)
            .map_err(Error::io("reading pagemap"))
    }

    fn set_held(&mut self, held: bool) {
        self.held = held;
    }

    fn misses(&self) -> Missed {
        Missed::All
    }

    fn splits_mappings(&self) -> bool {
        false
    }

    fn refuses_read_only(&self) -> bool {
        false
    }

    fn forget(&mut self, range: PageRange) {
        self.private.remove(range);
        self.shared.remove(range);
        self.present.remove(range);
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let (cleared_externally, stopped) = self.while_stopped(|this| {
            let cleared_externally = this.cleared_externally()?;
            this.read(out)?;
            this.choose_sentinels(out)?;
            if cleared_externally {
                this.read_all(out)?;
            }
            this.clear()?;
            Ok(cleared_externally)
        })?;
        let note = "another process cleared the soft-dirty bits (clear_refs) since the last round: \
                    all pages that exist count as written";
        Ok(Collected {
            stopped,
            notes: cleared_externally
                .then(|| note.into())
                .into_iter()
                .collect(),
            ..Collected::default()
        })
    }
}
