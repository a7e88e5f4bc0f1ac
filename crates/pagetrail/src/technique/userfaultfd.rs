//! `userfaultfd`: synchronous write protection. A thread of the tracker receives each write fault
//! on a protected page before the write happens, logs it, and releases the page, or the whole block
//! around it.
//!
//! Linux 5.7 for anonymous memory, 5.19 for shared memory and hugetlb; `userfaultfd(2)`. A fault
//! costs a round trip to user space (some 15 times the cost of a fault of `pagemap-scan`), which
//! blocks of up to 512 pages share between neighbours. Pages that do not exist cannot be protected;
//! their first touch is caught instead. A first read counts as a write: the page may have been
//! discarded, and contain zeros from now on. That a page is discarded is no fault: the watch
//! compares which pages there are.
//!
//! It has three effects on a target that no other technique has, and that cannot be avoided here. A
//! thread that writes waits for the tracker, so it does not run while the tracker is stopped
//! (SIGSTOP). Operations of the kernel on futexes in protected pages, those of priority-inheriting
//! mutexes and `FUTEX_WAKE_OP`, fail with `EFAULT` (`fault_in_user_writeable` in
//! kernel/futex/core.c does not wait). And the kernel does not wait in a thread that exits: on
//! protected pages, the owner's death is not recorded in robust mutexes, and the word of
//! `CLONE_CHILD_CLEARTID` is not cleared (`handle_userfault` in fs/userfaultfd.c fails for tasks
//! that exit; `futex_exit_release` and `mm_release` ignore that). The thread may change its list of
//! robust mutexes at any time, so no page can be left unprotected for them beforehand.
//!
//! The handler thread allocates nothing and writes to no memory but its stack, the log and its
//! state, which lie in mappings of their own: a process can track its own heap.

use super::{ArmError, Armed, Collected, Missed, OTHERS, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Vector};
use crate::sys::shared_words::SharedWords;
use crate::sys::uffd::{FAULTS_AT_ONCE, Fault, Features, Filled, Mode, Uffd, Zeros};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Faults that the log holds between two collects. If there are more, everything armed counts as
/// written.
const LOG_LEN: usize = 1 << 22;

/// The most pages that one fault may release: what one page table maps.
pub const BLOCK_PAGES_MAX: u32 = 512;

struct Shared {
    uffd: Uffd,
    stop: OwnedFd,
    /// Addresses of faults, a ring; the handler writes it, a collect reads it.
    log: SharedWords,
    /// See [`State`].
    state: SharedWords,
    block_bytes: u64,
    /// The contents of a new huge page.
    zeros: Zeros,
}

/// The words of [`Shared::state`].
#[derive(Clone, Copy)]
enum State {
    /// Number of faults logged so far.
    Written,
    /// Number of faults collected so far.
    Read,
    /// Number of faults so far that found the log full.
    Overflow,
    /// Odd while the handler starts, and while it logs and releases a page. Between an even number
    /// and the same number again the log is complete: each page in it is released, or its fault is
    /// not yet handled. (A lock would not do: the thread that collects may itself wait for the
    /// handler, at any of its stores.)
    Resolving,
}

const STATE_WORDS: usize = 4;

/// The default size of hugetlb pages on x86-64.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The technique's state for one address space.
pub(crate) struct Userfaultfd {
    shared: Arc<Shared>,
    handler: Option<JoinHandle<()>>,
    armed: PageSet,
    /// [`State::Overflow`] at the last collect.
    overflow: u64,
    pagemap: Pagemap,
    /// Allocated when it is needed.
    vector: Option<Vector>,
    /// The PID of the process to which the handler belongs.
    tracker: u32,
}

impl Userfaultfd {
    /// Takes a new userfaultfd of the target's address space; `pid` is `None` for the own one.
    /// `block_pages`: 1 to [`BLOCK_PAGES_MAX`], a power of two.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, block_pages: u32) -> Result<Self> {
        let uffd = Uffd::handshake(fd, Features::PAGEFAULT_FLAG_WP).map_err(Error::os(
            "userfaultfd handshake with UFFD_FEATURE_PAGEFAULT_FLAG_WP",
        ))?;
        let shared = Arc::new(Shared {
            uffd,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::os("eventfd"))?,
            log: SharedWords::new(LOG_LEN).map_err(Error::os("mapping the fault log"))?,
            state: SharedWords::new(STATE_WORDS)
                .map_err(Error::os("mapping the fault handler's state"))?,
            zeros: Zeros::new(HUGE_PAGE_BYTES as usize).map_err(Error::os("mapping zeros"))?,
            block_bytes: u64::from(block_pages.clamp(1, BLOCK_PAGES_MAX).next_power_of_two())
                * page_size(),
        });
        shared.state(State::Resolving).store(1, Ordering::SeqCst);
        let for_thread = Arc::clone(&shared);
        let handler = std::thread::Builder::new()
            .name("pagetrail-uffd".into())
            .spawn(move || for_thread.handle_faults())
            .map_err(Error::io("starting the fault handler"))?;
        // A thread allocates while it starts; after that, memory may be armed.
        shared.logged();
        Ok(Self {
            shared,
            handler: Some(handler),
            armed: PageSet::new(),
            overflow: 0,
            pagemap: Pagemap::open(pid).map_err(Error::io("opening pagemap"))?,
            vector: None,
            tracker: std::process::id(),
        })
    }
}

impl Shared {
    fn state(&self, word: State) -> &AtomicU64 {
        &self.state[word as usize]
    }

    /// The length of the log, and the number of faults that found it full, at a moment when the
    /// handler resolves nothing.
    fn logged(&self) -> (u64, u64) {
        loop {
            let before = self.state(State::Resolving).load(Ordering::SeqCst);
            let logged = (
                self.state(State::Written).load(Ordering::SeqCst),
                self.state(State::Overflow).load(Ordering::SeqCst),
            );
            if before.is_multiple_of(2)
                && self.state(State::Resolving).load(Ordering::SeqCst) == before
            {
                return logged;
            }
            std::thread::yield_now();
        }
    }

    /// Whether a registered range consists of pages that [`Self::resolve`] could not fill, so that
    /// a thread that touches one would wait for ever. The kernel protects whole pages only.
    fn has_gigantic_pages(&self, range: PageRange) -> bool {
        let refused = |bytes| {
            PageRange::new(range.start(), range.start() + bytes)
                .is_some_and(|part| self.uffd.protect(part) == Err(Errno::INVAL))
        };
        range.bytes() > HUGE_PAGE_BYTES && refused(page_size()) && refused(HUGE_PAGE_BYTES)
    }

    /// Runs the handler thread until it is asked to stop or the address space is gone.
    fn handle_faults(&self) {
        let mut faults = [Fault::default(); FAULTS_AT_ONCE];
        self.state(State::Resolving).fetch_add(1, Ordering::SeqCst);
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
                Ok(count) => {
                    for fault in &faults[..count] {
                        self.state(State::Resolving).fetch_add(1, Ordering::SeqCst);
                        self.resolve(*fault);
                        self.state(State::Resolving).fetch_add(1, Ordering::SeqCst);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn resolve(&self, fault: Fault) {
        let Some(page) = PageRange::new(fault.address, fault.address + page_size()) else {
            return;
        };
        let block = page.align_outwards(self.block_bytes);
        // hugetlb memory must be released by whole huge pages; if a block extends beyond its
        // mapping, only the page is released.
        let huge = page.align_outwards(HUGE_PAGE_BYTES);
        let resolved = if fault.write_protect {
            self.note(block);
            self.uffd
                .release(block)
                .or_else(|_| self.uffd.release(page))
                .or_else(|_| {
                    self.note(huge);
                    self.uffd.release(huge)
                })
        } else {
            // A page that is only read gets its protection with its zeros. Its previous contents
            // may have been reported before it was discarded, so the zeros are reported as well.
            let filled = match fault.write {
                true => Filled::Writable,
                false => Filled::WriteProtected,
            };
            self.note(if fault.write { block } else { page });
            match self.uffd.fill(page, &self.zeros, filled) {
                Err(Errno::INVAL) => {
                    self.note(huge);
                    self.uffd.fill(huge, &self.zeros, filled)
                }
                outcome => outcome,
            }
        };
        if resolved.is_err() {
            // Another thread's fault was resolved first, or the mapping is gone: the thread
            // retries.
            let _ = self.uffd.wake(page);
        }
    }

    fn note(&self, range: PageRange) {
        for start in (range.start()..range.end()).step_by(self.block_bytes as usize) {
            self.log_block(start);
        }
    }

    fn log_block(&self, address: u64) {
        let at = self.state(State::Written).load(Ordering::Relaxed);
        if at - self.state(State::Read).load(Ordering::Acquire) >= LOG_LEN as u64 {
            self.state(State::Overflow).fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.log[at as usize % LOG_LEN].store(address, Ordering::Relaxed);
        self.state(State::Written).store(at + 1, Ordering::SeqCst);
    }
}

impl Tracker for Userfaultfd {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let range = region.range;
        let failed = |errno| match errno {
            Errno::SRCH => ArmError::Gone,
            Errno::BUSY => ArmError::Untrackable(OTHERS.into()),
            Errno::PERM if region.permissions.shared && !region.permissions.write => {
                ArmError::ReadOnly
            }
            Errno::INVAL | Errno::PERM if region.permissions.shared => {
                ArmError::Untrackable("synchronous userfaultfd cannot protect shared files".into())
            }
            Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::FAULT | Errno::NOENT => {
                ArmError::Untrackable(format!("the kernel refuses to track it ({errno})"))
            }
            _ => ArmError::Failed(Error::os(format!("UFFDIO_REGISTER of {range}"))(errno)),
        };
        self.shared
            .uffd
            .register(range, Mode::WriteProtectAndMissing)
            .map_err(failed)?;
        if self.shared.has_gigantic_pages(range) {
            let _ = self.shared.uffd.unregister(range);
            return Err(ArmError::Untrackable(
                "synchronous userfaultfd resolves huge pages of 2 MiB only".into(),
            ));
        }
        self.shared.uffd.protect(range).map_err(failed)?;
        self.armed.insert(range);
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.insert(region.range);
        Ok(())
    }

    fn misses(&self) -> Missed {
        Missed::All
    }

    /// The program's own userfaultfd protects pages as this one does; of an asynchronous one that
    /// shows (`PM_SCAN_CHECK_WPASYNC`, Linux 6.7, as asynchronous ones are).
    fn is_others(&mut self, range: PageRange) -> bool {
        let start = range.start();
        let first = PageRange::new(start, start + page_size());
        let vector = self.vector.get_or_insert_default();
        first.is_some_and(|first| self.pagemap.is_tracked_asynchronously(first, vector))
    }

    fn may_be_others(&mut self, _: PageRange) -> bool {
        true // To check each mapping is cheap beside protecting its first page.
    }

    fn forget(&mut self, range: PageRange) {
        self.armed.remove(range);
    }

    fn needs_layout(&self) -> bool {
        true
    }

    fn collect(&mut self, layout: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let shared = &*self.shared;
        let (written, overflow) = shared.logged();
        let read = shared.state(State::Read).load(Ordering::Relaxed);
        let blocks: PageSet = (read..written)
            .filter_map(|at| {
                let start = shared.log[at as usize % LOG_LEN].load(Ordering::Relaxed);
                PageRange::new(start, start + shared.block_bytes)
            })
            .collect();
        shared.state(State::Read).store(written, Ordering::Release);
        *out = if std::mem::replace(&mut self.overflow, overflow) != overflow {
            self.armed.clone()
        } else {
            blocks.intersection(&self.armed)
        };
        let mut collected = Collected {
            faults: Some(written - read),
            ..Collected::default()
        };
        for range in out.ranges() {
            match shared.uffd.protect(*range) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Err(Error::os("UFFDIO_WRITEPROTECT")(Errno::SRCH)),
                // Remapped, partly or whole, or not protected for another reason: the watch arms
                // again what is mapped there now.
                Err(_) => collected.replaced.push(*range),
            }
        }
        // A mapping that was replaced is no longer registered, and only the attempt to protect it
        // shows that.
        for Armed { range: mapping, .. } in layout {
            let first = PageRange::new(mapping.start(), mapping.start() + page_size());
            if first.is_some_and(|page| shared.uffd.protect(page) == Err(Errno::NOENT)) {
                collected.replaced.push(*mapping);
            }
        }
        for range in &collected.replaced {
            self.armed.remove(*range);
        }
        Ok(collected)
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        if std::process::id() != self.tracker {
            return; // This is a forked child's copy: the handler and the tracked memory are the parent's.
        }
        // All protection is lifted first: after that no thread waits for the handler.
        for range in self.armed.ranges() {
            let _ = self.shared.uffd.unregister(*range);
        }
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(handler) = self.handler.take() {
            let _ = handler.join();
        }
    }
}
