//! [`Pager`]: gives a process that runs already its pages, as it touches them, and the others
//! meanwhile.
//!
//! A fault brings the page, or the whole block around it where more of it will be needed (see
//! [`Spread`]), and comes before what nobody waits for: blocks that another thread unpacks ahead,
//! in the order in which an earlier process needed them, and then from where the last fault was.
//!
//! What the program does to memory that it lacks is done to what it lacks: [`Lacking`] is moved and
//! forgotten with it, and a child lacks what its parent lacked. While such a message is on its way,
//! the kernel lets no page be filled, so none is filled by an old address.

use crate::ahead::{Ahead, Next, Unpacked};
use crate::ending;
use crate::error::{Error, Result};
use crate::lacking::{Lacking, Piece};
use crate::paged::{Brought, Space};
use crate::shortage::Shortage;
use crate::spread::{Bring, Spread, block_around};
use crate::sys::guard::Guard;
use crate::sys::missing::{Filled, Message, Missing};
use crate::wiped::Threads;
use pagetrail::{PageRange, page_size};
use pagetrail_checkpoint::Image;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long a block is waited for that is being unpacked, in nanoseconds: there is a notice of it.
const NEXT_BLOCK_NS: i64 = 10_000_000;
/// How long the next fault is waited for before a block is begun with that nobody waits for, in
/// nanoseconds: about as long as a program takes to run into it.
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
    /// Whether the store has now in which order pages were needed.
    pub kept_touches: bool,
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
    ahead: Ahead,
    spread: Spread,
    /// The bytes that were lacking when the process was started.
    lacking_at_first: u64,
    /// In which order pages of the image were needed.
    touches: Vec<PageRange>,
    keeps_touches: bool,
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
        keeps_touches: bool,
    ) -> Self {
        let lacking_at_first = lacking.bytes();
        let mut restored = Space::new(missing, lacking);
        restored.process = Some(process);
        restored.threads = Threads::of(pid);
        Self {
            image,
            spaces: vec![restored],
            guard,
            given: Given::default(),
            contents: Vec::new(),
            looked_at: 0,
            shortage: Shortage::default(),
            ahead: Ahead::default(),
            spread: Spread::default(),
            lacking_at_first,
            touches: Vec::new(),
            keeps_touches,
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
        let progress = self.image.progress();
        progress.begin("giving pages", self.lacking_at_first);
        // Without an order, another thread would take processor time and be waited for.
        if self.image.first_touches().is_some() {
            // All that is lacked is where it was in the image.
            let lacking = self.spaces.first().map(|space| space.lacking.clone());
            let lacking = lacking.unwrap_or_default();
            let begun = self.ahead.begin(self.image.share(), lacking);
            begun.map_err(Error::step("unpack pages ahead"))?;
        }
        while !self.spaces.is_empty() {
            let outcome = self.advance();
            outcome.map_err(|error| match error {
                Error::Store(error) => Error::LacksPages(error),
                error => error,
            })?;
        }
        self.given.elapsed = began.elapsed();
        let order = self.ahead.end(std::mem::take(&mut self.touches));
        if self.keeps_touches {
            // A store that cannot be written to, or is in use, serves as well.
            self.given.kept_touches = self.image.keep_first_touches(&order).unwrap_or(false);
        }
        Ok(self.given)
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
        match self.ahead.take()? {
            Next::Block(block) => {
                self.touched(block.touched);
                if self.bring_unpacked(&block)? {
                    self.shortage.has_passed();
                }
                return Ok(());
            }
            Next::Later => return self.listen(NEXT_BLOCK_NS),
            Next::Over => {}
        }
        for index in 0..self.spaces.len() {
            let space = &self.spaces[index];
            let (lacking, next) = (&space.lacking, space.next);
            let Some(piece) = lacking.from(next).or_else(|| lacking.next(next)) else {
                continue;
            };
            let block = block_of(&self.image, piece.from)?;
            self.spread.brought(block);
            // While the memory of one is being changed, another can be filled.
            if self.bring(index, piece, block)? != Brought::Changing {
                self.shortage.has_passed();
                return Ok(());
            }
        }
        match self.shortage.goes_on() {
            Some(errno) => Err(Error::step("take over a child that lacks pages")(errno)),
            None => Ok(()),
        }
    }

    /// Notes where in the image pages are that were needed, or were the last time.
    fn touched(&mut self, range: Option<PageRange>) {
        let Some(range) = range.filter(|_| self.keeps_touches) else {
            return;
        };
        match self.touches.last_mut() {
            Some(last) if *last == range => {}
            Some(last) if last.end() == range.start() => {
                *last = PageRange::new(last.start(), range.end()).unwrap_or(range);
            }
            _ => self.touches.push(range),
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
        let mut looks: Vec<PollFd<'_>> = Vec::with_capacity(self.spaces.len() + 2);
        looks.push(PollFd::new(self.guard.life(), PollFlags::IN));
        let of_spaces = self.spaces.iter();
        looks.extend(of_spaces.map(|space| PollFd::new(&space.missing, PollFlags::IN)));
        let notice = self.ahead.notice();
        looks.extend(notice.map(|notice| PollFd::new(notice, PollFlags::IN)));
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
        let (of_spaces, notice) = said[1..].split_at(self.spaces.len());
        if notice.contains(&true) {
            self.ahead.noticed();
        }
        for (index, _) in of_spaces.iter().enumerate().filter(|(_, said)| **said) {
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
                    space.threads.waits(thread);
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
        if let Some(piece) = self.spaces[index].lacking.at(address) {
            let from = piece.from + (address - piece.range.start());
            self.touched(PageRange::new(from, from + page_size()));
            if let Some(block) = self.ahead.find(from)? {
                self.bring_unpacked(&block)?;
                self.spaces[index].next = block.range.end();
                if self.spaces[index].lacking.at(address).is_none() {
                    return Ok(Brought::All);
                }
                // It was moved, or its memory is being changed.
            }
            return self.bring_on_fault(index, piece, from);
        }
        let space = &mut self.spaces[index];
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
                space.wake(page)?;
            }
        }
        Ok(Brought::All)
    }

    /// Brings the page at an address of the image, for which a thread waits, and what will be
    /// needed besides.
    fn bring_on_fault(&mut self, index: usize, piece: Piece, from: u64) -> Result<Brought> {
        let given = self.given.pages * page_size();
        let left = self.lacking_at_first.saturating_sub(given);
        let block = block_of(&self.image, from)?;
        let page = PageRange::new(from, from + page_size());
        let brought = match (self.spread.fault(from, left), page) {
            (Bring::Page, Some(page)) => self.bring(index, piece, page)?,
            _ => self.bring(index, piece, block)?,
        };
        // What is left of the block is unpacked perhaps, and is brought before others.
        let at = piece.within_image(block).map(|part| part.range.start());
        let space = &mut self.spaces[index];
        space.next = at.unwrap_or(space.next);
        Ok(brought)
    }

    /// Brings pages of the image, as far as they are lacked in a piece.
    fn bring(&mut self, index: usize, piece: Piece, pages: PageRange) -> Result<Brought> {
        let Some(part) = piece.within_image(pages) else {
            return Ok(Brought::All);
        };
        let brought = self.bring_part(index, part)?;
        self.ahead.was_brought(pages);
        let space = &mut self.spaces[index];
        space.next = part.range.end();
        match brought {
            Brought::All | Brought::Gone => {}
            Brought::Changing => space.next = part.range.start(),
            Brought::Unmapped => space.wake(part.range)?,
        }
        Ok(brought)
    }

    /// Brings pages that are neighbours in the image.
    fn bring_part(&mut self, index: usize, part: Piece) -> Result<Brought> {
        let Some(there) = PageRange::new(part.from, part.from + part.range.bytes()) else {
            return Ok(Brought::All);
        };
        self.contents.resize(there.bytes() as usize, 0);
        self.image.read(there, &mut self.contents)?;
        let space = &mut self.spaces[index];
        space.fill_part(part, &self.contents, &mut self.given.pages)
    }

    /// Gives a block that was unpacked ahead to all that lack it where it is in the image; tells
    /// whether that was possible with all. Whose memory is being changed gets it later.
    fn bring_unpacked(&mut self, block: &Unpacked) -> Result<bool> {
        let mut is_everywhere = true;
        for space in &mut self.spaces {
            let parts = space.lacking.within(block.range).into_iter();
            for part in parts.filter(|part| part.from == part.range.start()) {
                let from = (part.from - block.range.start()) as usize;
                let contents = &block.contents[from..][..part.range.bytes() as usize];
                match space.fill_part(part, contents, &mut self.given.pages)? {
                    Brought::Changing => is_everywhere = false,
                    Brought::All | Brought::Gone => {}
                    Brought::Unmapped => space.wake(part.range)?,
                }
            }
        }
        Ok(is_everywhere)
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

/// The pages around an address of the image that are brought together: a block, and all that the
/// store has to unpack for it.
fn block_of(image: &Image, from: u64) -> Result<PageRange> {
    let unpacked = image.block(from);
    let whole = unpacked
        .zip(block_around(from))
        .and_then(|(unpacked, block)| {
            let start = unpacked.start().min(block.start());
            PageRange::new(start, unpacked.end().max(block.end()))
        });
    // All that is lacked has contents.
    whole.ok_or_else(|| {
        Error::refused(format!(
            "the checkpoint contradicts itself about the page at {from:#x}"
        ))
    })
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.leave_those_that_lack_nothing();
        self.end();
    }
}
