//! Pages of a process as they were at an instant, while it runs and writes to them.
//!
//! The pages are write-protected when the process is held: `pagemap-scan` has re-armed them. What
//! is missing is a copy before the first write, so for a while the faults must wait for user space
//! instead of being resolved by the kernel. No call switches a userfaultfd from one to the other
//! (`UFFDIO_SET_MODE`, Linux 7.2, knows the protection against reads alone), so a second one, a
//! synchronous one, takes the mappings over as they are ([`Uffd::hand_over`]): microseconds for
//! each mapping, whatever the number of pages. Back again they go in a second, short hold, in which
//! the asynchronous one has every page that was written meanwhile unprotected, and reports it.
//! Where the target has changed mappings meanwhile, or something fails, the descriptor is closed:
//! that ends whatever registration is left, and wakes everybody. The next freeze fetches another.
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
mod hand_over;
mod kept;
mod lending;

use crate::attach::hold::HeldThread;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::page_set::{PageRange, PageSet};
use crate::proc::status::{self, Status};
use crate::region::Region;
use crate::source::{Frozen, Held};
use crate::sys::uffd::{Features, Uffd};
use crate::sys::{same_memory, survivor};
use hand_over::Direction;
use kept::Kept;
use lending::Registrations;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Mappings with fewer dirty pages are copied in the pause instead of handed over: a hand-over
/// takes some 10 us, in which so many pages can be copied.
const MAPPING_PAGES_MIN: u64 = 16;
/// The largest number of mappings that are handed over; those with the most pages come first.
const MAPPINGS_MAX: usize = 1024;

/// The synchronous userfaultfd of a process, and what answers its faults.
pub(crate) struct Freezer {
    pid: u32,
    place: Place,
    /// Answers the faults of the next freeze, and was started before it.
    handler: Option<Handler>,
    /// Whether the last freeze did not know any more what a page had held.
    has_lost: Arc<AtomicBool>,
}

/// Where the descriptor is between two freezes, unless the last one had to close it.
type Place = Arc<Mutex<Option<Arc<Uffd>>>>;

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
            place: Arc::new(Mutex::new(Some(Arc::new(uffd)))),
            handler: None,
            has_lost: Arc::default(),
        })
    }

    /// Whether the last freeze did not know any more what a page had held: it may not have been
    /// protected.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::SeqCst)
    }

    /// Whether it still has its descriptor.
    pub(crate) fn is_whole(&self) -> bool {
        self.uffd().is_some()
    }

    fn uffd(&self) -> Option<Arc<Uffd>> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.clone()
    }

    /// Starts what answers the faults of the next freeze of mappings that `lender` has, before
    /// anything is held.
    pub(crate) fn prepare(&mut self, lender: &Arc<Uffd>) -> Result<()> {
        if self.handler.is_none() {
            let uffd = self.uffd().ok_or_else(|| Error::NoFreeze {
                pid: self.pid,
                reason: "it was not prepared".into(),
            })?;
            let (lender, has_lost) = (Arc::clone(lender), Arc::clone(&self.has_lost));
            let kept = Kept::new(self.pid, lender, uffd, has_lost)?;
            self.handler = Some(Handler::start(self.pid, kept)?);
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
    fn start(pid: u32, kept: Kept) -> Result<Self> {
        let kept = Arc::new(kept);
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

    /// Hands ranges over; says of each what came of it.
    fn hand_over(
        &self,
        direction: Direction,
        ranges: &[PageRange],
    ) -> Result<Vec<Result<(), Errno>>> {
        let is_over = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        self.kept.hand_overs.have_done(direction, ranges, is_over)
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
    let [lender, order, done] = kept.hand_overs.fds().map(|fd| fd.as_raw_fd());
    let mut keep = [
        kept.uffd().as_fd().as_raw_fd(),
        kept.pagemap().as_fd().as_raw_fd(),
        kept.stop.as_raw_fd(),
        kept.tracker.as_raw_fd(),
        lender,
        order,
        done,
    ];
    keep.sort_unstable();
    if survivor::run(&keep, || kept.handle_faults()) == Err(survivor::NotDone::Killed) {
        kept.handle_faults();
    }
}

/// Says why a held process cannot be frozen: somebody might write to its memory, and leave no
/// trace.
pub(crate) fn check(pid: u32, threads: &[HeldThread]) -> Result<()> {
    let status = Status::of(pid).map_err(Error::io("reading the state of a process"))?;
    if status.pinned_kib > 0 {
        // What is written through them after the instant makes no fault. Pages that are pinned
        // after the instant have had one.
        return Err(Error::NoFreeze {
            pid,
            reason: format!(
                "{} KiB of its memory are pinned, to be written without a fault (buffers of \
                 io_uring, RDMA, VFIO)",
                status.pinned_kib
            ),
        });
    }
    check_writers(pid, threads)
}

/// Says why a registration of a held process cannot change hands: somebody might write to its
/// memory in that very moment.
fn check_writers(pid: u32, threads: &[HeldThread]) -> Result<()> {
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
        .map(|region| (region, pages.within(region.range)))
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
    pid: u32,
    lender: Arc<Uffd>,
    /// The mappings as they were lent; none once they were given back.
    lent: Vec<Region>,
    /// Memory that may still be registered with the synchronous descriptor.
    left: PageSet,
    /// Whether every mapping was given back to `lender` as it was lent.
    is_settled: bool,
    place: Place,
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
        freezer.prepare(&lender)?;
        let Some(handler) = freezer.handler.take() else {
            unreachable!("it was just prepared");
        };
        freezer.has_lost.store(false, Ordering::SeqCst);
        let loose = futexes::written_by_exits(pid, held.threads());
        handler.kept.begin(pages.difference(&loose))?;
        let ranges: Vec<_> = lent.iter().map(|region| region.range).collect();
        let frozen = Self {
            pid,
            lender,
            lent,
            left: ranges.iter().copied().collect(),
            is_settled: false,
            place: Arc::clone(&freezer.place),
            handler,
        };
        let handed = frozen.handler.hand_over(Direction::Out, &ranges);
        let failed = match handed {
            Ok(handed) => handed
                .into_iter()
                .find_map(Result::err)
                .map(Error::os("handing over to a synchronous userfaultfd")),
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            // The drop lets go of the rest; all are tracked anew then.
            lending::let_go(&frozen.lender, pid, &ranges);
            return Err(error);
        }
        for range in loose.intersection(&frozen.left).ranges() {
            let released = frozen.uffd().release(*range);
            released.map_err(Error::os("lifting the protection of a thread's memory"))?;
        }
        held.check()?;
        Ok(frozen)
    }

    fn uffd(&self) -> &Uffd {
        self.handler.kept.uffd()
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

    fn thaw(&mut self, held: &dyn Held) -> Result<()> {
        held.check()?;
        check_writers(self.pid, held.threads())?;
        let regions = lending::regions(self.pid).map_err(Error::io("reading maps"))?;
        let registrations = Registrations {
            lender: &self.lender,
            uffd: self.uffd(),
            pagemap: self.handler.kept.pagemap(),
        };
        let (still, as_it_was) = registrations.still_lent(&self.lent, &regions);
        self.lent.clear();
        self.left.union_with(&still);
        let back = self.handler.hand_over(Direction::Back, still.ranges())?;
        if let Err(error) = held.check() {
            // What it wrote between two registrations left no trace: the source has to find these
            // mappings replaced.
            lending::let_go(&self.lender, self.pid, still.ranges());
            return Err(error);
        }
        let handed = still.ranges().iter().zip(back);
        let handed = handed.filter_map(|(range, back)| back.is_ok().then_some(*range));
        self.left = self.left.difference(&handed.collect());
        self.is_settled = as_it_was && self.left.is_empty();
        Ok(())
    }
}

impl Drop for FrozenProcess {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        // While faults are still being answered: after this no thread waits for that.
        lending::let_go_grown(self.uffd(), self.pid, &self.left);
        // With the handler the last copies of the descriptor are closed.
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
