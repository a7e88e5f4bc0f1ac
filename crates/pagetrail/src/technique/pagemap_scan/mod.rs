//! `pagemap-scan`: the kernel itself resolves write-protect faults and records them in the page
//! tables; one ioctl per run of ranges fetches the written pages and protects them again,
//! atomically.
//!
//! Linux 6.7; `PAGEMAP_SCAN(2const)`, `ioctl_userfaultfd(2)` on `UFFD_FEATURE_WP_ASYNC`, and
//! `fs/proc/task_mmu.c`. What the kernel does in detail, and what follows:
//!
//! * The selection "written, report only written" takes the kernel's short path, three times as
//!   fast as any other on clean memory. On this path an *empty* entry counts as written too, and
//!   gets a marker so that it does so only once; a hole without a page table is treated likewise,
//!   and gets a page table for its markers.
//! * In private memory the scan is restricted to page tables that exist. Each round first selects,
//!   without creating anything, the blocks (2 MiB, one page table) in which the process has come to
//!   own pages; only blocks that were *seen* to hold such pages are scanned on the short path. So
//!   the cost grows with populated page tables, not with addresses, and tracking gives a sparse
//!   mapping no page tables. The entries of a block that were untouched when it was first seen are
//!   dropped by a second scan; after that an empty entry means that the page was discarded
//!   (`madvise(MADV_DONTNEED)`): its content changed, and it is reported.
//! * In shared mappings a page that was written can leave the page table again, with its mark and
//!   even with the table (`CONFIG_PT_RECLAIM`, Linux 6.14). They are armed whole and scanned whole,
//!   holes included, except large holes of the file ([`sparse`]).
//! * A mapping that was replaced has lost its registration; `PM_SCAN_CHECK_WPASYNC` then returns
//!   `EPERM`, also where nothing is re-armed. Untouched memory is checked, too: a mapping that
//!   replaced it may own no page by the selection above.

mod fresh;
mod helper;
mod leaving;
mod scanning;
mod sparse;

use super::{ArmError, Armed, Collected, Missed, OTHERS, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::sys::pagemap::{Categories, OWNED, Pagemap, Query, Vector};
use crate::sys::uffd::{Features, Mode, Uffd};
use fresh::Fresh;
use helper::Helper;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sparse::Sparse;
use std::sync::Arc;

/// Features without which the technique does not work.
pub(crate) const FEATURES: Features = Features::WP_ASYNC
    .union(Features::WP_HUGETLBFS_SHMEM)
    .union(Features::PAGEFAULT_FLAG_WP);

/// The memory that one page table maps: 2 MiB with 4 KiB pages, a multiple of it with larger base
/// pages. The kernel creates and frees the entries that this technique relies on in this unit.
pub(super) fn block_bytes() -> u64 {
    let page = crate::page_set::page_size();
    page * (page / 8)
}

/// The blocks that contain the pages of a set.
fn blocks(pages: &PageSet) -> PageSet {
    let block = block_bytes();
    pages
        .ranges()
        .iter()
        .map(|range| range.align_outwards(block))
        .collect()
}

/// How transparent huge pages are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Protect them: the first write to one splits it into small pages, which are then tracked
    /// exactly.
    #[default]
    Split,
    /// Leave them whole and unprotected: each present one is reported as dirty in every round.
    Keep,
}

/// The technique's state for one address space.
pub(crate) struct PagemapScan {
    pid: u32,
    uffd: Arc<Uffd>,
    pagemap: Arc<Pagemap>,
    /// Scans with this thread while the target stands still.
    helper: Option<Helper>,
    /// Whether a hold would have been shorter with one.
    wants_helper: bool,
    is_held: bool,
    vector: Vector,
    huge_pages: HugePages,
    /// Registered ranges.
    armed: PageSet,
    /// The part of `armed` that is mapped shared, without `holes`.
    shared: PageSet,
    /// The part of `armed` that is mapped shared and registered, but has no markers yet.
    holes: PageSet,
    /// The mappings to which `holes` belong.
    sparse: Vec<Sparse>,
    /// The part of private `armed` memory in which every page-table entry is armed, or was written
    /// since.
    seen: PageSet,
    /// Memory that was armed lately.
    fresh: Fresh,
    /// Which memory to scan, computed from the sets above and kept until one of them changes, so
    /// that a round that finds nothing new allocates nothing.
    plan: Option<Plan>,
    /// Whether collects arm what they report.
    rearming: bool,
}

/// The memory that a collect scans.
struct Plan {
    /// Private armed memory that is not in `seen`.
    unseen: PageSet,
    /// Private armed memory in `seen`.
    seen: PageSet,
    /// `seen` and the shared memory.
    all: PageSet,
}

/// How often arming is tried again if the kernel refuses.
const ARM_TRIES: u32 = 4;

/// Selects pages written since the last scan, by the short path of `pagemap_scan_pmd_entry` in
/// `fs/proc/task_mmu.c`.
const WRITTEN: Query = Query {
    write_protect: true,
    only_registered: true,
    inverted: Categories::NONE,
    all_of: Categories::WRITTEN,
    any_of: Categories::NONE,
    report: Categories::WRITTEN,
};

/// Selects pages written since the last scan, except huge pages.
const WRITTEN_SMALL: Query = Query {
    inverted: Categories::HUGE,
    all_of: Categories::WRITTEN.union(Categories::HUGE),
    any_of: Categories::PRESENT.union(Categories::SWAPPED),
    ..WRITTEN
};

/// Selects pages that the process owns, and says which have no mark of protection. In a mapping
/// that was just registered, pages (and markers, which read as swapped out) have a mark only if a
/// tracker was killed in [`Uffd::hand_over`]: they may be written without a trace.
const OWNED_WITH_MARKS: Query = Query {
    report: Categories::WRITTEN,
    ..OWNED
};

impl PagemapScan {
    /// Takes a new userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let uffd = Uffd::handshake(fd, FEATURES).map_err(Error::os(
            "userfaultfd handshake with UFFD_FEATURE_WP_ASYNC",
        ))?;
        Self::over(Arc::new(uffd), pid, huge_pages)
    }

    /// Shares `uffd`, which belongs to the target's address space and has [`FEATURES`].
    pub(super) fn over(uffd: Arc<Uffd>, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let pagemap = Pagemap::open(pid).map_err(Error::io("opening pagemap"))?;
        Ok(Self {
            pid: pid.unwrap_or_else(std::process::id),
            uffd,
            pagemap: Arc::new(pagemap),
            helper: None,
            wants_helper: false,
            is_held: false,
            vector: Vector::new(),
            huge_pages,
            armed: PageSet::new(),
            shared: PageSet::new(),
            holes: PageSet::new(),
            sparse: Vec::new(),
            seen: PageSet::new(),
            fresh: Fresh::default(),
            plan: None,
            rearming: true,
        })
    }

    fn work_out(&self) -> Plan {
        let private = self.armed.difference(&self.shared).difference(&self.holes);
        let seen = private.intersection(&self.seen);
        Plan {
            unseen: private.difference(&self.seen),
            all: seen.union(&self.shared),
            seen,
        }
    }

    /// Scans all memory that may have been written and re-arms it, except in `left`; adds mappings
    /// that lost their registration to `replaced`.
    fn scan_all(
        &mut self,
        plan: &Plan,
        left: &PageSet,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        if self.huge_pages == HugePages::Split {
            if left.is_empty() && self.is_for_two(&plan.all) {
                return self.scan_by_two(&plan.all, WRITTEN, out, replaced);
            }
            return self.scan_leaving(&plan.all, WRITTEN, left, out, replaced);
        }
        // A selection by size does not take the short path, so it misses the empty entries, which
        // shared mappings need; their huge pages are split in any case.
        self.scan_leaving(&plan.seen, WRITTEN_SMALL, left, out, replaced)?;
        self.scan_leaving(&self.shared.clone(), WRITTEN, left, out, replaced)?;
        // One that is being migrated reads as swapped out.
        let whole = Query {
            all_of: Categories::HUGE,
            any_of: Categories::PRESENT | Categories::SWAPPED,
            ..Query::ALL
        };
        for range in plan.seen.ranges() {
            self.select(*range, whole, out)?;
        }
        Ok(())
    }

    /// Adds the pages that `query` selects, without re-arming them.
    fn select(&mut self, range: PageRange, query: Query, out: &mut PageSet) -> Result<()> {
        self.pagemap
            .scan(range, query, &mut self.vector, |found| out.insert(found))
            .map_err(self.failed("PAGEMAP_SCAN without re-arming"))
    }

    /// Maps the errno of a failed scan to an error.
    fn failed(&self, what: &'static str) -> impl Fn(Errno) -> Error {
        let pid = self.pid;
        move |errno| match errno {
            Errno::SRCH => Error::Gone { pid },
            errno => Error::os(what)(errno),
        }
    }

    fn try_arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => ArmError::Untrackable(OTHERS.into()),
            // `userfaultfd_register` in `fs/userfaultfd.c` demands VM_MAYWRITE.
            Errno::PERM if region.permissions.shared && !region.permissions.write => {
                ArmError::ReadOnly
            }
            // Since the map was read, it was unmapped, or replaced by a mapping that cannot be
            // tracked.
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT => {
                ArmError::Untrackable(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::os(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.uffd
            .register(range, Mode::WriteProtect)
            .map_err(failed)?;
        self.plan = None;
        self.armed.insert(range);
        if region.permissions.shared {
            let holes = self.leave_holes(region);
            let filled = PageSet::from(range).difference(&holes);
            self.shared.union_with(&filled);
            let mut parts = filled.ranges().iter();
            return parts.try_for_each(|part| self.pagemap.arm(*part).map_err(failed));
        }
        self.arm_private(range, failed)
    }

    /// Write-protects private memory that was just registered, as far as the process owns pages
    /// there.
    fn arm_private(
        &mut self,
        range: PageRange,
        failed: impl Fn(Errno) -> ArmError,
    ) -> Result<(), ArmError> {
        let (mut owned, mut is_stale) = (PageSet::new(), false);
        let scanned =
            self.pagemap
                .scan_kinds(range, OWNED_WITH_MARKS, &mut self.vector, |pages, kinds| {
                    owned.insert(pages);
                    is_stale |= !kinds.contains(Categories::WRITTEN);
                });
        scanned.map_err(self.failed("PAGEMAP_SCAN without re-arming"))?;
        if is_stale {
            self.uffd.release(range).map_err(&failed)?;
            owned.clear();
            // Without markers, what reads as swapped out is swapped out.
            self.select(range, OWNED, &mut owned)?;
        }
        self.fresh.existed(&owned);
        let tables = blocks(&owned).within(range);
        for part in tables.ranges() {
            self.pagemap.arm(*part).map_err(&failed)?;
        }
        self.seen.union_with(&tables);
        Ok(())
    }

    fn try_arm_run(&mut self, range: PageRange) -> Result<(), ArmError> {
        // What it is does not matter: each mapping is then armed by itself.
        let failed = |errno| ArmError::Failed(Error::os("arming mappings at once")(errno));
        self.uffd
            .register(range, Mode::WriteProtect)
            .map_err(failed)?;
        self.plan = None;
        self.armed.insert(range);
        self.arm_private(range, failed)
    }
}

impl Tracker for PagemapScan {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let mut tries = 0;
        loop {
            match self.try_arm(region) {
                Ok(()) => return Ok(()),
                // Another mapping replaced it between two steps; the new one may be trackable as
                // well.
                Err(ArmError::Untrackable(_)) if tries < ARM_TRIES => tries += 1,
                // Nothing was registered, and the same is tried at each collect.
                Err(ArmError::ReadOnly) => return Err(ArmError::ReadOnly),
                Err(error) => {
                    self.forget(region.range);
                    return Err(error);
                }
            }
        }
    }

    /// The kernel registers all mappings of a range by one call, or none
    /// (`userfaultfd_register` in `fs/userfaultfd.c`).
    fn arm_run(&mut self, range: PageRange, _: &[Region]) -> bool {
        let armed = self.try_arm_run(range).is_ok();
        if !armed {
            self.forget(range);
        }
        armed
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            // Pages that were written may have left the page table again.
            let whole = PageSet::from(region.range);
            out.union_with(&whole.difference(&self.holes));
            return Ok(());
        }
        self.add_existing(region, out)
    }

    fn misses(&self) -> Missed {
        Missed::OfFiles
    }

    /// An empty entry there has lost its mark, and reads as written on the kernel's short path.
    fn reports_discards_in(&self) -> Option<&PageSet> {
        (self.huge_pages == HugePages::Split).then_some(&self.seen)
    }

    /// Memory of another userfaultfd that is asynchronous, too, passes `PM_SCAN_CHECK_WPASYNC`, and
    /// its owner write-protects it: what was written before reads as clean.
    fn is_others(&mut self, range: PageRange) -> bool {
        let start = range.start();
        let Some(first) = PageRange::new(start, start + crate::page_set::page_size()) else {
            return false;
        };
        // Where nobody has it, registering would hide from the scan that it was replaced.
        let vector = &mut self.vector;
        self.pagemap.is_tracked_asynchronously(first, vector)
            && self.uffd.register(range, Mode::WriteProtect) == Err(Errno::BUSY)
    }

    fn may_be_others(&mut self, span: PageRange) -> bool {
        // Where it succeeds, the end has just been replaced.
        let outcome = self.uffd.register(span, Mode::WriteProtect);
        matches!(outcome, Ok(_) | Err(Errno::BUSY))
    }

    fn forget(&mut self, range: PageRange) {
        self.plan = None;
        for set in [&mut self.armed, &mut self.shared, &mut self.seen] {
            set.remove(range);
        }
        self.fresh.forget(range);
        self.forget_holes(range);
    }

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn set_held(&mut self, held: bool) {
        self.is_held = held;
    }

    fn set_rearming(&mut self, rearming: bool) -> bool {
        self.rearming = rearming;
        true
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let armed = self.armed.difference(&self.holes);
        for range in pages.intersection(&armed).ranges() {
            // The next collect finds mappings that lost their registration.
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

    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn lender(&self) -> Option<Arc<Uffd>> {
        Some(Arc::clone(&self.uffd))
    }

    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn protects_all(&self) -> bool {
        self.huge_pages == HugePages::Split && self.rearming
    }

    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn add_unprotected(&mut self, range: PageRange, out: &mut PageSet) -> Result<()> {
        let query = Query {
            write_protect: false,
            ..WRITTEN
        };
        self.select(range, query, out)
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        self.collect_leaving(&PageSet::new(), out)
    }
}

impl PagemapScan {
    /// The armed memory.
    pub(super) fn armed(&self) -> &PageSet {
        &self.armed
    }

    /// Collects like [`Tracker::collect`], but does not re-arm what was written in `left` (whole
    /// blocks): it is reported again by each collect, until [`Self::rearm_span`].
    pub(super) fn collect_leaving(
        &mut self,
        left: &PageSet,
        out: &mut PageSet,
    ) -> Result<Collected> {
        let mut collected = Collected::default();
        self.fresh.begin();
        self.arm_filled_holes(out, &mut collected.replaced)?;
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.work_out(),
        };
        let mut owned = PageSet::new();
        let asked = Query {
            only_registered: true,
            ..OWNED
        };
        self.scan_ranges(&plan.unseen, asked, &mut owned, &mut collected.replaced)?;
        let fresh = blocks(&owned).intersection(&plan.unseen);
        if !fresh.is_empty() {
            self.seen.union_with(&fresh);
            plan = self.work_out();
        }
        // If a later step fails: what was re-armed is in `out` by then, and replaced mappings are
        // found again.
        if self.rearming {
            self.scan_all(&plan, left, out, &mut collected.replaced)?;
        } else {
            self.scan_unarmed(&plan, &fresh, out, &mut collected.replaced)?;
        }
        let mut late = PageSet::new();
        let rechecked = self.look_again(&mut late).and_then(|()| {
            if fresh.is_empty() {
                return Ok(());
            }
            self.drop_never_touched(&fresh, owned, out)
        });
        out.union_with(&late);
        rechecked?;
        self.plan = Some(plan);
        for range in &collected.replaced {
            self.forget(*range);
        }
        Ok(collected)
    }
}
