//! Receiving a dump: pages come over the connection, or out of image files (`local`), while those
//! before them are hashed, compressed and written. The other side is not trusted: what it announces
//! must come, and has an upper limit.

use super::dump::{Dump, State};
use super::link::{Link, broken};
use super::protocol::{IN_PARENT, PRESENT, Request};
use crate::error::{Error, Result};
use crate::format::wire::Malformed;
use crate::store::writer::Draft;
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

impl Dump<'_> {
    /// Receives pages until the other side says that these were all. `first` is the request that
    /// was read already.
    pub(super) fn receive<S: Read + Write>(
        &mut self,
        link: &mut Link<S>,
        first: Option<Request>,
    ) -> Result<()> {
        self.fill(|state, inlet| state.requests(link, first, inlet))
    }

    /// Lets `bring` send pages, which are put meanwhile.
    pub(super) fn fill(
        &mut self,
        bring: impl FnOnce(&mut State, &mut Inlet) -> Result<()>,
    ) -> Result<()> {
        let (state, draft) = self.parts();
        thread::scope(|scope| {
            let (full, waiting) = mpsc::sync_channel(BATCHES_WAITING);
            let (used, free) = mpsc::channel();
            let putting = scope.spawn(move || put_all(draft, &waiting, &used));
            let mut inlet = Inlet {
                batch: Batch::default(),
                full,
                free,
            };
            let received = bring(state, &mut inlet).and_then(|()| inlet.send());
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
    waiting: &Receiver<Batch>,
    used: &mpsc::Sender<Batch>,
) -> Result<()> {
    for mut batch in waiting {
        draft.put(&batch.ranges, &batch.bytes)?;
        batch.ranges.clear();
        // Its memory is used again, if there is still something to come.
        let _ = used.send(batch);
    }
    Ok(())
}

/// Where pages enter.
pub(super) struct Inlet {
    batch: Batch,
    full: SyncSender<Batch>,
    free: Receiver<Batch>,
}

impl Inlet {
    /// Takes the pages of a range, which `read` fills in.
    pub(super) fn take(
        &mut self,
        range: PageRange,
        mut read: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
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
            read(&mut self.batch.bytes[from..to])?;
            self.batch.ranges.push(part);
            start = part.end();
        }
        Ok(())
    }

    /// Sends the pages on to be put.
    fn send(&mut self) -> Result<()> {
        let next = self.free.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.batch, next);
        let bytes: u64 = batch.ranges.iter().map(PageRange::bytes).sum();
        batch.bytes.truncate(bytes as usize);
        check(&batch.ranges)?;
        // It fails when putting has, which says why.
        self.full.send(batch).map_err(|_| Error::Empty)
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

impl State {
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
                        inlet.take(range, |room| link.read(room))?;
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
