//! [`Space`]: a process that lacks pages, as its pager knows it.
//!
//! The kernel reports changes of mappings after they were made, and those of several threads in any
//! order: `mremap(2)` to an address may be reported before the earlier `munmap(2)` of that address.
//! While a report is unread, the kernel fills no page and answers `EAGAIN`. So once it has filled
//! one, every later report is of a later change.

use crate::error::{Error, Result};
use crate::lacking::{Lacking, Piece};
use crate::sys::missing::{Filled, Missing};
use crate::wiped::Threads;
use pagetrail::{PageRange, PageSet, page_size};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;

/// What has come of pages that were to be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// They are there.
    All,
    /// Some are not mapped any more.
    Unmapped,
    /// Not all yet: memory is being changed.
    Changing,
    /// The process has gone.
    Gone,
}

/// A process that lacks pages.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) missing: Missing,
    /// The process, where it is the one that was restored.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) threads: Threads,
    pub(crate) lacking: Lacking,
    /// The address from which pages are filled that no thread waits for.
    pub(crate) next: u64,
    /// Addresses of pages for which threads wait.
    pub(crate) waiting: VecDeque<u64>,
    pub(crate) is_gone: bool,
    /// Addresses to which memory was moved, perhaps after changes that are not reported yet.
    arrived: PageSet,
    /// Addresses of `arrived` that were reported as unmapped: before or after the move.
    doubtful: PageSet,
}

impl Space {
    pub(crate) fn new(missing: Missing, lacking: Lacking) -> Self {
        Self {
            missing,
            process: None,
            threads: Threads::default(),
            lacking,
            next: 0,
            waiting: VecDeque::new(),
            is_gone: false,
            arrived: PageSet::new(),
            doubtful: PageSet::new(),
        }
    }

    /// The space of a child that was forked now. It lacks what this one lacks, without memory that
    /// children see as zeros.
    pub(crate) fn child(&self, missing: Missing) -> Self {
        let mut lacking = self.lacking.clone();
        let wiped = match lacking.is_empty() {
            true => PageSet::new(),
            false => self.threads.wiped(),
        };
        for range in wiped.ranges() {
            lacking.remove(*range);
        }
        Self {
            next: self.next,
            doubtful: self.doubtful.clone(),
            ..Self::new(missing, lacking)
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_gone || self.lacking.is_empty()
    }

    /// Notes that the contents of a range were moved to another address.
    pub(crate) fn moved(&mut self, range: PageRange, to: u64) {
        self.lacking.moved(range, to);
        self.doubtful.remove(range);
        if let Some(there) = PageRange::new(to, to.saturating_add(range.bytes())) {
            self.arrived.insert(there);
        }
    }

    /// Notes that a range was unmapped. It may be mapped again, so no page of it is filled before
    /// that is known.
    pub(crate) fn unmapped(&mut self, range: PageRange) {
        let range = PageSet::from_iter([range]);
        let doubtful = range.intersection(&self.arrived);
        for gone in range.difference(&doubtful).ranges() {
            self.lacking.remove(*gone);
        }
        self.doubtful.union_with(&doubtful);
    }

    /// Ranges that may be mapped or not: the process's mappings say which.
    pub(crate) fn doubtful(&self) -> Vec<PageRange> {
        self.doubtful.ranges().to_vec()
    }

    pub(crate) fn no_doubts_left(&mut self) {
        self.doubtful.clear();
    }

    /// Fills pages; see [`Missing::fill`].
    pub(crate) fn fill(
        &mut self,
        address: u64,
        contents: &[u8],
    ) -> std::result::Result<Filled, Errno> {
        let filled = self.missing.fill(address, contents);
        self.answered(filled)
    }

    /// Fills pages with zeros; see [`Missing::zero`].
    pub(crate) fn zero(&mut self, page: PageRange) -> std::result::Result<Filled, Errno> {
        let filled = self.missing.zero(page);
        self.answered(filled)
    }

    /// Gives it pages that are neighbours in the image, and counts them.
    pub(crate) fn fill_part(
        &mut self,
        part: Piece,
        contents: &[u8],
        pages: &mut u64,
    ) -> Result<Brought> {
        let mut outcome = Brought::All;
        let mut at = part.range.start();
        let page = page_size() as usize;
        let mut at_once = usize::MAX;
        while at < part.range.end() {
            let rest = &contents[(at - part.range.start()) as usize..];
            let rest = &rest[..rest.len().min(at_once)];
            let failed = Error::step("give a process its pages");
            let done = match self.fill(at, rest).map_err(failed)? {
                Filled::Bytes(bytes) => {
                    *pages += bytes / page_size();
                    bytes
                }
                // Of guard pages (`MADV_GUARD_INSTALL`) nobody says anything.
                Filled::WasThere => page_size(),
                // One call fills pages of one mapping only.
                Filled::Unmapped if rest.len() > page => {
                    at_once = page;
                    continue;
                }
                Filled::Unmapped => {
                    outcome = Brought::Unmapped;
                    page_size()
                }
                Filled::Changing => return Ok(Brought::Changing),
                Filled::Gone => {
                    self.is_gone = true;
                    return Ok(Brought::Gone);
                }
            };
            if let Some(done) = PageRange::new(at, at + done) {
                self.lacking.remove(done);
            }
            at += done;
        }
        Ok(outcome)
    }

    /// Wakes who waits for pages of a range, to look again.
    pub(crate) fn wake(&self, range: PageRange) -> Result<()> {
        let woken = self.missing.wake(range);
        woken.map_err(Error::step("wake a thread"))
    }

    fn answered(
        &mut self,
        filled: std::result::Result<Filled, Errno>,
    ) -> std::result::Result<Filled, Errno> {
        if filled.is_ok_and(|filled| filled != Filled::Changing) {
            self.arrived.clear();
        }
        filled
    }
}
