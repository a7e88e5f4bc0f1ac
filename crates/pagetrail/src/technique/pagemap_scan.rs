//! `pagemap-scan`: the kernel resolves write-protect faults by itself and remembers them in the page tables;
//! one ioctl per run of ranges fetches the written pages and protects them again, atomically.
//!
//! Linux 6.7; `PAGEMAP_SCAN(2const)`, `ioctl_userfaultfd(2)` on `UFFD_FEATURE_WP_ASYNC`, and
//! `fs/proc/task_mmu.c`. What the kernel does in detail, and what follows:
//!
//! * The selection "written, report only written" takes the kernel's short path, three times as fast as any
//!   other on clean memory. On it an entry that is *empty* counts as written too, and gets a marker so that
//!   it does so only once. In a page table that came into being since the last scan (its 2 MiB are *fresh*)
//!   up to 511 entries are empty because nobody ever touched them. They are sorted out by a second look at
//!   the fresh blocks only. In a block that was seen before, an empty entry means that the page was discarded
//!   (`madvise(MADV_DONTNEED)`): its content changed, and it is reported.
//! * A hole without a page table is never reported. Where nothing was ever touched that is right, and it keeps
//!   sparse mappings cheap: cost grows with populated page tables, not with addresses. In *shared* mappings a
//!   page table that was seen can vanish together with its written marks (`CONFIG_PT_RECLAIM`, Linux 6.14), so
//!   they get a second scan for such holes.
//! * A mapping that was replaced has lost its registration; `PM_SCAN_CHECK_WPASYNC` says so by `EPERM`.

use super::{ArmError, Harvest, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::Maps;
use crate::proc::status::Status;
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Query, Vector, category};
use crate::sys::uffd::{Mode, Uffd, feature};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Features without which the technique does not work.
pub(crate) const FEATURES: u64 =
    feature::WP_ASYNC | feature::WP_HUGETLBFS_SHMEM | feature::PAGEFAULT_FLAG_WP;

/// What one page table maps with 4 KiB pages, and with larger base pages a multiple of it: the unit in which the
/// kernel creates and frees the entries that this technique lives on.
fn block_bytes() -> u64 {
    let page = crate::page_set::page_size();
    page * (page / 8)
}

/// What to do about transparent huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Protect them: the first write to one splits it into small pages, and is told exactly.
    #[default]
    Split,
    /// Leave them whole and unprotected: each present one is reported as written in every round.
    Keep,
}

/// The technique's state for one address space.
pub(crate) struct PagemapScan {
    pid: u32,
    uffd: Uffd,
    pagemap: Pagemap,
    vector: Vector,
    huge_pages: HugePages,
    /// Registered ranges.
    armed: PageSet,
    /// The part of `armed` that is mapped shared.
    shared: PageSet,
    /// Blocks in which every entry of the page table carries a mark.
    seen: PageSet,
    /// Entries sorted out in the last harvest; see [`Self::sort_out_untouched`].
    doubtful: PageSet,
}

/// Written since the last scan; the short path of `pagemap_scan_pmd_entry` in `fs/proc/task_mmu.c`.
const WRITTEN: Query = Query {
    rearm: true,
    inverted: 0,
    all_of: category::WRITTEN,
    any_of: 0,
    report: category::WRITTEN,
};

/// Written since the last scan, but not in huge pages.
const WRITTEN_SMALL: Query = Query {
    inverted: category::HUGE,
    all_of: category::WRITTEN | category::HUGE,
    any_of: category::PRESENT | category::SWAPPED,
    ..WRITTEN
};

impl PagemapScan {
    /// Takes a fresh userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let uffd = Uffd::handshake(fd, FEATURES).map_err(Error::errno(
            "userfaultfd handshake with UFFD_FEATURE_WP_ASYNC",
        ))?;
        let pagemap = Pagemap::open(pid).map_err(Error::io("opening pagemap"))?;
        Ok(Self {
            pid: pid.unwrap_or_else(std::process::id),
            uffd,
            pagemap,
            vector: Vector::new(),
            huge_pages,
            armed: PageSet::new(),
            shared: PageSet::new(),
            seen: PageSet::new(),
            doubtful: PageSet::new(),
        })
    }

    /// Scans and re-arms everything armed; notes which mappings have lost their registration.
    fn scan_all(&mut self, out: &mut PageSet, replaced: &mut Vec<PageRange>) -> Result<()> {
        if self.huge_pages == HugePages::Split {
            return self.scan_ranges(&self.armed.clone(), WRITTEN, out, replaced);
        }
        // The selection by size leaves the short path and with it the empty entries, which shared
        // mappings cannot do without; their huge pages are split as ever.
        let private = self.armed.difference(&self.shared);
        self.scan_ranges(&private, WRITTEN_SMALL, out, replaced)?;
        self.scan_ranges(&self.shared.clone(), WRITTEN, out, replaced)?;
        let whole = Query {
            all_of: category::HUGE | category::PRESENT,
            ..Query::default()
        };
        for range in private.ranges() {
            self.select(*range, whole, out)?;
        }
        Ok(())
    }

    fn scan_ranges(
        &mut self,
        ranges: &PageSet,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        for range in ranges.ranges() {
            match self
                .pagemap
                .scan(*range, query, &mut self.vector, |found| out.insert(found))
            {
                Ok(()) => {}
                Err(Errno::PERM) => self.scan_piecewise(*range, query, out, replaced)?,
                Err(errno) => return Err(self.failed("PAGEMAP_SCAN", errno)),
            }
        }
        Ok(())
    }

    /// Finds, mapping by mapping, which mappings of an armed range are no longer registered.
    fn scan_piecewise(
        &mut self,
        range: PageRange,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        let mut maps = Maps::open(Some(self.pid)).map_err(Error::io("opening maps"))?;
        let regions = maps
            .changed()
            .map_err(Error::io("reading maps"))?
            .unwrap_or_default();
        for part in regions
            .iter()
            .filter_map(|region| region.range.intersection(&range))
        {
            match self
                .pagemap
                .scan(part, query, &mut self.vector, |found| out.insert(found))
            {
                Ok(()) => {}
                Err(Errno::PERM) => replaced.push(part),
                Err(errno) => return Err(self.failed("PAGEMAP_SCAN", errno)),
            }
        }
        Ok(())
    }

    /// Adds the pages that `query` selects, without touching them.
    fn select(&mut self, range: PageRange, query: Query, out: &mut PageSet) -> Result<()> {
        self.pagemap
            .scan(range, query, &mut self.vector, |found| out.insert(found))
            .map_err(|errno| self.failed("PAGEMAP_SCAN without re-arming", errno))
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        match errno {
            // The address space ended while the kernel was asked about it.
            Errno::SRCH => Error::Gone { pid: self.pid },
            errno => Error::errno(what)(errno),
        }
    }

    /// Removes from `found` the entries of fresh page tables that are empty because nobody touched them.
    ///
    /// A page on the move between two physical places looks like an empty entry at that moment, so the
    /// entries sorted out here are looked at once more in the next harvest.
    fn sort_out_untouched(&mut self, found: &mut PageSet) -> Result<()> {
        let block = block_bytes();
        if all_within(found, &self.seen, block) {
            return Ok(());
        }
        let blocks: PageSet = found
            .ranges()
            .iter()
            .map(|r| r.align_outwards(block))
            .collect();
        let fresh = blocks.difference(&self.seen);
        // In shared mappings an empty entry of a fresh table may have been written and evicted since.
        let suspicious = found.intersection(&fresh).difference(&self.shared);
        let mut touched = PageSet::new();
        for range in suspicious.ranges() {
            self.add_touched(*range, &mut touched)?;
        }
        self.doubtful = suspicious.difference(&touched);
        *found = found.difference(&self.doubtful);
        self.seen.union_with(&fresh);
        Ok(())
    }

    /// Adds the doubtful pages of the last harvest that turn out to exist.
    fn settle_doubtful(&mut self, out: &mut PageSet) -> Result<()> {
        let exists = Query {
            inverted: category::FILE | category::PFNZERO,
            all_of: category::FILE | category::PFNZERO | category::PRESENT,
            ..Query::default()
        };
        for range in std::mem::take(&mut self.doubtful).ranges() {
            self.select(*range, exists, out)?;
        }
        Ok(())
    }

    /// Adds the pages of a private range that exist and are the process's own, not the file's.
    fn add_touched(&mut self, range: PageRange, out: &mut PageSet) -> Result<()> {
        // A marker looks like a swapped page, so those count only where something is swapped out.
        let swap = Status::of(self.pid).is_ok_and(|status| status.swap_kib > 0);
        let query = Query {
            inverted: category::FILE,
            all_of: category::FILE,
            any_of: category::PRESENT | if swap { category::SWAPPED } else { 0 },
            ..Query::default()
        };
        self.select(range, query, out)
    }

    /// Adds what vanished from shared mappings together with its page table.
    fn add_reclaimed(&mut self, out: &mut PageSet) -> Result<()> {
        let neither = category::PRESENT | category::SWAPPED;
        let query = Query {
            inverted: neither,
            all_of: neither,
            ..Query::default()
        };
        let mut holes = PageSet::new();
        for range in self.shared.clone().ranges() {
            self.select(*range, query, &mut holes)?;
        }
        let reclaimed = holes.intersection(&self.seen).intersection(&self.shared);
        if !reclaimed.is_empty() {
            self.seen = self.seen.difference(&reclaimed);
            out.union_with(&reclaimed);
        }
        Ok(())
    }
}

/// Whether the blocks of all ranges of `found` are in `seen`; both in ascending order.
fn all_within(found: &PageSet, seen: &PageSet, block: u64) -> bool {
    let mut seen = seen.ranges().iter().peekable();
    found.ranges().iter().all(|range| {
        let range = range.align_outwards(block);
        while seen.next_if(|s| s.end() < range.end()).is_some() {}
        seen.peek().is_some_and(|s| s.start() <= range.start())
    })
}

impl Tracker for PagemapScan {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => {
                ArmError::GivenUp("the program tracks it by a userfaultfd of its own".into())
            }
            // It was unmapped, or made a mapping that cannot be tracked, since the map was read.
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT => {
                ArmError::GivenUp(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::errno(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.uffd
            .register(range, Mode::WriteProtect)
            .map_err(failed)?;
        self.pagemap.arm(range).map_err(failed)?;
        self.armed.insert(range);
        if region.permissions.shared {
            self.shared.insert(range);
        }
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            // Pages that were written may have left the page table again.
            out.insert(region.range);
            return Ok(());
        }
        self.add_touched(region.range, out)
    }

    fn forget(&mut self, range: PageRange) {
        for set in [
            &mut self.armed,
            &mut self.shared,
            &mut self.seen,
            &mut self.doubtful,
        ] {
            set.remove(range);
        }
    }

    fn harvest(&mut self, _: &[PageRange], out: &mut PageSet) -> Result<Harvest> {
        let mut harvest = Harvest::default();
        // Whatever fails on the way: what was re-armed is in `out` by then.
        let scanned = self.scan_all(out, &mut harvest.replaced);
        for range in &harvest.replaced {
            self.forget(*range);
        }
        scanned?;
        let mut late = PageSet::new();
        self.settle_doubtful(&mut late)?;
        self.add_reclaimed(&mut late)?;
        self.sort_out_untouched(out)?;
        out.union_with(&late);
        Ok(harvest)
    }
}
