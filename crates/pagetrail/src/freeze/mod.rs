//! Pages of a process as they were at an instant, while it runs and writes to them.
//!
//! The pages are write-protected when the process is held: `pagemap-scan` has re-armed them. What
//! is missing is a copy before the first write, so for a while the faults must wait for user space
//! instead of being resolved by the kernel. No call switches a userfaultfd from one to the other
//! (`UFFDIO_SET_MODE`, Linux 7.2, knows the protection against reads alone), so a second one, a
//! synchronous one, takes the mappings over as they are ([`Uffd::hand_over`]): microseconds for
//! each mapping, whatever the number of pages. Back again they go in a second, short hold, in which
//! the asynchronous one has every page that was written meanwhile unprotected, and reports it.
//!
//! Faults are answered by a process that survives the tracker ([`survivor`]), and that no stop of
//! the tracker reaches: a thread of the target never waits for the tracker. When the tracker ends,
//! so does it, and the kernel lifts the protection with the last descriptor.
//!
//! Only private anonymous memory is kept so. Three effects on the target cannot be avoided, of
//! which the first two are those of the technique `userfaultfd`, for the pages that are protected:
//! a write costs a round trip to user space; the kernel does not wait in a thread that exits (found
//! beforehand are the pages that it then writes to, [`futexes`]); and operations on
//! priority-inheriting futexes by the kernel fail with `EFAULT` (`fault_in_user_writeable` in
//! kernel/futex/core.c does not wait either).

mod futexes;
mod kept;

use crate::attach::hold::HeldThread;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::Maps;
use crate::proc::status;
use crate::region::Region;
use crate::source::{Frozen, Held};
use crate::sys::uffd::{Features, Uffd};
use crate::sys::{same_memory, survivor};
use kept::Kept;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// A mapping takes some 10 us to be handed over while the process stands still, in which as many
/// pages are copied: those with fewer are not worth it.
const MAPPING_PAGES_MIN: u64 = 16;
/// Mappings that are handed over at most, those first that have most of the pages.
const MAPPINGS_MAX: usize = 1024;

/// The synchronous userfaultfd of a process, and what answers its faults.
pub(crate) struct Freezer {
    pid: u32,
    uffd: Arc<Uffd>,
    /// For the next freeze.
    handler: Option<Handler>,
}

impl Freezer {
    /// Takes a new userfaultfd of the process, one that resolves faults of the kernel, too.
    pub(crate) fn new(pid: u32, fd: OwnedFd) -> Result<Self> {
        let features = Features::WP_HUGETLBFS_SHMEM
            .union(Features::WP_UNPOPULATED)
            .union(Features::PAGEFAULT_FLAG_WP);
        let uffd = Uffd::handshake(fd, features).map_err(Error::os(
            "userfaultfd handshake with UFFD_FEATURE_WP_UNPOPULATED",
        ))?;
        Ok(Self {
            pid,
            uffd: Arc::new(uffd),
            handler: None,
        })
    }

    /// Starts what answers the faults of the next freeze, before anything is held.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        if self.handler.is_none() {
            self.handler = Some(Handler::start(self.pid, Arc::clone(&self.uffd))?);
        }
        Ok(())
    }
}

/// What answers the faults of one freeze, until it is dropped.
struct Handler {
    kept: Arc<Kept>,
    memory: Memory,
    thread: Option<JoinHandle<()>>,
}

impl Handler {
    fn start(pid: u32, uffd: Arc<Uffd>) -> Result<Self> {
        let kept = Arc::new(Kept::new(pid, uffd)?);
        let memory = Memory::of(pid)?;
        let for_thread = Arc::clone(&kept);
        let thread = std::thread::Builder::new()
            .name("pagetrail-keep".into())
            .spawn(move || handle(&for_thread))
            .map_err(Error::io("starting a thread"))?;
        while !kept.begun.load(Ordering::SeqCst) {
            if thread.is_finished() {
                let reason = "no process can be started that answers its faults".into();
                return Err(Error::NoFreeze { pid, reason });
            }
            std::thread::yield_now();
        }
        Ok(Self {
            kept,
            memory,
            thread: Some(thread),
        })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.kept.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Has faults answered by a process that survives this one, or, if that is killed, by this thread.
fn handle(kept: &Kept) {
    let mut keep = [
        kept.uffd().as_fd().as_raw_fd(),
        kept.pagemap_fd().as_raw_fd(),
        kept.stop.as_raw_fd(),
        kept.tracker.as_raw_fd(),
    ];
    keep.sort_unstable();
    if survivor::run(&keep, || kept.handle_faults()) == Err(survivor::NotDone::Killed) {
        kept.handle_faults();
    }
}

/// Says why a held process cannot be frozen: somebody might write to its memory while it is held,
/// and leave no trace.
pub(crate) fn check(pid: u32, threads: &[HeldThread]) -> Result<()> {
    let refused = |reason: &str| {
        Err(Error::NoFreeze {
            pid,
            reason: reason.into(),
        })
    };
    let all = status::threads(pid).map_err(Error::io("listing threads"))?;
    if all
        .iter()
        .any(|tid| !threads.iter().any(|held| held.tid == *tid))
    {
        return refused("it has threads of the kernel's (io_uring), which cannot be held");
    }
    for child in status::children(pid) {
        if same_memory::share_memory(pid, child) == Ok(true) {
            return refused("a child shares its memory");
        }
    }
    Ok(())
}

/// Which of some pages can be kept, mapping by mapping. `unprotected` adds those of a mapping that
/// are not protected now.
pub(crate) fn choose(
    regions: &[Region],
    armed: &PageSet,
    pages: &PageSet,
    mut unprotected: impl FnMut(PageRange, &mut PageSet) -> Result<()>,
) -> Result<(Vec<Region>, PageSet)> {
    let mut chosen: Vec<(&Region, PageSet)> = regions
        .iter()
        .filter(|region| region.inode == 0 && region.permissions.write)
        .filter(|region| !region.permissions.shared && armed.covers(region.range))
        .map(|region| (region, pages.intersection(&PageSet::from(region.range))))
        .filter(|(_, pages)| pages.page_count() >= MAPPING_PAGES_MIN)
        .collect();
    chosen.sort_by_key(|(_, pages)| std::cmp::Reverse(pages.page_count()));
    chosen.truncate(MAPPINGS_MAX);
    let (mut kept, mut written) = (PageSet::new(), PageSet::new());
    for (region, pages) in &chosen {
        unprotected(region.range, &mut written)?;
        kept.union_with(pages);
    }
    let lent = chosen.into_iter().map(|(region, _)| region.clone());
    Ok((lent.collect(), kept.difference(&written)))
}

/// A process whose pages are kept.
pub(crate) struct FrozenProcess {
    lender: Arc<Uffd>,
    lent: Vec<Region>,
    handler: Handler,
}

impl FrozenProcess {
    /// Keeps `pages` of a held process, which are protected, and in the mappings `lent`, which are
    /// registered with `lender`.
    pub(crate) fn start(
        held: &dyn Held,
        freezer: &mut Freezer,
        lender: Arc<Uffd>,
        lent: Vec<Region>,
        pages: &PageSet,
    ) -> Result<Self> {
        let pid = held.pid();
        freezer.prepare()?;
        let Some(handler) = freezer.handler.take() else {
            unreachable!("it was just prepared");
        };
        let loose = futexes::written_by_exits(pid, held.threads());
        handler.kept.begin(pages.difference(&loose))?;
        let mut frozen = Self {
            lender,
            lent: Vec::new(),
            handler,
        };
        for region in lent {
            let handed = frozen.lender.hand_over(region.range, &freezer.uffd);
            frozen.lent.push(region);
            // Those that were handed over are given back by the drop.
            handed.map_err(Error::os("handing over to a synchronous userfaultfd"))?;
        }
        let all: PageSet = frozen.lent.iter().map(|region| region.range).collect();
        for range in loose.intersection(&all).ranges() {
            let released = freezer.uffd.release(*range);
            released.map_err(Error::os("lifting the protection of a thread's memory"))?;
        }
        held.check()?;
        Ok(frozen)
    }
}

impl Frozen for FrozenProcess {
    fn pages(&self) -> &PageSet {
        self.handler.kept.pages()
    }

    fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<bool> {
        let memory = &self.handler.memory;
        self.handler.kept.read(ranges, buffer, |buffer| {
            Ok(memory.read(ranges, buffer)?.is_empty())
        })
    }

    fn thaw(mut self: Box<Self>, held: &dyn Held) -> Result<()> {
        held.check()?;
        let pid = held.pid();
        check(pid, held.threads())?;
        let regions = Maps::open(Some(pid))
            .and_then(|mut maps| maps.changed())
            .map_err(Error::io("reading maps"))?
            .unwrap_or_default();
        // Those that are not as they were are dropped: the source finds them replaced.
        let (same, changed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lent)
            .into_iter()
            .partition(|region| regions.contains(region));
        self.lent = changed;
        for region in same {
            let back = self
                .handler
                .kept
                .uffd()
                .hand_over(region.range, &self.lender);
            if back.is_err() {
                self.lent.push(region);
            }
        }
        held.check()
    }
}

impl Drop for FrozenProcess {
    fn drop(&mut self) {
        // Before the handler ends: after this no thread waits for it.
        for region in &self.lent {
            let _ = self.handler.kept.uffd().unregister(region.range);
        }
    }
}
