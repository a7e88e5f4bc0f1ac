//! What is released at the end of a collect, so that it does not fault in the next round: pages
//! that are predicted dirty from now on, and pages ahead of sweeps.
//!
//! A released page is reported by each scan until it is re-armed, and one that is written just
//! before it is released is so, too.

use super::Adaptive;
use super::blocks::Blocks;
use super::sweeps;
use super::table::{Page, Standing};
use super::{REARM_NS, block_bytes};
use crate::page_set::{PageRange, PageSet, page_size};

/// The most calls in a collect, a few milliseconds: pages here and there take one each, and what is
/// left of them faults once more.
pub(super) const CALLS_MAX: u32 = 4096;

impl Adaptive {
    /// Releases hot pages of the blocks that the next scan does not re-arm, but this one did
    /// (`before`: those that it left, too). Without that each would fault once more first. One call
    /// releases adjacent pages, if their faults would cost more.
    pub(super) fn release_left(&mut self, before: &PageSet) {
        if self.exact.is_some() {
            return; // The hashes of pages that were not predicted before are unknown.
        }
        let begun = self.left.difference(before);
        let mut calls = 0;
        let (page_bytes, block_bytes) = (page_size(), block_bytes());
        let mut blocks = Blocks::of(&begun, block_bytes);
        while let Some((block, _)) = blocks.next_block() {
            let known = self.table.block_mut(block.start(), self.round);
            let call_ns = self.call_ns;
            let worth = self
                .costs
                .worth_checking(call_ns / i64::from(known.hot.max(1)));
            let round = self.round;
            let gain = |page: &Page| {
                let gain = self.costs.gain(page.written);
                let is_armed = page.standing() == Standing::Armed && page.seen_in(round);
                (is_armed && gain <= worth).then_some(gain)
            };
            let mut first = 0;
            while first < known.pages.len() {
                let (mut end, mut saved) = (first, 0);
                while let Some(gain) = known.pages.get(end).and_then(gain) {
                    (end, saved) = (end + 1, saved - gain);
                }
                let pages = (end - first) as u64;
                let start = block.start() + first as u64 * page_bytes;
                let run = PageRange::new(start, start + pages * page_bytes);
                if saved > call_ns + pages as i64 * REARM_NS
                    && let Some(run) = run
                    && self.writes.known_part(run) == Some(run)
                {
                    calls += 1;
                    if calls > CALLS_MAX {
                        return;
                    }
                    if self.writes.release(run) {
                        for page in &mut known.pages[first..end] {
                            page.stand(Standing::Predicted);
                        }
                    }
                }
                first = end.max(first + 1);
            }
        }
    }

    /// Releases pages ahead of sweeps, so that these need not fault there. Called after re-arming,
    /// which would undo it.
    pub(super) fn release_ahead(&mut self) {
        if self.exact.is_some() {
            return; // The hashes of pages that were not predicted before are unknown.
        }
        let Self {
            writes,
            table,
            sweeps,
            left,
            whole,
            round,
            ..
        } = self;
        sweeps.look_ahead(self.costs.sweep_rounds(), |ahead, apart| {
            let Some(ahead) = writes.known_part(ahead) else {
                return ahead.start();
            };
            for span in sweeps::spans_of(ahead, apart) {
                // A block that the scan does not re-arm would stay unprotected; a part of a huge
                // page cannot be released.
                let blocks = span.align_outwards(block_bytes());
                if left.intersects(blocks) || whole.intersects(span) || !writes.release(span) {
                    return span.start() - page_size();
                }
                let parts = PageSet::from_iter([span]);
                let mut blocks = Blocks::of(&parts, block_bytes());
                while let Some((block, parts)) = blocks.next_block() {
                    let pages = &mut table.block_mut(block.start(), *round).pages;
                    for part in parts {
                        let first = ((part.start() - block.start()) / page_size()) as usize;
                        for page in &mut pages[first..first + part.page_count() as usize] {
                            page.stand(Standing::Waiting);
                        }
                    }
                }
            }
            ahead.end()
        });
    }
}
