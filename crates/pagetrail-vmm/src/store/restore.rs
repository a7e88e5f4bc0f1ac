//! [`LazyRestore`]: a guest runs at once, and its pages come when it touches them.
//!
//! Pages that nobody has touched are fetched meanwhile: first in the order in which an earlier
//! guest touched them, if that is known, then by their address.

use crate::error::{Error, Result};
use crate::pages::{DirtyPages, DirtyRange};
use crate::regions::{Regions, guest_pages, host_range};
use crate::sys::memory::Region;
use crate::sys::userfaultfd::{self, Message};
use crate::userfault::WriteFaults;
use pagetrail::{PageRange, page_size};
use pagetrail_checkpoint::Image;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// How many pages are fetched together: as many as are compressed together, by default.
const BATCH_PAGES: u64 = 16;

/// How [`LazyRestore::serve`] came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// All pages are there, and the regions are registered no more.
    Everything,
    /// A [`Stopper`] ended it. Pages that are missing stay missing until `serve` goes on.
    Stopped,
}

/// Ends [`LazyRestore::serve`] from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Makes `serve` return, now or when it is called next.
    pub fn stop(&self) {
        // It fails only when the counter is at its end, and is not 0 then.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Fills the memory of a guest from a checkpoint, by a userfaultfd of the monitor.
#[derive(Debug)]
pub struct LazyRestore {
    image: Image,
    regions: Regions,
    uffd: OwnedFd,
    stop: Arc<OwnedFd>,
    /// Pages that were not filled yet.
    missing: DirtyPages,
    /// Pages that the guest gave back meanwhile (a balloon): zeros when they are touched again.
    discarded: DirtyPages,
    /// What is to be fetched ahead, by guest address; the first is next.
    ahead: VecDeque<PageRange>,
    first_touches: Vec<PageRange>,
    write_faults: Option<WriteFaults>,
    protect: bool,
    /// Messages that were read while something else was to be done first.
    unread: VecDeque<Message>,
}

impl LazyRestore {
    /// Prepares to fill `regions`: memory that nobody has touched yet, registered with
    /// `UFFDIO_REGISTER_MODE_MISSING` at `uffd`, whose descriptor is duplicated. It must not block,
    /// and resolve faults of the kernel, too (no `UFFD_USER_MODE_ONLY`): KVM's are such.
    ///
    /// # Errors
    ///
    /// The checkpoint lacks a region, or a descriptor cannot be had.
    pub fn new(image: Image, regions: Regions, uffd: BorrowedFd<'_>) -> Result<Self> {
        for region in &regions {
            let wanted = guest_pages(region);
            let mappings = &image.manifest().mappings;
            if !mappings.iter().any(|mapping| mapping.range == wanted) {
                let reason = format!(
                    "checkpoint {} has none at {wanted}",
                    image.manifest().number
                );
                return Err(Error::region(region.slot(), reason));
            }
        }
        let duplicate = uffd.try_clone_to_owned();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags).map_err(Error::userfault("make an eventfd"))?;
        Ok(Self {
            uffd: duplicate.map_err(Error::userfault("duplicate its descriptor"))?,
            stop: Arc::new(stop),
            missing: DirtyPages::all_of(&regions),
            discarded: DirtyPages::none_of(&regions),
            ahead: regions.iter().map(guest_pages).collect(),
            first_touches: Vec::new(),
            write_faults: None,
            protect: false,
            unread: VecDeque::new(),
            image,
            regions,
        })
    }

    /// Fetches these guest addresses ahead of all others, in their order: what
    /// [`Self::first_touches`] had after an earlier restore. Addresses outside the guest's memory
    /// are of no use, and do no harm.
    #[must_use]
    pub fn prefetch_first(mut self, order: &[PageRange]) -> Self {
        order
            .iter()
            .rev()
            .for_each(|range| self.ahead.push_front(*range));
        self
    }

    /// Fetches nothing ahead: pages come when they are touched, and `serve` ends when it is
    /// stopped.
    #[must_use]
    pub fn without_prefetch(mut self) -> Self {
        self.ahead.clear();
        self
    }

    /// Fills pages write-protected, so that they are clean to who tracks writes by the same
    /// userfaultfd. It stays registered then, and `serve` goes on until it is stopped.
    ///
    /// `write_faults` gets the faults of write protection, unless the kernel resolves them
    /// (`UFFD_FEATURE_WP_ASYNC`).
    #[must_use]
    pub fn write_protected(mut self, write_faults: Option<WriteFaults>) -> Self {
        self.protect = true;
        self.write_faults = write_faults;
        self
    }

    /// Ends `serve` from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// The pages that were touched before they were fetched, in this order.
    pub fn first_touches(&self) -> &[PageRange] {
        &self.first_touches
    }

    /// How many pages are missing yet.
    pub fn missing_pages(&self) -> u64 {
        self.missing.count()
    }

    /// Fills pages until all are there, or it is stopped. It needs a thread of its own, that
    /// touches no guest memory itself.
    ///
    /// # Errors
    ///
    /// The store is damaged or fails, or the userfaultfd refuses. Threads that wait for a page go
    /// on waiting: mend what is wrong and call it again, or end the guest.
    pub fn serve(&mut self) -> Result<Served> {
        loop {
            if self.take_stop()? {
                return Ok(Served::Stopped);
            }
            if let Some(message) = self.unread.pop_front() {
                self.handle(message)?;
                continue;
            }
            self.read_messages()?;
            if self.unread.is_empty() && !self.fetch_ahead()? {
                if self.missing.is_empty() && !self.protect {
                    return self.unregister();
                }
                self.wait()?;
            }
        }
    }

    /// Reads messages, and notes at once what was discarded: who discards goes on as soon as the
    /// message has been read, and these pages must not be filled with what they had before.
    fn read_messages(&mut self) -> Result<()> {
        let messages = userfaultfd::read(self.uffd.as_fd());
        for message in messages.map_err(Error::userfault("read its messages"))? {
            match message {
                Message::Removed(range) => self.discard(&range),
                other => self.unread.push_back(other),
            }
        }
        Ok(())
    }

    fn take_stop(&self) -> Result<bool> {
        match rustix::io::read(&*self.stop, &mut [0u8; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(Error::userfault("read an eventfd")(error)),
        }
    }

    fn wait(&self) -> Result<()> {
        let mut fds = [
            PollFd::new(&self.uffd, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, None::<&Timespec>) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::userfault("wait for its messages")(error)),
        }
    }

    fn unregister(&mut self) -> Result<Served> {
        for region in &self.regions {
            userfaultfd::unregister(self.uffd.as_fd(), host_range(region))
                .map_err(Error::userfault("end the registration of a region"))?;
        }
        Ok(Served::Everything)
    }

    fn handle(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Fault {
                address,
                write_protect: true,
            } => match &self.write_faults {
                Some(faults) => faults.resolve(address).map(drop),
                None => Err(Error::Refused(
                    "a write-protected page was written, and nobody resolves that".into(),
                )),
            },
            Message::Fault { address, .. } => self.fetch_touched(address),
            Message::Removed(_) | Message::Other => Ok(()),
        }
    }

    /// Notes that pages were discarded: what the checkpoint has of them is void.
    fn discard(&mut self, range: &Range<u64>) {
        for region in &self.regions {
            let host = host_range(region);
            let (start, end) = (range.start.max(host.start), range.end.min(host.end));
            if start < end {
                let page = |address: u64| (address - host.start) / page_size();
                let sets = [&mut self.discarded, &mut self.missing];
                let [Some(discarded), Some(missing)] =
                    sets.map(|set| set.of_slot_mut(region.slot()))
                else {
                    continue;
                };
                discarded.insert(page(start)..page(end));
                missing.remove(page(start)..page(end));
            }
        }
    }

    /// Fills the page that a thread waits for, and what is compressed with it.
    fn fetch_touched(&mut self, address: u64) -> Result<()> {
        let Some(region) = self.regions.at_host_address(address).cloned() else {
            return Ok(());
        };
        let page = (address - region.host_address()) / page_size();
        let (slot, one) = (region.slot(), page..page + 1);
        let is_in = |set: &DirtyPages| set.of_slot(slot).is_some_and(|set| set.contains(page));
        if !is_in(&self.missing) {
            // It was discarded, or is there by now.
            return self.fill(&region, one, None);
        }
        let guest = |page: u64| region.guest_address() + page * page_size();
        let touched = PageRange::new(guest(page), guest(page + 1));
        self.first_touches.extend(touched);
        self.fetch(&region, one)?;
        let batch = page / BATCH_PAGES * BATCH_PAGES;
        self.fetch(&region, batch..batch + BATCH_PAGES)
    }

    /// Fetches a batch of pages that nobody waits for; returns whether there was one.
    fn fetch_ahead(&mut self) -> Result<bool> {
        while let Some(range) = self.ahead.pop_front() {
            let Some(region) = self.regions.at_guest_address(range.start()).cloned() else {
                continue;
            };
            let end = range.end().min(guest_pages(&region).end());
            let first = (range.start() - region.guest_address()) / page_size();
            let last = (end - region.guest_address()).div_ceil(page_size());
            let missing = self.missing.of_slot(region.slot());
            let next = missing.and_then(|missing| missing.first_from(first));
            let Some(start) = next.filter(|start| *start < last) else {
                continue;
            };
            let stop = last.min((start / BATCH_PAGES + 1) * BATCH_PAGES);
            let rest = PageRange::new(region.guest_address() + stop * page_size(), end);
            rest.into_iter()
                .for_each(|rest| self.ahead.push_front(rest));
            self.fetch(&region, start..stop)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Fills those of these pages that are missing.
    fn fetch(&mut self, region: &Region, pages: Range<u64>) -> Result<()> {
        while let Some(run) = self.first_missing(region, &pages) {
            let guest = |page: u64| region.guest_address() + page * page_size();
            let Some(range) = PageRange::new(guest(run.start), guest(run.end)) else {
                return Ok(());
            };
            let mut contents = vec![0; range.bytes() as usize];
            self.image.read(range, &mut contents)?;
            self.fill(region, run, Some(&contents))?;
        }
        Ok(())
    }

    /// The first run of missing pages among these.
    fn first_missing(&self, region: &Region, pages: &Range<u64>) -> Option<Range<u64>> {
        self.missing.of_slot(region.slot())?.first_run(pages)
    }

    /// Fills pages with contents, or zeros. Pages that are there are left as they are.
    fn fill(&mut self, region: &Region, pages: Range<u64>, contents: Option<&[u8]>) -> Result<()> {
        let zeros = vec![0; page_size() as usize];
        for page in pages.clone() {
            let from = ((page - pages.start) * page_size()) as usize;
            let discarded = self.discarded.of_slot(region.slot());
            let contents = match contents {
                Some(all) if discarded.is_some_and(|set| !set.contains(page)) => {
                    &all[from..from + page_size() as usize]
                }
                // Discarded while these pages were being fetched.
                Some(_) => continue,
                None => &zeros,
            };
            self.fill_page(region, page, contents)?;
        }
        Ok(())
    }

    fn fill_page(&mut self, region: &Region, page: u64, contents: &[u8]) -> Result<()> {
        let address = DirtyRange::new(region, page..page + 1).host_address;
        let slot = region.slot();
        match userfaultfd::copy(self.uffd.as_fd(), address, contents, self.protect).1 {
            Ok(()) => {}
            Err(Errno::EXIST) => self.wake(region, &(page..page + 1))?,
            // A thread is changing mappings and waits until its message has been read. A page that
            // is missing yet is filled at the next attempt; who waits for another faults again.
            Err(Errno::AGAIN) => {
                self.read_messages()?;
                return self.wake(region, &(page..page + 1));
            }
            Err(error) => {
                let what = format!("fill the page at {address:#x}");
                return Err(Error::userfault(what)(error));
            }
        }
        if let Some(missing) = self.missing.of_slot_mut(slot) {
            missing.remove(page..page + 1);
        }
        Ok(())
    }

    fn wake(&self, region: &Region, pages: &Range<u64>) -> Result<()> {
        let range = DirtyRange::new(region, pages.clone());
        let range = range.host_address..range.host_address + range.bytes;
        userfaultfd::wake(self.uffd.as_fd(), range).map_err(Error::userfault("wake a thread"))
    }
}
