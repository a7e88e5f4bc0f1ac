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
mod exact;
mod spans;
mod table;

use super::pagemap_scan::{HugePages, PagemapScan, block_bytes};
use super::{ArmError, Armed, Harvest, Tracker};
use crate::error::Result;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::round::Presumption;
use cost::{ASK_LOG_MAX, Costs};
use exact::Contents;
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use spans::Spans;
use std::time::Instant;
use table::{Standing, Table};

pub use cost::VainPage;

/// Which pages of those that are presumed written are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// All.
    #[default]
    AsNoticed,
    /// Those that hold something else than at the last collect, as hashes tell: each collect reads and hashes all that is
    /// presumed. Like `compare`, that is blind to writes that leave a page as it was, so copy pages while the program is held, or compare
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
    /// Blocks that are looked at without re-arming what was written: they have pages that are presumed written, or will be.
    left: PageSet,
    /// Pages that were presumed written, and were armed at the end of the last round.
    asked: PageSet,
    /// What a call that re-arms costs, in nanoseconds; measured while it is done.
    call_ns: i64,
    /// Of [`CERTAIN`] questions, so many found the page written; a running mean.
    confirmed: u64,
    /// Where presumed pages that have not changed are not to be reported.
    exact: Option<Contents>,
    /// Memory used again.
    room: Vec<PageRange>,
}

/// What a call is taken to cost before any was made.
const CALL_NS_FIRST: i64 = 2_000;

/// Between these its measurement is believed.
const CALL_NS: (i64, i64) = (300, 5_000);

/// Of so many reported pages of a block one, at least, must be left alone for the others to be looked at twice.
const SPARED_MIN: u32 = 8;

/// In a block of which fewer pages are reported, a second look costs next to nothing.
const LOOKS_MANY: u32 = 64;

/// For so long nothing is presumed in a block where that was not so.
const PAUSE_ROUNDS: u32 = 16;

/// What it takes to look at a page without re-arming it in the same step.
const LOOK_NS: i64 = 30;

/// What re-arming a page takes within a call.
const REARM_NS: i64 = 25;

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
        let (page_bytes, block_bytes) = (page_size(), block_bytes());
        let mut blocks = Blocks::of(&cooled, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let pages = &mut self.table.block_mut(block.start(), self.round).pages;
            let mut cold = 0;
            for part in parts {
                let first = ((part.start() - block.start()) / page_bytes) as usize;
                let count = part.bytes() / page_bytes;
                for page in &mut pages[first..first + count as usize] {
                    page.observe_quiet(self.round);
                    page.set(Standing::Armed, 0);
                }
                cold += count;
            }
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
        let (round, page_bytes, block_bytes) = (self.round, page_size(), block_bytes());
        // Divisions would take as long as all the rest.
        let page_shift = page_bytes.trailing_zeros();
        let costs = &self.costs;
        let entry = costs.entry(self.call_ns);
        let mut spans = Spans::new(self.call_ns, std::mem::take(&mut self.room));
        let mut leave = PageSet::new();
        let armed = self.writes.armed().ranges();
        let (mut mapping, mut border) = (0, 0);
        let mut blocks = Blocks::of(out, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let looked = self.left.covers(block);
            let all_due = alarmed.covers(block);
            // What it saves in a round to leave pages of this block unprotected, and how many pages that takes a look at.
            let (mut saved, mut looks) = (0, 0);
            let known = self.table.block_mut(block.start(), round);
            let pages = &mut known.pages;
            let (mut spared, mut due) = (0, 0);
            for part in parts {
                looks += (part.bytes() >> page_shift) as i64;
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
                let first = ((part.start() - block.start()) >> page_shift) as usize;
                let count = (part.bytes() >> page_shift) as usize;
                let mut address = part.start();
                for page in &mut pages[first..first + count] {
                    let start = address;
                    address += page_bytes;
                    match page.standing() {
                        Standing::Armed => {
                            page.observe_write(round);
                            if !looked {
                                // The scan has re-armed it. Whether the next one shall not is what matters.
                                let next = cost::after_write(page.written);
                                if next >= entry {
                                    saved -= costs.gain(next);
                                }
                                continue;
                            }
                            if page.written >= entry {
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
                            presumed.extend_back(start, page_bytes);
                        }
                    }
                    if !looked {
                        if page.standing() == Standing::Presumed {
                            page.stand(Standing::Asked);
                            self.asked.extend_back(start, page_bytes);
                            saved -= costs.gain(page.written);
                        } else {
                            page.stand(Standing::Armed);
                        }
                        continue;
                    }
                    let gain = costs.gain(page.written);
                    saved -= gain.min(0);
                    if page.standing() == Standing::Waiting {
                        let waited = i64::from(page.rounds_since_seen(round)) + 1;
                        spans.want(start, address, gain.max(1) * waited);
                    } else if !page.seen_in(round)
                        && (all_due
                            || is_due(costs.ask_log(page.level()), start >> page_shift, round))
                    {
                        spans.want(start, address, self.call_ns);
                        due += 1;
                    } else {
                        // Not due; or written in this round, as was noticed, so that there is nothing to ask.
                        spans.spare(-gain);
                        spared += 1;
                    }
                }
            }
            known.reported = looks as u32;
            known.presumed = spared + due;
            known.due = due;
            // Half of it: the other half of the rounds, at first, is for questions.
            let pays = saved / 2 >= self.call_ns / 8 + looks * LOOK_NS;
            if pays
                && round.wrapping_sub(known.not_before) as i32 >= 0
                && !self.whole.intersects(block)
            {
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
        let began = cpu_ns();
        let mut late = PageSet::new();
        let mut outcome = Ok(());
        for span in spans {
            outcome = self
                .writes
                .rearm_span(*span, &mut late, &mut harvest.replaced);
            if outcome.is_err() {
                break;
            }
        }
        let took = cpu_ns() - began;
        let spans: PageSet = spans.iter().copied().collect();
        let rearmed = spans.intersection(out);
        if let Some(each) =
            (took - rearmed.pages() as i64 * REARM_NS).checked_div(spans.ranges().len() as i64)
        {
            let each = each.clamp(CALL_NS.0, CALL_NS.1);
            self.call_ns = (self.call_ns * 7 + each) / 8;
        }
        let (page_bytes, block_bytes) = (page_size(), block_bytes());
        let page_shift = page_bytes.trailing_zeros();
        let mut blocks = Blocks::of(&rearmed, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let known = self.table.block_mut(block.start(), self.round);
            for part in parts {
                let first = ((part.start() - block.start()) >> page_shift) as usize;
                let count = (part.bytes() >> page_shift) as usize;
                let mut address = part.start();
                for page in &mut known.pages[first..first + count] {
                    if page.standing() == Standing::Presumed {
                        page.stand(Standing::Asked);
                        known.presumed = known.presumed.saturating_sub(1);
                        self.asked.extend_back(address, page_bytes);
                    } else {
                        page.stand(Standing::Armed);
                    }
                    page.pass_over(self.round);
                    address += page_bytes;
                }
            }
            // Presumed pages lie so thinly among others that calls must reach over most of them: not worth a second look.
            let thin = (known.presumed + known.due) * SPARED_MIN < known.reported;
            if thin && known.reported >= LOOKS_MANY {
                known.not_before = self.round.wrapping_add(PAUSE_ROUNDS);
                self.left.remove(block);
            }
        }
        // Written between the look and the call: re-armed, so handed out.
        out.union_with(&late);
        outcome
    }
}

impl Adaptive {
    /// Takes out of the round what is presumed written and has not changed. After re-arming: what is asked next is armed
    /// by now, and what stays unprotected will be hashed again. `looked`: where the scan has left everything unprotected.
    fn drop_unchanged(
        &mut self,
        looked: &PageSet,
        out: &mut PageSet,
        harvest: &mut Harvest,
        told: &mut Presumption,
    ) -> Result<()> {
        let Some(contents) = &mut self.exact else {
            return Ok(());
        };
        let began = Instant::now();
        let rearmed: PageSet = self.room.iter().copied().collect();
        let left = out.intersection(looked).difference(&rearmed);
        let found = contents.look(&harvest.presumed, &left)?;
        *out = out.difference(&found.unchanged);
        harvest.presumed = harvest.presumed.difference(&found.unchanged);
        told.dropped = found.unchanged.pages();
        told.hashed_bytes = found.hashed_bytes;
        told.hashing = began.elapsed();
        Ok(())
    }
}

/// The ranges of a set, block by block, cut at the borders of blocks.
struct Blocks<'a> {
    ranges: &'a [PageRange],
    /// Where the first of `ranges` goes on.
    start: u64,
    block_bytes: u64,
    parts: Vec<PageRange>,
}

impl<'a> Blocks<'a> {
    fn of(set: &'a PageSet, block_bytes: u64) -> Self {
        let ranges = set.ranges();
        Self {
            ranges,
            start: ranges.first().map_or(0, PageRange::start),
            block_bytes,
            parts: Vec::new(),
        }
    }

    fn next_block(&mut self) -> Option<(PageRange, &[PageRange])> {
        self.ranges.first()?;
        let start = self.start & !(self.block_bytes - 1);
        let block = PageRange::new(start, start.saturating_add(self.block_bytes))?;
        self.parts.clear();
        while let Some(range) = self.ranges.first()
            && self.start < block.end()
        {
            let end = range.end().min(block.end());
            self.parts.extend(PageRange::new(self.start, end));
            if end < range.end() {
                self.start = end;
            } else {
                self.ranges = &self.ranges[1..];
                self.start = self.ranges.first().map_or(0, PageRange::start);
                if self.ranges.is_empty() {
                    break;
                }
            }
        }
        Some((block, &self.parts))
    }
}

/// Processor time of this thread: a tracker that had to wait for a processor has not worked.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Whether a page is to be asked in `round`, one in `1 << log`.
fn is_due(log: u32, page: u64, round: u32) -> bool {
    let group = page / ASKED_TOGETHER;
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
        let looked = self.exact.is_some().then(|| self.left.clone());
        let spans = self.decide(out, &alarmed, &mut harvest.presumed);
        told.presumed = harvest.presumed.pages();
        let outcome = self.rearm(&spans, out, &mut harvest);
        told.calls = spans.len() as u64;
        self.room = spans;
        outcome?;
        if let Some(looked) = looked {
            self.drop_unchanged(&looked, out, &mut harvest, &mut told)?;
        }
        if self.round.is_multiple_of(PRUNE_EVERY) {
            self.table.prune(self.round);
        }
        told.asked = self.asked.pages();
        told.faults_avoided = told.presumed * self.confirmed / CERTAIN;
        told.in_vain = (told.presumed - told.faults_avoided).saturating_sub(told.dropped);
        told.table_bytes = self.table.bytes();
        harvest.presumption = Some(told);
        Ok(harvest)
    }
}
