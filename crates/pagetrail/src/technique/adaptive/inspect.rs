//! [`Inspection`]: what the reported pages of a block say in one round. Each learns where it stands from now on; together they tell
//! what it would save to leave the block alone, and what it would cost to re-arm nothing in it.
//!
//! What follows from that for the block is decided elsewhere ([`super::decide`]).

use super::cost::{self, Costs, LOOK_NS};
use super::spans::Spans;
use super::table::{Page, Standing};
use crate::page_set::{PageSet, page_size};

/// A page that waits for a call to be worth it has one every so many rounds at the latest, as a power of two: it is reported
/// until then, and one that is written now and then but not often enough for a question would wait for ever.
const WAIT_LOG_MAX: u32 = 4;

/// Where the pages of a round are noted down, in ascending order.
pub(super) struct Notes<'a> {
    /// Reported without anybody having seen a write.
    pub(super) predicted: &'a mut PageSet,
    /// Predicted written until now, and armed by the scan.
    pub(super) asked: &'a mut PageSet,
    /// What is to be re-armed by calls.
    pub(super) spans: Spans,
}

/// A block's pages in one round.
pub(super) struct Inspection<'a> {
    costs: &'a Costs,
    /// What a call that re-arms costs, in nanoseconds.
    call_ns: i64,
    round: u32,
    /// How seldom asked the pages are that are asked in this round, as a power of two.
    due: u32,
    /// The gain at which it pays to predict a page written and to ask it later.
    worth_asking: i64,
    worth: Worth,
    /// What it would cost to let the next scan re-arm everything: faults of what is predicted and not due, ...
    faults: i64,
    /// ... vain reports of what waits.
    vain: i64,
    /// Whether pages are due to be asked, or have waited long enough.
    pub(super) asking: bool,
}

impl<'a> Inspection<'a> {
    /// `hot`: pages of the block that were better left alone, in the last round in which any was reported.
    pub(super) fn new(costs: &'a Costs, call_ns: i64, round: u32, due: u32, hot: u32) -> Self {
        Self {
            costs,
            call_ns,
            round,
            due,
            // A question is asked of all pages of the block that are due, so they share its price.
            worth_asking: costs.worth_asking(call_ns / i64::from(hot.max(1))),
            worth: Worth::default(),
            faults: 0,
            vain: 0,
            asking: false,
        }
    }

    /// Neighbours that the scan has re-armed; the first is at `start`. Whether the next scan shall not is what matters.
    pub(super) fn rearmed(&mut self, mut start: u64, pages: &mut [Page], notes: &mut Notes<'_>) {
        let page_bytes = page_size();
        for page in pages {
            let standing = self.learn(page, start, notes);
            match standing {
                Standing::Armed => self
                    .worth
                    .add(self.costs.gain(cost::after_write(page.written))),
                Standing::Waiting => {
                    page.stand(Standing::Armed);
                    page.pass_over(self.round);
                }
                Standing::Predicted | Standing::Asked => {
                    self.worth.add(self.costs.gain(page.written));
                    page.stand(Standing::Asked);
                    page.pass_over(self.round);
                    notes.asked.extend_back(start, page_bytes);
                }
            }
            start += page_bytes;
        }
    }

    /// Neighbours that the scan has only looked at; the first is at `start`.
    pub(super) fn looked_at(&mut self, mut start: u64, pages: &mut [Page], notes: &mut Notes<'_>) {
        let page_bytes = page_size();
        let page_shift = page_bytes.trailing_zeros();
        // Of pages that rest nothing is to be learnt or done, and most pages of a round do where predicting pays. What the scan has
        // re-armed does not rest.
        let resting_level = self.costs.level_resting(self.due);
        let mut at = 0;
        while at < pages.len() {
            let resting = Resting::of(&pages[at..], resting_level, self.costs);
            if resting.pages > 0 {
                let bytes = (resting.pages as u64) << page_shift;
                notes.predicted.extend_back(start, bytes);
                notes.spans.spare(-resting.gain);
                self.worth.add_hot(resting.pages, resting.gain);
                self.faults -= resting.gain;
                at += resting.pages;
                start += bytes;
                continue;
            }
            self.place(&mut pages[at], start, notes);
            at += 1;
            start += page_bytes;
        }
    }

    /// What it tells of a page, as it stood, that it was reported; gives how it stood.
    fn learn(&self, page: &mut Page, start: u64, notes: &mut Notes<'_>) -> Standing {
        let standing = page.standing();
        match standing {
            Standing::Armed => page.observe_write(self.round),
            Standing::Asked => {
                page.observe_write(self.round);
                let level = (page.level() + 1).min(self.costs.level_max());
                page.set(Standing::Asked, level);
            }
            Standing::Predicted | Standing::Waiting => {
                notes.predicted.extend_back(start, page_size());
            }
        }
        standing
    }

    /// A page that is unprotected now: whether it stays so, waits for a call, or is worth one.
    fn place(&mut self, page: &mut Page, start: u64, notes: &mut Notes<'_>) {
        let end = start + page_size();
        let standing = self.learn(page, start, notes);
        let gain = self.costs.gain(page.written);
        self.worth.add(gain);
        match standing {
            Standing::Armed if gain <= self.worth_asking => page.stand(Standing::Predicted),
            Standing::Armed => page.stand(Standing::Waiting),
            Standing::Asked => page.stand(Standing::Predicted),
            Standing::Predicted | Standing::Waiting => {}
        }
        if page.standing() == Standing::Waiting {
            let waited = i64::from(page.rounds_since_seen(self.round)) + 1;
            let mut worth = gain.max(1) * waited;
            if self.due >= WAIT_LOG_MAX {
                worth = worth.max(self.call_ns);
                self.asking = true;
            }
            notes.spans.want(start, end, worth);
            self.vain += gain.max(0);
        } else if self.costs.ask_log(page.level()) <= self.due && !page.seen_in(self.round) {
            notes.spans.want(start, end, self.call_ns);
            self.asking = true;
        } else {
            // Not due; or written in this round, as was access_kind, so that there is nothing to ask.
            notes.spans.spare(-gain);
            self.faults -= gain;
        }
    }

    /// Pages that are better left alone.
    pub(super) fn hot(&self) -> u32 {
        self.worth.hot
    }

    /// Whether it pays to leave the block to a scan that only looks.
    pub(super) fn pays(&self) -> bool {
        self.worth.pays(self.call_ns)
    }

    /// What it would cost, in nanoseconds, to make no calls and let the next scan re-arm everything.
    pub(super) fn lost_without_calls(&self) -> i64 {
        self.faults + self.vain
    }
}

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

/// Neighbours that are predicted dirty, and not asked in this round.
struct Resting {
    pages: usize,
    /// What it saves to arm them: less than nothing.
    gain: i64,
}

impl Resting {
    /// Those that `pages` begin with, if they are predicted on at least so much evidence.
    fn of(pages: &[Page], level: u8, costs: &Costs) -> Self {
        let mut found = Self { pages: 0, gain: 0 };
        for page in pages.iter().take_while(|page| page.rests(level)) {
            found.pages += 1;
            found.gain += costs.gain(page.written);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
