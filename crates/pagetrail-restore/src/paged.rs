//! [`Space`]: a process that lacks pages, as its pager knows it.
//!
//! The kernel says what was done to memory afterwards, and of several threads in any order. What
//! was moved somewhere may so be reported before what was unmapped there earlier. It fills no page
//! while there is something that it has not said: if it answers otherwise, what it says next has
//! happened after all that was heard.

use crate::lacking::Lacking;
use crate::sys::missing::{Filled, Missing};
use crate::wiped;
use pagetrail::{PageRange, PageSet};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;

/// A process that lacks pages.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) missing: Missing,
    /// The process, where it is the one that was restored.
    pub(crate) process: Option<OwnedFd>,
    /// One of its threads, where one is known.
    pub(crate) thread: Option<u32>,
    pub(crate) lacking: Lacking,
    /// Where pages are brought that nobody waits for.
    pub(crate) next: u64,
    /// Addresses of pages for which threads wait.
    pub(crate) waiting: VecDeque<u64>,
    pub(crate) is_gone: bool,
    /// Where something was moved to, perhaps after what is yet to be heard.
    arrived: PageSet,
    /// What was unmapped, or moved there afterwards.
    doubtful: PageSet,
}

impl Space {
    pub(crate) fn new(missing: Missing, lacking: Lacking) -> Self {
        Self {
            missing,
            process: None,
            thread: None,
            lacking,
            next: 0,
            waiting: VecDeque::new(),
            is_gone: false,
            arrived: PageSet::new(),
            doubtful: PageSet::new(),
        }
    }

    /// That of a child, which lacks what this one does, but for what is zeros for children.
    pub(crate) fn child(&self, missing: Missing) -> Self {
        let mut lacking = self.lacking.clone();
        let wiped = match (self.thread, lacking.is_empty()) {
            (Some(thread), false) => wiped::of(thread),
            _ => PageSet::new(),
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

    /// What was in a range is at another address.
    pub(crate) fn moved(&mut self, range: PageRange, to: u64) {
        self.lacking.moved(range, to);
        self.doubtful.remove(range);
        if let Some(there) = PageRange::new(to, to.saturating_add(range.bytes())) {
            self.arrived.insert(there);
        }
    }

    /// A range was unmapped. It may be mapped again: nothing is filled to find that out.
    pub(crate) fn unmapped(&mut self, range: PageRange) {
        let range = PageSet::from_iter([range]);
        let doubtful = range.intersection(&self.arrived);
        for gone in range.difference(&doubtful).ranges() {
            self.lacking.remove(*gone);
        }
        self.doubtful.union_with(&doubtful);
    }

    /// Ranges of which it must be asked whether they are mapped.
    pub(crate) fn doubtful(&self) -> Vec<PageRange> {
        self.doubtful.ranges().to_vec()
    }

    pub(crate) fn no_doubts_left(&mut self) {
        self.doubtful.clear();
    }

    /// See [`Missing::fill`].
    pub(crate) fn fill(&mut self, address: u64, contents: &[u8]) -> Result<Filled, Errno> {
        let filled = self.missing.fill(address, contents);
        self.answered(filled)
    }

    /// See [`Missing::zero`].
    pub(crate) fn zero(&mut self, page: PageRange) -> Result<Filled, Errno> {
        let filled = self.missing.zero(page);
        self.answered(filled)
    }

    fn answered(&mut self, filled: Result<Filled, Errno>) -> Result<Filled, Errno> {
        if filled.is_ok_and(|filled| filled != Filled::Changing) {
            self.arrived.clear();
        }
        filled
    }
}
