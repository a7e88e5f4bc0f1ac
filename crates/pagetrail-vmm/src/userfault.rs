//! What is written to memory that a userfaultfd of the monitor write-protects.
//!
//! KVM's own accesses on behalf of the guest are writes like any other here, and so are the
//! monitor's, and those of a device that shares the mapping. Writes through other mappings of the
//! memory (a vhost-user device's, in its process) are not seen.
//!
//! The monitor creates the userfaultfd, makes the handshake, and registers its memory with
//! `UFFDIO_REGISTER_MODE_WP`, with or without `UFFDIO_REGISTER_MODE_MISSING`. Then:
//!
//! * with `UFFD_FEATURE_WP_ASYNC` (Linux 6.7) the kernel resolves the faults: [`Protection`] reads
//!   from the page tables what was written, and nobody needs to wait for anybody;
//! * without, a thread of the monitor reads the faults and passes those of write protection to
//!   [`WriteFaults::resolve`].
//!
//! That thread may be in another process, which has received the userfaultfd over a socket:
//! [`WriteFaults`] and `LazyRestore` do not touch the memory. Regions
//! are described there by the monitor's addresses.

use crate::error::{Error, Result};
use crate::log::DirtyLog;
use crate::own_writes::{self, AtomicRegions};
use crate::pages::{DirtyPages, DirtyRange};
use crate::regions::{Regions, host_range};
use crate::sys::userfaultfd;
use pagemap_scan::{Pagemap, Query, Vector};
use pagetrail::page_size;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};

/// How often a call is made again that other threads' changes of mappings keep from succeeding.
const ATTEMPTS_MAX: u32 = 1000;

/// Memory that is write-protected asynchronously.
///
/// Pages that are swapped out, or moved, keep their state. A page that was discarded reads as clean
/// though its contents have changed: mark it in [`OwnWrites`](crate::OwnWrites).
#[derive(Debug)]
pub struct Protection {
    pagemap: Pagemap,
    vector: Vector,
}

impl Protection {
    /// Reads what was written in this process's memory.
    ///
    /// # Errors
    ///
    /// The page map cannot be opened.
    pub fn new() -> Result<Self> {
        Ok(Self {
            pagemap: Pagemap::own().map_err(Error::userfault("open the page map"))?,
            vector: Vector::new(),
        })
    }
}

impl DirtyLog for Protection {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        let mut outcome = Ok(());
        for region in regions {
            let Some(bitmap) = dirty.of_slot_mut(region.slot()) else {
                continue;
            };
            let page = |address: u64| (address - region.host_address()) / page_size();
            let scanned = self.pagemap.scan(
                host_range(region),
                Query::WRITTEN_SINCE_LAST_SCAN,
                &mut self.vector,
                |found: Range<u64>, _| bitmap.insert(page(found.start)..page(found.end)),
            );
            outcome = outcome.and(scanned.map_err(|errno| match errno {
                Errno::PERM => Error::region(
                    region.slot(),
                    "it is not all registered with a userfaultfd that write-protects \
                     asynchronously (UFFD_FEATURE_WP_ASYNC)",
                ),
                Errno::NOTTY => Error::userfault("scan the page map, which needs Linux 6.7")(errno),
                _ => Error::userfault("scan the page map")(errno),
            }));
        }
        outcome
    }
}

/// Memory that is write-protected synchronously: a write waits until its fault is resolved. The
/// copies of a value are one.
///
/// The userfaultfd needs `UFFD_FEATURE_PAGEFAULT_FLAG_WP`, for memory of a memfd
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, and `UFFD_FEATURE_WP_UNPOPULATED` unless missing pages are
/// registered, too, and filled write-protected: without it a page that does not exist yet cannot be
/// write-protected, and its first write is not seen.
#[derive(Clone, Debug)]
pub struct WriteFaults {
    uffd: Arc<OwnedFd>,
    written: AtomicRegions,
}

impl WriteFaults {
    /// Resolves faults of a userfaultfd, whose descriptor is duplicated.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be duplicated.
    pub fn new(uffd: BorrowedFd<'_>) -> Result<Self> {
        let uffd = uffd.try_clone_to_owned();
        Ok(Self {
            uffd: Arc::new(uffd.map_err(Error::userfault("duplicate its descriptor"))?),
            written: AtomicRegions::default(),
        })
    }

    /// Resolves a fault of write protection: notes that the page was written, and wakes the thread
    /// that waits. Returns whether the address is in a tracked region; if it is not, nothing has
    /// been done.
    ///
    /// # Errors
    ///
    /// The protection cannot be lifted.
    pub fn resolve(&self, host_address: u64) -> Result<bool> {
        let written = self.written.read().unwrap_or_else(PoisonError::into_inner);
        let found = written
            .iter()
            .find(|(region, _)| host_range(region).contains(&host_address));
        let Some((region, set)) = found else {
            return Ok(false);
        };
        // Before the write can be made, and under the lock: a collect in between would protect the
        // page again, this would lift that, and the write be in no round.
        set.insert(host_address - region.host_address(), 1);
        let page = host_address & !(page_size() - 1);
        protect(self.uffd.as_fd(), page..page + page_size(), false).map(|()| true)
    }

    /// The log: what was written.
    pub fn log(&self) -> Box<dyn DirtyLog> {
        Box::new(FaultLog {
            faults: self.clone(),
            unprotected: DirtyPages::default(),
            regions: Regions::default(),
        })
    }
}

struct FaultLog {
    faults: WriteFaults,
    /// Pages that are to be write-protected; until that has succeeded they are dirty each time.
    unprotected: DirtyPages,
    regions: Regions,
}

impl DirtyLog for FaultLog {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        // Nobody lifts a protection meanwhile.
        let written = self.faults.written.write();
        let written = written.unwrap_or_else(PoisonError::into_inner);
        own_writes::take(&written, &mut self.unprotected);
        dirty.union_with(&self.unprotected);
        for region in regions {
            let bitmap = self.unprotected.of_slot(region.slot());
            for pages in bitmap.into_iter().flat_map(|bitmap| bitmap.ranges()) {
                let range = DirtyRange::new(region, pages);
                let range = range.host_address..range.host_address + range.bytes;
                protect(self.faults.uffd.as_fd(), range, true)?;
            }
        }
        self.unprotected.clear();
        Ok(())
    }

    fn regions_changed(&mut self, regions: &Regions) -> Result<()> {
        own_writes::follow(&self.faults.written, regions);
        let new = regions
            .iter()
            .filter(|region| !self.regions.iter().any(|old| old == *region));
        let new = DirtyPages::all_of(&Regions::new(new.cloned())?);
        let mut unprotected = DirtyPages::none_of(regions);
        unprotected.union_with(&self.unprotected);
        unprotected.union_with(&new);
        self.unprotected = unprotected;
        self.regions = regions.clone();
        Ok(())
    }
}

fn protect(uffd: BorrowedFd<'_>, range: Range<u64>, protect: bool) -> Result<()> {
    let what = if protect {
        "write-protect"
    } else {
        "lift the protection of"
    };
    let what = format!("{what} {:#x}..{:#x}", range.start, range.end);
    for _ in 0..ATTEMPTS_MAX {
        match userfaultfd::write_protect(uffd, range.clone(), protect) {
            // Another thread is changing mappings (fork, mremap, madvise).
            Err(Errno::AGAIN) => std::thread::yield_now(),
            outcome => return outcome.map_err(Error::userfault(what)),
        }
    }
    Err(Error::userfault(what)(Errno::AGAIN))
}
