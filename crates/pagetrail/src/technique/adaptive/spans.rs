//! [`Spans`]: which stretches of memory to re-arm, each by one call.
//!
//! A call costs about as much as a fault, so neighbours share one: it may reach over pages that are armed, since re-arming tells
//! what was written there meanwhile, and over pages that would rather stay unprotected, where the fault that this costs them
//! is cheaper than another call. A stretch that is not worth a call yet has to wait.

use crate::page_set::PageRange;

/// Collects stretches from pages in ascending order.
#[derive(Debug)]
pub(super) struct Spans {
    /// What a call costs, in nanoseconds.
    call: i64,
    open: Option<Open>,
    found: Vec<PageRange>,
    /// How many of `found` there were when the block began.
    before: usize,
    /// What the stretches since then cost, besides the calls.
    losses: i64,
}

#[derive(Debug)]
struct Open {
    start: u64,
    end: u64,
    /// What it saves to re-arm it, in nanoseconds.
    gain: i64,
    /// What it costs to reach over the pages in it.
    losses: i64,
    /// What it costs to reach over the pages behind it.
    loss: i64,
}

impl Spans {
    /// `room`: memory for the stretches, used again.
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

    /// Begins a block; no stretch reaches into it.
    pub(super) fn begin(&mut self) {
        self.close();
        self.before = self.found.len();
        self.losses = 0;
    }

    /// What the stretches of the block cost; nothing where there are none.
    pub(super) fn cost(&mut self) -> i64 {
        self.close();
        (self.found.len() - self.before) as i64 * self.call + self.losses
    }

    /// Takes the stretches of the block back.
    pub(super) fn give_up(&mut self) {
        self.close();
        self.found.truncate(self.before);
    }

    /// A page, or several, that it saves `gain` to re-arm.
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

    /// Pages that it costs `loss` to re-arm.
    pub(super) fn spare(&mut self, loss: i64) {
        if let Some(open) = &mut self.open {
            open.loss = open.loss.saturating_add(loss);
        }
    }

    /// Ends the stretch: no call may reach over this place.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take()
            && open.gain >= self.call
        {
            self.found.extend(PageRange::new(open.start, open.end));
            self.losses += open.losses;
        }
    }

    /// The stretches, ascending.
    pub(super) fn finish(mut self) -> Vec<PageRange> {
        self.close();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages by letter: `w` wanted (gain 10), `s` spared (loss 4), `.` armed; a call costs 10. Stretches as page numbers.
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
    fn one_call_reaches_over_armed_pages() {
        assert_eq!(spans("..w....w.w"), [(3, 11)]);
    }

    #[test]
    fn it_reaches_over_few_pages_that_are_better_left_alone() {
        assert_eq!(spans("wsswsss"), [(1, 5)]);
        assert_eq!(spans("wssswssw"), [(1, 2), (5, 9)]);
    }

    #[test]
    fn nothing_is_worth_a_call_that_costs_more() {
        let mut spans = Spans::new(25, Vec::new());
        spans.want(1, 2, 10);
        spans.spare(30);
        spans.want(5, 6, 10);
        spans.want(9, 10, 20);
        assert_eq!(spans.finish(), [PageRange::new(5, 10).unwrap()]);
    }

    #[test]
    fn a_block_tells_what_it_costs_and_can_be_untracked() {
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
        spans.give_up();
        assert_eq!(spans.finish(), [PageRange::new(1, 2).unwrap()]);
    }

    #[test]
    fn no_call_reaches_over_a_border() {
        assert_eq!(spans("w|w"), [(1, 2), (3, 4)]);
    }
}
