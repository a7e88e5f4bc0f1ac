//! [`CowSnapshot`]: what memory of the own program held at one instant, read while the program goes
//! on writing to it; a save without `fork(2)`.
//!
//! The ranges are write-protected by a synchronous userfaultfd. A thread that writes to a page
//! waits until a handler has kept what the page held; then it goes on, and the page is as any
//! other. What nobody writes is read where it is. Linux 6.4 or newer, and the right to handle
//! faults that the kernel takes, without which a `read(2)` into such a page would fail.
//!
//! The handler allocates nothing, and writes to no memory but its stack and mappings of its own:
//! the ranges may be the heap.

use crate::error::{Error, Result};
use crate::format::manifest::{Cost, Manifest};
use crate::store::writer::{Description, Writer};
use crate::sys::kept::{Claim, Kept, Page};
use crate::sys::mapping::Mapping;
use pagemap_scan::{FAULTS_AT_ONCE, Fault, Faults, Features, Mode, Userfaultfd};
use pagetrail::{PageRange, PageSet, page_size};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Pages that are read at once.
const CHUNK_PAGES: usize = 64;
/// `UFFD_FEATURE_WP_UNPOPULATED`: pages that were never touched are protected, too.
const WP_UNPOPULATED: u64 = 1 << 13;

/// The contents of memory at the instant at which [`take`](Self::take) returned.
///
/// All of it is read once, from its beginning to its end. The stacks of the threads that take and
/// read it must not be part of it, and until it is read the memory must stay where it is: what is
/// unmapped, moved or discarded (`munmap`, `mremap`, `madvise(MADV_DONTNEED)`) meanwhile is lost or
/// reads as zeros. Not noticed are writes by an alias (a file that is mapped twice),
/// through pages that were pinned before, and by other processes to shared memory.
///
/// ```no_run
/// use pagetrail_checkpoint::{CowSnapshot, Store, WriterOptions};
/// # fn example(range: pagetrail::PageRange, store: Store) -> pagetrail_checkpoint::Result<()> {
/// let snapshot = CowSnapshot::take(&[range].into_iter().collect())?;
/// // Other threads go on writing from here on.
/// let saving = std::thread::spawn(move || {
///     let mut writer = store.writer(WriterOptions::default())?;
///     snapshot.save(&mut writer, "the data")
/// });
/// # drop(saving);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CowSnapshot {
    shared: Arc<Shared>,
    handler: Option<JoinHandle<()>>,
    /// How many of the ranges are registered.
    registered: usize,
    /// How many pages were read.
    read: usize,
    bounce: Mapping,
    began: Instant,
    /// The PID of the process whose memory it is: a forked child has no handler, and must not
    /// touch its parent's protection.
    owner: u32,
}

#[derive(Debug)]
struct Shared {
    ranges: Vec<PageRange>,
    /// Number of the first page of each range.
    firsts: Vec<usize>,
    pages: usize,
    kept: Kept,
    memory: File,
    uffd: Userfaultfd,
    /// Readable once the handler allocates no more.
    ready: OwnedFd,
    /// Readable once all is protected.
    go: OwnedFd,
    stop: OwnedFd,
}

impl CowSnapshot {
    /// Takes a snapshot of ranges of whole pages. A thread that writes there meanwhile waits, so
    /// that it is of one instant, however many threads there are.
    ///
    /// # Errors
    ///
    /// The kernel is older than Linux 6.4, or this process may not handle the kernel's own faults
    /// (`CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd` = 1); a range is not mapped, has huge
    /// pages of hugetlb, is of a file on a disk, or is tracked by another userfaultfd, a
    /// [`Watch`](pagetrail::Watch) for example.
    pub fn take(ranges: &PageSet) -> Result<Self> {
        let began = Instant::now();
        let failed = |what: &'static str| move |errno: Errno| Error::io(what)(errno.into());
        let uffd = open()?;
        let page = page_size();
        let ranges = ranges.ranges().to_vec();
        let (mut firsts, mut pages) = (Vec::new(), 0);
        for range in &ranges {
            if range.start() % page != 0 || range.end() % page != 0 {
                return Err(Error::Refused(format!("{range} is not of whole pages")));
            }
            firsts.push(pages);
            pages += (range.bytes() / page) as usize;
        }
        let shared = Arc::new(Shared {
            kept: Kept::new(pages).map_err(failed("cannot map room for pages"))?,
            memory: File::open("/proc/self/mem").map_err(Error::io("cannot read own memory"))?,
            ready: event()?,
            go: event()?,
            stop: event()?,
            ranges,
            firsts,
            pages,
            uffd,
        });
        // Nothing that can fail comes between the start of the handler and what ends it.
        let bounce = Mapping::private(CHUNK_PAGES * page as usize)
            .map_err(failed("cannot map room for pages"))?;
        let for_thread = Arc::clone(&shared);
        let handler = std::thread::Builder::new()
            .name("pagetrail-cow".into())
            .spawn(move || for_thread.handle_faults())
            .map_err(Error::io("cannot start the fault handler"))?;
        wait_for(&[&shared.ready]);
        let mut snapshot = Self {
            shared,
            handler: Some(handler),
            registered: 0,
            read: 0,
            bounce,
            began,
            owner: std::process::id(),
        };
        snapshot.protect()?;
        Ok(snapshot)
    }

    /// Registers the ranges, and protects them. The handler begins when all are protected: a thread
    /// that has written to one waits until then, and writes to no other.
    fn protect(&mut self) -> Result<()> {
        let mappings = mappings()?;
        let shared = Arc::clone(&self.shared);
        let refused = |range: PageRange, errno| {
            Error::Refused(match errno {
                Errno::BUSY => format!("{range} is tracked by another userfaultfd"),
                Errno::INVAL => format!("{range} is memory that cannot be write-protected"),
                errno => format!("{range} cannot be write-protected: {errno}"),
            })
        };
        // In between nothing is allocated: the handler resolves nothing yet.
        let outcome = self.protect_all(&shared, &mappings);
        signal(&shared.go);
        outcome.map_err(|(range, errno)| refused(range, errno))
    }

    fn protect_all(
        &mut self,
        shared: &Shared,
        mappings: &[PageRange],
    ) -> Result<(), (PageRange, Errno)> {
        for range in &shared.ranges {
            let registered = shared.uffd.register(*range, Mode::WriteProtect);
            registered.map_err(|errno| (*range, errno))?;
            self.registered += 1;
            // A page of hugetlb could be released as a whole only, which the handler does not.
            for part in mappings.iter().filter_map(|own| own.intersection(range)) {
                let first = PageRange::new(part.start(), part.start() + page_size());
                let protected = first.map_or(Ok(()), |first| shared.uffd.protect(first));
                protected.map_err(|errno| (part, errno))?;
            }
        }
        let mut ranges = shared.ranges.iter();
        ranges.try_for_each(|range| shared.uffd.protect(*range).map_err(|errno| (*range, errno)))
    }

    /// How many bytes are still to be read.
    pub fn bytes_left(&self) -> u64 {
        (self.shared.pages - self.read) as u64 * page_size()
    }

    /// Reads what comes next into `buffer`, which gets its length; gives its addresses, and `None`
    /// at the end.
    ///
    /// # Errors
    ///
    /// The memory is not mapped any more; this is a forked child of the process that took it.
    pub fn read_next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<PageRange>> {
        self.check_owner()?;
        let page = page_size();
        let shared = &self.shared;
        if self.read == shared.pages {
            return Ok(None);
        }
        let at = shared.firsts.partition_point(|first| *first <= self.read) - 1;
        let start = shared.ranges[at].start() + (self.read - shared.firsts[at]) as u64 * page;
        let most = CHUNK_PAGES as u64 * page;
        let chunk = PageRange::new(start, shared.ranges[at].end().min(start + most));
        let chunk = chunk.unwrap_or_else(|| unreachable!());
        let bytes = &mut self.bounce.as_mut_slice()[..chunk.bytes() as usize];
        let whole = shared.read(chunk, self.read, bytes);
        // Nothing is claimed any more; who writes to these pages needs not wait.
        let _ = shared.uffd.release(chunk);
        if !whole {
            let reason = format!("{chunk} was unmapped before it was read");
            return Err(Error::Refused(reason));
        }
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.read += bytes.len() / page as usize;
        Ok(Some(chunk))
    }

    /// Refuses a forked child: what it would read and let go is its parent's memory, by descriptors
    /// that were opened before the fork.
    fn check_owner(&self) -> Result<()> {
        match self.owner == std::process::id() {
            true => Ok(()),
            false => Err(Error::Refused(
                "a snapshot is read by the process that took it, not by a forked child".into(),
            )),
        }
    }

    /// Saves all of it, from where it was read to, as a checkpoint, a base with a mapping of this
    /// name for each range. Pages that the store has are not stored again.
    ///
    /// # Errors
    ///
    /// As [`read_next`](Self::read_next); the store fails, and is as it was.
    pub fn save(mut self, writer: &mut Writer, name: &str) -> Result<Manifest> {
        self.check_owner()?;
        writer.catch_up()?;
        writer.begin_anew();
        let mut draft = writer.draft(page_size() as u32);
        let mut cost = Cost::default();
        let mut buffer = Vec::new();
        while let Some(range) = self.read_next(&mut buffer)? {
            cost.copied_pages += range.bytes() / page_size();
            draft.put(&[range], &buffer)?;
        }
        let ranges = self.shared.ranges.iter();
        draft.publish(Description {
            process: None,
            mappings: ranges.map(|range| super::region(*range, name)).collect(),
            cost,
            elapsed: self.began.elapsed(),
        })
    }
}

/// Where this process has mappings, ascending.
fn mappings() -> Result<Vec<PageRange>> {
    let text = std::fs::read("/proc/self/maps").map_err(Error::io("cannot read own mappings"))?;
    // `START-END` and a blank begin each line (proc_pid_maps(5)); names need not be UTF-8.
    let ranges = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let range = line.split(|byte| *byte == b' ').next()?;
        let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
        let address = |digits| u64::from_str_radix(digits, 16).ok();
        PageRange::new(address(start)?, address(end)?)
    });
    Ok(ranges.collect())
}

/// The parts of ranges that are mapped, mapping by mapping.
fn pieces(ranges: &[PageRange], mappings: &[PageRange]) -> Vec<PageRange> {
    let parts = |range| {
        mappings
            .iter()
            .filter_map(move |own| own.intersection(range))
    };
    ranges.iter().flat_map(parts).collect()
}

/// A range, page by page.
fn single_pages(range: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (range.start()..range.end()).step_by(page_size() as usize);
    starts.filter_map(|start| PageRange::new(start, start + page_size()))
}

fn event() -> Result<OwnedFd> {
    let made = eventfd(0, EventfdFlags::CLOEXEC);
    made.map_err(|errno| Error::io("cannot make an eventfd")(errno.into()))
}

/// Makes an eventfd readable.
fn signal(event: &OwnedFd) {
    // It counts from 0, so that this never waits.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Waits until one of two at most is readable; which, the first if in doubt.
fn wait_for(fds: &[&dyn AsFd]) -> usize {
    loop {
        let fd = |at: usize| {
            let fd: &dyn AsFd = fds[at.min(fds.len() - 1)];
            PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)
        };
        let mut polled = [fd(0), fd(1)];
        match poll(&mut polled, None) {
            Err(Errno::INTR) | Ok(0) => {}
            Err(_) => return 0,
            Ok(_) => return usize::from(polled[0].revents().is_empty()),
        }
    }
}

/// A userfaultfd for the own memory that gets the kernel's faults, too.
fn open() -> Result<Userfaultfd> {
    let opened = Userfaultfd::create(Faults::UserAndKernel).map_err(|errno| match errno {
        Errno::PERM => Error::Refused(
            "a snapshot of running threads needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1"
                .into(),
        ),
        errno => Error::io("cannot make a userfaultfd")(errno.into()),
    })?;
    let features = Features::PAGEFAULT_FLAG_WP
        .union(Features::WP_HUGETLBFS_SHMEM)
        .union(Features::from_bits(WP_UNPOPULATED));
    Userfaultfd::handshake(opened, features).map_err(|errno| match errno {
        Errno::INVAL => {
            Error::Refused("a snapshot of running threads needs Linux 6.4 or newer".into())
        }
        errno => Error::io("cannot use a userfaultfd")(errno.into()),
    })
}

impl Shared {
    /// The number of the page at an address.
    fn number(&self, address: u64) -> Option<usize> {
        let at = self.ranges.partition_point(|range| range.end() <= address);
        let range = self
            .ranges
            .get(at)
            .filter(|range| range.start() <= address)?;
        Some(self.firsts[at] + ((address - range.start()) / page_size()) as usize)
    }

    /// Runs the handler thread.
    fn handle_faults(&self) {
        let mut faults = [Fault::default(); FAULTS_AT_ONCE];
        signal(&self.ready);
        if wait_for(&[&self.stop, &self.go]) == 0 {
            return;
        }
        while wait_for(&[&self.stop, &self.uffd]) != 0 {
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
        let Some(page) = PageRange::new(fault.address, fault.address + page_size()) else {
            return;
        };
        let number = self.number(fault.address);
        if let Some(Page::Claimed(claim)) = number.map(|number| self.kept.claim(number)) {
            claim.keep(|room| self.memory.read_exact_at(room, fault.address).is_ok());
        }
        if self.uffd.release(page).is_err() {
            // The mapping is gone, or is registered no more: the thread tries again.
            let _ = self.uffd.wake(page);
        }
    }

    /// Ends the registration of the first ranges, and wakes who waits there: the end of the
    /// userfaultfd may be far away, since a forked child has it, too. The handler must be at work.
    ///
    /// Only missing pages make `UFFDIO_UNREGISTER` wake anybody. It fails as a whole where a part
    /// of the range cannot be registered, a file that is mapped there by now, say
    /// (`userfaultfd_unregister` in fs/userfaultfd.c); then it is done mapping by mapping.
    fn let_go(&self, registered: usize) {
        let mut left = Vec::new();
        for range in &self.ranges[..registered] {
            if self.uffd.unregister(*range).is_err() {
                left.push(*range);
            }
            let _ = self.uffd.wake(*range);
        }
        if left.is_empty() {
            return;
        }
        // Without the maps, page by page.
        let pieces = match mappings() {
            Ok(mappings) => pieces(&left, &mappings),
            Err(_) => left.iter().copied().flat_map(single_pages).collect(),
        };
        for piece in pieces {
            if self.uffd.unregister(piece).is_err() {
                let _ = self.uffd.release(piece);
            }
            let _ = self.uffd.wake(piece);
        }
    }

    /// Reads a chunk whose first page has a number; whether all of it is there. Nothing is
    /// allocated, and nothing written but `bytes`, while pages are claimed.
    fn read(&self, chunk: PageRange, first: usize, bytes: &mut [u8]) -> bool {
        let page = page_size() as usize;
        let mut claims: [Option<Claim<'_>>; CHUNK_PAGES] = [const { None }; CHUNK_PAGES];
        let mut whole = true;
        for (n, room) in bytes.chunks_exact_mut(page).enumerate() {
            match self.kept.claim(first + n) {
                Page::Claimed(claim) => claims[n] = Some(claim),
                Page::Kept(contents) => room.copy_from_slice(contents),
                Page::Read | Page::Lost => whole = false,
            }
        }
        let mut n = 0;
        while n < bytes.len() / page {
            let run = claims[n..]
                .iter()
                .take_while(|claim| claim.is_some())
                .count();
            let address = chunk.start() + (n * page) as u64;
            let room = &mut bytes[n * page..(n + run) * page];
            if run > 0 && self.memory.read_exact_at(room, address).is_err() {
                whole = false;
            }
            n += run.max(1);
        }
        if !whole {
            claims
                .iter_mut()
                .filter_map(Option::take)
                .for_each(Claim::lose);
        }
        whole
    }
}

impl Drop for CowSnapshot {
    fn drop(&mut self) {
        let Some(handler) = self.handler.take() else {
            return;
        };
        if self.owner != std::process::id() {
            std::mem::forget(handler);
            return;
        }
        self.shared.let_go(self.registered);
        signal(&self.shared.stop);
        let _ = handler.join();
    }
}
