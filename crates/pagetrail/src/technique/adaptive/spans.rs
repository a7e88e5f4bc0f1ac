//! [`Spans`]: which spans of memory to re-arm, each by one call.
//!
//! A call costs about as much as a fault, so adjacent pages share one: it may span armed pages,
//! since re-arming reports what was written there meanwhile, and pages that are better left
//! unprotected, if the fault that this costs them is cheaper than another call. A span that is not
//! worth a call yet has to wait.

use crate::page_set::PageRange;

/// Collects spans from pages in ascending order.
#[derive(Debug)]
pub(super) struct Spans {
    /// The cost of a call, in nanoseconds.
    call: i64,
    open: Option<Open>,
    found: Vec<PageRange>,
    /// The length of `found` when the block began.
    before: usize,
    /// The losses of the spans found since then, without the calls.
    losses: i64,
}

#[derive(Debug)]
struct Open {
    start: u64,
    end: u64,
    /// What re-arming it saves, in nanoseconds.
    gain: i64,
    /// The loss of re-arming the pages in it that are better left unprotected.
    losses: i64,
    /// The loss of extending it over the pages after it.
    loss: i64,
}

impl Spans {
    /// Begins without a span. `room`: memory for the spans, which is reused.
    pub(super) fn new(call: i64, mut room: Vec<PageRange>) -> Self {
        room.clear();
        Self {
            call,
            open: None,
            found: room,
            before: 0,
            losses: 0,
        }
    }

    /// Begins a block; no span crosses into it.
    pub(super) fn begin(&mut self) {
        self.close();
        self.before = self.found.len();
        self.losses = 0;
    }

    /// The cost of the block's spans; zero if there are none.
    pub(super) fn cost(&mut self) -> i64 {
        self.close();
        (self.found.len() - self.before) as i64 * self.call + self.losses
    }

    /// Discards the spans of the block.
    pub(super) fn discard(&mut self) {
        self.close();
        self.found.truncate(self.before);
    }

    /// Adds pages for which re-arming saves `gain`.
    pub(super) fn want(&mut self, start: u64, end: u64, gain: i64) {
        match &mut self.open {
            Some(open) if open.loss < self.call => {
                open.end = end;
                open.gain += gain - open.loss;
                open.losses += open.loss;
                open.loss = 0;
            }
            _ => {
                self.close();
                self.open = Some(Open {
                    start,
                    end,
                    gain,
                    losses: 0,
                    loss: 0,
                });
            }
        }
    }

    /// Passes pages for which re-arming costs `loss`.
    pub(super) fn spare(&mut self, loss: i64) {
        if let Some(open) = &mut self.open {
            open.loss = open.loss.saturating_add(loss);
        }
    }

    /// Ends the span: no call may cross this address.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take()
            && open.gain >= self.call
        {
            self.found.extend(PageRange::new(open.start, open.end));
            self.losses += open.losses;
        }
    }

    /// The spans, ascending.
    pub(super) fn finish(mut self) -> Vec<PageRange> {
        self.close();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the spans, as page numbers, of pages given as letters: `w` wanted (gain 10), `s`
    /// spared (loss 4), `.` armed; a call costs 10.
    fn spans(pages: &str) -> Vec<(u64, u64)> {
        let mut spans = Spans::new(10, Vec::new());
        for (at, kind) in (1..).zip(pages.chars()) {
            match kind {
                'w' => spans.want(at, at + 1, 10),
                's' => spans.spare(4),
                '|' => spans.close(),
                _ => {}
            }
        }
        let found = spans.finish();
        found
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect()
    }

    #[test]
    fn one_call_spans_armed_pages() {
        assert_eq!(spans("..w....w.w"), [(3, 11)]);
    }

    #[test]
    fn a_call_spans_few_pages_that_are_better_left_unprotected() {
        assert_eq!(spans("wsswsss"), [(1, 5)]);
        assert_eq!(spans("wssswssw"), [(1, 2), (5, 9)]);
    }

    #[test]
    fn no_call_is_made_that_costs_more_than_it_saves() {
        let mut spans = Spans::new(25, Vec::new());
        spans.want(1, 2, 10);
        spans.spare(30);
        spans.want(5, 6, 10);
        spans.want(9, 10, 20);
        assert_eq!(spans.finish(), [PageRange::new(5, 10).unwrap()]);
    }

    #[test]
    fn the_spans_of_a_block_have_a_cost_and_can_be_discarded() {
        let mut spans = Spans::new(10, Vec::new());
        spans.want(1, 2, 10);
        spans.begin();
        assert_eq!(spans.cost(), 0);
        spans.want(2, 3, 10);
        spans.spare(4);
        spans.want(4, 5, 10);
        spans.spare(40);
        spans.want(9, 10, 10);
        assert_eq!(spans.cost(), 24);
        spans.discard();
        assert_eq!(spans.finish(), [PageRange::new(1, 2).unwrap()]);
    }

    #[test]
    fn no_call_crosses_a_border() {
        assert_eq!(spans("w|w"), [(1, 2), (3, 4)]);
    }
}
