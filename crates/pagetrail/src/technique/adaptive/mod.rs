//! `adaptive`: [`PagemapScan`] that stops paying for news that is no news.
//!
//! A page that is written in every round costs a fault in every round. Such a page is left unprotected and *predicted
//! written*: reported in each round without a fault, and asked from time to time, by arming it for a round, whether it still is. The
//! more often it was, the longer it is not asked again. When that pays is decided by what a fault and a vain report cost ([`cost`]).
//!
//! The superset promise does not rest on any of this. A page that is not armed reads as written in each scan, so whatever the table
//! says, an unprotected page is reported, and re-arming one reports it in the same step of the kernel. What is promised:
//!
//! * Pages are asked at the latest after `1 << ASK_LOG_MAX` rounds, those of a block together, and not all blocks in the same
//!   round; where most of those asked have cooled down, all are asked next. So a program that goes idle is reported as such
//!   within that many rounds and two, most often within a few.
//! * A round costs one scan, as `pagemap-scan`'s does, and a call for each stretch of memory that is re-armed beside predicted
//!   pages, where that is cheaper than to re-arm the whole block with the next scan ([`decide`], [`spans`]). Where nothing is predicted,
//!   it is `pagemap-scan`'s round.
//! * What a program writes one page after the other is predicted dirty ahead of it ([`sweeps`]): a few pages fault, and
//!   tell how far it has come.

mod blocks;
mod cost;
mod decide;
mod exact;
mod inspect;
mod spans;
mod sweeps;
mod table;
#[cfg(test)]
mod tests;

use super::pagemap_scan::{HugePages, PagemapScan, block_bytes};
use super::{ArmError, Armed, Collected, Missed, Tracker};
use crate::error::Result;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::round::PredictionStats;
use blocks::Blocks;
use cost::Costs;
use decide::CERTAIN;
use exact::Contents;
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;
use sweeps::Sweeps;
use table::{Standing, Table};

pub use cost::FalsePositiveCost;

/// Which pages of those that are predicted dirty are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// All.
    #[default]
    AsNoticed,
    /// Those that hold something else than at the last collect, as hashes tell: each collect reads and hashes all that is
    /// predicted. Like `compare`, that is blind to writes that leave a page as it was, so copy pages while the program is held, or compare
    /// with the copies yourself.
    Exact,
}

/// The technique's state for one address space.
pub(crate) struct Adaptive {
    /// `None` for the own address space.
    pid: Option<u32>,
    writes: PagemapScan,
    /// Memory of huge pages (hugetlb), which cannot be re-armed in parts: it is never left unprotected.
    whole: PageSet,
    costs: Costs,
    table: Table,
    round: u32,
    /// Blocks that are looked at without re-arming what was written: they have pages that are predicted dirty, or will be.
    left: PageSet,
    /// Pages that were predicted dirty, and were armed at the end of the last round.
    asked: PageSet,
    /// What a call that re-arms costs, in nanoseconds; measured while it is done.
    call_ns: i64,
    /// Of [`CERTAIN`] questions, so many found the page written; a running mean.
    confirmed: u64,
    /// Where predicted pages that have not changed are not to be reported.
    exact: Option<Contents>,
    sweeps: Sweeps,
    /// Memory used again.
    room: Vec<PageRange>,
    /// What a test does between the look at pages and the calls that re-arm them.
    #[cfg(test)]
    between: Option<Between>,
}

/// Is told the stretches about to be re-armed, and what has been reported.
#[cfg(test)]
type Between = Box<dyn FnMut(&[PageRange], &PageSet) + Send>;

/// What a call is taken to cost before any was made.
const CALL_NS_FIRST: i64 = 2_000;

/// Between these its measurement is believed.
const CALL_NS: (i64, i64) = (300, 5_000);

/// What re-arming a page takes within a call.
const REARM_NS: i64 = 25;

/// A table is searched for what can be forgotten once in so many rounds.
const PRUNE_EVERY: u32 = 64;

impl Adaptive {
    /// Takes a fresh userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(
        fd: OwnedFd,
        pid: Option<u32>,
        huge_pages: HugePages,
        vain: FalsePositiveCost,
        precision: Precision,
    ) -> Result<Self> {
        Ok(Self {
            pid,
            writes: PagemapScan::new(fd, pid, huge_pages)?,
            whole: PageSet::new(),
            costs: Costs::here(vain),
            table: Table::new(block_bytes()),
            round: 0,
            left: PageSet::new(),
            asked: PageSet::new(),
            call_ns: CALL_NS_FIRST,
            confirmed: CERTAIN,
            exact: match precision {
                Precision::AsNoticed => None,
                Precision::Exact => Some(Contents::new(pid.unwrap_or_else(std::process::id))),
            },
            sweeps: Sweeps::default(),
            room: Vec::new(),
            #[cfg(test)]
            between: None,
        })
    }

    /// Re-arms the stretches, and notes what stands where now.
    fn rearm(
        &mut self,
        spans: &[PageRange],
        out: &mut PageSet,
        collected: &mut Collected,
    ) -> Result<()> {
        #[cfg(test)]
        if let Some(between) = &mut self.between {
            between(spans, out);
        }
        let began = cpu_ns();
        let mut late = PageSet::new();
        let mut outcome = Ok(());
        for span in spans {
            outcome = self
                .writes
                .rearm_span(*span, &mut late, &mut collected.replaced);
            if outcome.is_err() {
                break;
            }
        }
        let took = cpu_ns() - began;
        let spans: PageSet = spans.iter().copied().collect();
        let rearmed = spans.intersection(out);
        if let Some(each) =
            (took - rearmed.page_count() as i64 * REARM_NS).checked_div(spans.ranges().len() as i64)
        {
            let each = each.clamp(CALL_NS.0, CALL_NS.1);
            self.call_ns = (self.call_ns * 7 + each) / 8;
        }
        let (page_bytes, block_bytes) = (page_size(), block_bytes());
        let page_shift = page_bytes.trailing_zeros();
        let mut asked = PageSet::new();
        let mut blocks = Blocks::of(&rearmed, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let known = self.table.block_mut(block.start(), self.round);
            for part in parts {
                let first = ((part.start() - block.start()) >> page_shift) as usize;
                let count = (part.bytes() >> page_shift) as usize;
                let mut address = part.start();
                for page in &mut known.pages[first..first + count] {
                    if page.standing() == Standing::Predicted {
                        page.stand(Standing::Asked);
                        asked.extend_back(address, page_bytes);
                    } else {
                        page.stand(Standing::Armed);
                    }
                    page.pass_over(self.round);
                    address += page_bytes;
                }
            }
        }
        self.asked.union_with(&asked);
        // Written between the look and the call: re-armed, so handed out.
        out.union_with(&late);
        outcome
    }
}

impl Adaptive {
    /// Releases what lies ahead of sweeps, so that they need not fault there. After re-arming, which would undo it.
    fn release_ahead(&mut self) {
        if self.exact.is_some() {
            return; // Of what was not predicted before no hash is known.
        }
        let Self {
            writes,
            table,
            sweeps,
            left,
            whole,
            round,
            ..
        } = self;
        sweeps.look_ahead(self.costs.sweep_rounds(), |ahead, apart| {
            let Some(ahead) = writes.known_part(ahead) else {
                return ahead.start();
            };
            for stretch in sweeps::stretches(ahead, apart) {
                // What is looked at only would stay unprotected; of huge pages a part cannot be released.
                let blocks = stretch.align_outwards(block_bytes());
                if left.intersects(blocks) || whole.intersects(stretch) || !writes.release(stretch)
                {
                    return stretch.start() - page_size();
                }
                let parts = PageSet::from_iter([stretch]);
                let mut blocks = Blocks::of(&parts, block_bytes());
                while let Some((block, parts)) = blocks.next_block() {
                    let pages = &mut table.block_mut(block.start(), *round).pages;
                    for part in parts {
                        let first = ((part.start() - block.start()) / page_size()) as usize;
                        for page in &mut pages[first..first + part.page_count() as usize] {
                            page.stand(Standing::Waiting);
                        }
                    }
                }
            }
            ahead.end()
        });
    }

    /// Takes out of the round what is predicted dirty and has not changed. After re-arming: what is asked next is armed
    /// by now, and what stays unprotected will be hashed again. `looked`: where the scan has left everything unprotected.
    fn drop_unchanged(
        &mut self,
        looked: &PageSet,
        out: &mut PageSet,
        collected: &mut Collected,
        told: &mut PredictionStats,
    ) -> Result<()> {
        let Some(contents) = &mut self.exact else {
            return Ok(());
        };
        let began = Instant::now();
        let rearmed: PageSet = self.room.iter().copied().collect();
        let left = out.intersection(looked).difference(&rearmed);
        let found = contents.look(&collected.predicted, &left)?;
        *out = out.difference(&found.unchanged);
        collected.predicted = collected.predicted.difference(&found.unchanged);
        told.dropped = found.unchanged.page_count();
        told.hashed_bytes = found.hashed_bytes;
        told.hashing = began.elapsed();
        Ok(())
    }
}

/// Processor time of this thread: a tracker that had to wait for a processor has not worked.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

impl Tracker for Adaptive {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        self.writes.arm(region)?;
        if region.is_hugetlb(self.pid) {
            self.whole.insert(region.range);
        }
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        self.writes.add_populated(region, out)
    }

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn misses(&self) -> Missed {
        Missed::OfFiles
    }

    fn forget(&mut self, range: PageRange) {
        self.writes.forget(range);
        self.table.forget(range);
        self.asked.remove(range);
        self.sweeps.forget(range);
        self.whole.remove(range);
        // What else lies in the same block is re-armed with the next scan, which does no harm.
        self.left.remove(range.align_outwards(block_bytes()));
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        self.round = self.round.wrapping_add(1);
        let left = std::mem::take(&mut self.left);
        let collected = self.writes.collect_leaving(&left, out);
        self.left = left;
        let mut collected = collected?;
        for range in &collected.replaced {
            self.forget(*range);
        }
        let mut told = PredictionStats::default();
        let swept = self.sweeps.follow(out);
        let alarmed = self.learn_cooled(out, &mut told);
        let looked = self.exact.is_some().then(|| self.left.clone());
        let spans = self.decide(out, &alarmed, &mut collected.predicted);
        told.predicted = collected.predicted.page_count();
        let outcome = self.rearm(&spans, out, &mut collected);
        told.calls = spans.len() as u64;
        self.room = spans;
        outcome?;
        if let Some(looked) = looked {
            self.drop_unchanged(&looked, out, &mut collected, &mut told)?;
        }
        if self.round.is_multiple_of(PRUNE_EVERY) {
            self.table.prune(self.round);
        }
        self.release_ahead();
        told.asked = self.asked.page_count();
        told.ahead = swept.reached + swept.false_positives;
        let by_history = told.predicted.saturating_sub(told.ahead);
        told.faults_avoided = by_history * self.confirmed / CERTAIN + swept.reached;
        told.false_positives = (told.predicted - told.faults_avoided).saturating_sub(told.dropped);
        told.table_bytes = self.table.bytes();
        collected.prediction = Some(told);
        Ok(collected)
    }
}
