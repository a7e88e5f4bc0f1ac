//! The paper's writer: one word per page, in order, over and over (Listing 1).
//!
//! It differs in one thing: each pass writes other values, because `compare` rightly sees nothing
//! in a pass that leaves every byte as it was.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagetrail::{PageRange, Target, page_size};
use rustix::mm::{MlockAllFlags, mlockall, munlockall};

use pagetrail_report::size::Size;

/// A program that writes, and knows what it wrote.
pub(crate) trait Writer {
    /// The memory of which each pass writes every page.
    fn range(&self) -> PageRange;

    /// Writes to each page once; returns how long that took.
    fn pass(&mut self) -> Result<Duration>;

    /// What to watch to see it.
    fn target(&self) -> Result<Target>;

    /// Why its memory may be swapped out, unless it is locked.
    fn unlocked(&self) -> Option<&str>;
}

/// The writer in this process.
pub(crate) struct Memory {
    words: Vec<u64>,
    /// Where the first whole page begins in `words`.
    first: usize,
    range: PageRange,
    passes: u64,
    first_pass: Duration,
    unlocked: Option<String>,
}

impl Memory {
    /// Takes memory, populates it and locks it where that is permitted.
    pub(crate) fn new(size: Size) -> Result<Self> {
        // Figures per page mean small pages; huge pages are for another benchmark.
        rustix::thread::disable_transparent_huge_pages(true)
            .context("cannot switch off transparent huge pages")?;
        let page = page_size();
        let words = vec![0u64; ((size.bytes() + page) / 8) as usize];
        let base = words.as_ptr() as u64;
        let start = base.next_multiple_of(page);
        let range = PageRange::new(start, start + size.bytes()).context("no memory")?;
        let mut memory = Self {
            words,
            first: ((start - base) / 8) as usize,
            range,
            passes: 0,
            first_pass: Duration::ZERO,
            unlocked: None,
        };
        memory.first_pass = memory.write();
        // All of the memory exists by now, so the paper's MCL_FUTURE would change nothing, except
        // that under a limit every later allocation of the tracker could fail.
        if let Err(errno) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT) {
            memory.unlocked = Some(format!(
                "{errno}: needs CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK"
            ));
        }
        Ok(memory)
    }

    /// How long the pass took that populated the memory: a fault for each page.
    pub(crate) fn first_pass(&self) -> Duration {
        self.first_pass
    }

    /// One pass.
    pub(crate) fn write(&mut self) -> Duration {
        self.passes += 1;
        let words_per_page = page_size() as usize / 8;
        let words = self.range.bytes() as usize / 8;
        let region = black_box(&mut self.words[self.first..][..words]);
        let began = Instant::now();
        for (i, page) in region.chunks_exact_mut(words_per_page).enumerate() {
            page[0] = i as u64 + self.passes;
        }
        black_box(region);
        began.elapsed()
    }
}

impl Writer for Memory {
    fn range(&self) -> PageRange {
        self.range
    }

    fn pass(&mut self) -> Result<Duration> {
        Ok(self.write())
    }

    fn target(&self) -> Result<Target> {
        Ok(Target::ranges([self.range]))
    }

    fn unlocked(&self) -> Option<&str> {
        self.unlocked.as_deref()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What was locked besides is of no consequence when it stays locked.
        let _ = munlockall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_changes_every_page_and_nothing_else() {
        let page = page_size() as usize / 8;
        let size: Size = "64K".parse().unwrap();
        let mut memory = Memory::new(size).unwrap();
        let before = memory.words.clone();
        memory.write();
        let changed: Vec<usize> = (0..before.len())
            .filter(|&i| before[i] != memory.words[i])
            .collect();
        let expected: Vec<usize> = (0..size.pages() as usize)
            .map(|i| memory.first + i * page)
            .collect();
        assert_eq!(changed, expected);
        assert_eq!(memory.range().start() % page_size(), 0);
    }
}
