//! Receiving a dump: pages come over the connection while those before them are hashed, compressed
//! and written; or, where processes stand still until all have come, into memory first. The other
//! side is not trusted: what it announces must come, and has an upper limit.

use super::dump::Dump;
use super::link::{Link, broken};
use super::protocol::{IN_PARENT, PRESENT, Request};
use crate::error::{Error, Result};
use crate::format::wire::Malformed;
use crate::store::writer::Draft;
use crate::sys::mapping::Mapping;
use pagetrail::PageRange;
use std::io::{Read, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

/// How much is put at a time, in bytes.
const BATCH_BYTES: usize = 8 << 20;
/// How many batches wait to be put.
const BATCHES_WAITING: usize = 4;

/// Pages on their way to the draft: where they belong, and what they hold.
#[derive(Default)]
struct Batch {
    ranges: Vec<PageRange>,
    bytes: Vec<u8>,
}

/// Pages that stay in memory until the other side has sent all. Hashing and compressing them
/// meanwhile would take the processors from it, while its processes stand still.
struct Spool {
    memory: Mapping,
    ranges: Vec<PageRange>,
    filled: usize,
}

/// What is to be put.
enum Work {
    Batch(Batch),
    Spool(Spool),
}

/// When pages go to the store, and the other side hears that they are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// As they come; it hears nothing of it here.
    AtOnce,
    /// Once all have come, as far as there is memory for them; it hears before that.
    Afterwards,
}

impl Dump<'_> {
    /// Receives pages until the other side says that these were all. `first` is the request that
    /// was read already.
    pub(super) fn receive<S: Read + Write>(
        &mut self,
        link: &mut Link<S>,
        first: Option<Request>,
        put: Put,
    ) -> Result<()> {
        let spool_bytes = self.spool_bytes();
        let (state, draft) = self.parts();
        thread::scope(|scope| {
            let (full, waiting) = mpsc::sync_channel(BATCHES_WAITING);
            let (used, free) = mpsc::channel();
            let putting = scope.spawn(move || put_all(draft, &waiting, &used));
            let spool = match put {
                Put::AtOnce => None,
                // Without one it takes longer.
                Put::Afterwards => Spool::new(spool_bytes),
            };
            let mut inlet = Inlet {
                spool,
                batch: Batch::default(),
                full,
                free,
            };
            let received = state.requests(link, first, &mut inlet);
            let received = received.and_then(|()| match put {
                Put::AtOnce => Ok(()),
                Put::Afterwards => link.done(),
            });
            let received = received.and_then(|()| inlet.send_all());
            drop(inlet);
            let put = putting
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Where putting failed, receiving could only notice that nobody takes the pages.
            put.and(received)
        })
    }
}

fn put_all(
    draft: &mut Draft<'_>,
    waiting: &Receiver<Work>,
    used: &mpsc::Sender<Batch>,
) -> Result<()> {
    for work in waiting {
        match work {
            Work::Spool(spool) => spool.put(draft)?,
            Work::Batch(mut batch) => {
                draft.put(&batch.ranges, &batch.bytes)?;
                batch.ranges.clear();
                // Its memory is used again, if there is still something to come.
                let _ = used.send(batch);
            }
        }
    }
    Ok(())
}

impl Spool {
    fn new(bytes: u64) -> Option<Self> {
        let memory = Mapping::spool(usize::try_from(bytes).ok()?).ok()?;
        Some(Self {
            memory,
            ranges: Vec::new(),
            filled: 0,
        })
    }

    /// Where the pages of a range go, if there is room.
    fn room(&mut self, range: PageRange) -> Option<&mut [u8]> {
        let from = self.filled;
        let to = from.checked_add(usize::try_from(range.bytes()).ok()?)?;
        let room = self.memory.as_mut_slice().get_mut(from..to)?;
        self.filled = to;
        self.ranges.push(range);
        Some(room)
    }

    /// Puts all, in the order in which it came.
    fn put(self, draft: &mut Draft<'_>) -> Result<()> {
        let mut rest = &self.memory.as_slice()[..self.filled];
        let mut ranges = &self.ranges[..];
        while !ranges.is_empty() {
            let (mut bytes, mut count) = (0, 0);
            while count < ranges.len() && (count == 0 || bytes < BATCH_BYTES) {
                bytes += ranges[count].bytes() as usize;
                count += 1;
            }
            let (now, later) = ranges.split_at(count);
            check(now)?;
            draft.put(now, &rest[..bytes])?;
            (ranges, rest) = (later, &rest[bytes..]);
        }
        Ok(())
    }
}

/// Where pages enter.
struct Inlet {
    /// `None` once it was full.
    spool: Option<Spool>,
    batch: Batch,
    full: SyncSender<Work>,
    free: Receiver<Batch>,
}

impl Inlet {
    /// Takes pages from the connection.
    fn take<S: Read + Write>(&mut self, link: &mut Link<S>, range: PageRange) -> Result<()> {
        if let Some(room) = self.spool.as_mut().and_then(|spool| spool.room(range)) {
            return link.read(room);
        }
        self.send_spool()?;
        let mut start = range.start();
        // The length so far, as the buffer keeps what it was filled with before.
        while start < range.end() {
            let there: u64 = self.batch.ranges.iter().map(PageRange::bytes).sum();
            let room = (BATCH_BYTES as u64).saturating_sub(there);
            if room == 0 {
                self.send()?;
                continue;
            }
            let part = PageRange::new(start, range.end().min(start + room));
            let part = part.ok_or(Error::Empty)?;
            let (from, to) = (there as usize, (there + part.bytes()) as usize);
            if self.batch.bytes.len() < to {
                self.batch.bytes.resize(to, 0);
            }
            link.read(&mut self.batch.bytes[from..to])?;
            self.batch.ranges.push(part);
            start = part.end();
        }
        Ok(())
    }

    /// Sends what was kept on to be put.
    fn send_spool(&mut self) -> Result<()> {
        match self.spool.take() {
            Some(spool) => self.full.send(Work::Spool(spool)).map_err(|_| Error::Empty),
            None => Ok(()),
        }
    }

    /// Sends the pages on to be put.
    fn send(&mut self) -> Result<()> {
        let next = self.free.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.batch, next);
        let bytes: u64 = batch.ranges.iter().map(PageRange::bytes).sum();
        batch.bytes.truncate(bytes as usize);
        check(&batch.ranges)?;
        // It fails when putting has, which says why.
        self.full.send(Work::Batch(batch)).map_err(|_| Error::Empty)
    }

    fn send_all(&mut self) -> Result<()> {
        self.send_spool()?;
        self.send()
    }
}

/// No page may be put twice at a time.
fn check(ranges: &[PageRange]) -> Result<()> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    match sorted.is_sorted_by(|a, b| a.end() <= b.start()) {
        true => Ok(()),
        false => Err(broken(Malformed("pages that came twice"))),
    }
}

impl super::dump::State {
    fn requests<S: Read + Write>(
        &mut self,
        link: &mut Link<S>,
        first: Option<Request>,
        inlet: &mut Inlet,
    ) -> Result<()> {
        let mut next = first;
        loop {
            let request = match next.take() {
                Some(request) => request,
                None => link
                    .next()?
                    .ok_or_else(|| broken(Malformed("it went away before it was done")))?,
            };
            match request {
                Request::Open { space, answered } => {
                    let has_parent = self.open(space)?;
                    if answered {
                        link.opened(has_parent)?;
                    }
                }
                Request::HasParent { space } => link.has_parent(self.has_parent(space))?,
                Request::Add {
                    space,
                    address,
                    pages,
                    flags,
                } => {
                    let range = self.add(space, address, pages, flags)?;
                    debug_assert!(flags & (PRESENT | IN_PARENT) != 0);
                    if flags & PRESENT != 0 {
                        inlet.take(link, range)?;
                    }
                }
                Request::Get { .. } => {
                    return Err(broken(Malformed("it sends pages and asks for some")));
                }
                Request::Close => return Ok(()),
            }
        }
    }
}
