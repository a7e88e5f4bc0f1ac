//! `adaptive`: [`PagemapScan`] that avoids repeated write faults on hot pages.
//!
//! A page that is written in every round costs a fault in every round. Such a page is left
//! unprotected and *predicted dirty*: each round reports it without a fault, and from time to time
//! it is re-protected for a round to check whether it is still written. The more often the check
//! confirmed it, the longer the time to the next one (exponential back-off). The costs of a fault
//! and of a false positive decide when that pays ([`cost`]).
//!
//! The superset promise does not depend on any of this. A page that is not armed reads as written
//! in each scan, so whatever the table says, an unprotected page is reported, and re-arming a page
//! reports it in the same step of the kernel. What is promised:
//!
//! * A page is checked at the latest after `1 << CHECK_LOG_MAX` rounds, together with the others of
//!   its block, and not all blocks in the same round; if most checked pages have cooled down, all
//!   are checked next. So a program that becomes idle is reported as idle within that many rounds
//!   and two, most often within a few.
//! * A round costs one scan, like a round of `pagemap-scan`, and a call for each span of memory
//!   that is re-armed between predicted pages, where that is cheaper than to re-arm the whole block
//!   with the next scan ([`decide`], [`spans`]). Where nothing is predicted, it costs what a round
//!   of `pagemap-scan` costs.
//! * Pages ahead of a sequential writer are predicted dirty ([`sweeps`]): a few pages fault, and
//!   show how far it has come.

mod blocks;
mod cost;
mod decide;
#[cfg(feature = "hashing")]
mod exact;
#[cfg(not(feature = "hashing"))]
#[path = "no_hashes.rs"]
mod exact;
mod inspect;
mod release;
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
use crate::sys::cpu_clock;
use crate::types::PredictionStats;
use blocks::Blocks;
use cost::Costs;
use decide::CERTAIN;
use exact::Contents;
use rustix::fd::OwnedFd;
use std::time::Instant;
use sweeps::Sweeps;
use table::{Standing, Table};

pub use cost::FalsePositiveCost;

/// Which of the predicted pages are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// All of them.
    #[default]
    AsDetected,
    /// The pages whose contents changed since the last collect, as their hashes show: each collect
    /// reads and hashes all predicted pages. Like `compare`, that is blind to writes that leave a
    /// page as it was, so copy pages while the program is held, or compare with the copies
    /// yourself. Needs the feature `hashing`.
    #[cfg(feature = "hashing")]
    Exact,
}

/// The technique's state for one address space.
pub(crate) struct Adaptive {
    /// `None` for the own address space.
    pid: Option<u32>,
    writes: PagemapScan,
    /// hugetlb memory, of which no part can be re-armed: it is never left unprotected.
    whole: PageSet,
    costs: Costs,
    false_positive: FalsePositiveCost,
    /// What a fault counts, as a multiple of its price.
    fault_weight: f64,
    table: Table,
    round: u32,
    /// Blocks that the next scan does not re-arm, because some of their pages are predicted dirty,
    /// or will be.
    left: PageSet,
    /// Pages that were predicted dirty and were re-armed at the end of the last round to check
    /// them.
    checking: PageSet,
    /// The cost of a call that re-arms, in nanoseconds; measured while tracking.
    call_ns: i64,
    /// How many of [`CERTAIN`] checks found the page written; a running mean.
    confirmed: u64,
    /// The hashes, if predicted pages that have not changed are not reported.
    exact: Option<Contents>,
    sweeps: Sweeps,
    /// Memory that is reused.
    room: Vec<PageRange>,
    /// A test's hook between the scan and the calls that re-arm.
    #[cfg(test)]
    between: Option<Between>,
}

/// Receives the spans about to be re-armed, and what has been reported.
#[cfg(test)]
type Between = Box<dyn FnMut(&[PageRange], &PageSet) + Send>;

/// The assumed cost of a call before any was measured.
const CALL_NS_FIRST: i64 = 2_000;

/// Measurements of a call are clamped to this range.
const CALL_NS: (i64, i64) = (300, 5_000);

/// A fault counts as its price.
const EVEN: f64 = 1.0;

/// The cost of re-arming one page within a call.
const REARM_NS: i64 = 25;

/// The number of rounds between two searches for forgettable parts of the table.
const PRUNE_EVERY: u32 = 64;

impl Adaptive {
    /// Takes a new userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(
        fd: OwnedFd,
        pid: Option<u32>,
        huge_pages: HugePages,
        false_positive: FalsePositiveCost,
        precision: Precision,
    ) -> Result<Self> {
        Ok(Self {
            pid,
            writes: PagemapScan::new(fd, pid, huge_pages)?,
            whole: PageSet::new(),
            costs: Costs::here(false_positive, EVEN),
            false_positive,
            fault_weight: EVEN,
            table: Table::new(block_bytes()),
            round: 0,
            left: PageSet::new(),
            checking: PageSet::new(),
            call_ns: CALL_NS_FIRST,
            confirmed: CERTAIN,
            exact: match precision {
                Precision::AsDetected => None,
                #[cfg(feature = "hashing")]
                Precision::Exact => Some(Contents::new(pid.unwrap_or_else(std::process::id))),
            },
            sweeps: Sweeps::default(),
            room: Vec::new(),
            #[cfg(test)]
            between: None,
        })
    }

    /// Re-arms the spans and records the new standing of their pages.
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
        let began = cpu_clock::of_this_thread();
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
        let took = (cpu_clock::of_this_thread() - began).as_nanos() as i64;
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
        let mut checking = PageSet::new();
        let mut blocks = Blocks::of(&rearmed, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let known = self.table.block_mut(block.start(), self.round);
            for part in parts {
                let first = ((part.start() - block.start()) >> page_shift) as usize;
                let count = (part.bytes() >> page_shift) as usize;
                let mut address = part.start();
                for page in &mut known.pages[first..first + count] {
                    if page.standing() == Standing::Predicted {
                        page.stand(Standing::Checking);
                        checking.extend_back(address, page_bytes);
                    } else {
                        page.stand(Standing::Armed);
                    }
                    page.pass_over(self.round);
                    address += page_bytes;
                }
            }
        }
        self.checking.union_with(&checking);
        // These were written between the scan and the call, which re-armed them: they must be
        // reported now.
        out.union_with(&late);
        outcome
    }
}

impl Adaptive {
    /// Removes predicted pages that have not changed from the round. Called after re-arming: by
    /// then the pages to be checked are armed, and those that stay unprotected will be hashed
    /// again. `unarmed`: the blocks that the scan has left unprotected.
    fn drop_unchanged(
        &mut self,
        unarmed: &PageSet,
        out: &mut PageSet,
        collected: &mut Collected,
        stats: &mut PredictionStats,
    ) -> Result<()> {
        let Some(contents) = &mut self.exact else {
            return Ok(());
        };
        let began = Instant::now();
        let rearmed: PageSet = self.room.iter().copied().collect();
        let left = out.intersection(unarmed).difference(&rearmed);
        let found = contents.compare(&collected.predicted, &left)?;
        *out = out.difference(&found.unchanged);
        collected.predicted = collected.predicted.difference(&found.unchanged);
        stats.dropped = found.unchanged.page_count();
        stats.hashed_bytes = found.hashed_bytes;
        stats.hashing = began.elapsed();
        Ok(())
    }
}

impl Tracker for Adaptive {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        self.writes.arm(region)?;
        if region.is_hugetlb(self.pid) {
            self.whole.insert(region.range);
        }
        Ok(())
    }

    fn arm_run(&mut self, range: PageRange, mappings: &[Region]) -> bool {
        let armed = self.writes.arm_run(range, mappings);
        if armed {
            let pid = self.pid;
            let huge = mappings.iter().filter(|region| region.is_hugetlb(pid));
            self.whole.extend(huge.map(|region| region.range));
        }
        armed
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        self.writes.add_populated(region, out)
    }

    fn weigh_faults(&mut self, weight: f64) {
        if weight != self.fault_weight {
            self.fault_weight = weight;
            self.costs = Costs::here(self.false_positive, weight);
        }
    }

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn misses(&self) -> Missed {
        Missed::OfFiles
    }

    fn may_be_others(&mut self, span: PageRange) -> bool {
        self.writes.may_be_others(span)
    }

    fn is_others(&mut self, range: PageRange) -> bool {
        self.writes.is_others(range)
    }

    fn forget(&mut self, range: PageRange) {
        self.writes.forget(range);
        self.table.forget(range);
        self.checking.remove(range);
        self.sweeps.forget(range);
        self.whole.remove(range);
        // The next scan re-arms the rest of the block, which does no harm.
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
        let mut stats = PredictionStats::default();
        let left = self.left.clone();
        let swept = self.sweeps.follow(out);
        let phase_ended = self.learn_cooled(out, &mut stats);
        let unarmed = self.exact.is_some().then(|| self.left.clone());
        let spans = self.decide(out, &phase_ended, &mut collected.predicted);
        stats.predicted = collected.predicted.page_count();
        let outcome = self.rearm(&spans, out, &mut collected);
        stats.calls = spans.len() as u64;
        self.room = spans;
        outcome?;
        if let Some(unarmed) = unarmed {
            self.drop_unchanged(&unarmed, out, &mut collected, &mut stats)?;
        }
        if self.round.is_multiple_of(PRUNE_EVERY) {
            self.table.prune(self.round);
        }
        self.release_left(&left);
        self.release_ahead();
        stats.checked = self.checking.page_count();
        stats.ahead = swept.reached + swept.false_positives;
        let by_history = stats.predicted.saturating_sub(stats.ahead);
        stats.faults_avoided = by_history * self.confirmed / CERTAIN + swept.reached;
        stats.false_positives =
            (stats.predicted - stats.faults_avoided).saturating_sub(stats.dropped);
        stats.table_bytes = self.table.bytes();
        collected.prediction = Some(stats);
        Ok(collected)
    }
}
