//! [`Contents`]: what the records of one process have so far, by which the reader and the writer
//! check the next one.

use crate::StackTable;
use crate::payload::Counts;

/// How much of one process a trail has.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Whether each mapping has vanished.
    mappings: Vec<bool>,
    /// The number of rounds.
    pub(crate) rounds: u32,
    /// How many stacks, frames and modules there are.
    pub(crate) counts: Counts,
}

impl Contents {
    /// The index of the next mapping.
    pub(crate) fn next_mapping(&self) -> usize {
        self.mappings.len()
    }

    /// Adds a mapping.
    pub(crate) fn add_mapping(&mut self, has_vanished: bool) {
        self.mappings.push(has_vanished);
    }

    /// Whether a mapping appeared and has not vanished; `None` if it never appeared.
    pub(crate) fn is_mapped(&self, index: usize) -> Option<bool> {
        self.mappings.get(index).map(|vanished| !vanished)
    }

    /// Notes that a mapping has vanished.
    pub(crate) fn remove_mapping(&mut self, index: usize) {
        if let Some(vanished) = self.mappings.get_mut(index) {
            *vanished = true;
        }
    }

    /// Adds stacks and what they consist of.
    pub(crate) fn add_stacks(&mut self, stacks: &StackTable) {
        self.counts = self.counts.and(stacks);
    }
}
