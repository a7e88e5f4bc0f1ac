//! When a program enters another phase: probes that find out, and what is doubted then.

use pagetrail::PageSet;

use super::cursor::{Touches, push};
use super::spot_check::Samples;
use super::{Policy, Sample};

impl Policy {
    /// Picks a sample of backed-off pages that should be in use, to be armed for one window.
    ///
    /// [`Self::probed`] takes the result of that window.
    pub fn probe(&mut self) -> PageSet {
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        self.windows += 1;
        let mut samples = Samples::new(&self.settings, self.windows);
        let mut picked = PageSet::new();
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                let address = base + index as u64 * bytes;
                if samples.probe(page, address) {
                    push(&mut picked, address, address + bytes);
                }
            }
        }
        picked
    }

    /// Takes the result of a probe, and returns whether it found a phase change. If so, the
    /// back-off of all pages is reset.
    pub fn probed(&mut self, sample: &Sample) -> bool {
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        let mut touches = Touches::new(sample);
        let mut samples = Samples::new(&self.settings, self.windows);
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                let address = base + index as u64 * bytes;
                let touched = touches.any(address, address + bytes).any();
                samples.take_picked(page, touched);
            }
        }
        let contradicted = samples.contradict(&self.settings);
        if contradicted {
            self.reset_back_off(&mut PageSet::new());
        }
        contradicted
    }

    /// Begins a phase.
    pub(super) fn reset_back_off(&mut self, rearm: &mut PageSet) {
        self.since_phase_change = 0;
        // The history belongs to the phase that ended.
        self.seen = 0;
        self.wake_all(rearm);
    }

    /// Resets the back-off of all pages, so that the next window samples them.
    pub(super) fn wake_all(&mut self, rearm: &mut PageSet) {
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        let mut woken = PageSet::new();
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                if page.is_backed_off() {
                    page.reset_back_off();
                    let address = base + index as u64 * bytes;
                    push(&mut woken, address, address + bytes);
                }
            }
        }
        rearm.union_with(&woken);
    }
}
