//! `pagemap-scan`: the kernel resolves write-protect faults by itself and remembers them in the page tables;
//! one ioctl per run of ranges fetches the written pages and protects them again, atomically.
//!
//! Linux 6.7; `PAGEMAP_SCAN(2const)`, `ioctl_userfaultfd(2)` on `UFFD_FEATURE_WP_ASYNC`, and
//! `fs/proc/task_mmu.c`. What the kernel does in detail, and what follows:
//!
//! * The selection "written, report only written" takes the kernel's short path, three times as fast as any
//!   other on clean memory. On it an entry that is *empty* counts as written too, and gets a marker so that
//!   it does so only once; a hole without a page table likewise, and gets a page table for its markers.
//! * In private memory that is kept to page tables that exist. Each round first asks, by a selection that
//!   creates nothing, in which blocks (2 MiB, one page table) the process has come to own pages; only blocks
//!   that were *seen* so are scanned on the short path. So cost grows with populated page tables, not with
//!   addresses, and a sparse mapping gets no page tables by being watched. What was untouched in a block when
//!   it was first seen is sorted out by a second look; from then on an empty entry means that the page was
//!   discarded (`madvise(MADV_DONTNEED)`): its content changed, and it is reported.
//! * In shared mappings a page that was written can leave the page table again, with its mark and even with
//!   the table (`CONFIG_PT_RECLAIM`, Linux 6.14). They are armed whole, holes included, and scanned whole.
//! * A mapping that was replaced has lost its registration; `PM_SCAN_CHECK_WPASYNC` says so by `EPERM`, also where
//!   nothing is re-armed. Untouched memory is asked, too: what takes its place may own no page by the selection above.

mod leaving;

use super::{ArmError, Armed, Collected, Missed, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::Maps;
use crate::proc::status::Status;
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Query, Vector, category};
use crate::sys::uffd::{Mode, Uffd, feature};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;

/// Features without which the technique does not work.
pub(crate) const FEATURES: u64 =
    feature::WP_ASYNC | feature::WP_HUGETLBFS_SHMEM | feature::PAGEFAULT_FLAG_WP;

/// What one page table maps with 4 KiB pages, and with larger base pages a multiple of it: the unit in which the
/// kernel creates and frees the entries that this technique lives on.
pub(super) fn block_bytes() -> u64 {
    let page = crate::page_set::page_size();
    page * (page / 8)
}

/// The blocks that hold the pages of a set.
fn blocks(pages: &PageSet) -> PageSet {
    let block = block_bytes();
    pages
        .ranges()
        .iter()
        .map(|range| range.align_outwards(block))
        .collect()
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
    uffd: Arc<Uffd>,
    pagemap: Pagemap,
    vector: Vector,
    huge_pages: HugePages,
    /// Registered ranges.
    armed: PageSet,
    /// The part of `armed` that is mapped shared.
    shared: PageSet,
    /// The part of private `armed` memory in which every entry of the page tables is armed, or written since.
    seen: PageSet,
    /// Entries sorted out in the last harvest; see [`Self::sort_out_untouched`].
    doubtful: PageSet,
    /// What follows from the sets above, until one of them changes: so a round that finds nothing new allocates
    /// nothing.
    plan: Option<Plan>,
    /// Whether harvests arm what they report.
    rearming: bool,
}

/// What a harvest scans.
struct Plan {
    /// Private armed memory that is not seen.
    unseen: PageSet,
    /// Private armed memory that is.
    seen: PageSet,
    /// That and the shared.
    all: PageSet,
}

/// How often arming is tried again where the kernel refuses.
const ARM_TRIES: u32 = 4;

/// Written since the last scan; the short path of `pagemap_scan_pmd_entry` in `fs/proc/task_mmu.c`.
const WRITTEN: Query = Query {
    rearm: true,
    registered: true,
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

/// In memory or swapped out, and the process's own, not the file's. (In `unseen` memory no page carries a mark, so what
/// looks swapped out is that, and no marker.)
const OWNED: Query = Query {
    rearm: false,
    registered: false,
    inverted: category::FILE,
    all_of: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    report: 0,
};

impl PagemapScan {
    /// Takes a fresh userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let uffd = Uffd::handshake(fd, FEATURES).map_err(Error::errno(
            "userfaultfd handshake with UFFD_FEATURE_WP_ASYNC",
        ))?;
        Self::over(Arc::new(uffd), pid, huge_pages)
    }

    /// `uffd` belongs to the target's address space and has [`FEATURES`].
    pub(super) fn over(uffd: Arc<Uffd>, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
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
            plan: None,
            rearming: true,
        })
    }

    fn work_out(&self) -> Plan {
        let private = self.armed.difference(&self.shared);
        let seen = private.intersection(&self.seen);
        Plan {
            unseen: private.difference(&self.seen),
            all: seen.union(&self.shared),
            seen,
        }
    }

    /// Scans what can have been written, and re-arms it, except in `left`; notes which mappings have lost their
    /// registration.
    fn scan_all(
        &mut self,
        plan: &Plan,
        left: &PageSet,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        if self.huge_pages == HugePages::Split {
            return self.scan_leaving(&plan.all, WRITTEN, left, out, replaced);
        }
        // The selection by size leaves the short path and with it the empty entries, which shared
        // mappings cannot do without; their huge pages are split as ever.
        self.scan_leaving(&plan.seen, WRITTEN_SMALL, left, out, replaced)?;
        self.scan_leaving(&self.shared.clone(), WRITTEN, left, out, replaced)?;
        let whole = Query {
            all_of: category::HUGE | category::PRESENT,
            ..Query::default()
        };
        for range in plan.seen.ranges() {
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
            self.scan_range(*range, query, out, replaced)?;
        }
        Ok(())
    }

    fn scan_range(
        &mut self,
        range: PageRange,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        match self
            .pagemap
            .scan(range, query, &mut self.vector, |found| out.insert(found))
        {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => self.scan_piecewise(range, query, out, replaced),
            Err(errno) => Err(self.failed("PAGEMAP_SCAN")(errno)),
        }
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
                Err(errno) => return Err(self.failed("PAGEMAP_SCAN")(errno)),
            }
        }
        Ok(())
    }

    /// Adds the pages that `query` selects, without touching them.
    fn select(&mut self, range: PageRange, query: Query, out: &mut PageSet) -> Result<()> {
        self.pagemap
            .scan(range, query, &mut self.vector, |found| out.insert(found))
            .map_err(self.failed("PAGEMAP_SCAN without re-arming"))
    }

    /// Removes from `found` the entries of the blocks `fresh` that are empty because nobody touched them;
    /// `owned` are pages there that existed before the scan.
    ///
    /// A page that came between the two looks, and is on the move between two physical places at the
    /// second, looks like an empty entry; so the entries sorted out are looked at once more in the next harvest.
    fn sort_out_untouched(
        &mut self,
        fresh: &PageSet,
        owned: PageSet,
        found: &mut PageSet,
    ) -> Result<()> {
        let suspicious = found.intersection(fresh).difference(&self.shared);
        let mut owned = owned;
        let mut now = PageSet::new();
        let query = self.owned_now();
        for range in fresh.ranges() {
            self.select(*range, query, &mut now)?;
        }
        owned.union_with(&now);
        self.doubtful = suspicious.difference(&owned);
        *found = found.difference(&self.doubtful);
        Ok(())
    }

    /// Adds the doubtful pages of the last harvest that turn out to exist.
    fn settle_doubtful(&mut self, out: &mut PageSet) -> Result<()> {
        let exists = Query {
            inverted: category::FILE | category::PFNZERO,
            all_of: category::FILE | category::PFNZERO | category::PRESENT,
            ..Query::default()
        };
        for range in self.doubtful.clone().ranges() {
            self.select(*range, exists, out)?;
        }
        self.doubtful.clear();
        Ok(())
    }

    /// Selects the pages that the process owns where there are markers, too.
    fn owned_now(&self) -> Query {
        // A marker looks like a swapped page, so those count only where something is swapped out.
        let swap = Status::of(self.pid).is_ok_and(|status| status.swap_kib > 0);
        Query {
            any_of: category::PRESENT | if swap { category::SWAPPED } else { 0 },
            ..OWNED
        }
    }

    /// What a failed scan means.
    fn failed(&self, what: &'static str) -> impl Fn(Errno) -> Error {
        let pid = self.pid;
        move |errno| match errno {
            Errno::SRCH => Error::Gone { pid },
            errno => Error::errno(what)(errno),
        }
    }

    fn try_arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        self.plan = None;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => ArmError::UntrackedRegion(
                "the program tracks it by a userfaultfd of its own".into(),
            ),
            // `userfaultfd_register` in `fs/userfaultfd.c` demands VM_MAYWRITE.
            Errno::PERM if region.permissions.shared && !region.permissions.write => {
                ArmError::ReadOnly
            }
            // It was unmapped, or made a mapping that cannot be tracked, since the map was read.
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT => {
                ArmError::UntrackedRegion(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::errno(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.uffd
            .register(range, Mode::WriteProtect)
            .map_err(failed)?;
        self.armed.insert(range);
        if region.permissions.shared {
            self.shared.insert(range);
            return self.pagemap.arm(range).map_err(failed);
        }
        let mut owned = PageSet::new();
        self.select(range, OWNED, &mut owned)?;
        let tables = blocks(&owned).intersection(&PageSet::from_iter([range]));
        for part in tables.ranges() {
            self.pagemap.arm(*part).map_err(failed)?;
        }
        self.seen.union_with(&tables);
        Ok(())
    }
}

impl Tracker for PagemapScan {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let mut tries = 0;
        loop {
            match self.try_arm(region) {
                Ok(()) => return Ok(()),
                // Another mapping has taken its place between two steps. It may be one that can be tracked as well.
                Err(ArmError::UntrackedRegion(_)) if tries < ARM_TRIES => tries += 1,
                Err(error) => {
                    self.forget(region.range);
                    return Err(error);
                }
            }
        }
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            // Pages that were written may have left the page table again.
            out.insert(region.range);
            return Ok(());
        }
        self.select(region.range, self.owned_now(), out)
    }

    fn misses(&self) -> Missed {
        Missed::OfFiles
    }

    fn forget(&mut self, range: PageRange) {
        self.plan = None;
        for set in [
            &mut self.armed,
            &mut self.shared,
            &mut self.seen,
            &mut self.doubtful,
        ] {
            set.remove(range);
        }
    }

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn set_rearming(&mut self, rearming: bool) -> bool {
        self.rearming = rearming;
        true
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        for range in pages.intersection(&self.armed).ranges() {
            // A mapping that lost its registration the next harvest finds.
            if self.pagemap.arm(*range) == Err(Errno::SRCH) {
                return Err(Error::Gone { pid: self.pid });
            }
        }
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        for range in self.armed.ranges() {
            if self.uffd.release(*range) == Err(Errno::SRCH) {
                return Err(Error::Gone { pid: self.pid });
            }
        }
        Ok(())
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        self.collect_leaving(&PageSet::new(), out)
    }
}

impl PagemapScan {
    /// What is armed.
    pub(super) fn armed(&self) -> &PageSet {
        &self.armed
    }

    /// [`Tracker::harvest`], but what was written in `left` (whole blocks) is not re-armed: it is reported again each
    /// time, until [`Self::rearm_span`].
    pub(super) fn collect_leaving(
        &mut self,
        left: &PageSet,
        out: &mut PageSet,
    ) -> Result<Collected> {
        let mut collected = Collected::default();
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.work_out(),
        };
        let asked = Query {
            registered: true,
            ..OWNED
        };
        let mut owned = PageSet::new();
        self.scan_ranges(&plan.unseen, asked, &mut owned, &mut collected.replaced)?;
        let fresh = blocks(&owned).intersection(&plan.unseen);
        if !fresh.is_empty() {
            self.seen.union_with(&fresh);
            plan = self.work_out();
        }
        // Whatever fails from here on: what was re-armed is in `out` by then, and what was replaced is found again.
        if self.rearming {
            self.scan_all(&plan, left, out, &mut collected.replaced)?;
        } else {
            self.look(&plan, &fresh, out, &mut collected.replaced)?;
        }
        let mut late = PageSet::new();
        let sorted_out = self.settle_doubtful(&mut late).and_then(|()| {
            if fresh.is_empty() {
                return Ok(());
            }
            self.sort_out_untouched(&fresh, owned, out)
        });
        out.union_with(&late);
        sorted_out?;
        self.plan = Some(plan);
        for range in &collected.replaced {
            self.forget(*range);
        }
        Ok(collected)
    }
}
