//! What a watch asks of the technique, whatever the mappings are.

use super::Space;
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use crate::types::AccessKind;

impl Space {
    /// Sets what a fault counts for a technique that predicts, as a multiple of its price.
    pub(crate) fn weigh_faults(&mut self, weight: f64) {
        self.tracker.weigh_faults(weight);
    }

    /// Declares whether the caller keeps all threads of the target stopped during the next
    /// collects, so that the tracker need not.
    pub(crate) fn set_held(&mut self, held: bool) {
        self.tracker.set_held(held);
    }

    /// Sets whether collects arm what they report; returns false if the technique cannot do
    /// otherwise.
    pub(crate) fn set_rearming(&mut self, rearming: bool) -> bool {
        self.tracker.set_rearming(rearming)
    }

    /// Arms pages that a collect has left unarmed.
    pub(crate) fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        self.tracker.rearm(pages)
    }

    /// Disarms everything until the next collect.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        self.tracker.suspend()
    }

    pub(crate) fn prepare_for_kernel_write(&mut self, range: PageRange) {
        self.tracker.prepare_for_kernel_write(range);
    }

    /// Private memory in which the next collect reports pages that are discarded meanwhile.
    pub(crate) fn reports_discards_in(&self) -> PageSet {
        self.tracker
            .reports_discards_in()
            .cloned()
            .unwrap_or_default()
    }

    /// What the next collect reports.
    pub(crate) fn access_kind(&self) -> AccessKind {
        self.tracker.access_kind()
    }
}
