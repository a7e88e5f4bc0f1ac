//! The writer of a workload: this program, started again. It writes until its standard input ends,
//! and keeps a board that tells which page it wrote in which epoch, how much it has done, and how
//! long that took its processor.
//!
//! The tracker reads the board, and begins an epoch, from outside by [`pagetrail::Memory`]: nobody
//! waits for anybody. A page is marked after it was written, with the epoch as it is then, so
//! whatever is marked with a past epoch was written in it.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail::{PageRange, page_size};
use rustix::time::{ClockId, clock_gettime};

use super::definition::{Pattern, Workload};

/// Words of the board: the epoch, operations done, nanoseconds of processor time, whether it is
/// idle.
pub(crate) const WORDS: usize = 4;

/// What marks a page: its epoch, modulo this, and one more, since 0 is never. A page keeps its mark
/// until it is written again, so there must be more of them than a run has rounds.
type Mark = u16;

/// Bytes of a mark.
pub(crate) const MARK_BYTES: usize = size_of::<Mark>();

/// The mark of an epoch.
pub(crate) fn mark(epoch: u64) -> Mark {
    (epoch % u64::from(Mark::MAX)) as Mark + 1
}

/// In how many steps a page is written that is written as a whole.
const WRITES_PER_PAGE: u64 = 16;

/// Between two looks at the clock.
const BATCH: u64 = 256;

/// Is the writer. Prints four addresses in hex: its memory's start and end, the words, and the
/// marks of the pages.
pub fn serve(workload: &str) -> Result<()> {
    let workload: Workload = serde_json::from_str(workload).context("no workload")?;
    rustix::thread::disable_transparent_huge_pages(true)
        .context("cannot switch off transparent huge pages")?;
    let mut memory = Memory::new(workload.pages)?;
    let words: [AtomicU64; WORDS] = Default::default();
    words[0].store(1, Ordering::Relaxed);
    let marks: Vec<AtomicU16> = (0..workload.pages).map(|_| AtomicU16::new(0)).collect();
    let range = memory.range;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:x} {:x} {:x} {:x}",
        range.start(),
        range.end(),
        words.as_ptr() as u64,
        marks.as_ptr() as u64
    )?;
    drop(out);
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    std::thread::spawn(move || {
        // Whatever comes, or nothing any more, is the end.
        let _ = io::stdin().read(&mut [0]);
        stopping.store(true, Ordering::Relaxed);
    });
    let mut choice = Chooser::new(&workload);
    let mut done = 0;
    let mut state = workload.seed | 1;
    while !stop.load(Ordering::Relaxed) {
        if let Some(idle) = choice.begin_batch(done) {
            words[3].store(1, Ordering::Relaxed);
            std::thread::sleep(idle);
            words[3].store(0, Ordering::Relaxed);
        }
        let epoch = &words[0];
        for _ in 0..BATCH {
            for _ in 0..workload.work {
                state = step(state);
            }
            let page = choice.next();
            memory.write(page, state);
            let now = mark(epoch.load(Ordering::Relaxed));
            marks[page as usize].store(now, Ordering::Release);
        }
        done += BATCH;
        words[1].store(done, Ordering::Relaxed);
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        words[2].store(ns, Ordering::Release);
    }
    Ok(())
}

fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Pages that are populated, small, and the writer's own.
struct Memory {
    words: Vec<u64>,
    first: usize,
    range: PageRange,
}

impl Memory {
    fn new(pages: u64) -> Result<Self> {
        let page = page_size();
        let words = vec![1u64; ((pages + 1) * page / 8) as usize];
        let base = words.as_ptr() as u64;
        let start = base.next_multiple_of(page);
        let range = PageRange::new(start, start + pages * page).context("no memory")?;
        Ok(Self {
            first: ((start - base) / 8) as usize,
            words,
            range,
        })
    }

    /// Changes a few words of a page.
    fn write(&mut self, page: u64, value: u64) {
        let words = page_size() as usize / 8;
        let at = self.first + page as usize * words + (value as usize % (words / 8)) * 8;
        for word in &mut self.words[at..at + 4] {
            *word = word.wrapping_add(value);
        }
    }
}

/// Says which page is next.
struct Chooser {
    pages: u64,
    pattern: Pattern,
    random: u64,
    /// Multiplied with this, modulo `pages`, neighbours lie far from one another.
    scatter: u64,
    /// Which hot set it is, or which burst.
    era: u64,
    position: u64,
    /// The share of pages up to the n-th in the cumulative distribution, for Zipf.
    cumulated: Vec<f64>,
}

impl Chooser {
    fn new(workload: &Workload) -> Self {
        let pages = workload.pages;
        let mut cumulated = Vec::new();
        if let Pattern::Zipf { exponent } = workload.pattern {
            let mut sum = 0.0;
            for n in 1..=pages {
                sum += 1.0 / (n as f64).powf(exponent);
                cumulated.push(sum);
            }
        }
        let scatter = (pages * 618 / 1000..)
            .find(|n| gcd(*n, pages) == 1)
            .unwrap_or(1);
        Self {
            pages,
            pattern: workload.pattern,
            random: workload.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            scatter,
            era: 0,
            position: 0,
            cumulated,
        }
    }

    /// For how long to be idle before the next operations, `done` of which are done.
    fn begin_batch(&mut self, done: u64) -> Option<Duration> {
        match self.pattern {
            Pattern::Hot {
                moves_after: Some(period),
                ..
            } => self.era = done / period.max(1),
            Pattern::IdleBurst { burst, idle_ms, .. } => {
                let bursts = done / burst.max(1);
                if std::mem::replace(&mut self.era, bursts) != bursts {
                    return Some(Duration::from_millis(idle_ms));
                }
            }
            _ => {}
        }
        None
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = step(self.random);
        ((u128::from(self.random) * u128::from(n)) >> 64) as u64
    }

    /// A page of a hot set, scattered over all.
    fn hot_of(&mut self, share: f64, era: u64) -> u64 {
        let count = ((self.pages as f64 * share) as u64).max(1);
        let n = self.below(count) + era * count;
        (u128::from(n % self.pages) * u128::from(self.scatter) % u128::from(self.pages)) as u64
    }

    fn next(&mut self) -> u64 {
        match self.pattern {
            Pattern::Uniform => self.below(self.pages),
            Pattern::Zipf { .. } => {
                let most = self.cumulated[self.cumulated.len() - 1];
                let at = self.below(1 << 53) as f64 / (1u64 << 53) as f64 * most;
                let n = self.cumulated.partition_point(|sum| *sum < at) as u64;
                (u128::from(n) * u128::from(self.scatter) % u128::from(self.pages)) as u64
            }
            Pattern::Hot {
                share,
                elsewhere_per_mille,
                ..
            } => {
                if (self.below(1_000_000) as f64) < elsewhere_per_mille * 1000.0 {
                    self.below(self.pages)
                } else {
                    self.hot_of(share, self.era)
                }
            }
            Pattern::IdleBurst { share, .. } => self.hot_of(share, 0),
            Pattern::Sweep => {
                // Front to back, each page in several writes; where one array ends, the other
                // begins.
                let page = self.position / WRITES_PER_PAGE;
                self.position = (self.position + 1) % (self.pages * WRITES_PER_PAGE);
                page
            }
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
