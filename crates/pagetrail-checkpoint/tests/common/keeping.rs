//! A source that counts the pages that it keeps while the target writes to them, and that can lose
//! them.

use pagetrail::{
    DirtySource, Error, Frozen, Held, PageRange, PageSet, Region, Round, State, UntrackedRegion,
    Watch,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Error>;

/// What was kept, and what is still to be lost.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) freezes: Arc<AtomicU64>,
    pub(crate) pages: Arc<AtomicU64>,
    /// Of so many freezes to come the pages are not known any more.
    pub(crate) to_lose: Arc<AtomicU64>,
}

pub(crate) struct Keeping {
    pub(crate) watch: Watch,
    pub(crate) counts: Counts,
}

impl DirtySource for Keeping {
    fn pid(&self) -> u32 {
        DirtySource::pid(&self.watch)
    }

    fn technique_name(&self) -> &str {
        self.watch.technique_name()
    }

    fn reason(&self) -> &str {
        DirtySource::reason(&self.watch)
    }

    fn regions(&self) -> &[Region] {
        DirtySource::regions(&self.watch)
    }

    fn untracked(&self) -> &[UntrackedRegion] {
        DirtySource::untracked(&self.watch)
    }

    fn wait(&mut self, timeout: Duration) -> State {
        DirtySource::wait(&mut self.watch, timeout)
    }

    fn collect(&mut self) -> Result<Round<'_>> {
        DirtySource::collect(&mut self.watch)
    }

    fn next_collect(&self) -> Option<Instant> {
        DirtySource::next_collect(&self.watch)
    }

    fn release_exit(&mut self) {
        DirtySource::release_exit(&mut self.watch);
    }

    fn hold(&mut self) -> Result<Box<dyn Held>> {
        DirtySource::hold(&mut self.watch)
    }

    fn collect_held(&mut self, held: &dyn Held) -> Result<Round<'_>> {
        DirtySource::collect_held(&mut self.watch, held)
    }

    fn prepare_freeze(&mut self) -> Result<()> {
        self.watch.prepare_freeze()
    }

    fn freeze(&mut self, held: &dyn Held, pages: &PageSet) -> Result<Box<dyn Frozen>> {
        let frozen = self.watch.freeze(held, pages)?;
        self.counts.freezes.fetch_add(1, SeqCst);
        self.counts
            .pages
            .fetch_add(frozen.pages().page_count(), SeqCst);
        let less = |left: u64| left.checked_sub(1);
        match self.counts.to_lose.fetch_update(SeqCst, SeqCst, less) {
            Ok(_) => Ok(Box::new(Lost(frozen))),
            Err(_) => Ok(frozen),
        }
    }
}

struct Lost(Box<dyn Frozen>);

impl Frozen for Lost {
    fn pages(&self) -> &PageSet {
        self.0.pages()
    }

    fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<bool> {
        self.0.read(ranges, buffer)?;
        Ok(false)
    }

    fn thaw(&mut self, held: &dyn Held) -> Result<()> {
        self.0.thaw(held)
    }
}
