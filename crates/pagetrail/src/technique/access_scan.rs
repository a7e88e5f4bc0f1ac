//! `access-scan`: the kernel removes pages' access rights, restores them at the first touch by
//! itself, and records the touch; a scan fetches the touched pages, and they are protected again.
//!
//! Linux 7.3; `ioctl_userfaultfd(2)` on `UFFD_FEATURE_RWP_ASYNC`,
//! `Documentation/admin-guide/mm/userfaultfd.rst` ("Read-Write Protection") and `pagemap.rst`
//! (`PAGE_IS_ACCESSED`). What the kernel does in detail, and what follows:
//!
//! * `PAGEMAP_SCAN` cannot re-arm here (`PM_SCAN_WP_MATCHING` is for write protection), so scan and
//!   protection are two steps. Only ranges just reported are protected again: a touch between the
//!   steps is one of a page that this round reports anyway, and a page that is created between them
//!   is not protected, so the next round reports it.
//! * Protection belongs to entries of the page table, and there is no marker for an empty one. A
//!   page that is created counts as touched, rightly. A page that leaves the page table
//!   (`madvise(MADV_DONTNEED)`) takes its state along: a page that existed at the last collect and
//!   is gone counts as touched. A page of a shared mapping that appears, is touched and disappears
//!   within one round is missed.
//! * Registering registered memory again changes nothing, and a mapping that replaced another is
//!   unprotected, so all of it counts as touched. Each collect registers everything again, and need
//!   not find out what was replaced.
//! * Accesses by the kernel count, including those on behalf of others (`process_vm_readv(2)`,
//!   `/proc/PID/mem`, a debugger).
//! * Only anonymous memory, shared memory and hugetlb can be registered; file mappings cannot,
//!   private or shared.

use super::pagemap_scan::{HugePages, block_bytes};
use super::{ArmError, Armed, Collected, OTHERS, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::pagemap::{Categories, Pagemap, Query, Vector};
use crate::sys::uffd::{Features, Mode, Uffd};
use crate::types::AccessKind;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;

/// Features without which the technique does not work.
pub(crate) const FEATURES: Features = Features::RWP.union(Features::RWP_ASYNC);

/// Selects the pages that exist, and reports whether each was touched.
const EXISTING: Query = Query {
    write_protect: false,
    only_registered: false,
    inverted: Categories::NONE,
    all_of: Categories::NONE,
    any_of: Categories::PRESENT.union(Categories::SWAPPED),
    report: Categories::ACCESSED.union(Categories::HUGE),
};

/// The technique's state for one address space.
pub(crate) struct AccessScan {
    pid: u32,
    uffd: Arc<Uffd>,
    pagemap: Pagemap,
    vector: Vector,
    huge_pages: HugePages,
    /// Registered ranges.
    armed: PageSet,
    /// The pages of `armed` that existed at the last collect, or when they were armed.
    existing: PageSet,
    /// Whether collects protect again what they report.
    rearming: bool,
}

impl AccessScan {
    /// Takes a new userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let uffd = Uffd::handshake(fd, FEATURES)
            .map_err(Error::os("userfaultfd handshake with UFFD_FEATURE_RWP"))?;
        Self::over(Arc::new(uffd), pid, huge_pages)
    }

    /// Shares `uffd`, which belongs to the target's address space and has [`FEATURES`]; `pid` is
    /// `None` for the own one.
    pub(super) fn over(uffd: Arc<Uffd>, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        Ok(Self {
            pid: pid.unwrap_or_else(std::process::id),
            uffd,
            pagemap: Pagemap::open(pid).map_err(Error::io("opening pagemap"))?,
            vector: Vector::new(),
            huge_pages,
            armed: PageSet::new(),
            existing: PageSet::new(),
            rearming: true,
        })
    }

    /// Adds the pages of `range` that exist to `existing`, those of them that were touched to
    /// `touched` and, where they are mapped by huge pages, to `huge`.
    fn scan(
        &mut self,
        range: PageRange,
        existing: &mut PageSet,
        touched: &mut PageSet,
        huge: &mut PageSet,
    ) -> Result<()> {
        let pid = self.pid;
        self.pagemap
            .scan_kinds(range, EXISTING, &mut self.vector, |range, kinds| {
                existing.insert(range);
                if kinds.contains(Categories::ACCESSED) {
                    touched.insert(range);
                    if kinds.contains(Categories::HUGE) {
                        huge.insert(range);
                    }
                }
            })
            .map_err(|errno| match errno {
                Errno::SRCH => Error::Gone { pid },
                errno => Error::os("PAGEMAP_SCAN")(errno),
            })
    }

    /// Protects the pages that a collect reports.
    fn protect(&self, pages: &PageSet, layout: &[Armed]) -> Result<()> {
        for range in pages.ranges() {
            match self.uffd.protect_from_access(*range) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Err(Error::Gone { pid: self.pid }),
                // Part of it was replaced or unmapped since, so it is protected mapping by mapping.
                // What stays unprotected is reported again.
                Err(_) => {
                    for part in layout
                        .iter()
                        .filter_map(|armed| armed.range.intersection(range))
                    {
                        let _ = self.uffd.protect_from_access(part);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the kernel map small pages instead of huge ones, so that touches within are
    /// distinguished.
    fn split(&self, huge: &PageSet) {
        if self.huge_pages == HugePages::Keep {
            return;
        }
        let block = block_bytes();
        for range in huge.ranges() {
            let mut start = range.start();
            while start < range.end() {
                // Protecting a part splits the huge page. (hugetlb refuses, and stays whole.)
                if let Some(first) = PageRange::new(start, start + page_size()) {
                    let _ = self.uffd.protect_from_access(first);
                }
                start += block;
            }
        }
    }
}

impl Tracker for AccessScan {
    fn access_kind(&self) -> AccessKind {
        AccessKind::Accesses
    }

    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => ArmError::Untrackable(OTHERS.into()),
            Errno::INVAL | Errno::PERM if region.inode != 0 => {
                ArmError::Untrackable("the kernel does not report accesses to mapped files".into())
            }
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT | Errno::NOENT => {
                ArmError::Untrackable(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::os(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.uffd
            .register(range, Mode::ReadWriteProtect)
            .map_err(failed)?;
        let (mut existing, mut touched, mut huge) = Default::default();
        self.scan(range, &mut existing, &mut touched, &mut huge)?;
        self.split(&huge);
        self.uffd.protect_from_access(range).map_err(failed)?;
        self.existing.union_with(&existing);
        self.armed.insert(range);
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            // Pages that were touched may have left the page table again.
            out.insert(region.range);
        } else {
            let (mut touched, mut huge) = Default::default();
            self.scan(region.range, out, &mut touched, &mut huge)?;
        }
        Ok(())
    }

    fn forget(&mut self, range: PageRange) {
        self.armed.remove(range);
        self.existing.remove(range);
    }

    fn needs_layout(&self) -> bool {
        true
    }

    fn set_rearming(&mut self, rearming: bool) -> bool {
        self.rearming = rearming;
        true
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        for range in pages.intersection(&self.armed).ranges() {
            // If part of it was replaced or unmapped since, nothing is protected, and it is
            // reported again.
            if self.uffd.protect_from_access(*range) == Err(Errno::SRCH) {
                return Err(Error::Gone { pid: self.pid });
            }
        }
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        for range in self.armed.ranges() {
            // If part of it was replaced or unmapped since, it has no protection to lift.
            if self.uffd.release_to_access(*range) == Err(Errno::SRCH) {
                return Err(Error::Gone { pid: self.pid });
            }
        }
        Ok(())
    }

    fn collect(&mut self, layout: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let mut collected = Collected::default();
        for Armed { range, permissions } in layout {
            // Inaccessible memory cannot be registered, but keeps the registration that it has.
            if !permissions.read && !permissions.write {
                continue;
            }
            match self.uffd.register(*range, Mode::ReadWriteProtect) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Err(Error::Gone { pid: self.pid }),
                // It was replaced by something other than memory.
                Err(_) => collected.replaced.push(*range),
            }
        }
        for range in &collected.replaced {
            self.forget(*range);
        }
        let (mut existing, mut huge): (PageSet, PageSet) = Default::default();
        for range in self.armed.clone().ranges() {
            self.scan(*range, &mut existing, out, &mut huge)?;
        }
        if self.rearming {
            self.split(&huge);
            self.protect(out, layout)?;
        }
        let vanished = self.existing.difference(&existing);
        out.union_with(&vanished);
        self.existing = existing;
        Ok(collected)
    }
}
