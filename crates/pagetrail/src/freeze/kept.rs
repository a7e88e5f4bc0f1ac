//! [`Kept`]: the pages of a freeze, and what was in those that the target has written since.
//!
//! Two read them: the tracker, one range after the other, and the handler, which answers a thread
//! that waits to write. A copy counts only if the page is seen to be protected *after* it was read:
//! nobody protects a page a second time, so nobody has written to it, discarded it, or put another
//! in its place before. The handler waits for nobody: of a page that the tracker is just reading,
//! it makes a copy of its own.

use super::hand_over::HandOvers;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::sys::pagemap::Pagemap;
use crate::sys::remote_memory;
use crate::sys::shared_words::SharedWords;
use crate::sys::uffd::{FAULTS_AT_ONCE, Fault, Uffd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// With larger pages there is no attaching.
const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// As many pages are validated by one system call.
const VALIDATED: u64 = 512;

/// What is known of a page.
mod state {
    /// Nobody has read it.
    pub(super) const FREE: u64 = 0;
    /// The tracker is reading it.
    pub(super) const TAKEN: u64 = 1;
    /// The tracker has it.
    pub(super) const READ: u64 = 2;
    /// The handler has a copy, and the target may have written.
    pub(super) const KEPT: u64 = 3;
    /// What it held at the instant is not known any more.
    pub(super) const LOST: u64 = 4;
}

/// What one freeze needs, made before the process is held.
#[derive(Debug)]
pub(super) struct Kept {
    pid: u32,
    uffd: Arc<Uffd>,
    pagemap: Pagemap,
    /// The hand-overs to the userfaultfd of the freeze and back, which the handler does.
    pub(super) hand_overs: HandOvers,
    /// Readable when the handler is to end.
    pub(super) stop: OwnedFd,
    /// Readable when the tracker has ended.
    pub(super) tracker: OwnedFd,
    /// Whether the handler is at work.
    pub(super) begun: AtomicBool,
    /// Whether what a page held is not known any more.
    has_lost: Arc<AtomicBool>,
    /// Set before anything is protected.
    slots: OnceLock<Slots>,
}

/// The pages of one freeze.
#[derive(Debug)]
struct Slots {
    pages: PageSet,
    /// For each range of `pages`, how many pages those before it have.
    firsts: Vec<u64>,
    states: SharedWords,
    copies: SharedWords,
}

impl Slots {
    /// The number of a page.
    fn of(&self, address: u64) -> Option<usize> {
        let ranges = self.pages.ranges();
        let at = ranges.partition_point(|range| range.end() <= address);
        let range = ranges.get(at).filter(|range| range.start() <= address)?;
        Some((self.firsts[at] + (address - range.start()) / page_size()) as usize)
    }

    fn copy(&self, slot: usize) -> &[AtomicU64] {
        &self.copies[slot * PAGE_WORDS..][..PAGE_WORDS]
    }
}

impl Kept {
    /// Keeps pages of mappings that `lender` has with `uffd`; `has_lost` is set when it is not
    /// known any more what a page has held.
    pub(super) fn new(
        pid: u32,
        lender: Arc<Uffd>,
        uffd: Arc<Uffd>,
        has_lost: Arc<AtomicBool>,
    ) -> Result<Self> {
        Ok(Self {
            pid,
            hand_overs: HandOvers::new(lender, Arc::clone(&uffd))?,
            uffd,
            pagemap: Pagemap::open(Some(pid)).map_err(Error::io("opening pagemap"))?,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::os("eventfd"))?,
            tracker: pidfd_open(getpid(), PidfdFlags::empty()).map_err(Error::os("pidfd_open"))?,
            begun: false.into(),
            has_lost,
            slots: OnceLock::new(),
        })
    }

    /// Sets which pages are kept, once.
    pub(super) fn begin(&self, pages: PageSet) -> Result<()> {
        let mut count = 0;
        let firsts = pages.ranges().iter().map(|range| {
            count += range.page_count();
            count - range.page_count()
        });
        let firsts = firsts.collect();
        let count = count as usize;
        let failed = "mapping room for the pages of a freeze";
        let slots = Slots {
            firsts,
            pages,
            states: SharedWords::new(count).map_err(Error::os(failed))?,
            copies: SharedWords::new(count * PAGE_WORDS).map_err(Error::os(failed))?,
        };
        let set = self.slots.set(slots);
        debug_assert!(set.is_ok(), "a freeze is used once");
        Ok(())
    }

    /// The pages that are kept.
    pub(super) fn pages(&self) -> &PageSet {
        static NONE: PageSet = PageSet::new();
        self.slots.get().map_or(&NONE, |slots| &slots.pages)
    }

    pub(super) fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    pub(super) fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Answers threads that wait to write, and hands mappings over, until it is asked to stop or
    /// there is nobody any more. Allocates nothing.
    pub(super) fn handle_faults(&self) {
        let mut faults = [Fault::default(); FAULTS_AT_ONCE];
        self.hand_overs.give_up();
        self.begun.store(true, SeqCst);
        loop {
            let mut fds = [
                PollFd::new(&*self.uffd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.tracker.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.hand_overs.order(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let has_ended = !fds[1].revents().is_empty() || !fds[2].revents().is_empty();
            if fds[0].revents().contains(PollFlags::ERR) {
                return;
            }
            if !fds[3].revents().is_empty() {
                self.hand_overs.do_ordered();
                continue;
            }
            if has_ended {
                // Nobody reads after this what is waiting now.
                while let Ok(count @ 1..) = self.uffd.read_faults(&mut faults) {
                    faults[..count]
                        .iter()
                        .for_each(|fault| self.resolve(*fault));
                }
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
        let Some(page) = PageRange::new(fault.address, fault.address + page_size()) else {
            return;
        };
        if let Some(slots) = self.slots.get()
            && let Some(slot) = slots.of(fault.address)
        {
            self.keep(slots, slot, page);
        }
        if self.uffd.release(page).is_err() {
            // The mapping is gone: the thread finds out.
            let _ = self.uffd.wake(page);
        }
    }

    /// Makes a copy of a page that is about to be written, unless there is one.
    fn keep(&self, slots: &Slots, slot: usize, page: PageRange) {
        let state = &slots.states[slot];
        if !matches!(state.load(SeqCst), state::FREE | state::TAKEN) {
            return;
        }
        let mut bytes = [0; PAGE_BYTES];
        let read = remote_memory::read(self.pid, page.start(), &mut bytes);
        let whole = read == Ok(PAGE_BYTES) && self.pagemap.are_protected(page);
        for (word, bytes) in slots.copy(slot).iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), SeqCst);
        }
        let next = if whole { state::KEPT } else { state::LOST };
        let _ = state.fetch_update(SeqCst, SeqCst, |now| (now != state::READ).then_some(next));
    }

    /// Copies ranges of the pages as they were at the instant; false if that is not known.
    /// `read` copies them as they are.
    pub(super) fn read(
        &self,
        ranges: &[PageRange],
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<bool>,
    ) -> Result<bool> {
        let slots = self.slots.get().expect("it has begun");
        let mut numbers = Vec::with_capacity(buffer.len() / PAGE_BYTES);
        for range in ranges {
            let first = slots.of(range.start()).expect("a page of the freeze");
            let last = slots.of(range.end() - page_size());
            assert_eq!(last, Some(first + range.page_count() as usize - 1));
            numbers.extend(first..first + range.page_count() as usize);
        }
        for &slot in &numbers {
            // A page is read once; one that is read again may have been released since.
            let _ = slots.states[slot].compare_exchange(state::FREE, state::TAKEN, SeqCst, SeqCst);
        }
        if !read(buffer)? {
            return Ok(false);
        }
        let mut is_protected = Vec::with_capacity(numbers.len());
        for range in ranges {
            for start in (range.start()..range.end()).step_by((VALIDATED * page_size()) as usize) {
                let end = range.end().min(start + VALIDATED * page_size());
                let part = PageRange::new(start, end).expect("it is not empty");
                let all = self.pagemap.are_protected(part);
                is_protected.extend((start..end).step_by(PAGE_BYTES).map(|page| {
                    let page = PageRange::new(page, page + page_size());
                    all || page.is_some_and(|page| self.pagemap.are_protected(page))
                }));
            }
        }
        let pages = buffer.chunks_exact_mut(PAGE_BYTES);
        for ((&slot, is_protected), page) in numbers.iter().zip(is_protected).zip(pages) {
            let state = &slots.states[slot];
            let taken = is_protected
                && state
                    .compare_exchange(state::TAKEN, state::READ, SeqCst, SeqCst)
                    .is_ok();
            match state.load(SeqCst) {
                _ if taken => {}
                state::KEPT => copy_out(slots.copy(slot), page),
                // Read before, and protected since.
                state::READ if is_protected => {}
                _ => {
                    self.has_lost.store(true, SeqCst);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn copy_out(words: &[AtomicU64], page: &mut [u8]) {
    for (word, bytes) in words.iter().zip(page.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
    }
}
