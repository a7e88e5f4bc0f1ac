//! Checkpoints in one's own program: [`checkpointer`] to disk, [`snapshot`] in memory, [`cow`] of
//! memory that is written to meanwhile.

pub(crate) mod checkpointer;
pub(crate) mod cow;
pub(crate) mod policy;
pub(crate) mod snapshot;

use crate::format::manifest::Mapping;
use pagetrail::{PageRange, Permissions};

/// What a manifest says of memory of the own program.
fn region(range: PageRange, name: &str) -> Mapping {
    Mapping {
        range,
        permissions: Permissions {
            read: true,
            write: true,
            execute: false,
            shared: false,
        },
        offset: 0,
        device: (0, 0),
        inode: 0,
        name: name.into(),
        build_id: Vec::new(),
        saved: true,
        own_writes_only: false,
    }
}
