//! [`Pager`]: gives a process that runs already its pages, as it touches them, and the others
//! meanwhile.
//!
//! A fault brings the whole block that the store has around the page, and comes before what nobody
//! waits for. While faults keep coming, they have all of the pager's time; in pauses it goes on
//! from where the last one was.
//!
//! What the program does to memory that it lacks is done to what it lacks: [`Lacking`] is moved and
//! forgotten with it, and a child lacks what its parent lacked. While such a message is on its way,
//! the kernel lets no page be filled, so none is filled by an old address.

use crate::ending;
use crate::error::{Error, Result};
use crate::lacking::{Lacking, Piece};
use crate::paged::Space;
use crate::shortage::Shortage;
use crate::sys::guard::Guard;
use crate::sys::missing::{Filled, Message, Missing};
use pagetrail::{PageRange, page_size};
use pagetrail_checkpoint::Image;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long the next fault is waited for after one, in nanoseconds: about as long as a program
/// takes to run into it.
const NEXT_FAULT_NS: i64 = 30_000;

/// What a process was given after it had been started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Pages, those of children that it has forked meanwhile included.
    pub pages: u64,
    /// How often a thread waited for one.
    pub faults: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Gives a process that was restored lazily its pages; made by [`restore_lazily`].
///
/// The process lives on while this does its work. Dropped before that, or when this process is
/// killed, it ends the process, and children that lack pages as well: they would see zeros instead.
///
/// [`restore_lazily`]: crate::restore_lazily
#[must_use]
pub struct Pager {
    image: Image,
    spaces: Vec<Space>,
    guard: Guard,
    given: Given,
    contents: Vec<u8>,
    /// Which of them was looked at last, whether it has gone.
    looked_at: usize,
    shortage: Shortage,
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pager")
            .field("lacking_pages", &self.lacking_pages())
            .finish_non_exhaustive()
    }
}

impl Pager {
    pub(crate) fn new(
        image: Image,
        missing: Missing,
        lacking: Lacking,
        (process, pid): (OwnedFd, u32),
        guard: Guard,
    ) -> Self {
        let mut restored = Space::new(missing, lacking);
        restored.process = Some(process);
        restored.thread = Some(pid);
        Self {
            image,
            spaces: vec![restored],
            guard,
            given: Given::default(),
            contents: Vec::new(),
            looked_at: 0,
            shortage: Shortage::default(),
        }
    }

    /// How many pages are lacked.
    pub fn lacking_pages(&self) -> u64 {
        let bytes: u64 = self.spaces.iter().map(|space| space.lacking.bytes()).sum();
        bytes / page_size()
    }

    /// Gives out pages until none is lacked, or who lacks them has ended.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails, or the kernel does not take a page: the process, and
    /// children that lack pages, have ended then.
    pub fn finish(mut self) -> Result<Given> {
        let began = Instant::now();
        while !self.spaces.is_empty() {
            let outcome = self.advance();
            outcome.map_err(|error| match error {
                Error::Store(error) => Error::LacksPages(error),
                error => error,
            })?;
        }
        Ok(Given {
            elapsed: began.elapsed(),
            ..self.given
        })
    }

    /// Brings the pages that are waited for, or else a block that is not.
    fn advance(&mut self) -> Result<()> {
        self.listen(0)?;
        self.settle_doubts()?;
        while self.serve()? {
            self.leave_those_that_lack_nothing();
            self.listen(NEXT_FAULT_NS)?;
            self.settle_doubts()?;
        }
        self.leave_those_that_lack_nothing();
        for index in 0..self.spaces.len() {
            let space = &self.spaces[index];
            let Some(piece) = space.lacking.next(space.next) else {
                continue;
            };
            // While the memory of one is being changed, another can be filled.
            if self.bring(index, piece, piece.range.start())? != Brought::Changing {
                self.shortage.has_passed();
                return Ok(());
            }
        }
        match self.shortage.goes_on() {
            Some(errno) => Err(Error::step("take over a child that lacks pages")(errno)),
            None => Ok(()),
        }
    }

    fn leave_those_that_lack_nothing(&mut self) {
        self.spaces.retain(|space| !space.is_done());
        if self.spaces.iter().all(|space| space.process.is_none()) {
            self.guard.spare();
        }
    }

    /// Reads what processes say, and waits for it so long where nothing was said yet.
    fn listen(&mut self, wait_ns: i64) -> Result<()> {
        let mut looks: Vec<PollFd<'_>> = Vec::with_capacity(self.spaces.len() + 1);
        looks.push(PollFd::new(self.guard.life(), PollFlags::IN));
        let of_spaces = self.spaces.iter();
        looks.extend(of_spaces.map(|space| PollFd::new(&space.missing, PollFlags::IN)));
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: wait_ns,
        };
        match poll(&mut looks, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            outcome => outcome.map_err(Error::step("wait for a process that lacks pages"))?,
        };
        let said: Vec<bool> = looks
            .iter()
            .map(|look| !look.revents().is_empty())
            .collect();
        if said[0] {
            self.replace_guard()?;
        }
        for (index, _) in said[1..].iter().enumerate().filter(|(_, said)| **said) {
            self.hear(index)?;
        }
        Ok(())
    }

    /// Somebody has killed the guard.
    fn replace_guard(&mut self) -> Result<()> {
        self.guard = match self.guard.again() {
            Ok(guard) => guard,
            Err(errno) => return Err(Error::step("guard a process that lacks pages")(errno)),
        };
        Ok(())
    }

    /// Takes in what a process says.
    fn hear(&mut self, index: usize) -> Result<()> {
        let mut messages = Vec::new();
        let read = self.spaces[index]
            .missing
            .messages(|message| messages.push(message));
        match read {
            // The parent waits, and its message stays where it is.
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                self.shortage.begins(errno);
                self.find_those_that_have_gone(self.spaces.len());
            }
            read => read
                .map(drop)
                .map_err(Error::step("hear of a page that is lacked"))?,
        }
        for message in messages {
            let space = &mut self.spaces[index];
            match message {
                Message::Fault { address, thread } => {
                    self.given.faults += 1;
                    // The one that was restored is known by its first.
                    if space.process.is_none() {
                        space.thread = Some(thread);
                    }
                    space.waiting.push_back(address);
                }
                Message::Fork(missing) => {
                    let child = space.child(missing);
                    self.spaces.push(child);
                    // More than come, so that those which have gone are few.
                    self.find_those_that_have_gone(2);
                }
                Message::Moved(range, to) => space.moved(range, to),
                Message::Discarded(range) => space.lacking.remove(range),
                Message::Unmapped(range) => space.unmapped(range),
            }
        }
        Ok(())
    }

    /// Looks at some processes, the next ones each time, whether they have gone: nobody says so.
    fn find_those_that_have_gone(&mut self, count: usize) {
        for _ in 0..count.min(self.spaces.len()) {
            self.looked_at = (self.looked_at + 1) % self.spaces.len();
            let space = &mut self.spaces[self.looked_at];
            space.is_gone |= space.missing.is_gone();
        }
    }

    /// Asks of what was perhaps unmapped whether it is mapped: then it was moved there since.
    fn settle_doubts(&mut self) -> Result<()> {
        for index in 0..self.spaces.len() {
            let doubtful = self.spaces[index].doubtful();
            if !doubtful.is_empty() && self.settle(index, &doubtful)? {
                self.spaces[index].no_doubts_left();
            }
        }
        Ok(())
    }

    /// Tells whether all was answered.
    fn settle(&mut self, index: usize, doubtful: &[PageRange]) -> Result<bool> {
        let lacking = &self.spaces[index].lacking;
        let pieces = doubtful.iter().flat_map(|range| lacking.within(*range));
        for piece in pieces.collect::<Vec<_>>() {
            let first = piece.range.start();
            let page = PageRange::new(first, first + page_size());
            let Some(part) = page.and_then(|page| piece.within(page)) else {
                continue;
            };
            match self.bring_part(index, part)? {
                Brought::Unmapped => self.spaces[index].lacking.remove(piece.range),
                Brought::Changing => return Ok(false),
                Brought::All | Brought::Gone => {}
            }
        }
        Ok(true)
    }

    /// Brings the pages for which threads wait, as far as memory is not being changed; tells
    /// whether there was one.
    fn serve(&mut self) -> Result<bool> {
        let mut is_any = false;
        for index in 0..self.spaces.len() {
            // Those that cannot be filled now wait for what changes memory.
            for _ in 0..self.spaces[index].waiting.len() {
                let Some(address) = self.spaces[index].waiting.pop_front() else {
                    break;
                };
                match self.resolve(index, address)? {
                    Brought::Changing => self.spaces[index].waiting.push_back(address),
                    _ => is_any = true,
                }
            }
        }
        Ok(is_any)
    }

    fn resolve(&mut self, index: usize, address: u64) -> Result<Brought> {
        let space = &mut self.spaces[index];
        if let Some(piece) = space.lacking.at(address) {
            return self.bring(index, piece, address);
        }
        let Some(page) = PageRange::new(address, address + page_size()) else {
            return Ok(Brought::All);
        };
        let failed = Error::step("give a process a page of zeros");
        match space.zero(page).map_err(failed)? {
            Filled::Bytes(_) => {}
            Filled::Changing => return Ok(Brought::Changing),
            Filled::Gone => space.is_gone = true,
            // It looks again.
            Filled::WasThere | Filled::Unmapped => {
                let woken = space.missing.wake(page);
                woken.map_err(Error::step("wake a thread"))?;
            }
        }
        Ok(Brought::All)
    }

    /// Brings the block of the store that a lacked page is in, as far as it is lacked around it.
    fn bring(&mut self, index: usize, piece: Piece, address: u64) -> Result<Brought> {
        let from = piece.from + (address - piece.range.start());
        let block = self.image.block(from);
        // All that is lacked has contents.
        let Some(part) = block.and_then(|block| piece.within_image(block)) else {
            return Err(Error::refused(format!(
                "the checkpoint contradicts itself about the page at {from:#x}"
            )));
        };
        let brought = self.bring_part(index, part)?;
        let space = &mut self.spaces[index];
        space.next = part.range.end();
        match brought {
            Brought::All | Brought::Gone => {}
            Brought::Changing => space.next = part.range.start(),
            Brought::Unmapped => {
                let woken = space.missing.wake(part.range);
                woken.map_err(Error::step("wake a thread"))?;
            }
        }
        Ok(brought)
    }

    /// Brings pages that are neighbours in the image.
    fn bring_part(&mut self, index: usize, part: Piece) -> Result<Brought> {
        let length = part.range.bytes();
        let Some(there) = PageRange::new(part.from, part.from + length) else {
            return Ok(Brought::All);
        };
        self.contents.resize(length as usize, 0);
        self.image.read(there, &mut self.contents)?;
        let space = &mut self.spaces[index];
        let mut outcome = Brought::All;
        let mut at = part.range.start();
        let page = page_size() as usize;
        let mut at_once = usize::MAX;
        while at < part.range.end() {
            let rest = &self.contents[(at - part.range.start()) as usize..];
            let rest = &rest[..rest.len().min(at_once)];
            let failed = Error::step("give a process its pages");
            let done = match space.fill(at, rest).map_err(failed)? {
                Filled::Bytes(bytes) => {
                    self.given.pages += bytes / page_size();
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
                    space.is_gone = true;
                    return Ok(Brought::Gone);
                }
            };
            if let Some(done) = PageRange::new(at, at + done) {
                space.lacking.remove(done);
            }
            at += done;
        }
        Ok(outcome)
    }

    /// Ends all that lack pages.
    fn end(&mut self) {
        for process in self
            .spaces
            .iter()
            .filter_map(|space| space.process.as_ref())
        {
            ending::kill(process.as_fd());
        }
        while !self.spaces.is_empty() {
            let mut children = Vec::new();
            for space in &self.spaces {
                // Those that have said before that they wait do so again.
                space.missing.wake_all();
                let mut each = |message| match message {
                    Message::Fault { thread, .. } => ending::kill_waiting(thread),
                    Message::Fork(child) => children.push(child),
                    _ => {}
                };
                while space
                    .missing
                    .messages(&mut each)
                    .is_ok_and(|count| count > 0)
                {}
            }
            self.spaces.retain(|space| !space.missing.is_gone());
            let children = children.into_iter();
            let spaces = children.map(|child| Space::new(child, Lacking::default()));
            self.spaces.extend(spaces);
            ending::pause();
        }
    }
}

/// What has come of pages that were to be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    /// They are there.
    All,
    /// Some are not mapped any more.
    Unmapped,
    /// Not all yet: memory is being changed.
    Changing,
    /// The process has gone.
    Gone,
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.leave_those_that_lack_nothing();
        self.end();
    }
}
