//! `adaptive`: [`PagemapScan`] that stops paying for news that is no news.
//!
//! A page that is written in every round costs a fault in every round. Such a page is left unprotected and *presumed
//! written*: reported in each round without a fault, and asked from time to time, by arming it for a round, whether it still is. The
//! more often it was, the longer it is not asked again. When that pays is decided by what a fault and a vain report cost ([`cost`]).
//!
//! The superset promise does not rest on any of this. A page that is not armed reads as written in each scan, so whatever the table
//! says, an unprotected page is reported, and re-arming one reports it in the same step of the kernel. What is promised:
//!
//! * Pages are asked at the latest after `1 << ASK_LOG_MAX` rounds. Neighbours are asked together, and not all in the same round;
//!   where most of those asked have cooled down, all are asked next. So a program that goes idle is reported as such within
//!   that many rounds, most often within a few.
//! * A round costs one scan, as `pagemap-scan`'s does, and a call for each stretch of memory that is re-armed beside presumed
//!   pages ([`spans`]). Where nothing is presumed, it is `pagemap-scan`'s round.

mod cost;
mod spans;
mod table;

use super::pagemap_scan::{HugePages, PagemapScan, block_bytes};
use super::{ArmError, Armed, Harvest, Tracker};
use crate::error::Result;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::round::Presumption;
use cost::{ASK_LOG_MAX, Costs};
use rustix::fd::OwnedFd;
use spans::Spans;
use std::time::Instant;
use table::{Standing, Table};

pub use cost::VainPage;

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
    /// Blocks that are looked at without re-arming what was written: they have pages that are presumed written, or will be.
    left: PageSet,
    /// Pages that were presumed written, and were armed at the end of the last round.
    asked: PageSet,
    /// What a call that re-arms costs, in nanoseconds; measured while it is done.
    call_ns: i64,
    /// Of [`CERTAIN`] questions, so many found the page written; a running mean.
    confirmed: u64,
    /// Memory used again.
    room: Vec<PageRange>,
}

/// What a call is taken to cost before any was made.
const CALL_NS_FIRST: i64 = 2_000;

/// Between these its measurement is believed: a tracker that lost the processor in the middle measures nonsense.
const CALL_NS: (i64, i64) = (300, 20_000);

/// What [`Adaptive::confirmed`] is a part of.
const CERTAIN: u64 = 1024;

/// Pages that are asked together, so that one call is enough where they lie close.
const ASKED_TOGETHER: u64 = 64;

/// A table is searched for what can be forgotten once in so many rounds.
const PRUNE_EVERY: u32 = 64;

/// So many questions, at least, must have found pages cooled down before all are asked.
const ALARM_MIN: u64 = 2;

impl Adaptive {
    /// Takes a fresh userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(
        fd: OwnedFd,
        pid: Option<u32>,
        huge_pages: HugePages,
        vain: VainPage,
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
            room: Vec::new(),
        })
    }

    /// Learns which of the pages that were asked have cooled down; gives the blocks in which most have.
    fn learn_cooled(&mut self, out: &PageSet, told: &mut Presumption) -> PageSet {
        let asked = std::mem::take(&mut self.asked);
        let mut alarmed = PageSet::new();
        if asked.is_empty() {
            return alarmed;
        }
        let cooled = asked.difference(out);
        let mut near = 0;
        for part in parts(&cooled) {
            for page in self.table.pages_mut(part, self.round, &mut near) {
                page.observe_quiet(self.round);
                page.set(Standing::Armed, 0);
            }
            let block = part.align_outwards(block_bytes());
            let cold = pages_within(&cooled, block);
            if cold >= ALARM_MIN && cold * 2 > pages_within(&asked, block) {
                alarmed.insert(block);
            }
        }
        let asked = asked.pages();
        told.cooled = cooled.pages();
        let confirmed = (asked - told.cooled) * CERTAIN / asked;
        self.confirmed = (self.confirmed * 3 + confirmed) / 4;
        if told.cooled >= ALARM_MIN && told.cooled * 2 > asked {
            return self.left.clone();
        }
        alarmed
    }

    /// Learns from each reported page, and finds the stretches that are worth a call. `alarmed` are blocks in which all
    /// pages are due to be asked.
    fn decide(
        &mut self,
        out: &PageSet,
        alarmed: &PageSet,
        presumed: &mut PageSet,
    ) -> Vec<PageRange> {
        let round = self.round;
        let costs = &self.costs;
        let mut spans = Spans::new(self.call_ns, std::mem::take(&mut self.room));
        let mut leave = PageSet::new();
        let (mut near, mut border) = (0, 0);
        let armed = self.writes.armed().ranges();
        let mut mapping = 0;
        for part in parts(out) {
            let block = part.align_outwards(block_bytes());
            while armed
                .get(mapping)
                .is_some_and(|range| range.end() <= part.start())
            {
                mapping += 1;
            }
            if mapping != border {
                spans.close();
                border = mapping;
            }
            let looked = self.left.covers(block);
            let all_due = alarmed.covers(block);
            let mut keep = false;
            let pages = self.table.pages_mut(part, round, &mut near);
            for (address, page) in (part.start()..).step_by(page_size() as usize).zip(pages) {
                let end = address + page_size();
                match page.standing() {
                    Standing::Armed => {
                        page.observe_write(round);
                        if !looked {
                            // The scan has re-armed it. Whether the next one shall not is what matters.
                            keep |= costs.presumes(cost::after_write(page.written));
                            continue;
                        }
                        if costs.presumes(page.written) {
                            page.set(Standing::Presumed, 0);
                        } else {
                            page.stand(Standing::Waiting);
                        }
                    }
                    Standing::Asked => {
                        page.observe_write(round);
                        let level = (page.level() + 1).min(costs.level_max());
                        page.set(Standing::Presumed, level);
                    }
                    Standing::Presumed | Standing::Waiting => {
                        presumed.extend_back(address, page_size());
                    }
                }
                if !looked {
                    if page.standing() == Standing::Presumed {
                        page.stand(Standing::Asked);
                        self.asked.extend_back(address, page_size());
                        keep = true;
                    } else {
                        page.stand(Standing::Armed);
                    }
                    continue;
                }
                keep = true;
                let gain = costs.gain(page.written);
                if page.standing() == Standing::Waiting {
                    let waited = i64::from(page.rounds_since_seen(round)) + 1;
                    spans.want(address, end, gain * waited);
                } else if page.seen_in(round) {
                    // Written in this round, as was noticed: no question that was not just answered.
                    spans.spare(-gain);
                } else if all_due || is_due(costs.ask_log(page.level()), address, round) {
                    spans.want(address, end, self.call_ns);
                } else {
                    spans.spare(-gain);
                }
            }
            if keep && !self.whole.intersects(block) {
                leave.insert(block);
            }
        }
        self.left = leave;
        spans.finish()
    }

    /// Re-arms the stretches, and notes what stands where now.
    fn rearm(
        &mut self,
        spans: &[PageRange],
        out: &mut PageSet,
        harvest: &mut Harvest,
    ) -> Result<()> {
        let began = Instant::now();
        let mut late = PageSet::new();
        let mut outcome = Ok(());
        let mut near = 0;
        for span in spans {
            outcome = self.writes.rearm(*span, &mut late, &mut harvest.replaced);
            if outcome.is_err() {
                break;
            }
        }
        if let Some(each) = began.elapsed().as_nanos().checked_div(spans.len() as u128) {
            let each = (each as i64).clamp(CALL_NS.0, CALL_NS.1);
            self.call_ns = (self.call_ns * 7 + each) / 8;
        }
        let spans: PageSet = spans.iter().copied().collect();
        for part in parts(&spans.intersection(out)) {
            let pages = self.table.pages_mut(part, self.round, &mut near);
            for (address, page) in (part.start()..).step_by(page_size() as usize).zip(pages) {
                match page.standing() {
                    Standing::Presumed => {
                        page.stand(Standing::Asked);
                        self.asked.extend_back(address, page_size());
                    }
                    _ => page.stand(Standing::Armed),
                }
                page.pass_over(self.round);
            }
        }
        // Written between the look and the call: re-armed, so handed out.
        out.union_with(&late);
        outcome
    }
}

/// Whether a page is to be asked in `round`, one in `1 << log`.
fn is_due(log: u32, address: u64, round: u32) -> bool {
    let group = address / (page_size() * ASKED_TOGETHER);
    let phase = (group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ASK_LOG_MAX)) as u32;
    round.wrapping_add(phase) & ((1 << log) - 1) == 0
}

/// The pages of a set within a range.
fn pages_within(set: &PageSet, range: PageRange) -> u64 {
    let ranges = set.ranges();
    let first = ranges.partition_point(|part| part.end() <= range.start());
    ranges[first..]
        .iter()
        .map_while(|part| part.intersection(&range))
        .map(|part| part.pages())
        .sum()
}

/// The ranges of a set, cut at the borders of blocks.
fn parts(set: &PageSet) -> impl Iterator<Item = PageRange> + '_ {
    let block = block_bytes();
    set.ranges().iter().flat_map(move |range| {
        let first = range.start() & !(block - 1);
        (first..range.end())
            .step_by(block as usize)
            .filter_map(move |start| {
                PageRange::new(start, start.saturating_add(block))?.intersection(range)
            })
    })
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

    fn forget(&mut self, range: PageRange) {
        self.writes.forget(range);
        self.table.forget(range);
        self.asked.remove(range);
        self.whole.remove(range);
        // What else lies in the same block is re-armed with the next scan, which does no harm.
        self.left.remove(range.align_outwards(block_bytes()));
    }

    fn harvest(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Harvest> {
        self.round = self.round.wrapping_add(1);
        let left = std::mem::take(&mut self.left);
        let harvested = self.writes.harvest_leaving(&left, out);
        self.left = left;
        let mut harvest = harvested?;
        for range in &harvest.replaced {
            self.forget(*range);
        }
        let mut told = Presumption::default();
        let alarmed = self.learn_cooled(out, &mut told);
        let spans = self.decide(out, &alarmed, &mut harvest.presumed);
        let outcome = self.rearm(&spans, out, &mut harvest);
        told.calls = spans.len() as u64;
        self.room = spans;
        outcome?;
        if self.round.is_multiple_of(PRUNE_EVERY) {
            self.table.prune(self.round);
        }
        told.presumed = harvest.presumed.pages();
        told.asked = self.asked.pages();
        told.faults_avoided = told.presumed * self.confirmed / CERTAIN;
        told.in_vain = told.presumed - told.faults_avoided;
        told.table_bytes = self.table.bytes();
        harvest.presumption = Some(told);
        Ok(harvest)
    }
}
