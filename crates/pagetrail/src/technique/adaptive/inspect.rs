//! [`Inspection`]: what the reported pages of a block show in one round. Each page gets its
//! standing for the next round; together they show what leaving the block unprotected would save,
//! and what re-arming nothing in it would cost.
//!
//! [`super::decide`] decides what follows for the block.

use super::cost::{self, Costs, INSPECT_NS};
use super::spans::Spans;
use super::table::{Page, Standing};
use crate::page_set::{PageSet, page_size};

/// The longest wait of a page for a call that is worth making, in rounds as a power of two. The
/// page is reported until then, and one that is written too rarely for a check would otherwise wait
/// for ever.
const WAIT_LOG_MAX: u32 = 4;

/// Collects the pages of a round, in ascending order, by what happens to them.
pub(super) struct Notes<'a> {
    /// Pages that are reported although no write was detected.
    pub(super) predicted: &'a mut PageSet,
    /// Pages that were predicted dirty until now, and that the scan has armed.
    pub(super) checking: &'a mut PageSet,
    /// Pages that are to be re-armed by calls.
    pub(super) spans: Spans,
}

/// The pages of a block in one round.
pub(super) struct Inspection<'a> {
    costs: &'a Costs,
    /// The cost of a call that re-arms, in nanoseconds.
    call_ns: i64,
    round: u32,
    /// log2 of the longest check interval that is due in this round.
    due: u32,
    /// The gain at which it pays to predict a page dirty and to check it later.
    worth_checking: i64,
    worth: Worth,
    /// The cost of letting the next scan re-arm everything: the faults of predicted pages that are
    /// not due for a check.
    faults: i64,
    /// The cost of the false positives that waiting pages are until then.
    false_positives: i64,
    /// Whether pages are due for a check, or have waited long enough.
    pub(super) checks_due: bool,
}

impl<'a> Inspection<'a> {
    /// Begins a block. `hot`: its pages that were better left unprotected, in the last round in
    /// which any was reported.
    pub(super) fn new(costs: &'a Costs, call_ns: i64, round: u32, due: u32, hot: u32) -> Self {
        Self {
            costs,
            call_ns,
            round,
            due,
            // One check covers all pages of the block that are due, so they share its cost.
            worth_checking: costs.worth_checking(call_ns / i64::from(hot.max(1))),
            worth: Worth::default(),
            faults: 0,
            false_positives: 0,
            checks_due: false,
        }
    }

    /// Inspects adjacent pages that the scan has re-armed, the first of them at `start`: does it
    /// pay to leave the block unprotected from the next scan on?
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
                Standing::Predicted | Standing::Checking => {
                    self.worth.add(self.costs.gain(page.written));
                    page.stand(Standing::Checking);
                    page.pass_over(self.round);
                    notes.checking.extend_back(start, page_bytes);
                }
            }
            start += page_bytes;
        }
    }

    /// Inspects adjacent pages that the scan has not re-armed, the first of them at `start`.
    pub(super) fn scanned(&mut self, mut start: u64, pages: &mut [Page], notes: &mut Notes<'_>) {
        let page_bytes = page_size();
        let page_shift = page_bytes.trailing_zeros();
        // Resting pages need no work, and where prediction pays, most pages of a round rest. Pages
        // that the scan has re-armed do not rest.
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

    /// Records that a page was reported, according to its standing, and returns that standing.
    fn learn(&self, page: &mut Page, start: u64, notes: &mut Notes<'_>) -> Standing {
        let standing = page.standing();
        match standing {
            Standing::Armed => page.observe_write(self.round),
            Standing::Checking => {
                page.observe_write(self.round);
                let level = (page.level() + 1).min(self.costs.level_max());
                page.set(Standing::Checking, level);
            }
            Standing::Predicted | Standing::Waiting => {
                notes.predicted.extend_back(start, page_size());
            }
        }
        standing
    }

    /// Decides for an unprotected page whether it stays unprotected, waits for a call, or is worth
    /// one.
    fn place(&mut self, page: &mut Page, start: u64, notes: &mut Notes<'_>) {
        let end = start + page_size();
        let standing = self.learn(page, start, notes);
        let gain = self.costs.gain(page.written);
        self.worth.add(gain);
        match standing {
            Standing::Armed if gain <= self.worth_checking => page.stand(Standing::Predicted),
            Standing::Armed => page.stand(Standing::Waiting),
            Standing::Checking => page.stand(Standing::Predicted),
            Standing::Predicted | Standing::Waiting => {}
        }
        if page.standing() == Standing::Waiting {
            let waited = i64::from(page.rounds_since_seen(self.round)) + 1;
            let mut worth = gain.max(1) * waited;
            if self.due >= WAIT_LOG_MAX {
                worth = worth.max(self.call_ns);
                self.checks_due = true;
            }
            notes.spans.want(start, end, worth);
            self.false_positives += gain.max(0);
        } else if self.costs.check_log(page.level()) <= self.due && !page.seen_in(self.round) {
            notes.spans.want(start, end, self.call_ns);
            self.checks_due = true;
        } else {
            // It is not due, or a write was detected in this round, so that there is nothing to
            // check.
            notes.spans.spare(-gain);
            self.faults -= gain;
        }
    }

    /// The number of pages that are better left unprotected.
    pub(super) fn hot(&self) -> u32 {
        self.worth.hot
    }

    /// Whether it pays that the next scan does not re-arm the block.
    pub(super) fn pays(&self) -> bool {
        self.worth.pays(self.call_ns)
    }

    /// The cost, in nanoseconds, of making no calls and letting the next scan re-arm everything.
    pub(super) fn lost_without_calls(&self) -> i64 {
        self.faults + self.false_positives
    }
}

/// What leaving a block unprotected for a round would save, by the evidence of this round.
#[derive(Default)]
struct Worth {
    /// The saving, in nanoseconds, if nothing in the block is re-armed.
    whole: i64,
    /// The saving if the pages that are better armed are re-armed, without the cost of the calls.
    parts: i64,
    /// The number of runs of such pages, each of which needs a call.
    runs: i64,
    /// The number of pages that are better left unprotected.
    hot: u32,
    within_run: bool,
    /// The number of reported pages.
    pages: i64,
}

impl Worth {
    /// Adds a page for which arming saves `gain`.
    fn add(&mut self, gain: i64) {
        // This has no branch, because hot pages are mixed with others at random.
        let hot = gain < 0;
        self.pages += 1;
        self.whole -= gain;
        self.parts -= gain.min(0);
        self.hot += u32::from(hot);
        self.runs += i64::from(!hot & !self.within_run);
        self.within_run = !hot;
    }

    /// Adds pages that are better left unprotected; arming them all saves `gain`, a negative
    /// number.
    fn add_hot(&mut self, pages: usize, gain: i64) {
        self.pages += pages as i64;
        self.whole -= gain;
        self.parts -= gain;
        self.hot += pages as u32;
        self.within_run = false;
    }

    /// Whether leaving the block unprotected pays; half of the saving is reserved for checks.
    fn pays(&self, call: i64) -> bool {
        let saved = self.whole.max(self.parts - self.runs * call);
        saved / 2 >= call / 8 + self.pages * INSPECT_NS
    }
}

/// A run of adjacent pages that are predicted dirty and not checked in this round.
struct Resting {
    pages: usize,
    /// What arming them would save, which is negative.
    gain: i64,
}

impl Resting {
    /// The resting pages at the beginning of `pages`: those predicted with at least this level of
    /// evidence.
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
        // Hot pages among few others pay; alternating with as many others they do not.
        assert!(of(&[-900, -900, -900, -900, 1_400, -900, -900]));
        assert!(!of(&[-600, 500, -600, 500, -600, 500, -600, 500]));
        // Where pages are hot with certainty, false positives among their neighbours are
        // acceptable.
        assert!(of(&[-1_000, 200, -1_000, 200, -1_000, 200]));
        assert!(!of(&[]));
    }
}
