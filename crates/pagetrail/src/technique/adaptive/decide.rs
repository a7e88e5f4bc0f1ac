//! What a round teaches about pages, and what follows for the next one: which blocks are left alone, and which stretches of
//! those that were are re-armed at once.
//!
//! Where pages of a block are presumed, the next scan only looks at it, and what is to be re-armed there costs calls
//! ([`Spans`]). Where these would cost more than the faults that they save, the block is left to the scan after next, which re-arms
//! all of it in passing: most questions are asked so.

use super::Adaptive;
use super::blocks::{Blocks, pages_within};
use super::cost::{self, ASK_LOG_MAX, Costs, LEVEL_MAX, LOOK_NS};
use super::spans::Spans;
use super::table::{Page, Standing};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::round::Presumption;
use crate::technique::pagemap_scan::block_bytes;

/// What [`Adaptive::confirmed`] is a part of.
pub(super) const CERTAIN: u64 = 1024;

/// What calls may cost in a round: so many of them, and so much more for each reported page.
const BUDGET_CALLS: i64 = 16;
const BUDGET_NS: i64 = 10;

/// For so long nothing is presumed in a block where that did not pay.
const PAUSE_ROUNDS: u32 = 16;

/// A page that waits for a call to be worth it has one every so many rounds at the latest, as a power of two: it is reported
/// until then, and one that is written now and then but not often enough for a question would wait for ever.
const WAIT_LOG_MAX: u32 = 4;

/// So many questions, at least, must have found pages cooled down before all are asked.
const ALARM_MIN: u64 = 2;

/// What it would save to leave a block alone for a round, as this round has it.
#[derive(Default)]
struct Worth {
    /// Where nothing in it is re-armed, in nanoseconds.
    whole: i64,
    /// Where pages that are better armed are re-armed: without these, and without the calls.
    parts: i64,
    /// Stretches of such pages, with a call for each.
    stretches: i64,
    /// Pages that are better left alone.
    hot: u32,
    within_stretch: bool,
    /// Reported pages.
    pages: i64,
}

impl Worth {
    /// A page that it saves `gain` to arm.
    fn add(&mut self, gain: i64) {
        // Without a branch: hot pages lie among others as chance has it.
        let hot = gain < 0;
        self.pages += 1;
        self.whole -= gain;
        self.parts -= gain.min(0);
        self.hot += u32::from(hot);
        self.stretches += i64::from(!hot & !self.within_stretch);
        self.within_stretch = !hot;
    }

    /// So many pages that are better left alone, which it saves `gain`, a negative number, to arm.
    fn add_hot(&mut self, pages: usize, gain: i64) {
        self.pages += pages as i64;
        self.whole -= gain;
        self.parts -= gain;
        self.hot += pages as u32;
        self.within_stretch = false;
    }

    /// Half of it is for questions.
    fn pays(&self, call: i64) -> bool {
        let saved = self.whole.max(self.parts - self.stretches * call);
        saved / 2 >= call / 8 + self.pages * LOOK_NS
    }
}

/// Neighbours that are presumed written, and not asked in this round.
struct Resting {
    pages: usize,
    /// What it saves to arm them: less than nothing.
    gain: i64,
}

impl Resting {
    /// Those that `pages` begin with, if they are presumed on at least so much evidence.
    fn of(pages: &[Page], level: u8, costs: &Costs) -> Self {
        let mut found = Self { pages: 0, gain: 0 };
        for page in pages.iter().take_while(|page| page.rests(level)) {
            found.pages += 1;
            found.gain += costs.gain(page.written);
        }
        found
    }
}

impl Adaptive {
    /// Learns which of the pages that were asked have cooled down; gives the blocks in which most have.
    pub(super) fn learn_cooled(&mut self, out: &PageSet, told: &mut Presumption) -> PageSet {
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
        let asked = asked.pages();
        told.cooled = cooled.pages();
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
        presumed: &mut PageSet,
    ) -> Vec<PageRange> {
        let (round, page_bytes, block_bytes) = (self.round, page_size(), block_bytes());
        // Divisions would take as long as all the rest.
        let (page_shift, block_shift) = (page_bytes.trailing_zeros(), block_bytes.trailing_zeros());
        let costs = &self.costs;
        let mut spans = Spans::new(self.call_ns, std::mem::take(&mut self.room));
        // A collect is to take about as long as the plain scan, so calls must not take much longer than looking at pages does.
        let mut budget = BUDGET_CALLS * self.call_ns + out.pages() as i64 * BUDGET_NS;
        let mut leave = PageSet::new();
        let armed = self.writes.armed().ranges();
        let (mut mapping, mut border) = (0, 0);
        let mut blocks = Blocks::of(out, block_bytes);
        while let Some((block, parts)) = blocks.next_block() {
            let looked = self.left.covers(block);
            let due = match alarmed.covers(block) {
                true => ASK_LOG_MAX,
                false => due(block.start() >> block_shift, round),
            };
            // Of pages that rest nothing is to be learnt or done, and most pages of a round do where presuming pays. What the scan
            // has re-armed does not rest.
            let resting_level = match looked {
                true => costs.level_resting(due),
                false => LEVEL_MAX + 1,
            };
            let known = self.table.block_mut(block.start(), round);
            // A question is asked of all pages of the block that are due, so they share its price.
            let worth_asking = costs.worth_asking(self.call_ns / i64::from(known.hot.max(1)));
            let pages = &mut known.pages;
            let mut worth = Worth::default();
            // What it would cost to let the next scan re-arm everything: faults of what is presumed and not due, vain reports of
            // what waits.
            let (mut faults, mut vain) = (0, 0);
            let mut asking = false;
            spans.begin();
            for part in parts {
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
                let mut at = ((part.start() - block.start()) >> page_shift) as usize;
                let end = ((part.end() - block.start()) >> page_shift) as usize;
                while at < end {
                    let start = block.start() + ((at as u64) << page_shift);
                    let resting = Resting::of(&pages[at..end], resting_level, costs);
                    if resting.pages > 0 {
                        presumed.extend_back(start, (resting.pages as u64) << page_shift);
                        worth.add_hot(resting.pages, resting.gain);
                        spans.spare(-resting.gain);
                        faults -= resting.gain;
                        at += resting.pages;
                        continue;
                    }
                    let page = &mut pages[at];
                    at += 1;
                    let address = start + page_bytes;
                    let standing = page.standing();
                    match standing {
                        Standing::Armed => page.observe_write(round),
                        Standing::Asked => {
                            page.observe_write(round);
                            page.set(Standing::Asked, (page.level() + 1).min(costs.level_max()));
                        }
                        Standing::Presumed | Standing::Waiting => {
                            presumed.extend_back(start, page_bytes);
                        }
                    }
                    if !looked {
                        // The scan has re-armed it. Whether the next one shall not is what matters.
                        match standing {
                            Standing::Armed => {
                                worth.add(costs.gain(cost::after_write(page.written)))
                            }
                            Standing::Waiting => {
                                page.stand(Standing::Armed);
                                page.pass_over(round);
                            }
                            Standing::Presumed | Standing::Asked => {
                                worth.add(costs.gain(page.written));
                                page.stand(Standing::Asked);
                                page.pass_over(round);
                                self.asked.extend_back(start, page_bytes);
                            }
                        }
                        continue;
                    }
                    let gain = costs.gain(page.written);
                    worth.add(gain);
                    match standing {
                        Standing::Armed if gain <= worth_asking => page.stand(Standing::Presumed),
                        Standing::Armed => page.stand(Standing::Waiting),
                        Standing::Asked => page.stand(Standing::Presumed),
                        Standing::Presumed | Standing::Waiting => {}
                    }
                    if page.standing() == Standing::Waiting {
                        let waited = i64::from(page.rounds_since_seen(round)) + 1;
                        let mut worth = gain.max(1) * waited;
                        if due >= WAIT_LOG_MAX {
                            worth = worth.max(self.call_ns);
                            asking = true;
                        }
                        spans.want(start, address, worth);
                        vain += gain.max(0);
                    } else if costs.ask_log(page.level()) <= due && !page.seen_in(round) {
                        spans.want(start, address, self.call_ns);
                        asking = true;
                    } else {
                        // Not due; or written in this round, as was noticed, so that there is nothing to ask.
                        spans.spare(-gain);
                        faults -= gain;
                    }
                }
            }
            known.hot = worth.hot;
            let calls = spans.cost();
            let calls_pay = calls == 0 || faults + vain > calls;
            let affordable = calls <= budget;
            if calls_pay && !affordable && !asking {
                // What waits goes on waiting.
                spans.give_up();
            }
            if calls_pay
                && (affordable || !asking)
                && worth.pays(self.call_ns)
                && round.wrapping_sub(known.not_before) as i32 >= 0
                && !self.whole.intersects(block)
            {
                leave.insert(block);
                if affordable {
                    budget -= calls;
                }
            } else {
                spans.give_up();
                if !calls_pay && !asking {
                    known.not_before = round.wrapping_add(PAUSE_ROUNDS);
                }
            }
        }
        self.left = leave;
        spans.finish()
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

    #[test]
    fn mixed_pages_are_left_to_the_scan() {
        let of = |gains: &[i64]| {
            let mut worth = Worth::default();
            gains.iter().for_each(|gain| worth.add(*gain));
            worth.pays(1_500)
        };
        // Hot pages among few others pay, page by page beside as many others they do not.
        assert!(of(&[-900, -900, -900, -900, 1_400, -900, -900]));
        assert!(!of(&[-600, 500, -600, 500, -600, 500, -600, 500]));
        // Where a page is hot for certain, neighbours may be reported in vain.
        assert!(of(&[-1_000, 200, -1_000, 200, -1_000, 200]));
        assert!(!of(&[]));
    }
}
