//! [`Steps`]: a plan in small steps. Each makes the room that its promotions need, so that a plan
//! that takes longer than there is time for has promoted pages, too, and the hottest ones.

use crate::policy::plan::{Plan, Unit};

/// Bytes that the first step promotes: a huge page.
const BYTES_MIN: u64 = 2 << 20;
/// Bytes that a step promotes at most; a call for few pages keeps few threads busy.
const BYTES_MAX: u64 = 64 << 20;

/// What is left of a plan.
#[derive(Debug)]
pub(crate) struct Steps<'a> {
    demote: &'a [Unit],
    promote: &'a [Unit],
    bytes: u64,
}

/// What moves next: first out of fast memory, then into it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step<'a> {
    pub(crate) demote: &'a [Unit],
    pub(crate) promote: &'a [Unit],
}

impl<'a> Steps<'a> {
    pub(crate) fn of(plan: &'a Plan) -> Self {
        Self {
            demote: &plan.demote,
            promote: &plan.promote,
            bytes: BYTES_MIN,
        }
    }

    /// The next step, while `fast` bytes are in fast memory, of at most `capacity`. Demotions that
    /// make room for nothing are left out.
    pub(crate) fn next(&mut self, fast: u64, capacity: u64) -> Option<Step<'a>> {
        let promote = take(&mut self.promote, self.bytes);
        let coming: u64 = promote.iter().map(|unit| unit.bytes).sum();
        let demote = take(&mut self.demote, (fast + coming).saturating_sub(capacity));
        self.bytes = (self.bytes * 2).min(BYTES_MAX);
        let moves = !demote.is_empty() || !promote.is_empty();
        moves.then_some(Step { demote, promote })
    }

    /// Ends the promotions; returns how many pages, or huge pages, are left.
    pub(crate) fn end_promotions(&mut self) -> usize {
        std::mem::take(&mut self.promote).len()
    }

    /// Ends the plan; returns how many pages, or huge pages, are left.
    pub(crate) fn end(&mut self) -> usize {
        self.end_promotions() + std::mem::take(&mut self.demote).len()
    }
}

/// Takes units off the front until they have so many bytes.
fn take<'a>(units: &mut &'a [Unit], bytes: u64) -> &'a [Unit] {
    let mut sum = 0;
    let count = units
        .iter()
        .take_while(|unit| {
            let takes = sum < bytes;
            sum += unit.bytes;
            takes
        })
        .count();
    let (taken, left) = units.split_at(count);
    *units = left;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const FIRST: usize = (BYTES_MIN / PAGE) as usize;

    fn units(pages: std::ops::Range<u64>) -> Vec<Unit> {
        let unit = |page| Unit {
            address: page * PAGE,
            bytes: PAGE,
            rank: 1,
        };
        pages.map(unit).collect()
    }

    #[test]
    fn each_step_makes_the_room_that_it_needs() {
        let plan = Plan {
            demote: units(0..10_000),
            promote: units(20_000..30_000),
            ..Plan::default()
        };
        let mut steps = Steps::of(&plan);
        // Fast memory is full but for a hundred pages, and so much more than may be is there.
        let step = steps.next(900 * PAGE, 1000 * PAGE).unwrap();
        assert_eq!(
            (step.demote.len(), step.promote.len()),
            (FIRST - 100, FIRST)
        );
        let step = steps.next(1300 * PAGE, 1000 * PAGE).unwrap();
        assert_eq!(step.promote.len(), 2 * FIRST);
        assert_eq!(step.demote.len(), 2 * FIRST + 300);
        // All of the plan, in its order.
        let (mut out, mut into) = (FIRST * 3 + 200, FIRST * 3);
        while let Some(step) = steps.next(1000 * PAGE, 1000 * PAGE) {
            assert_eq!(step.demote, &plan.demote[out..out + step.demote.len()]);
            assert_eq!(step.promote, &plan.promote[into..into + step.promote.len()]);
            (out, into) = (out + step.demote.len(), into + step.promote.len());
        }
        assert_eq!((out, into), (10_000, 10_000));
    }

    #[test]
    fn what_is_not_promoted_makes_no_room() {
        let plan = Plan {
            demote: units(0..2000),
            promote: units(5000..7000),
            ..Plan::default()
        };
        let mut steps = Steps::of(&plan);
        steps.next(1000 * PAGE, 1000 * PAGE).unwrap();
        assert_eq!(steps.end_promotions(), 2000 - FIRST);
        // What is more than may be goes in any case.
        let step = steps.next(1010 * PAGE, 1000 * PAGE).unwrap();
        assert_eq!((step.demote.len(), step.promote.len()), (10, 0));
        assert_eq!(steps.next(1000 * PAGE, 1000 * PAGE), None);
        assert_eq!(steps.end(), 2000 - FIRST - 10);
    }

    #[test]
    fn a_huge_page_is_never_too_large() {
        let huge = Unit {
            address: 0,
            bytes: 1 << 30,
            rank: 1,
        };
        let plan = Plan {
            promote: vec![huge],
            ..Plan::default()
        };
        let step = Steps::of(&plan).next(0, 0).unwrap();
        assert_eq!(step.promote, [huge]);
    }
}
