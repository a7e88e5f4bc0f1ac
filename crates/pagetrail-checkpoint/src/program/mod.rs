//! Checkpoints in one's own program: [`checkpointer`] to disk, [`snapshot`] in memory.

pub(crate) mod checkpointer;
pub(crate) mod policy;
pub(crate) mod snapshot;
