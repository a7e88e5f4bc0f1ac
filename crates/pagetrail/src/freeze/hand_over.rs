//! [`HandOvers`]: mappings on their way from one userfaultfd to the other, and back, by the handler
//! of the freeze.
//!
//! Within a hand-over, a mapping is registered for missing pages with a descriptor that nobody may
//! read. So it is done by a process that no stop of the tracker reaches, nor its death: a target
//! that the agent lets go meanwhile would wait for the tracker. The handler is one, and it is there
//! before anything is held: to start another takes longer than most hand-overs do.

use crate::error::{Error, Result};
use crate::page_set::PageRange;
use crate::sys::shared_words::SharedWords;
use crate::sys::uffd::{Mode, Uffd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

/// After such a time without an answer it is looked whether there is still somebody to give one.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// In which direction mappings go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the userfaultfd of the freeze.
    Out,
    /// Back to the one that lent them.
    Back,
}

/// The hand-overs of one freeze: one out, and one back.
#[derive(Debug)]
pub(super) struct HandOvers {
    pub(super) lender: Arc<Uffd>,
    to: Arc<Uffd>,
    /// Readable when one is wanted.
    order: OwnedFd,
    /// Readable when it is done.
    done: OwnedFd,
    out: OnceLock<Job>,
    back: OnceLock<Job>,
}

/// Ranges, and the outcome of each. Atomic words, because a tracker that is killed would leave a
/// mutex locked.
#[derive(Debug)]
struct Job(SharedWords);

/// Of a job: whether it is done.
const IS_DONE: usize = 0;
/// The words of a range: its start, its end, what came of it.
const FIRST: usize = 1;
const EACH: usize = 3;

/// What came of a range: nothing yet, it was handed over, or the number of an error and this.
const OPEN: u64 = 0;
const HANDED_OVER: u64 = 1;
const FAILED: u64 = 2;

impl Job {
    fn new(ranges: &[PageRange]) -> Result<Self> {
        let words = SharedWords::new(FIRST + ranges.len() * EACH);
        let words = words.map_err(Error::os("mapping room for a hand-over"))?;
        for (range, each) in ranges.iter().zip(words[FIRST..].chunks_exact(EACH)) {
            each[0].store(range.start(), SeqCst);
            each[1].store(range.end(), SeqCst);
        }
        Ok(Self(words))
    }

    /// Does `work` on each range that nothing has come of yet.
    fn each(&self, work: impl Fn(PageRange) -> Result<(), Errno>) {
        for each in self.0[FIRST..].chunks_exact(EACH) {
            let range = PageRange::new(each[0].load(SeqCst), each[1].load(SeqCst));
            if each[2].load(SeqCst) == OPEN
                && let Some(range) = range
            {
                let outcome = match work(range) {
                    Ok(()) => HANDED_OVER,
                    Err(errno) => FAILED + errno.raw_os_error() as u64,
                };
                each[2].store(outcome, SeqCst);
            }
        }
        self.0[IS_DONE].store(1, SeqCst);
    }

    fn is_done(&self) -> bool {
        self.0[IS_DONE].load(SeqCst) != 0
    }

    fn outcomes(&self) -> Vec<Result<(), Errno>> {
        let each = self.0[FIRST..].chunks_exact(EACH);
        let outcome = |each: &[std::sync::atomic::AtomicU64]| match each[2].load(SeqCst) {
            HANDED_OVER => Ok(()),
            OPEN => Err(Errno::CANCELED),
            failed => Err(Errno::from_raw_os_error((failed - FAILED) as i32)),
        };
        each.map(outcome).collect()
    }
}

impl HandOvers {
    pub(super) fn new(lender: Arc<Uffd>, to: Arc<Uffd>) -> Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            lender,
            to,
            order: event().map_err(Error::os("eventfd"))?,
            done: event().map_err(Error::os("eventfd"))?,
            out: OnceLock::new(),
            back: OnceLock::new(),
        })
    }

    /// The descriptors that the handler needs.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.lender.as_fd(), self.order.as_fd(), self.done.as_fd()]
    }

    /// What is readable when a hand-over is wanted.
    pub(super) fn order(&self) -> BorrowedFd<'_> {
        self.order.as_fd()
    }

    /// Has ranges handed over, once in each direction; says of each what came of it.
    /// `is_over` says whether there is no handler any more.
    pub(super) fn have_done(
        &self,
        direction: Direction,
        ranges: &[PageRange],
        is_over: impl Fn() -> bool,
    ) -> Result<Vec<Result<(), Errno>>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let place = match direction {
            Direction::Out => &self.out,
            Direction::Back => &self.back,
        };
        let is_new = place.set(Job::new(ranges)?).is_ok();
        debug_assert!(is_new, "each direction is used once");
        let Some(job) = place.get() else {
            return Ok(vec![Err(Errno::CANCELED); ranges.len()]);
        };
        let asked = rustix::io::write(&self.order, &1u64.to_ne_bytes());
        asked.map_err(Error::os("asking for a hand-over"))?;
        while !job.is_done() {
            let mut done = [PollFd::new(&self.done, PollFlags::IN)];
            match poll(&mut done, Some(&LOOK)) {
                Ok(0) | Err(_) if is_over() && !job.is_done() => {
                    // Nobody is at it any more.
                    self.give_up_on(job, direction);
                }
                _ => drain(&self.done),
            }
        }
        Ok(job.outcomes())
    }

    /// Does what was ordered, and says so. Allocates nothing.
    pub(super) fn do_ordered(&self) {
        drain(&self.order);
        for (job, direction) in self.jobs() {
            let (from, to) = self.ends(direction);
            job.each(|range| from.hand_over(range, to));
        }
        let _ = rustix::io::write(&self.done, &1u64.to_ne_bytes());
    }

    /// After the end of a handler that was killed: what it left undone is as when a hand-over
    /// fails.
    pub(super) fn give_up(&self) {
        for (job, direction) in self.jobs() {
            self.give_up_on(job, direction);
        }
        let _ = rustix::io::write(&self.done, &1u64.to_ne_bytes());
    }

    fn give_up_on(&self, job: &Job, direction: Direction) {
        let (from, _) = self.ends(direction);
        job.each(|range| {
            let _ = from.register(range, Mode::WriteProtect);
            Err(Errno::CANCELED)
        });
    }

    /// What is not done yet.
    fn jobs(&self) -> impl Iterator<Item = (&Job, Direction)> {
        let all = [
            (self.out.get(), Direction::Out),
            (self.back.get(), Direction::Back),
        ];
        let open = all.into_iter();
        open.filter_map(|(job, direction)| Some((job.filter(|job| !job.is_done())?, direction)))
    }

    fn ends(&self, direction: Direction) -> (&Uffd, &Uffd) {
        match direction {
            Direction::Out => (&self.lender, &self.to),
            Direction::Back => (&self.to, &self.lender),
        }
    }
}

/// Makes an eventfd unreadable.
fn drain(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}
