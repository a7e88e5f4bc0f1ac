//! What a round teaches about pages, and what follows for the next one: which blocks are left alone, and which stretches of
//! those that were are re-armed at once.
//!
//! Where pages of a block are predicted, the next scan only looks at it, and what is to be re-armed there costs calls
//! ([`Spans`]). Where these would cost more than the faults that they save, the block is left to the scan after next, which re-arms
//! all of it in passing: most questions are asked so.

use super::Adaptive;
use super::blocks::{Blocks, pages_within};
use super::cost::{self, ASK_LOG_MAX};
use super::inspect::{Inspection, Notes};
use super::spans::Spans;
use super::table::Standing;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::round::PredictionStats;
use crate::technique::pagemap_scan::block_bytes;

/// What [`Adaptive::confirmed`] is a part of.
pub(super) const CERTAIN: u64 = 1024;

/// What calls may cost in a round: so many of them, and so much more for each reported page.
const BUDGET_CALLS: i64 = 16;
const BUDGET_NS: i64 = 10;

/// For so long nothing is predicted in a block where that did not pay.
const PAUSE_ROUNDS: u32 = 16;

/// So many questions, at least, must have found pages cooled down before all are asked.
const ALARM_MIN: u64 = 2;

impl Adaptive {
    /// Learns which of the pages that were asked have cooled down; gives the blocks in which most have.
    pub(super) fn learn_cooled(&mut self, out: &PageSet, told: &mut PredictionStats) -> PageSet {
        let asked = std::mem::take(&mut self.asked);
        let mut alarmed = PageSet::new();
        if asked.is_empty() {
            return alarmed;
        }
        let cooled = asked.difference(out);
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
                    // Of pages that are written in most rounds, some have always cooled down.
                    expected += u64::from(cost::Share::MAX - page.written);
                    page.observe_quiet(self.round);
                    // It may be a page that is written in most rounds, but not in all: some of what was known still holds.
                    page.set(Standing::Armed, page.level() / 2);
                }
                cold += count;
            }
            expected_in_all += expected;
            if is_alarming(cold, expected, || pages_within(&asked, block)) {
                alarmed.insert(block);
            }
        }
        let asked = asked.page_count();
        told.cooled = cooled.page_count();
        let confirmed = (asked - told.cooled) * CERTAIN / asked;
        self.confirmed = (self.confirmed * 3 + confirmed) / 4;
        if is_alarming(told.cooled, expected_in_all, || asked) {
            return self.left.clone();
        }
        alarmed
    }

    /// Learns from each reported page; gives the stretches that are worth a call. `alarmed` are blocks in which all pages
    /// are due to be asked.
    pub(super) fn decide(
        &mut self,
        out: &PageSet,
        alarmed: &PageSet,
        predicted: &mut PageSet,
    ) -> Vec<PageRange> {
        let (round, block_bytes) = (self.round, block_bytes());
        // Divisions would take as long as all the rest.
        let (page_shift, block_shift) =
            (page_size().trailing_zeros(), block_bytes.trailing_zeros());
        let mut notes = Notes {
            predicted,
            asked: &mut self.asked,
            spans: Spans::new(self.call_ns, std::mem::take(&mut self.room)),
        };
        // A collect is to take about as long as the plain scan, so calls must not take much longer than looking at pages does.
        let mut budget = BUDGET_CALLS * self.call_ns + out.page_count() as i64 * BUDGET_NS;
        let mut leave = PageSet::new();
        let mut borders = Borders::of(self.writes.armed());
        let mut blocks = Blocks::of(out, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let looked = self.left.covers(block);
            let due = match alarmed.covers(block) {
                true => ASK_LOG_MAX,
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
                match looked {
                    true => seen.looked_at(part.start(), pages, &mut notes),
                    false => seen.rearmed(part.start(), pages, &mut notes),
                }
            }
            known.hot = seen.hot();
            let calls = notes.spans.cost();
            let calls_pay = calls == 0 || seen.lost_without_calls() > calls;
            let affordable = calls <= budget;
            if calls_pay && !affordable && !seen.asking {
                // What waits goes on waiting.
                notes.spans.give_up();
            }
            if calls_pay
                && (affordable || !seen.asking)
                && seen.pays()
                && round.wrapping_sub(known.not_before) as i32 >= 0
                && !self.whole.intersects(block)
            {
                leave.insert(block);
                if affordable {
                    budget -= calls;
                }
            } else {
                notes.spans.give_up();
                if !calls_pay && !seen.asking {
                    known.not_before = round.wrapping_add(PAUSE_ROUNDS);
                }
            }
        }
        self.left = leave;
        notes.spans.finish()
    }
}

/// Where one armed range ends and the next begins: no call may reach over such a place.
struct Borders<'a> {
    armed: &'a [PageRange],
    /// The armed range of the last part.
    last: usize,
}

impl<'a> Borders<'a> {
    fn of(armed: &'a PageSet) -> Self {
        let armed = armed.ranges();
        Self { armed, last: 0 }
    }

    /// Whether there is one between the last part and this one, parts in ascending order.
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

/// Whether a phase has ended: of the pages that were asked most have cooled down, and more than their past lets expect
/// (`expected`: the sum over those that have, in parts of [`cost::Share`]).
fn is_alarming(cooled: u64, expected: u64, asked: impl Fn() -> u64) -> bool {
    cooled >= ALARM_MIN + expected * 4 / 256 && cooled * 2 > asked()
}

/// How seldom asked the pages are that are asked in `round`, as a power of two: those of a block together, and not all blocks
/// in the same round.
fn due(block: u64, round: u32) -> u32 {
    let phase = (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ASK_LOG_MAX)) as u32;
    round.wrapping_add(phase).trailing_zeros().min(ASK_LOG_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_asked_in_time() {
        for block in [0, 1, 77, u64::MAX >> 21] {
            for log in 1..=ASK_LOG_MAX {
                let asked = (0..256).filter(|round| due(block, *round) >= log);
                let asked: Vec<u32> = asked.collect();
                assert!(asked.windows(2).all(|two| two[1] - two[0] == 1 << log));
                assert_eq!(asked.len(), 256 >> log);
            }
        }
    }
}
