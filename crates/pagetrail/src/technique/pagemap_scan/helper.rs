//! [`Helper`]: a second thread that scans, for the moment in which the target stands still.
//!
//! A scan walks all page tables that exist, some milliseconds for some gigabytes, and several can
//! walk at the same time. The memory is cut into spans: this thread takes them from the front, the
//! helper from the back. On a busy machine the helper may come late: it is waited for only if it
//! has begun.

use crate::page_set::{PageRange, PageSet};
use crate::sys::pagemap::{Pagemap, Query, Vector};
use crate::sys::urgent;
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Less memory is not worth it.
pub(super) const BYTES_MIN: u64 = 256 << 20;
/// What is scanned at a time.
const SPAN_BYTES: u64 = 32 << 20;

/// Another thread, which waits for work until this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    jobs: Sender<Arc<Job>>,
}

/// Memory to be scanned by two threads.
#[derive(Debug)]
struct Job {
    pagemap: Arc<Pagemap>,
    query: Query,
    spans: Vec<PageRange>,
    progress: Mutex<Progress>,
    has_ended: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Spans before this one, and from `back` on, are taken.
    front: usize,
    back: usize,
    /// Whether the helper is at a span.
    is_helping: bool,
    /// What the helper has found, the last span first.
    found: Vec<Found>,
}

/// What came of a span.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) span: PageRange,
    pub(super) pages: PageSet,
    pub(super) outcome: Result<(), Errno>,
}

impl Job {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next span from the front.
    fn next(&self) -> Option<PageRange> {
        let mut progress = self.progress();
        let at = progress.front;
        (at < progress.back).then(|| {
            progress.front += 1;
            self.spans[at]
        })
    }

    /// Takes spans from the back until there are none.
    fn help(&self) {
        let mut vector = Vector::new();
        let mut progress = self.progress();
        while progress.front < progress.back {
            progress.back -= 1;
            progress.is_helping = true;
            let span = self.spans[progress.back];
            drop(progress);
            let mut pages = PageSet::new();
            let insert = |found| pages.insert(found);
            let outcome = self.pagemap.scan(span, self.query, &mut vector, insert);
            progress = self.progress();
            progress.is_helping = false;
            let found = Found {
                span,
                pages,
                outcome,
            };
            progress.found.push(found);
        }
        drop(progress);
        self.has_ended.notify_all();
    }

    /// Leaves what nobody has begun with, and waits for what the helper has; gives what it has
    /// found, in ascending order.
    fn end(&self) -> Vec<Found> {
        let mut progress = self.progress();
        progress.back = progress.front;
        let waited = self.has_ended.wait_while(progress, |now| now.is_helping);
        let mut progress = waited.unwrap_or_else(PoisonError::into_inner);
        let mut found = std::mem::take(&mut progress.found);
        found.reverse();
        found
    }
}

impl Helper {
    /// Starts the thread; `None` where it would have no processor, or cannot be started.
    pub(super) fn start() -> Option<Self> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return None;
        }
        let (jobs, taken): (_, Receiver<Arc<Job>>) = channel();
        let thread = std::thread::Builder::new().name("pagetrail-scan".into());
        let started = thread.spawn(move || {
            urgent::stay();
            while let Ok(job) = taken.recv() {
                job.help();
            }
        });
        started.ok().map(|_| Self { jobs })
    }

    /// Scans ranges with the helper. `scan` scans a span here. Gives what the helper has found,
    /// which is all above what was scanned here, also where this fails.
    pub(super) fn scan<E>(
        &self,
        pagemap: &Arc<Pagemap>,
        query: Query,
        ranges: &PageSet,
        mut scan: impl FnMut(PageRange) -> Result<(), E>,
    ) -> (Vec<Found>, Result<(), E>) {
        let spans = spans(ranges);
        let job = Arc::new(Job {
            pagemap: Arc::clone(pagemap),
            query,
            progress: Mutex::new(Progress {
                back: spans.len(),
                ..Progress::default()
            }),
            spans,
            has_ended: Condvar::new(),
        });
        // A helper that has ended leaves everything to this thread.
        let _ = self.jobs.send(Arc::clone(&job));
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(span) = job.next()
        {
            outcome = scan(span);
        }
        (job.end(), outcome)
    }
}

/// Ranges in spans, ascending.
fn spans(ranges: &PageSet) -> Vec<PageRange> {
    let mut spans = Vec::new();
    for range in ranges.ranges() {
        let mut start = range.start();
        while start < range.end() {
            // At multiples, so that no page table is in two spans.
            let end = (start / SPAN_BYTES + 1).saturating_mul(SPAN_BYTES);
            let end = end.min(range.end());
            spans.extend(PageRange::new(start, end));
            start = end;
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pagemap::{Categories, existing};
    use crate::sys::scratch::Scratch;

    #[test]
    fn spans_are_the_ranges_in_pieces() {
        let range = |from: u64, to: u64| PageRange::new(from << 20, to << 20).unwrap();
        let ranges = [range(1, 3), range(30, 100), range(128, 161)];
        let all: PageSet = ranges.into_iter().collect();
        let spans = spans(&all);
        assert_eq!(spans.iter().copied().collect::<PageSet>(), all);
        assert!(spans.iter().all(|span| span.bytes() <= SPAN_BYTES));
        assert!(
            spans
                .windows(2)
                .all(|pair| pair[0].end() <= pair[1].start())
        );
    }

    #[test]
    fn two_threads_find_what_one_finds() {
        let Some(helper) = Helper::start() else {
            return;
        };
        let page = crate::page_set::page_size();
        let mut memory = Scratch::new(4 * SPAN_BYTES).unwrap();
        let range = memory.range();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            memory.write(random.u64(0..range.bytes() / page) * page, 1);
        }
        let pagemap = Arc::new(Pagemap::open(None).unwrap());
        let query = Query {
            any_of: existing(true),
            report: Categories::NONE,
            ..Query::ALL
        };
        let scan = |span, out: &mut PageSet| {
            pagemap.scan(span, query, &mut Vector::new(), |found| out.insert(found))
        };
        let mut expected = PageSet::new();
        match scan(range, &mut expected) {
            // Before Linux 6.7.
            Err(Errno::NOTTY) => return,
            outcome => outcome.unwrap(),
        }
        for fails_at in [None, Some(0), Some(2)] {
            let (mut here, mut count) = (PageSet::new(), 0);
            let all = PageSet::from(range);
            let (found, outcome) = helper.scan(&pagemap, query, &all, |span| {
                count += 1;
                match Some(count - 1) == fails_at {
                    true => Err(Errno::IO),
                    false => scan(span, &mut here),
                }
            });
            let mut together = here.clone();
            for found in &found {
                assert_eq!(found.outcome, Ok(()));
                assert!(here.ranges().iter().all(|r| r.end() <= found.span.start()));
                together.union_with(&found.pages);
            }
            match outcome {
                Ok(()) => assert_eq!(together, expected),
                Err(_) => assert!(together.difference(&expected).is_empty()),
            }
        }
    }
}
