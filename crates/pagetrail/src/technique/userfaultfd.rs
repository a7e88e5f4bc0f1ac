//! `userfaultfd`: synchronous write-protection. A thread of the tracker is told of each write to a protected page
//! before it happens, notes it, and releases the page, or the whole block around it.
//!
//! Linux 5.7 for anonymous memory, 5.19 for shared memory and hugetlb; `userfaultfd(2)`. A fault costs a trip
//! to user space and back (some 7 times that of `pagemap-scan`), which blocks of up to 512 pages share between
//! neighbours. Before Linux 6.4 pages that do not exist cannot be protected; there the first touch of each is
//! caught instead and counts as a write.
//!
//! The handler thread allocates nothing and touches no memory but its stack and the log, which lies in a
//! mapping of its own: a process can track its own heap.

use super::{ArmError, Harvest, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::shared_words::SharedWords;
use crate::sys::uffd::{FAULTS_AT_ONCE, Fault, Mode, Uffd, feature};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Faults that can wait for a harvest. When there are more, everything armed counts as written.
const LOG_LEN: usize = 1 << 22;

/// Pages that one fault may release at most: what one page table maps.
pub const BLOCK_PAGES_MAX: u32 = 512;

struct Shared {
    uffd: Uffd,
    stop: OwnedFd,
    /// Addresses of faults, a ring; written by the handler, read by the harvest.
    log: SharedWords,
    /// Faults ever logged.
    written: AtomicU64,
    /// Faults ever harvested.
    read: AtomicU64,
    overflow: AtomicBool,
    /// Held by the handler from the release of a page until it is in the log, and by the harvest while it
    /// looks how far the log reaches: so a page that is released is in the log, or its fault is still unresolved.
    resolving: Mutex<()>,
    block_bytes: u64,
}

/// The technique's state for one address space.
pub(crate) struct Userfaultfd {
    shared: Arc<Shared>,
    handler: Option<JoinHandle<()>>,
    armed: PageSet,
    mode: Mode,
}

impl Userfaultfd {
    /// Takes a fresh userfaultfd of the target's address space. `block_pages`: 1 to [`BLOCK_PAGES_MAX`], a power
    /// of two.
    pub(crate) fn new(fd: OwnedFd, block_pages: u32) -> Result<Self> {
        let wanted =
            feature::PAGEFAULT_FLAG_WP | feature::WP_HUGETLBFS_SHMEM | feature::WP_UNPOPULATED;
        let supported =
            Uffd::supported().map_err(Error::errno("asking for userfaultfd features"))?;
        let uffd = Uffd::handshake(fd, wanted & supported | feature::PAGEFAULT_FLAG_WP).map_err(
            Error::errno("userfaultfd handshake with UFFD_FEATURE_PAGEFAULT_FLAG_WP"),
        )?;
        let mode = match uffd.features() & feature::WP_UNPOPULATED {
            0 => Mode::WriteProtectAndMissing,
            _ => Mode::WriteProtect,
        };
        let shared = Arc::new(Shared {
            uffd,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::errno("eventfd"))?,
            log: SharedWords::new(LOG_LEN).map_err(Error::errno("mapping the fault log"))?,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            overflow: AtomicBool::new(false),
            resolving: Mutex::new(()),
            block_bytes: u64::from(block_pages.clamp(1, BLOCK_PAGES_MAX).next_power_of_two())
                * page_size(),
        });
        let for_thread = Arc::clone(&shared);
        let handler = std::thread::Builder::new()
            .name("pagetrail-uffd".into())
            .spawn(move || for_thread.handle_faults())
            .map_err(Error::io("starting the fault handler"))?;
        Ok(Self {
            shared,
            handler: Some(handler),
            armed: PageSet::new(),
            mode,
        })
    }
}

impl Shared {
    /// The handler thread: ends when told to, or when the address space is gone.
    fn handle_faults(&self) {
        let mut faults = [Fault {
            address: 0,
            write_protect: false,
        }; FAULTS_AT_ONCE];
        loop {
            let mut fds = [
                PollFd::new(&self.uffd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !fds[1].revents().is_empty() || fds[0].revents().contains(PollFlags::ERR) {
                return;
            }
            match self.uffd.read_faults(&mut faults) {
                Ok(count) => faults[..count]
                    .iter()
                    .for_each(|fault| self.resolve(*fault)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn resolve(&self, fault: Fault) {
        let page = page_size();
        let Some(one) = PageRange::new(fault.address, fault.address + page) else {
            return;
        };
        let _resolving = self
            .resolving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if fault.write_protect {
            self.note(one.align_outwards(self.block_bytes).start());
            // The block may reach beyond the mapping; then the page alone is released.
            if self
                .uffd
                .release(one.align_outwards(self.block_bytes))
                .is_err()
            {
                let _ = self.uffd.release(one);
            }
        } else {
            self.note(fault.address);
            if self.uffd.zero_page(one).is_err() {
                let _ = self.uffd.wake(one);
            }
        }
    }

    fn note(&self, address: u64) {
        let at = self.written.load(Ordering::Relaxed);
        if at - self.read.load(Ordering::Acquire) >= LOG_LEN as u64 {
            self.overflow.store(true, Ordering::Release);
            return;
        }
        self.log[at as usize % LOG_LEN].store(address, Ordering::Relaxed);
        self.written.store(at + 1, Ordering::Release);
    }
}

impl Tracker for Userfaultfd {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => {
                ArmError::GivenUp("the program tracks it by a userfaultfd of its own".into())
            }
            Errno::INVAL | Errno::PERM if region.permissions.shared => {
                ArmError::GivenUp("synchronous userfaultfd cannot protect shared files".into())
            }
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT | Errno::NOENT => {
                ArmError::GivenUp(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::errno(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.shared
            .uffd
            .register(range, self.mode)
            .map_err(failed)?;
        self.shared.uffd.protect(range).map_err(failed)?;
        self.armed.insert(range);
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.insert(region.range);
        Ok(())
    }

    fn forget(&mut self, range: PageRange) {
        self.armed.remove(range);
    }

    fn needs_layout(&self) -> bool {
        true
    }

    fn harvest(&mut self, layout: &[PageRange], out: &mut PageSet) -> Result<Harvest> {
        let shared = &*self.shared;
        let written = {
            let _resolving = shared
                .resolving
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            shared.written.load(Ordering::Acquire)
        };
        let read = shared.read.load(Ordering::Relaxed);
        let blocks: PageSet = (read..written)
            .filter_map(|at| {
                let start = shared.log[at as usize % LOG_LEN].load(Ordering::Relaxed);
                PageRange::new(start, start + shared.block_bytes)
            })
            .collect();
        shared.read.store(written, Ordering::Release);
        let overflow = shared.overflow.swap(false, Ordering::AcqRel);
        *out = if overflow {
            self.armed.clone()
        } else {
            blocks.intersection(&self.armed)
        };
        let mut harvest = Harvest {
            faults: Some(written - read),
            ..Harvest::default()
        };
        for range in out.ranges() {
            match shared.uffd.protect(*range) {
                Ok(()) => {}
                // Mapped anew, or partly: the watch arms again what is there now.
                Err(Errno::NOENT | Errno::INVAL | Errno::NOMEM) => harvest.replaced.push(*range),
                Err(errno) => return Err(Error::errno("UFFDIO_WRITEPROTECT")(errno)),
            }
        }
        // A mapping that was replaced is no longer registered, and nothing else says so.
        for mapping in layout {
            let first = PageRange::new(mapping.start(), mapping.start() + page_size());
            if first.is_some_and(|page| shared.uffd.protect(page) == Err(Errno::NOENT)) {
                harvest.replaced.push(*mapping);
            }
        }
        for range in &harvest.replaced {
            self.armed.remove(*range);
        }
        Ok(harvest)
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        // Lifting all protection first: from here on nobody waits for the handler.
        for range in self.armed.ranges() {
            let _ = self.shared.uffd.unregister(*range);
        }
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(handler) = self.handler.take() {
            let _ = handler.join();
        }
    }
}
