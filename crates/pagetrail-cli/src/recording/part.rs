//! [`Part`]: one process of a recording: its mappings, its stacks, and where it is in the trail.

use pagetrail_trail::{Process, StackTable};

use super::layout::Layout;
use super::stacks::Stacks;

/// A process that is recorded.
pub(crate) struct Part {
    /// What the trail says of it when it appears.
    pub(crate) process: Process,
    /// Its number in the trail, once it is there.
    pub(crate) number: Option<u32>,
    pub(crate) layout: Layout,
    /// Samples which code writes.
    pub(crate) stacks: Option<Stacks>,
    /// Call stacks that the trail does not have yet.
    pub(crate) new_stacks: StackTable,
}

impl Part {
    pub(crate) fn new(process: Process, stacks: Option<Stacks>) -> Self {
        Self {
            layout: Layout::naming(process.header.pid),
            process,
            number: None,
            stacks,
            new_stacks: StackTable::default(),
        }
    }
}
