//! What is learned from a round, and what follows for the next one: which blocks the next scan does
//! not re-arm, and which spans of the blocks that this scan did not re-arm are re-armed at once.
//!
//! If pages of a block are predicted, the next scan does not re-arm the block, and re-arming parts
//! of it costs calls ([`Spans`]). If these calls would cost more than the faults that they save,
//! the block is left to the scan after next, which re-arms all of it at no extra cost: most checks
//! are made that way.

use super::Adaptive;
use super::blocks::{Blocks, pages_within};
use super::cost::{self, CHECK_LOG_MAX};
use super::inspect::{Inspection, Notes};
use super::spans::Spans;
use super::table::Standing;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::technique::pagemap_scan::block_bytes;
use crate::types::PredictionStats;

/// The denominator of [`Adaptive::confirmed`].
pub(super) const CERTAIN: u64 = 1024;

/// The budget of a round for calls: the cost of so many calls, and so many nanoseconds for each
/// reported page.
const BUDGET_CALLS: i64 = 16;
const BUDGET_NS: i64 = 10;

/// For so many rounds nothing is predicted in a block where that did not pay.
const PAUSE_ROUNDS: u32 = 16;

/// The least number of checks that must have found pages cooled down before all are checked.
const PHASE_END_MIN: u64 = 2;

impl Adaptive {
    /// Learns which of the checked pages have cooled down; returns the blocks in which most have.
    pub(super) fn learn_cooled(&mut self, out: &PageSet, stats: &mut PredictionStats) -> PageSet {
        let checking = std::mem::take(&mut self.checking);
        let mut phase_ended = PageSet::new();
        if checking.is_empty() {
            return phase_ended;
        }
        let cooled = checking.difference(out);
        let (page_bytes, block_bytes) = (page_size(), block_bytes());
        let mut expected_in_all = 0;
        let mut blocks = Blocks::of(&cooled, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let pages = &mut self.table.block_mut(block.start(), self.round).pages;
            let (mut cold, mut expected) = (0, 0);
            for part in parts {
                let first = ((part.start() - block.start()) / page_bytes) as usize;
                let count = part.bytes() / page_bytes;
                for page in &mut pages[first..first + count as usize] {
                    // Pages that are written in most rounds, but not in all, always cool down in
                    // some checks.
                    expected += u64::from(cost::Share::MAX - page.written);
                    page.observe_quiet(self.round);
                    // The page may be written in most rounds, but not in all, so it keeps half of
                    // its level.
                    page.set(Standing::Armed, page.level() / 2);
                }
                cold += count;
            }
            expected_in_all += expected;
            if is_phase_end(cold, expected, || pages_within(&checking, block)) {
                phase_ended.insert(block);
            }
        }
        let checking = checking.page_count();
        stats.cooled = cooled.page_count();
        let confirmed = (checking - stats.cooled) * CERTAIN / checking;
        self.confirmed = (self.confirmed * 3 + confirmed) / 4;
        if is_phase_end(stats.cooled, expected_in_all, || checking) {
            return self.left.clone();
        }
        phase_ended
    }

    /// Learns from each reported page; returns the spans that are worth a call. `phase_ended`: the
    /// blocks in which all pages are due for a check.
    pub(super) fn decide(
        &mut self,
        out: &PageSet,
        phase_ended: &PageSet,
        predicted: &mut PageSet,
    ) -> Vec<PageRange> {
        let (round, block_bytes) = (self.round, block_bytes());
        // Shifts, because divisions would take as long as everything else.
        let (page_shift, block_shift) =
            (page_size().trailing_zeros(), block_bytes.trailing_zeros());
        let mut notes = Notes {
            predicted,
            checking: &mut self.checking,
            spans: Spans::new(self.call_ns, std::mem::take(&mut self.room)),
        };
        // A collect should take about as long as the plain scan, so calls must not take much longer
        // than the inspection of the pages.
        let mut budget = BUDGET_CALLS * self.call_ns + out.page_count() as i64 * BUDGET_NS;
        let mut leave = PageSet::new();
        let mut borders = Borders::of(self.writes.armed());
        let mut blocks = Blocks::of(out, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let was_left = self.left.covers(block);
            let due = match phase_ended.covers(block) {
                true => CHECK_LOG_MAX,
                false => due(block.start() >> block_shift, round),
            };
            let known = self.table.block_mut(block.start(), round);
            let mut seen = Inspection::new(&self.costs, self.call_ns, round, due, known.hot);
            notes.spans.begin();
            for part in parts {
                if borders.between(part) {
                    notes.spans.close();
                }
                let first = ((part.start() - block.start()) >> page_shift) as usize;
                let end = ((part.end() - block.start()) >> page_shift) as usize;
                let pages = &mut known.pages[first..end];
                match was_left {
                    true => seen.scanned(part.start(), pages, &mut notes),
                    false => seen.rearmed(part.start(), pages, &mut notes),
                }
            }
            known.hot = seen.hot();
            let calls = notes.spans.cost();
            let calls_pay = calls == 0 || seen.lost_without_calls() > calls;
            let affordable = calls <= budget;
            if calls_pay && !affordable && !seen.checks_due {
                // Waiting pages go on waiting.
                notes.spans.discard();
            }
            if calls_pay
                && (affordable || !seen.checks_due)
                && seen.pays()
                && round.wrapping_sub(known.not_before) as i32 >= 0
                && !self.whole.intersects(block)
            {
                leave.insert(block);
                if affordable {
                    budget -= calls;
                }
            } else {
                notes.spans.discard();
                if !calls_pay && !seen.checks_due {
                    known.not_before = round.wrapping_add(PAUSE_ROUNDS);
                }
            }
        }
        self.left = leave;
        notes.spans.finish()
    }
}

/// The borders between adjacent armed ranges, which no call may span.
struct Borders<'a> {
    armed: &'a [PageRange],
    /// The index of the armed range that contains the last part.
    last: usize,
}

impl<'a> Borders<'a> {
    fn of(armed: &'a PageSet) -> Self {
        let armed = armed.ranges();
        Self { armed, last: 0 }
    }

    /// Whether a border lies between the last part and this one; parts come in ascending order.
    fn between(&mut self, part: &PageRange) -> bool {
        let before = self.last;
        while self
            .armed
            .get(self.last)
            .is_some_and(|range| range.end() <= part.start())
        {
            self.last += 1;
        }
        self.last != before
    }
}

/// Whether a phase of the program has ended: most of the checked pages have cooled down, and more
/// than their history predicts (`expected`: the sum over those that have, in parts of
/// [`cost::Share`]).
fn is_phase_end(cooled: u64, expected: u64, checking: impl Fn() -> u64) -> bool {
    cooled >= PHASE_END_MIN + expected * 4 / 256 && cooled * 2 > checking()
}

/// log2 of the longest check interval that is due in `round`. All pages of a block are due
/// together, and blocks are due in different rounds.
fn due(block: u64, round: u32) -> u32 {
    let phase = (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - CHECK_LOG_MAX)) as u32;
    round
        .wrapping_add(phase)
        .trailing_zeros()
        .min(CHECK_LOG_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_checked_in_time() {
        for block in [0, 1, 77, u64::MAX >> 21] {
            for log in 1..=CHECK_LOG_MAX {
                let checking = (0..256).filter(|round| due(block, *round) >= log);
                let checking: Vec<u32> = checking.collect();
                assert!(checking.windows(2).all(|two| two[1] - two[0] == 1 << log));
                assert_eq!(checking.len(), 256 >> log);
            }
        }
    }
}
